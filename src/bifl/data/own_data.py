"""What a user's own dataset or partition returns or raises: checked before use, and refused with the signature in the sentence."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from bifl.data.arrays import MOST_CLASSES, target_array, user_array
from bifl.data.inputs import FLOATS, RESERVED, Array, Dataset, Scale, further_array, input_array, kind_of
from bifl.errors import BiflError, DataError

RETURNS = f"bifl.data.datasets.Dataset({', '.join(Dataset._fields)})"


def failure(error: Exception) -> str:
    """What a user's function raised, and where."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def own_dataset(name: str, make: Callable[[], Any]) -> Dataset:
    """What a user's function makes.

    Raises:
        DataError: it fails, or makes something else.
    """
    try:
        made = make()
    except BiflError:
        raise
    except Exception as error:
        raise DataError(
            f"dataset '{name}' is a function whose arguments all have defaults and which must return a {RETURNS}: "
            f"this one fails with {failure(error)}"
        ) from error
    return checked(made, name)


def checked(data: object, name: str) -> Dataset:
    """A dataset of the user's, as arrays that fit together.

    Raises:
        DataError: it is something else.
    """
    if not isinstance(data, Dataset):
        raise DataError(f"dataset '{name}' must return a {RETURNS}, not a {type(data).__name__}")
    if not isinstance(data.classes, int | np.integer) or not 1 <= data.classes <= MOST_CLASSES:
        raise DataError(f"dataset '{name}': classes must be from 1 to {MOST_CLASSES:,}, not {data.classes!r:.40}")
    inputs, tests = (input_array(_array(part, name), f"dataset '{name}': inputs") for part in (data.inputs, data.test_inputs))
    if inputs.shape[1:] != tests.shape[1:] or kind_of(inputs) != kind_of(tests):
        raise DataError(
            f"dataset '{name}': test inputs are {tests.shape[1:]} {tests.dtype}, the others {inputs.shape[1:]} {inputs.dtype}"
        )
    labels, test_labels = (
        target_array(_array(part, name), len(own), int(data.classes), f"dataset '{name}': labels")
        for part, own in ((data.labels, inputs), (data.test_labels, tests))
    )
    users = None if data.users is None else user_array(_array(data.users, name), len(inputs), f"dataset '{name}': users")
    mean, std = (_scale(part, what, inputs, name) for part, what in ((data.mean, "mean"), (data.std, "std")))
    if data.further.keys() != data.test_further.keys() or data.further.keys() & set(RESERVED):
        raise DataError(f"dataset '{name}': further and test_further must have the same names, not {' or '.join(RESERVED)}")
    further, test_further = (
        {str(one): further_array(_array(found, name), len(own), f"dataset '{name}': {one}") for one, found in part.items()}
        for part, own in ((data.further, inputs), (data.test_further, tests))
    )
    return Dataset(inputs, labels, tests, test_labels, int(data.classes), mean, std, users, further, test_further)


def _array(found: Any, name: str) -> Array:
    try:
        return np.asarray(found)
    except ValueError as error:  # ragged lists
        raise DataError(f"dataset '{name}' holds something that is no array: {error}") from error


def _scale(found: Any, what: str, inputs: Array, name: str) -> Scale:
    """One number, or for floats one for each channel."""
    wanted = f"dataset '{name}': {what} must be a finite number" + (" above 0" if what == "std" else "")
    numbers = _array(found, name)
    if numbers.dtype.kind not in "iuf" or not np.isfinite(numbers).all() or (what == "std" and not (numbers > 0).all()):
        raise DataError(f"{wanted}, not {found!r:.40}")
    if numbers.ndim == 0:
        return float(numbers)
    if kind_of(inputs) != FLOATS or numbers.shape != inputs.shape[1:2]:
        raise DataError(f"{wanted}, or for floats one for each of the {inputs.shape[1]} channels, not {numbers.shape} numbers")
    return tuple(numbers.astype(np.float64).tolist())
