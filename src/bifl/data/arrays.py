"""What a dataset is, the checks that every source passes, and a user's own arrays from an .npz file.

>>> import numpy as np
>>> labels = np.repeat([0, 1, 2], 30)
>>> np.bincount(labels[held_out(labels, 0.1)]).tolist()
[3, 3, 3]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bifl import npz
from bifl.errors import ConfigError, DataError

Array = npt.NDArray[Any]
Images = npt.NDArray[np.uint8]
Index = npt.NDArray[np.int64]
MOST_CLASSES = 100_000  # a network has outputs for all of them
PLAUSIBLE_CLASSES = 1000  # that a file may have without as many images
_BLOCK = 1000  # images at a time where a whole dataset would be copied otherwise


class Dataset(NamedTuple):
    """Images and labels for training and for testing, and the mean and deviation (of pixels/255) that normalise them."""

    images: Images  # (n, channels, height, width)
    labels: Index  # (n,)
    test_images: Images  # there may be none
    test_labels: Index
    classes: int
    mean: float
    std: float
    users: Index | None = None  # (n,) who made each training image, where that is known


def shape_text(data: Dataset) -> str:
    """What its images look like: "28×28 grey"."""
    channels, height, width = data.images.shape[1:]
    return f"{height}×{width} " + {1: "grey", 3: "RGB"}.get(channels, f"{channels}-channel")


def image_array(found: Array, source: str) -> Images:
    """Images as (n, channels, height, width).

    Raises:
        DataError: they are not bytes, or not shaped like images.
    """
    if found.dtype != np.uint8:
        raise DataError(f"{source} must be uint8, pixels from 0 to 255, not {found.dtype}")
    if found.ndim == 3:
        found = found[:, None]
    elif found.ndim == 4 and found.shape[3] in (1, 3) and found.shape[1] not in (1, 3):
        found = np.moveaxis(found, 3, 1)
    if found.ndim != 4 or 0 in found.shape[1:]:
        raise DataError(f"{source} must be (n, height, width) or (n, channels, height, width), not {found.shape}")
    return np.ascontiguousarray(found)


def label_array(found: Array, images: int, classes: int, source: str) -> Index:
    """Labels as (n,) whole numbers from 0 to classes − 1.

    Raises:
        DataError: they are something else.
    """
    if found.dtype.kind not in "iu":
        raise DataError(f"{source} must be whole numbers, not {found.dtype}")
    if found.shape != (images,):
        raise DataError(f"{source} must be one per image, {images} in all, not {found.shape}")
    if images and not (found.min() >= 0 and found.max() < classes):
        raise DataError(f"{source} must run from 0 to {classes - 1}, not from {found.min()} to {found.max()}")
    return found.astype(np.int64)


def user_array(found: Array, images: int, source: str) -> Index:
    """Users, named or numbered, as numbers from 0 in the order of their names."""
    if found.shape != (images,) or found.dtype.kind not in "iuSU":
        raise DataError(f"{source} must be a name or a number per image, {images} in all, not {found.dtype} {found.shape}")
    return np.unique(found, return_inverse=True)[1].astype(np.int64)


def held_out(groups: Index, share: float) -> npt.NDArray[np.bool_]:
    """(n,) whether an image is held out for testing: a random share of every group, the same in every run."""
    if not 0 <= share < 1:
        raise ConfigError(f"dataset.test_share must be at least 0 and below 1, not {share}")
    if not share:
        return np.zeros(len(groups), np.bool_)
    shuffled = np.random.default_rng(0).permutation(len(groups))  # files are often sorted by class: every tenth would be one class
    order = shuffled[np.argsort(groups[shuffled], kind="stable")]
    _, starts, counts = np.unique(groups[order], return_index=True, return_counts=True)
    place = np.empty(len(groups), np.int64)
    place[order] = np.arange(len(groups)) - np.repeat(starts, counts)
    return np.asarray(np.floor((place + 1) * share + 1e-9) > np.floor(place * share + 1e-9))


def normaliser(images: Images) -> tuple[float, float]:
    """Mean and deviation of pixels/255, exactly."""
    counts = np.zeros(256, np.int64)
    for start in range(0, len(images), _BLOCK):
        counts += np.bincount(images[start : start + _BLOCK].ravel(), minlength=256)
    pixels = np.arange(256) / 255
    mean = float(counts @ pixels / counts.sum())
    return mean, float(np.sqrt(counts @ (pixels - mean) ** 2 / counts.sum())) or 1.0


def assemble(images: Images, labels: Index, users: Index | None, classes: int, test: npt.NDArray[np.bool_], source: str) -> Dataset:
    """A dataset from images of which some are for testing, normalised by what is measured on the others."""
    if test.all():
        raise DataError(f"{source} holds no training images")
    train = ~test if test.any() else slice(None)  # a copy of all images only where some are left out
    mean, std = normaliser(images[train])
    return Dataset(
        images[train], labels[train], images[test], labels[test], classes, mean, std, None if users is None else users[train]
    )


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of an .npz file.

    Raises:
        DataError: it is missing or damaged.
    """
    try:
        return npz.read(path)
    except FileNotFoundError:
        raise DataError(f"'{path}' does not exist") from None
    except (OSError, npz.Damaged) as error:
        raise DataError(f"'{path}' cannot be read as .npz, it is damaged or something else ({error})") from error


