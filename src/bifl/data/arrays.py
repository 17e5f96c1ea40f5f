"""What the arrays of a dataset must be; a user's own, from a file or a function; samples held out for testing.

>>> import numpy as np
>>> labels = np.repeat([0, 1, 2], 30)
>>> np.bincount(labels[held_out(labels, 0.2)]).tolist()
[6, 6, 6]
>>> normaliser(np.array([[1.0, 5.0], [3.0, 5.0]], np.float32))
((2.0, 5.0), (1.0, 1.0))
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bifl import npz
from bifl.data.inputs import FLOATS, MOST_DIMENSIONS, NONE, RESERVED, TOKENS, Array, Dataset, Index, Scale, is_scale, kind_of, rows
from bifl.errors import BiflError, ConfigError, DataError

Bytes = npt.NDArray[np.uint8]
Chosen = npt.NDArray[np.bool_]  # (n,) which samples
MOST_CLASSES = 100_000  # a network has outputs for all of them
PLAUSIBLE_CLASSES = 1000  # that a file may have without as many samples
MOST_TOKENS = 2**31 - 1
INPUTS = ("inputs", "images", "signals")  # what their array may be called
TABLES = (".csv", ".tsv", ".txt", ".xls", ".xlsx", ".ods", ".parquet", ".feather")
LEAST_TESTS = 10  # test samples: fewer say nothing of a network …
LARGE_SHARE = 0.2  # … but who wants such a share of so few means it
# all but `validation`, which a setting decides
RETURNS = f"bifl.data.datasets.Dataset({', '.join(Dataset._fields[:-1])})"
_TYPES = ("uint8", "float16", "float32", "int32", "int64")
_TYPES_TEXT = f"{', '.join(_TYPES[:-1])} or {_TYPES[-1]}"
_NOT_FURTHER = (*INPUTS, *RESERVED, "labels", "users", "writers", "split", "classes")
_BLOCK = 1000  # samples at a time where a whole dataset would be copied otherwise

# ---- what an array must be ---------------------------------------------------------------------------------------------


def image_array(array: Array, source: str) -> Bytes:
    """Bytes as (n, channels, height, width)."""
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        array = np.moveaxis(array, 3, 1)
    if array.ndim != 4 or 0 in array.shape[1:]:
        raise DataError(f"{source} must be (n, height, width) or (n, channels, height, width), not {array.shape}")
    return np.ascontiguousarray(array)


def input_array(array: Array, source: str) -> Array:
    """Inputs of any shape: bytes, of three or four dimensions as images, floats or tokens."""
    if array.dtype == np.uint8 and array.ndim in (3, 4):
        return image_array(array, source)
    if array.dtype.name not in _TYPES:
        fix = ": save it with .astype(np.float32)" if array.dtype.kind == "f" else ""
        raise DataError(f"{source} must be {_TYPES_TEXT}, not {array.dtype}{fix}")
    if not 2 <= array.ndim <= MOST_DIMENSIONS or 0 in array.shape[1:]:
        raise DataError(
            f"{source} must be (n, …) with 1 to {MOST_DIMENSIONS - 1} dimensions after n, none of them 0, not {array.shape}"
        )
    _refuse_any(np.isinf, array, source, "infinity")
    if array.dtype.kind == "i" and array.size and not 0 <= int(array.min()) <= int(array.max()) <= MOST_TOKENS:
        raise DataError(f"{source} must be tokens from 0 to {MOST_TOKENS:,}, not from {array.min()} to {array.max()}")
    return array


def refuse_missing(inputs: Array, source: str) -> None:
    """Refuse inputs with missing values, NaN: they can be counted, and no network can compute with them."""
    what = "NaN, a missing value: fill such values in or leave the sample out (`bifl ask` counts them)"
    _refuse_any(np.isnan, inputs, source, what)


def _refuse_any(test: Callable[[Array], Array], array: Array, source: str, what: str) -> None:
    """Refuse floats of which one passes a test, and name the first sample that holds such a one."""
    if array.dtype.kind != "f":
        return
    for start in range(0, len(array), _BLOCK):
        if (true := test(array[start : start + _BLOCK])).any():
            sample = start + int(np.flatnonzero(true.reshape(len(true), -1).any(1))[0])
            raise DataError(f"{source} must be finite numbers: sample {sample} holds {what}")


def _finite(array: Array, source: str) -> Array:
    _refuse_any(lambda block: ~np.isfinite(block), array, source, "NaN or infinity")
    return array


def further_array(array: Array, samples: int, source: str) -> Array:
    """An array beside the inputs: floats, whole numbers, or true and false."""
    if not _is_further(array, samples):
        wanted = f"bool, {_TYPES_TEXT}, with a row for each of the {samples} samples"
        raise DataError(f"{source} must be {wanted}, not {array.dtype} {array.shape}")
    return _finite(array, source)


def _is_further(array: Array, samples: int) -> bool:
    in_rows = array.shape[:1] == (samples,) and array.ndim <= MOST_DIMENSIONS and 0 not in array.shape[1:]
    return in_rows and array.dtype.name in ("bool", *_TYPES)


def label_array(array: Array, samples: int, classes: int, source: str) -> Index:
    """Labels as (n,) whole numbers from 0 to classes − 1."""
    if array.dtype.kind not in "iu" or array.shape != (samples,):
        raise DataError(f"{source} must be whole numbers, one per sample, {samples} in all, not {array.dtype} {array.shape}")
    if samples and not 0 <= array.min() <= array.max() < classes:
        raise DataError(f"{source} must run from 0 to {classes - 1}, not from {array.min()} to {array.max()}")
    return array.astype(np.int64)


def target_array(array: Array, samples: int, classes: int, source: str) -> Array:
    """Labels of any task: class numbers, or numbers in rows of any shape."""
    if array.dtype.kind in "iu" and array.ndim < 2:
        return label_array(array, samples, classes, source)
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"{source} must be numbers, not {array.dtype}: np.unique(labels, return_inverse=True)[1] makes some of names"
        )
    if not 1 <= array.ndim <= MOST_DIMENSIONS or len(array) != samples or array.size < samples:
        raise DataError(f"{source} must be one or one row per sample, {samples} in all, not {array.shape}")
    return _finite(array, source)


def user_array(array: Array, samples: int, source: str) -> Index:
    """Users, named or numbered, as numbers from 0 in the order of their names."""
    if array.shape != (samples,) or array.dtype.kind not in "iuSU":
        raise DataError(f"{source} must be a name or a number per sample, {samples} in all, not {array.dtype} {array.shape}")
    return np.unique(array, return_inverse=True)[1].astype(np.int64)


def groups_of(labels: Array) -> Index:
    """(n,) class numbers, by which samples are dealt out evenly; where labels are none, all are of one kind."""
    if labels.dtype.kind in "iu" and labels.ndim == 1:
        return labels.astype(np.int64, copy=False)
    return np.zeros(len(labels), np.int64)


# ---- normalised, and divided into training and test samples ------------------------------------------------------------


def normaliser(inputs: Array) -> tuple[Scale, Scale]:
    """Mean and deviation: of pixels/255, exactly; of floats for each channel, the first axis of an input; of tokens 0 and 1."""
    if kind_of(inputs) == FLOATS:
        return _of_channels(inputs)
    if kind_of(inputs) == TOKENS:
        return 0.0, 1.0
    counts = np.zeros(256, np.int64)
    for start in range(0, len(inputs), _BLOCK):
        counts += np.bincount(inputs[start : start + _BLOCK].ravel(), minlength=256)
    pixels = np.arange(256) / 255
    mean = float(counts @ pixels / counts.sum())
    return mean, float(np.sqrt(counts @ (pixels - mean) ** 2 / counts.sum())) or 1.0


def _of_channels(inputs: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """As single-precision numbers; a channel that never changes, or in which values are missing, has deviation 1."""

    def mean(function: Callable[[Array], Array]) -> Array:
        blocks = (inputs[start : start + _BLOCK].astype(np.float64) for start in range(0, len(inputs), _BLOCK))
        sums = [function(block.reshape(len(block), block.shape[1], -1)).sum((0, 2)) for block in blocks]
        total: Array = np.sum(sums, 0)
        total /= inputs.size / inputs.shape[1]
        return total

    centre = np.nan_to_num(mean(lambda block: block))
    deviation = np.sqrt(mean(lambda block: (block - centre[:, None]) ** 2)).astype(np.float32)
    deviation[~(deviation > 1e-6 * np.maximum(1, np.abs(centre)))] = 1  # NaN is not larger
    return tuple(centre.astype(np.float32).tolist()), tuple(deviation.tolist())


def assemble(
    inputs: Array, labels: Array, users: Index | None, classes: int, test: Chosen, source: str, further: Mapping[str, Array] = NONE
) -> Dataset:
    """A dataset from inputs of which some are for testing, normalised by what is measured on the others."""
    if test.all():
        raise DataError(f"{source} holds no training samples")
    train = ~test if test.any() else slice(None)  # a copy of all inputs only where some are left out
    mean, std = normaliser(inputs[train])
    return Dataset(
        inputs[train], labels[train], inputs[test], labels[test], classes, mean, std, None if users is None else users[train],
        rows(further, train), rows(further, test),
    )  # fmt: skip


def held_out(groups: Index, share: float) -> Chosen:
    """Which samples are held out for testing: a random share of all, and of every group, the same in every run.

    Of n samples a group gives ⌊share · n⌋. What that leaves out is carried over from group to group: one more is taken wherever
    the remainders so far have come to another whole sample, so that many small groups give their share too.
    """
    test = np.zeros(len(groups), np.bool_)
    if not checked_share(share, len(groups)):
        return test
    order = _shuffled(groups)
    _, starts, counts = np.unique(groups[order], return_index=True, return_counts=True)
    place = np.arange(len(groups)) - np.repeat(starts, counts)  # within the group
    test[order] = np.floor((place + 1) * share + 1e-9) > np.floor(place * share + 1e-9)
    carried = np.cumsum(np.maximum(0, counts * share - np.floor(counts * share + 1e-9)))
    more = np.diff(np.floor(carried + 0.5 + 1e-9), prepend=0) > 0
    # a group's first, which is never among those above: splits without remainders stay as they were
    test[order[starts[more]]] = True
    return test


def spread(groups: Index, count: int) -> Chosen:
    """Which samples are chosen: exactly `count`, at random but always the same, of every group nearly the same share."""
    chosen = np.zeros(len(groups), np.bool_)
    chosen[_shuffled(groups)[np.arange(count) * len(groups) // max(1, count)]] = True
    return chosen


def _shuffled(groups: Index) -> Index:
    """All samples group by group, in each at random but always the same: files are often sorted by class."""
    shuffled = np.random.default_rng(0).permutation(len(groups))
    return shuffled[np.argsort(groups[shuffled], kind="stable")]


def checked_share(share: float, samples: int) -> float:
    """A share of samples to hold out for testing: none, or enough of them."""
    if not 0 <= share < 1:
        raise ConfigError(f"dataset.test_share must be at least 0 and below 1, not {share}")
    count = int(share * samples + 0.5)
    if share and count < (1 if share >= LARGE_SHARE else LEAST_TESTS):
        raise ConfigError(
            f"dataset.test_share={share:g} of {samples:,} samples are {count}, too few to test with: take {LEAST_TESTS} or more, "
            f"a share of {LARGE_SHARE} or more, or 0, with which every client holds some out"
        )
    return share


# ---- arrays by name: an .npz file, a folder of .npy files, a dictionary ------------------------------------------------


def is_arrays(path: Path) -> bool:
    """Whether a folder holds arrays as .npy files."""
    return (path / "labels.npy").is_file()


def table_text(path: Path) -> str:
    """What a table lacks, and how it gets that."""
    return (
        f'is a table ({path.suffix}), not an .npz file: in Python, numpy.savez("mine.npz", inputs=…, labels=…) makes one of its '
        "columns, as docs/sensors.md shows for CSV"
    )


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of an .npz file, or of the .npy files in a folder, which stay on the disk until they are used."""
    try:
        return npz.map_folder(path) if path.is_dir() else npz.read(path)
    except FileNotFoundError:
        raise DataError(f"'{path}' does not exist") from None
    except (OSError, npz.Damaged) as error:
        if path.suffix.lower() in TABLES:
            raise DataError(f"'{path}' {table_text(path)}") from error
        raise DataError(f"'{path}' cannot be read as .npz, it is damaged or something else ({error})") from error


