"""What a dataset is: inputs of any shape, bytes, floats or tokens, and the numbers that normalise them.

>>> import numpy as np
>>> normaliser(np.array([[1.0, 5.0], [3.0, 5.0]], np.float32))
((2.0, 5.0), (1.0, 1.0))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.errors import DataError

Array = npt.NDArray[Any]
Images = npt.NDArray[np.uint8]
Index = npt.NDArray[np.int64]
Scale = float | tuple[float, ...]  # for all, or for each channel
BYTES, FLOATS, TOKENS = "bytes", "floats", "tokens"
DTYPES = ("uint8", "float16", "float32", "int32", "int64")
MOST_DIMENSIONS = 5  # of inputs, n included
MOST_TOKENS = 2**31 - 1
_BLOCK = 1000  # images at a time where a whole dataset would be copied otherwise


class Form(NamedTuple):
    """What one input of a dataset looks like."""

    shape: tuple[int, ...]
    kind: str = BYTES
    largest: int = 0  # token


class Dataset(NamedTuple):
    """Inputs and labels for training and for testing, and the mean and deviation that normalise the inputs.

    Bytes are pixels: pixels/255 are normalised by two numbers. Floats are normalised channel by channel, by one number for each of
    the first axis of an input, or by two numbers. Whole numbers are tokens, which stay as they are.
    """

    images: Array  # (n, …) inputs; pictures are (n, channels, height, width) uint8
    labels: Array  # (n,) class numbers, (n,) or (n, outputs) numbers, or (n, classes) 0 and 1
    test_images: Array  # there may be none
    test_labels: Array
    classes: int  # or outputs, where labels are no class numbers
    mean: Scale
    std: Scale
    users: Index | None = None  # (n,) who made each training sample, where that is known

    def without_samples(self) -> Dataset:
        """What its inputs look like and how they are normalised, and no more."""
        inputs, labels = self.images[:0].copy(), self.labels[:0].copy()
        return self._replace(images=inputs, labels=labels, test_images=inputs, test_labels=labels, users=None)

    @property
    def form(self) -> Form:
        """What one input looks like."""
        kind = kind_of(self.images)
        parts = [part for part in (self.images, self.test_images) if len(part)] if kind == TOKENS else []
        return Form(self.images.shape[1:], kind, max((int(part.max()) for part in parts), default=0))


def kind_of(inputs: Array) -> str:
    """Bytes, floats or tokens."""
    return {"u": BYTES, "f": FLOATS}.get(inputs.dtype.kind, TOKENS)


def shape_text(data: Dataset) -> str:
    """What its inputs look like: "28×28 grey"."""
    sides = "×".join(map(str, data.images.shape[1:]))
    if kind_of(data.images) == TOKENS:
        return f"{sides} tokens" + (f" up to {data.form.largest}" if len(data.images) else "")
    if data.images.dtype != np.uint8:
        return f"{sides} {data.images.dtype.name}"
    if data.images.ndim != 4:
        return f"{sides} bytes"
    channels, height, width = data.images.shape[1:]
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
        if found.dtype.kind == "f" and not np.isfinite(part).all():
            bad = start + int(np.flatnonzero(~np.isfinite(part).reshape(len(part), -1).all(1))[0])
            raise DataError(f"{source} must be finite numbers: sample {bad} holds NaN or infinity")
        if found.dtype.kind == "i" and not 0 <= int(part.min()) <= int(part.max()) <= MOST_TOKENS:
            raise DataError(f"{source} must be tokens from 0 to {MOST_TOKENS:,}, not from {part.min()} to {part.max()}")
    return found


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
    """As single-precision numbers; a channel that never changes has deviation 1."""

    def mean(function: Callable[[Array], Array]) -> Array:
        blocks = (inputs[start : start + _BLOCK].astype(np.float64) for start in range(0, len(inputs), _BLOCK))
        rows = [function(block.reshape(len(block), block.shape[1], -1)).sum((0, 2)) for block in blocks]
        total: Array = np.sum(rows, 0)
        total /= inputs.size / inputs.shape[1]
        return total

    centre = mean(lambda block: block)
    deviation = np.sqrt(mean(lambda block: (block - centre[:, None]) ** 2)).astype(np.float32)
    deviation[deviation <= 1e-6 * np.maximum(1, np.abs(centre))] = 1
    return tuple(centre.astype(np.float32).tolist()), tuple(deviation.tolist())