def _counted_classes(arrays: dict[str, Array], path: Path) -> int:
    """As many as the file says. A network has outputs for all of them: a single label must not make it any size."""
    numbers = arrays["labels"]
    largest = int(numbers.max()) if numbers.size and numbers.dtype.kind in "iu" else 0
    classes = len(arrays["classes"]) if "classes" in arrays and arrays["classes"].ndim == 1 else largest + 1
    if classes > MOST_CLASSES:
        raise DataError(f"'{path}' has {classes:,} classes: at most {MOST_CLASSES:,} can be told apart")
    if classes > max(PLAUSIBLE_CLASSES, numbers.size):
        raise DataError(
            f"'{path}' has {classes:,} classes for {numbers.size:,} images: if that is right, set dataset.classes={classes}"
        )
    return classes


def from_npz(path: Path, classes: int = 0, test_share: float = 0.0) -> Dataset:
    """A dataset from arrays: images, labels, perhaps users (or writers), perhaps split (1 = test) or test_images, test_labels.

    Args:
        path: of the file.
        classes: how many there are; 0 takes the length of an array `classes`, or the largest label and one.
        test_share: of the images that are held out for testing, where the file names none.

    Raises:
        DataError: the file is damaged, or its arrays do not fit together.
    """
    if not 0 <= classes <= MOST_CLASSES:
        raise ConfigError(f"dataset.classes must be from 0 to {MOST_CLASSES:,}, not {classes:.3g}")
    arrays = read_npz(path)
    for name in ("images", "labels"):
        if name not in arrays:
            raise DataError(f"'{path}' has no array '{name}', only {', '.join(arrays) or 'nothing'}")
    images = image_array(arrays["images"], f"images in '{path}'")
    classes = classes or _counted_classes(arrays, path)
    labels = label_array(arrays["labels"], len(images), classes, f"labels in '{path}'")
    names = next((name for name in ("users", "writers") if name in arrays), None)
    users = user_array(arrays[names], len(images), f"{names} in '{path}'") if names else None
    if "split" in arrays:
        test = label_array(arrays["split"], len(images), 2, f"split (1 = test) in '{path}'") == 1
        return assemble(images, labels, users, classes, test, f"'{path}'")
    if "test_images" not in arrays:
        return assemble(images, labels, users, classes, held_out(labels if users is None else users, test_share), f"'{path}'")
    if "test_labels" not in arrays:
        raise DataError(f"'{path}' has test_images but no test_labels")
    test_images = image_array(arrays["test_images"], f"test_images in '{path}'")
    if test_images.shape[1:] != images.shape[1:]:
        raise DataError(f"test_images in '{path}' are {test_images.shape[1:]}, images are {images.shape[1:]}")
    test_labels = label_array(arrays["test_labels"], len(test_images), classes, f"test_labels in '{path}'")
    whole = assemble(images, labels, users, classes, np.zeros(len(images), np.bool_), f"'{path}'")
    return whole._replace(test_images=test_images, test_labels=test_labels)