def from_npz(path: Path, classes: int = 0, test_share: float = 0.0) -> Dataset:
    """A dataset from arrays: inputs (or images, or signals), labels, perhaps users (or writers), perhaps a test set.

    A test set is split (1 = test), or test_inputs (test_images) and test_labels, or the share `test_share` of what is there.
    With classes=0 there are as many as an array `classes` has names, or the largest label and one.
    """
    if not 0 <= classes <= MOST_CLASSES:
        raise ConfigError(f"dataset.classes must be from 0 to {MOST_CLASSES:,}, not {classes:.3g}")
    return from_arrays(read_npz(path), path, classes, test_share)


def from_arrays(arrays: dict[str, Array], path: Path | str, classes: int = 0, test_share: float = 0.0) -> Dataset:
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
    tested = f"test_{named}" in arrays and "split" not in arrays
    if "split" in arrays:
        test = label_array(arrays["split"], len(inputs), 2, f"split (1 = test) in '{path}'") == 1
    else:
        test = held_out(groups_of(labels) if users is None else users, 0 if tested else test_share)
    data = assemble(inputs, labels, users, classes, test, f"'{path}'", further)
    return _with_tests(data, arrays, named, path) if tested else data


def _with_tests(data: Dataset, arrays: dict[str, Array], named: str, path: Path | str) -> Dataset:
    """The same dataset with the test samples that arrays have under names of their own."""
    if "test_labels" not in arrays:
        raise DataError(f"'{path}' has test_{named} but no test_labels")
    tests = _inputs(arrays, f"test_{named}", path)
    labels = target_array(arrays["test_labels"], len(tests), data.classes, f"test_labels in '{path}'")
    further = {name: arrays[f"test_{name}"] for name in data.further}
    return _alike(data._replace(test_inputs=tests, test_labels=labels, test_further=further), named, f"'{path}'")


