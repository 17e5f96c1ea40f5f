"""What a dataset is: inputs of any shape, bytes, floats or tokens, and the numbers that normalise them.

>>> import numpy as np
>>> normaliser(np.array([[1.0, 5.0], [3.0, 5.0]], np.float32))
((2.0, 5.0), (1.0, 1.0))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.errors import DataError

Array = npt.NDArray[Any]
NONE: Mapping[str, Any] = {}  # no arrays beside the inputs; nobody may change it
Images = npt.NDArray[np.uint8]
Index = npt.NDArray[np.int64]
Scale = float | tuple[float, ...]  # for all, or for each channel
BYTES, FLOATS, TOKENS, FLAGS = "bytes", "floats", "tokens", "flags"
FURTHER_KINDS = {"b": FLAGS, "u": TOKENS, "i": TOKENS, "f": FLOATS}
DTYPES = ("uint8", "float16", "float32", "int32", "int64")
MOST_DIMENSIONS = 5  # of inputs, n included
MOST_TOKENS = 2**31 - 1
_BLOCK = 1000  # images at a time where a whole dataset would be copied otherwise


class Form(NamedTuple):
    """What one input of a dataset looks like.

    Attributes:
        shape: of its array.
        kind: bytes, floats, tokens or flags.
        largest: token, as far as that is known.
        further: the form of every array beside it, by name.
    """

    shape: tuple[int, ...]
    kind: str = BYTES
    largest: int = 0
    further: Mapping[str, Form] = NONE


class Dataset(NamedTuple):
    """Inputs and labels for training and for testing, and the mean and deviation that normalise the inputs.

    Bytes are pixels: pixels/255 are normalised by two numbers. Floats are normalised channel by channel, by one number for each of
    the first axis of an input, or by two numbers. Whole numbers are tokens, which stay as they are, as do arrays
    beside the inputs, such as `mask`, with one row per sample.
    """

    inputs: Array  # (n, …); pictures are (n, channels, height, width) uint8
    labels: Array  # (n,) class numbers, (n,) or (n, outputs) numbers, (n, classes) 0 and 1, or (n, …) what a user's task takes
    test_inputs: Array  # there may be none
    test_labels: Array
    classes: int  # or outputs, where labels are no class numbers
    mean: Scale
    std: Scale
    users: Index | None = None  # (n,) who made each training sample, where that is known
    further: Mapping[str, Array] = NONE  # name → (n, …) what a network or a task takes beside the inputs
    test_further: Mapping[str, Array] = NONE  # the same of the test samples

    def without_samples(self) -> Dataset:
        """What its inputs look like and how they are normalised, and no more."""
        inputs, labels = self.inputs[:0].copy(), self.labels[:0].copy()
        further = rows(self.further, slice(0))
        return self._replace(
            inputs=inputs, labels=labels, test_inputs=inputs, test_labels=labels, users=None, further=further, test_further=further
        )

    @property
    def form(self) -> Form:
        """What one input looks like."""
        kind = kind_of(self.inputs)
        largest = _largest(kind, self.inputs, self.test_inputs, none=0)
        return Form(self.inputs.shape[1:], kind, largest, forms_of(self.further, self.test_further))


def _largest(kind: str, *parts: Array, none: int) -> int:
    """The largest token of arrays of tokens; `none` if there are no samples."""
    return max((int(part.max()) for part in parts if len(part)), default=none) if kind == TOKENS else 0


def forms_of(*parts: Mapping[str, Array]) -> dict[str, Form]:
    """The form of every array beside the inputs, given those of training samples and perhaps of others."""
    first, forms = parts[0], {}
    for name, found in first.items():
        kind = further_kind(found)
        forms[name] = Form(found.shape[1:], kind, _largest(kind, *(part[name] for part in parts), none=1))
    return forms


def rows(further: Mapping[str, Array], chosen: Index | slice | npt.NDArray[np.bool_]) -> Mapping[str, Array]:
    """Some rows of every array."""
    return {name: found[chosen] for name, found in further.items()}


def further_kind(found: Array) -> str:
    """Floats, tokens (whole numbers of any kind) or flags (true and false)."""
    return FURTHER_KINDS[found.dtype.kind]


def further_array(found: Array, samples: int, source: str) -> Array:
    """An array beside the inputs: floats, whole numbers, or true and false.

    Raises:
        DataError: it is something else.
    """
    if found.dtype != np.bool_ and found.dtype.name not in DTYPES:
        raise DataError(f"{source} must be bool, {', '.join(DTYPES[:-1])} or {DTYPES[-1]}, not {found.dtype}")
    if len(found) != samples or found.ndim > MOST_DIMENSIONS or 0 in found.shape[1:]:
        raise DataError(f"{source} must have one row for each of the {samples} samples, not the shape {found.shape}")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise DataError(f"{source} must be finite numbers: one of them is NaN or infinite")
    return found


def further_text(forms: Mapping[str, Form]) -> str:
    """Forms by name as `read_further` takes them.

    >>> further_text(read_further("mask:flags:16;places:tokens:16,2"))
    'mask:flags:16;places:tokens:16,2'
    """
    return ";".join(f"{name}:{form.kind}:{','.join(map(str, form.shape))}" for name, form in sorted(forms.items()))


def read_further(text: str) -> dict[str, Form]:
    """Forms by name from a text such as `mask:flags:16`; several with semicolons between them.

    Raises:
        DataError: it says something else, or of more than a few arrays.
    """
    forms: dict[str, Form] = {}
    for part in text.split(";") if text else ():
        match = _FURTHER.fullmatch(part)
        if match is None or len(forms) == MOST_FURTHER or match[1] in RESERVED:
            raise DataError(f"further inputs must be {MOST_FURTHER} or fewer, each as mask:flags:16, not '{part:.40}'")
        shape = tuple(int(side) for side in match[3].split(",") if side)
        if 0 in shape or len(shape) >= MOST_DIMENSIONS or prod(shape) > MOST_VALUES:
            raise DataError(f"further inputs have from 1 to {MOST_VALUES:,} values a sample, not '{part:.40}'")
        forms[match[1]] = Form(shape, match[2], 1 if match[2] == TOKENS else 0)
    return forms


def empty_further(forms: Mapping[str, Form]) -> dict[str, Array]:
    """Arrays of these forms without a sample."""
    return {name: np.zeros((0, *form.shape), _EMPTY[form.kind]) for name, form in forms.items()}


_EMPTY = {FLOATS: np.float32, TOKENS: np.int64, FLAGS: np.bool_}
_FURTHER = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,39}):(floats|tokens|flags):((?:[0-9]{1,8}(?:,[0-9]{1,8}){0,3})?)")
MOST_FURTHER = 16
MOST_VALUES = 2**24  # of a sample
RESERVED = ("input", "target")  # names that a batch has for the inputs and the labels


def kind_of(inputs: Array) -> str:
    """Bytes, floats or tokens."""
    return {"u": BYTES, "f": FLOATS}.get(inputs.dtype.kind, TOKENS)


def shape_text(data: Dataset) -> str:
    """What its inputs look like: "28×28 grey"."""
    sides = "×".join(map(str, data.inputs.shape[1:]))
    if kind_of(data.inputs) == TOKENS:
        return f"{sides} tokens" + (f" up to {data.form.largest}" if len(data.inputs) else "")
    if data.inputs.dtype != np.uint8:
        return f"{sides} {data.inputs.dtype.name}"
    if data.inputs.ndim != 4:
        return f"{sides} bytes"
    channels, height, width = data.inputs.shape[1:]
    return f"{height}×{width} " + {1: "grey", 3: "RGB"}.get(channels, f"{channels}-channel")


def input_array(found: Array, source: str) -> Array:
    """Inputs of any shape: bytes, of three or four dimensions as images, floats or tokens.

    Raises:
        DataError: they are of another type, have no elements, or some are not finite, or negative tokens.
    """
    if found.dtype == np.uint8 and found.ndim in (3, 4):
        return image_array(found, source)
    if found.dtype.name not in DTYPES:
        fix = ": save it with .astype(np.float32)" if found.dtype.kind == "f" else ""
        raise DataError(f"{source} must be {', '.join(DTYPES[:-1])} or {DTYPES[-1]}, not {found.dtype}{fix}")
    if not 2 <= found.ndim <= MOST_DIMENSIONS or 0 in found.shape[1:]:
        raise DataError(
            f"{source} must be (n, …) with 1 to {MOST_DIMENSIONS - 1} dimensions after n, none of them 0, not {found.shape}"
        )
    for start in range(0, len(found), _BLOCK):
        part = found[start : start + _BLOCK]
        if found.dtype.kind == "f" and np.isinf(part).any():
            raise DataError(f"{source} must be finite numbers: sample {start + _first(np.isinf(part))} holds infinity")
        if found.dtype.kind == "i" and not 0 <= int(part.min()) <= int(part.max()) <= MOST_TOKENS:
            raise DataError(f"{source} must be tokens from 0 to {MOST_TOKENS:,}, not from {part.min()} to {part.max()}")
    return found


def refuse_missing(inputs: Array, source: str) -> None:
    """Refuse inputs with missing values, NaN: they can be counted, and no network can compute with them.

    Raises:
        DataError: one is missing.
    """
    for start in range(0, len(inputs) if inputs.dtype.kind == "f" else 0, _BLOCK):
        gone = np.isnan(inputs[start : start + _BLOCK])
        if gone.any():
            raise DataError(
                f"{source} must be finite numbers: sample {start + _first(gone)} holds NaN, a missing value: fill such values in "
                "or leave the sample out (`bifl ask` counts them)"
            )


def _first(rows: npt.NDArray[np.bool_]) -> int:
    """The first row in which something is true."""
    return int(np.flatnonzero(rows.reshape(len(rows), -1).any(1))[0])


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


def normaliser(images: Array) -> tuple[Scale, Scale]:
    """Mean and deviation: of pixels/255, exactly; of floats for each channel, the first axis of an input; of tokens 0 and 1."""
    if kind_of(images) == BYTES:
        return _of_bytes(images)
    return _of_channels(images) if kind_of(images) == FLOATS else (0.0, 1.0)


def _of_bytes(images: Images) -> tuple[float, float]:
    counts = np.zeros(256, np.int64)
    for start in range(0, len(images), _BLOCK):
        counts += np.bincount(images[start : start + _BLOCK].ravel(), minlength=256)
    pixels = np.arange(256) / 255
    mean = float(counts @ pixels / counts.sum())
    return mean, float(np.sqrt(counts @ (pixels - mean) ** 2 / counts.sum())) or 1.0


def _of_channels(inputs: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """As single-precision numbers; a channel that never changes, or in which values are missing, has deviation 1."""

    def mean(function: Callable[[Array], Array]) -> Array:
        blocks = (inputs[start : start + _BLOCK].astype(np.float64) for start in range(0, len(inputs), _BLOCK))
        rows = [function(block.reshape(len(block), block.shape[1], -1)).sum((0, 2)) for block in blocks]
        total: Array = np.sum(rows, 0)
        total /= inputs.size / inputs.shape[1]
        return total

    centre = np.nan_to_num(mean(lambda block: block))
    deviation = np.sqrt(mean(lambda block: (block - centre[:, None]) ** 2)).astype(np.float32)
    deviation[~(deviation > 1e-6 * np.maximum(1, np.abs(centre)))] = 1  # NaN is not larger
    return tuple(centre.astype(np.float32).tolist()), tuple(deviation.tolist())
