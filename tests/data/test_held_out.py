"""Which samples are held out for testing: a share of all and of every group, the same in every run, and enough of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bifl.data.arrays import held_out
from bifl.data.datasets import dataset
from bifl.errors import ConfigError


def test_held_out_images_are_spread_over_the_groups() -> None:
    groups = np.repeat(np.arange(4), [100, 50, 10, 3])
    test = held_out(groups, 0.1)
    assert [int(test[groups == g].sum()) for g in range(4)] == [10, 5, 1, 0]
    assert len(np.unique(np.flatnonzero(test) % 10)) > 3, "not every tenth: files are sorted by class"


@pytest.mark.parametrize("share", [0.05, 0.1, 0.11, 1 / 3, 0.5, 0.9])
@pytest.mark.parametrize("most", [1, 2, 3, 9, 40])
def test_a_share_is_held_out_of_many_who_have_little(share: float, most: int) -> None:
    dice = np.random.default_rng(most)
    groups = dice.permutation(np.repeat(np.arange(3000), dice.integers(1, most + 1, 3000)))
    test = held_out(groups, share)
    assert test.sum() == int(share * len(groups) + 0.5)
    own, whole = np.bincount(groups[test], minlength=3000), np.bincount(groups) * share
    assert (np.floor(whole + 1e-9) <= own).all(), "who has enough gives the share"
    assert (own <= np.ceil(whole - 1e-9)).all()


def test_where_nothing_is_left_over_the_same_images_are_held_out_as_ever() -> None:
    """By the rule of the first version, which took ⌊share · n⌋ of every group."""
    groups = np.random.default_rng(0).permutation(np.repeat(np.arange(20), 10 * np.arange(1, 21)))
    shuffled = np.random.default_rng(0).permutation(len(groups))
    expected = np.zeros(len(groups), np.bool_)
    for group in range(20):
        own = shuffled[groups[shuffled] == group]
        expected[own[9::10]] = True
    assert np.array_equal(held_out(groups, 0.1), expected)


@pytest.mark.parametrize(("samples", "share"), [(4, 0.1), (90, 0.1), (10_000, 0.0001), (2, 0.2)])
def test_too_few_to_test_with_are_refused(tmp_path: Path, samples: int, share: float) -> None:
    count = int(share * samples + 0.5)
    np.savez(tmp_path / "mine.npz", inputs=np.zeros((samples, 2), np.float32), labels=np.zeros(samples, np.int64))
    with pytest.raises(ConfigError, match=rf"test_share={share:g} of {samples:,} samples are {count}, too few to test with"):
        dataset.make("npz", {"path": str(tmp_path / "mine.npz"), "test_share": share})


def test_few_images_of_many_people_are_tested_on(tmp_path: Path) -> None:
    users = np.random.default_rng(0).integers(0, 5429, 10_000)
    np.savez(tmp_path / "faces.npz", inputs=np.zeros((10_000, 1), np.float32), labels=np.arange(10_000) % 2, users=users)
    data = dataset.make("npz", {"path": str(tmp_path / "faces.npz"), "test_share": 0.1})
    assert (len(data.labels), len(data.test_labels)) == (9000, 1000)