def _alike(data: Dataset, named: str, source: str) -> Dataset:
    """The dataset, if its test samples are like the others; its inputs are called `named`."""
    pairs = {name: (array, data.test_further[name]) for name, array in data.further.items()}
    for name, (array, test) in {named: (data.inputs, data.test_inputs), **pairs}.items():
        if (test.shape, test.dtype.kind) != ((len(data.test_inputs), *array.shape[1:]), array.dtype.kind):
            raise DataError(
                f"test_{name} in {source} are not like {name}: {test.shape} {test.dtype}, not {array.shape} {array.dtype}"
            )
    return data


def _inputs(arrays: dict[str, Array], name: str, path: Path | str) -> Array:
    """Bytes that are called images must be shaped like some; inputs may have any shape."""
    check = image_array if name.endswith("images") and arrays[name].dtype == np.uint8 else input_array
    return check(arrays[name], f"{name} in '{path}'")


def _further(arrays: dict[str, Array], named: str, samples: int) -> dict[str, Array]:
    """The arrays beside the inputs, with a row for every sample; where there are test inputs, with their own for these.

    What they hold is checked where a network or a task takes them: others may be anything.
    """
    tested = f"test_{named}" in arrays
    return {
        name: array
        for name, array in arrays.items()
        if name not in _NOT_FURTHER and not name.startswith("test_") and name.isidentifier()
        and _is_further(array, samples) and (not tested or f"test_{name}" in arrays)
    }  # fmt: skip


