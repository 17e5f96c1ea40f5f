"""Data: containers, digests, refusals; and who gets which images."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bifl.data import mnist
from bifl.data.datasets import dataset
from bifl.data.partition import partition, split
from bifl.errors import ConfigError, DataError

LABELS = np.repeat(np.arange(10), 60)


def test_mnist5k_is_stratified() -> None:
    digits = dataset.make("mnist5k", {})
    assert digits.images.shape == (4000, 1, 28, 28)
    assert np.bincount(digits.labels).tolist() == [400] * 10
    assert np.bincount(digits.test_labels).tolist() == [100] * 10
    assert digits.images.max() == 255


ARRAYS = [
    np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    np.arange(2, dtype=np.uint8),
    np.ones((1, 3, 4), np.uint8),
    np.ones(1, np.uint8),
]


def idx(array: npt.NDArray[np.uint8]) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A stand-in for MNIST with digests of its own, in an empty BIFL_DATA; no mirror and no npm to fall back on."""
    names = {
        name: (hashlib.sha256(idx(a)).hexdigest(), key) for (name, (_, key)), a in zip(mnist.FILES.items(), ARRAYS, strict=True)
    }
    monkeypatch.setattr(mnist, "FILES", names)
    monkeypatch.setattr(mnist, "MIRRORS", ("http://127.0.0.1:9/",))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("BIFL_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("container", ["idx", "gz", "npz"])
def test_mnist_in_any_container(tiny: Path, container: str) -> None:
    if container == "npz":
        np.savez(tiny / "mnist.npz", **{key: a for (_, key), a in zip(mnist.FILES.values(), ARRAYS, strict=True)})  # type: ignore[arg-type]
    for name, array in zip(mnist.FILES, ARRAYS, strict=True):
        if container == "idx":
            (tiny / name).write_bytes(idx(array))
        elif container == "gz":
            (tiny / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    assert [a.tolist() for a in mnist.load()] == [a.tolist() for a in ARRAYS]


@pytest.mark.parametrize("damage", ["truncated", "truncated gz", "other digits", "truncated npz", "npz without labels"])
def test_a_damaged_file_is_refused_by_name(tiny: Path, damage: str) -> None:
    for name, array in zip(mnist.FILES, ARRAYS, strict=True):
        (tiny / name).write_bytes(idx(array))
    victim = tiny / "t10k-labels-idx1-ubyte"
    raw = victim.read_bytes()
    if damage == "truncated":
        victim.write_bytes(raw[:-1])
    elif damage == "other digits":
        victim.write_bytes(raw[:-1] + b"\x07")
    elif damage == "truncated gz":
        victim.unlink()
        victim = victim.with_suffix(".gz")
        victim.write_bytes(gzip.compress(raw)[:-5])
    else:
        victim.unlink()
        victim = tiny / "mnist.npz"
        np.savez(victim, x_train=ARRAYS[0])
        if damage == "truncated npz":
            victim.write_bytes(victim.read_bytes()[:-30])
    with pytest.raises(DataError, match=f"{victim.name}.*delete it") as caught:
        mnist.load()
    assert "\n" not in str(caught.value)


def test_where_mnist_cannot_be_had_one_sentence_says_how_to_provide_it(tiny: Path) -> None:
    with pytest.raises(DataError, match=r"set BIFL_DATA.*dataset=mnist5k"):
        mnist.load()


@pytest.mark.full_mnist
def test_the_full_mnist() -> None:
    try:
        found = [mnist._find(mnist.data_folder(), name) for name in mnist.FILES]
    except DataError as error:
        pytest.fail(str(error))
    if None in found:
        pytest.skip(f"MNIST is not in '{mnist.data_folder()}'; bifl run mnist-iid rounds=1 puts it there")
    digits = dataset.make("mnist", {})
    assert digits.images.shape == (60_000, 1, 28, 28)
    assert round(digits.images.mean() / 255, 4) == 0.1307
    assert digits.labels[:5].tolist() == [5, 0, 4, 1, 9]


def class_counts(parts: list[npt.NDArray[np.int64]], labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
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


@pytest.mark.parametrize("name", ["iid", "by_class", "unbalanced"])
def test_the_seed_decides_the_split(name: str) -> None:
    one, same, other = (split(partition.make(name, {}), LABELS, 10, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("name", "clients", "sentence"),
    [
        ("iid", 601, "more than the 600"),
        ("iid", 301, "1 of 600 images"),
        ("unbalanced", 300, "1 of 600 images"),
        ("by_class", 7, "multiple of 10"),
    ],
)
def test_what_cannot_be_dealt_is_refused(name: str, clients: int, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        split(partition.make(name, {}), LABELS, clients, 0)
