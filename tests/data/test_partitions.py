"""Who gets which images: the laws of every partition."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bifl.data.partitions import partition, split
from bifl.errors import ConfigError

LABELS = np.repeat(np.arange(10), 60)


def class_counts(parts: Sequence[npt.NDArray[np.int64]], labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.array([np.bincount(labels[part], minlength=10) for part in parts])


@given(clients=st.integers(1, 200), counts=st.lists(st.integers(40, 80), min_size=10, max_size=10), seed=st.integers(0, 100))
def test_iid_is_even_in_size_and_classes(clients: int, counts: list[int], seed: int) -> None:
    labels = np.repeat(np.arange(10), counts)
    parts = split(partition.make("iid", {}), labels, clients, seed)
    assert {len(part) for part in parts} == {len(labels) // clients}
    assert np.ptp(class_counts(parts, labels), axis=0).max() <= 1
    assert len(np.unique(np.concatenate(parts))) == clients * (len(labels) // clients)


@given(clients=st.integers(1, 8).map(lambda n: 10 * n), shards=st.integers(1, 5), seed=st.integers(0, 100))
def test_by_class_gives_that_many_shards(clients: int, shards: int, seed: int) -> None:
    labels = np.repeat(np.arange(10), range(80, 90))
    parts = split(partition.make("by_class", {"classes_per_client": shards}), labels, clients, seed)
    size = 80 // (clients * shards // 10)
    assert {len(part) for part in parts} == {size * shards}
    held = class_counts(parts, labels)
    assert (held % size == 0).all()
    assert (held > 0).sum(1).max() <= shards
    assert len(np.unique(np.concatenate(parts))) == clients * shards * size


def test_unbalanced_is_the_papers_thirds() -> None:
    labels = np.repeat(np.arange(10), 6000)
    parts = split(partition.make("unbalanced", {}), labels, 100, 0)
    assert [(size, len(list(run))) for size, run in itertools.groupby(len(part) for part in parts)] == [
        (1200, 20),
        (600, 40),
        (300, 40),
    ]
    assert len(np.unique(np.concatenate(parts))) == 60_000
    held = class_counts(parts, labels)
    assert (held == held.sum(1, keepdims=True) // 10).all()


def test_unbalanced_is_the_papers_178_shards() -> None:
    parts = split(partition.make("unbalanced", {}), np.zeros(356, np.int64), 89, 0)
    assert [(size, len(list(run))) for size, run in itertools.groupby(len(part) for part in parts)] == [(8, 18), (4, 35), (2, 36)]


@given(
    name=st.sampled_from([("dirichlet", "concentration"), ("quantity", "skew")]),
    strength=st.floats(1e-4, 1e3),
    clients=st.integers(1, 60),
    counts=st.lists(st.integers(0, 80), min_size=1, max_size=10).filter(lambda counts: sum(counts) >= 120),
    seed=st.integers(0, 100),
)
def test_skewed_splits_always_end_and_hold_every_image_at_most_once(
    name: tuple[str, str], strength: float, clients: int, counts: list[int], seed: int
) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    deal = partition.make(name[0], {name[1]: strength})
    parts = split(deal, labels, clients, seed)
    together = np.concatenate(parts)
    assert len(parts) == clients
    assert len(np.unique(together)) == len(together)
    assert len(together) > len(labels) - 10 * clients, "hardly any image stays out"
    assert min(len(part) for part in parts) >= 2
    assert all(np.array_equal(a, b) for a, b in zip(parts, split(deal, labels, clients, seed), strict=True))


def test_the_smaller_the_concentration_the_fewer_classes_a_client_has() -> None:
    labels = np.repeat(np.arange(10), 600)
    splits = [
        class_counts(split(partition.make("dirichlet", {"concentration": c}), labels, 40, 0), labels)
        for c in (0.01, 0.1, 1.0, 100.0)
    ]
    held = [float((counts > 0).sum(1).mean()) for counts in splits]
    assert held == sorted(held)
    assert held[0] < 3
    assert held[-1] == 10
    first, last = (splits[2] > 0)[:10].sum(1).mean(), (splits[2] > 0)[-10:].sum(1).mean()
    assert abs(first - last) < 1.5, "the last client is no odder than the first"


def test_quantity_skew_is_a_power_law_with_even_classes() -> None:
    labels = np.repeat(np.arange(10), 6000)
    parts = split(partition.make("quantity", {"skew": 1.0}), labels, 10, 0)
    sizes = np.array([len(part) for part in parts])
    assert (np.diff(sizes) <= 0).all()
    assert sizes[0] / sizes[9] == pytest.approx(10, rel=0.5)
    held = class_counts(parts, labels)
    assert np.ptp(held, axis=1).max() <= 0.02 * sizes.max()


@given(
    sizes=st.lists(st.integers(1, 30), min_size=3, max_size=40),
    clients=st.integers(1, 3),
    at_least=st.sampled_from([0, 5, 20]),
    seed=st.integers(0, 9),
)
def test_by_user_never_parts_a_user(sizes: list[int], clients: int, at_least: int, seed: int) -> None:
    users = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)) * 7, sizes))
    deal = partition.make("by_user", {"at_least": at_least})
    try:
        parts = split(deal, np.zeros(len(users), np.int64), clients, seed, users)
    except ConfigError:  # too few images for that many clients
        assert sum(sizes) <= clients * (at_least + max(sizes)) or min(sizes) == 1
        return
    owners = [set(users[part].tolist()) for part in parts]
    assert len(parts) == clients
    assert sum(map(len, owners)) == len(set.union(*owners)), "no user has two clients"
    for part, own in zip(parts, owners, strict=True):
        assert np.isin(users, list(own)).sum() == len(part), "with all images, each once"
        assert len(part) > at_least
    if not at_least:
        assert sum(map(len, parts)) == len(users)
    again = split(deal, np.zeros(len(users), np.int64), clients, seed, users)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_the_authors_merge_in_sorted_order() -> None:
    users = np.repeat([1, 2, 3, 4, 5, 6], [300, 200, 100, 501, 499, 2])
    parts = split(partition.make("by_user", {"at_least": 500}), np.zeros(len(users), np.int64), 3, 0, users)
    assert [sorted(set(users[part].tolist())) for part in parts] == [[1, 2, 3], [4], [5, 6]]


def test_as_many_clients_as_users_is_one_each() -> None:
    users = np.repeat([5, 6, 9], [10, 20, 30])
    parts = split(partition.make("by_user", {}), np.zeros(60, np.int64), 3, 0, users)
    assert sorted(len(part) for part in parts) == [10, 20, 30]
    with pytest.raises(ConfigError, match="clients=4 is more than the 3 users give: use at most 3"):
        split(partition.make("by_user", {}), np.zeros(60, np.int64), 4, 0, users)
    with pytest.raises(ConfigError, match=r"clients=2 .* more than 40 samples each, give: use at most 1"):
        split(partition.make("by_user", {"at_least": 40}), np.zeros(60, np.int64), 2, 0, users)
    with pytest.raises(ConfigError, match="knows who made each sample"):
        split(partition.make("by_user", {}), np.zeros(60, np.int64), 2, 0)


@pytest.mark.parametrize("name", ["iid", "by_class", "unbalanced", "dirichlet", "quantity"])
def test_the_seed_decides_the_split(name: str) -> None:
    one, same, other = (split(partition.make(name, {}), LABELS, 10, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("name", "clients", "sentence"),
    [
        ("iid", 601, "more than the 600"),
        ("iid", 301, "1 of 600 samples"),
        ("unbalanced", 300, "1 of 600 samples"),
        ("by_class", 7, "multiple of 10"),
    ],
)
def test_what_cannot_be_dealt_is_refused(name: str, clients: int, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        split(partition.make(name, {}), LABELS, clients, 0)


def test_shards_that_nobody_could_hold_are_not_made() -> None:
    """by_class once made a list of all shards before anyone counted them: this would take the memory of the machine."""
    deal = partition.make("by_class", {"classes_per_client": 10**10})
    with pytest.raises(ConfigError, match="a class of 10 samples into 10000000000 shards"):
        deal(np.arange(100) % 10, 10, np.random.default_rng(0), None)