def _counted_classes(labels: Array, arrays: dict[str, Array], path: Path | str) -> int:
    """As many as the file says. A network has outputs for all of them: a single label must not make it any size."""
    if "classes" in arrays and arrays["classes"].ndim == 1 and labels.dtype.kind in "iu":
        classes = len(arrays["classes"])
    elif labels.ndim > 1:
        classes = int(labels.shape[1])
    else:
        classes = int(labels.max()) + 1 if labels.size and labels.dtype.kind in "iu" else 1
    if classes > MOST_CLASSES:
        raise DataError(f"'{path}' has {classes:,} classes: at most {MOST_CLASSES:,} can be told apart")
    if labels.ndim == 1 and classes > max(PLAUSIBLE_CLASSES, labels.size):
        raise DataError(
            f"'{path}' has {classes:,} classes for {labels.size:,} samples: if that is right, set dataset.classes={classes}"
        )
    return classes


# ---- what a user's function returns ------------------------------------------------------------------------------------


@contextmanager
def explaining_failures(sentence: str, kind: type[BiflError]) -> Iterator[None]:
    """Turn whatever a user's function raises into one sentence: what it should be, what it raised, and where."""
    try:
        yield
    except BiflError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})"
        raise kind(f"{sentence}: this one fails with {type(error).__name__}: {error}{place}") from error


