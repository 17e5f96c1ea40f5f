"""The checks that every source of data passes, and a user's own arrays from an .npz file or a folder of .npy files.

>>> import numpy as np
>>> labels = np.repeat([0, 1, 2], 30)
>>> np.bincount(labels[held_out(labels, 0.2)]).tolist()
[6, 6, 6]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bifl import npz
from bifl.data.inputs import (
    DTYPES,
    MOST_DIMENSIONS,
    NONE,
    RESERVED,
    Array,
    Dataset,
    Images,
    Index,
    image_array,
    input_array,
    normaliser,
    rows,
    shape_text,
)  # fmt: skip
from bifl.errors import ConfigError, DataError

__all__ = [
    "Array", "Dataset", "Images", "Index", "assemble", "checked_share", "from_arrays", "from_npz", "groups_of", "held_out",
    "image_array", "input_array",
    "is_arrays", "label_array", "normaliser", "read_npz", "shape_text", "target_array", "user_array",
]  # fmt: skip
MOST_CLASSES = 100_000  # a network has outputs for all of them
PLAUSIBLE_CLASSES = 1000  # that a file may have without as many images
INPUTS = ("inputs", "images", "signals")  # what their array may be called
NOT_INPUTS = (*INPUTS, *RESERVED, "labels", "users", "writers", "split", "classes")
TABLES = (".csv", ".tsv", ".txt", ".xls", ".xlsx", ".ods", ".parquet", ".feather")
LEAST_TESTS = 10  # test samples: fewer say nothing of a network …
LARGE_SHARE = 0.2  # … but who wants such a share of so few means it


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
    """(n,) whether an image is held out for testing: a random share of all, and of every group, the same in every run.

    Of n images a group gives ⌊share · n⌋. What that leaves out is carried over from group to group: one more is taken wherever
    the remainders so far have come to another whole image, so that many small groups give their share too.
    """
    if not checked_share(share, len(groups)):
        return np.zeros(len(groups), np.bool_)
    shuffled = np.random.default_rng(0).permutation(len(groups))  # files are often sorted by class: every tenth would be one class
    order = shuffled[np.argsort(groups[shuffled], kind="stable")]
    _, starts, counts = np.unique(groups[order], return_index=True, return_counts=True)
    place = np.empty(len(groups), np.int64)
    place[order] = np.arange(len(groups)) - np.repeat(starts, counts)
    test = np.asarray(np.floor((place + 1) * share + 1e-9) > np.floor(place * share + 1e-9))
    carried = np.cumsum(np.maximum(0, counts * share - np.floor(counts * share + 1e-9)))
    more = np.diff(np.floor(carried + 0.5 + 1e-9), prepend=0) > 0
    # a group's first, which is never among those above: splits without remainders stay as they were
    test[order[starts[more]]] = True
    return test


def checked_share(share: float, samples: int) -> float:
    """A share of samples to hold out for testing: none, or enough of them.

    Raises:
        ConfigError: it is something else.
    """
    if not 0 <= share < 1:
        raise ConfigError(f"dataset.test_share must be at least 0 and below 1, not {share}")
    count = int(share * samples + 0.5)
    if share and count < (1 if share >= LARGE_SHARE else LEAST_TESTS):
        raise ConfigError(
            f"dataset.test_share={share:g} of {samples:,} samples are {count}, too few to test with: take {LEAST_TESTS} or more, "
            f"a share of {LARGE_SHARE} or more, or 0, with which every client holds some out"
        )
    return share


def assemble(
    images: Array, labels: Array, users: Index | None, classes: int, test: npt.NDArray[np.bool_], source: str,
    further: Mapping[str, Array] = NONE,
) -> Dataset:  # fmt: skip
    """A dataset from inputs of which some are for testing, normalised by what is measured on the others."""
    if test.all():
        raise DataError(f"{source} holds no training images")
    train = ~test if test.any() else slice(None)  # a copy of all images only where some are left out
    mean, std = normaliser(images[train])
    return Dataset(
        images[train], labels[train], images[test], labels[test], classes, mean, std, None if users is None else users[train],
        rows(further, train), rows(further, test),
    )  # fmt: skip


def table_text(path: Path) -> str:
    """What a table lacks, and how it gets that."""
    return (
        f'is a table ({path.suffix}), not an .npz file: in Python, numpy.savez("mine.npz", inputs=…, labels=…) makes one of its '
        "columns, as docs/sensors.md shows for CSV"
    )


def is_arrays(path: Path) -> bool:
    """Whether a folder holds arrays as .npy files."""
    return (path / "labels.npy").is_file()


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of an .npz file, or of the .npy files in a folder, which stay on the disk until they are used.

    Raises:
        DataError: it is missing or damaged.
    """
    try:
        return npz.mapped(path) if path.is_dir() else npz.read(path)
    except FileNotFoundError:
        raise DataError(f"'{path}' does not exist") from None
    except (OSError, npz.Damaged) as error:
        if path.suffix.lower() in TABLES:
            raise DataError(f"'{path}' {table_text(path)}") from error
        raise DataError(f"'{path}' cannot be read as .npz, it is damaged or something else ({error})") from error


def _counted_classes(labels: Array, arrays: dict[str, Array], path: Path) -> int:
    """As many as the file says. A network has outputs for all of them: a single label must not make it any size."""
    if "classes" in arrays and arrays["classes"].ndim == 1 and labels.dtype.kind in "iu":
        classes = len(arrays["classes"])
    elif labels.ndim > 1:
        classes = int(labels.shape[1])
    elif labels.dtype.kind not in "iu":
        classes = 1
    else:
        classes = int(labels.max()) + 1 if labels.size else 1
    if classes > MOST_CLASSES:
        raise DataError(f"'{path}' has {classes:,} classes: at most {MOST_CLASSES:,} can be told apart")
    if labels.ndim == 1 and classes > max(PLAUSIBLE_CLASSES, labels.size):
        raise DataError(
            f"'{path}' has {classes:,} classes for {labels.size:,} images: if that is right, set dataset.classes={classes}"
        )
    return classes