def own_dataset(name: str, make: Callable[[], Any]) -> Dataset:
    """What a user's function makes."""
    sentence = f"dataset '{name}' is a function whose arguments all have defaults and which must return a {RETURNS}"
    with explaining_failures(sentence, DataError):
        return checked(make(), name)


def checked(data: object, name: str) -> Dataset:
    """A dataset of the user's, as arrays that fit together."""
    called = f"dataset '{name}'"
    if not isinstance(data, Dataset):
        raise DataError(f"{called} must return a {RETURNS}, not a {type(data).__name__}")
    if not isinstance(data.classes, int | np.integer) or not 1 <= data.classes <= MOST_CLASSES:
        raise DataError(f"{called}: classes must be from 1 to {MOST_CLASSES:,}, not {data.classes!r:.40}")
    if data.further.keys() != data.test_further.keys() or data.further.keys() & set(RESERVED):
        raise DataError(f"{called}: further and test_further must have the same names, not {' or '.join(RESERVED)}")

    def samples(inputs: Any, labels: Any, further: Mapping[Any, Any]) -> tuple[Array, Array, dict[str, Array]]:
        inputs = input_array(_array(inputs, called), f"{called}: inputs")
        labels = target_array(_array(labels, called), len(inputs), int(data.classes), f"{called}: labels")
        arrays = {str(key): further_array(_array(array, called), len(inputs), f"{called}: {key}") for key, array in further.items()}
        return inputs, labels, arrays

    inputs, labels, further = samples(data.inputs, data.labels, data.further)
    tests, test_labels, test_further = samples(data.test_inputs, data.test_labels, data.test_further)
    users = None if data.users is None else user_array(_array(data.users, called), len(inputs), f"{called}: users")
    mean, std = _array(data.mean, called), _array(data.std, called)
    if not is_scale(mean, std, kind_of(inputs), inputs.shape[1:]):
        wanted = f"finite numbers, std above 0, or for floats one of each for each of the {inputs.shape[1]} channels"
        raise DataError(f"{called}: mean and std must be {wanted}, not {data.mean!r:.40} and {data.std!r:.40}")
    centre, spread = (tuple(part.astype(np.float64).tolist()) if part.ndim else float(part) for part in (mean, std))
    whole = Dataset(inputs, labels, tests, test_labels, int(data.classes), centre, spread, users, further, test_further)
    return _alike(whole, "inputs", called)


def _array(given: Any, called: str) -> Array:
    try:
        return np.asarray(given)
    except ValueError as error:  # ragged lists
        raise DataError(f"{called} holds something that is no array: {error}") from error