def target_array(found: Array, samples: int, classes: int, source: str) -> Array:
    """Labels of any task: class numbers, or numbers in rows of any shape.

    Raises:
        DataError: they are something else.
    """
    if found.dtype.kind in "iu" and found.ndim < 2:
        return label_array(found, samples, classes, source)
    if found.dtype.kind not in "biuf":
        raise DataError(
            f"{source} must be numbers, not {found.dtype}: np.unique(labels, return_inverse=True)[1] makes some of names"
        )
    if not 1 <= found.ndim <= MOST_DIMENSIONS or len(found) != samples or not found.size >= samples:
        raise DataError(f"{source} must be one or one row per sample, {samples} in all, not {found.shape}")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise DataError(f"{source} must be finite numbers: one of them is NaN or infinite")
    return found


def groups_of(labels: Array) -> Index:
    """(n,) class numbers, by which samples are dealt out evenly; where labels are none, all are of one kind."""
    if labels.dtype.kind in "iu" and labels.ndim == 1:
        return labels.astype(np.int64, copy=False)
    return np.zeros(len(labels), np.int64)


def from_npz(path: Path, classes: int = 0, test_share: float = 0.0) -> Dataset:
    """A dataset from arrays: inputs (or images, or signals), labels, perhaps users (or writers), perhaps a test set.

    A test set is split (1 = test), or test_inputs (test_images) and test_labels, or a share of what is there.

    Args:
        path: of the file, or of a folder with the arrays as .npy files.
        classes: how many there are; 0 takes the length of an array `classes`, or the largest label and one.
        test_share: of the samples that are held out for testing, where the file names none.

    Raises:
        DataError: the file is damaged, or its arrays do not fit together.
    """
    if not 0 <= classes <= MOST_CLASSES:
        raise ConfigError(f"dataset.classes must be from 0 to {MOST_CLASSES:,}, not {classes:.3g}")
    return from_arrays(read_npz(path), path, classes, test_share)


def from_arrays(arrays: dict[str, Array], path: Path, classes: int = 0, test_share: float = 0.0) -> Dataset:
    """The same from arrays by name; errors call them `path`."""
    named = next((name for name in INPUTS if name in arrays), None)
    if named is None or "labels" not in arrays:
        lacks = "'images' or 'inputs'" if named is None else "'labels'"
        raise DataError(f"'{path}' has no array {lacks}, only {', '.join(arrays) or 'nothing'}")
    inputs = _inputs(arrays, named, path)
    classes = classes or _counted_classes(arrays["labels"], arrays, path)
    labels = target_array(arrays["labels"], len(inputs), classes, f"labels in '{path}'")
    further = _further(arrays, named, len(inputs))
    owners = next((name for name in ("users", "writers") if name in arrays), None)
    users = user_array(arrays[owners], len(inputs), f"{owners} in '{path}'") if owners else None
    if "split" in arrays:
        test = label_array(arrays["split"], len(inputs), 2, f"split (1 = test) in '{path}'") == 1
        return assemble(inputs, labels, users, classes, test, f"'{path}'", further)
    if f"test_{named}" not in arrays:
        held = held_out(groups_of(labels) if users is None else users, test_share)
        return assemble(inputs, labels, users, classes, held, f"'{path}'", further)
    if "test_labels" not in arrays:
        raise DataError(f"'{path}' has test_{named} but no test_labels")
    tests = _inputs(arrays, f"test_{named}", path)
    if tests.shape[1:] != inputs.shape[1:] or tests.dtype.kind != inputs.dtype.kind:
        raise DataError(
            f"test_{named} in '{path}' are {tests.shape[1:]} {tests.dtype}, {named} are {inputs.shape[1:]} {inputs.dtype}"
        )
    test_labels = target_array(arrays["test_labels"], len(tests), classes, f"test_labels in '{path}'")
    whole = assemble(inputs, labels, users, classes, np.zeros(len(inputs), np.bool_), f"'{path}'", further)
    test_further = {name: arrays[f"test_{name}"] for name in further}
    for name, found in further.items():
        alike = (len(tests), *found.shape[1:]) == test_further[name].shape and test_further[name].dtype.kind == found.dtype.kind
        if not alike:
            raise DataError(f"test_{name} in '{path}' are not like {name}: {test_further[name].dtype} {test_further[name].shape}")
    return whole._replace(test_inputs=tests, test_labels=test_labels, test_further=test_further)


def _further(arrays: dict[str, Array], named: str, samples: int) -> dict[str, Array]:
    """The arrays beside the inputs, with a row for every sample; where there are test inputs, with their own for these.

    What they hold is checked where a network or a task takes them: others may be anything.
    """
    tested = f"test_{named}" in arrays
    return {
        name: found
        for name, found in arrays.items()
        if name not in NOT_INPUTS and not name.startswith("test_") and name.isidentifier()
        and (found.dtype == np.bool_ or found.dtype.name in DTYPES) and found.shape[:1] == (samples,)
        and 0 not in found.shape[1:] and found.ndim <= MOST_DIMENSIONS
        and (not tested or f"test_{name}" in arrays)
    }  # fmt: skip


def _inputs(arrays: dict[str, Array], name: str, path: Path) -> Array:
    """Bytes that are called images must be shaped like some; inputs may have any shape."""
    check = image_array if name.endswith("images") and arrays[name].dtype == np.uint8 else input_array
    return check(arrays[name], f"{name} in '{path}'")
