"""What a dataset is: inputs of any shape, bytes, floats or tokens, labels, and the numbers that normalise the inputs.

>>> import numpy as np
>>> pixels, labels = np.zeros((3, 1, 28, 28), np.uint8), np.array([0, 1, 0])
>>> data = Dataset(pixels, labels, pixels[:1], labels[:1], 2, 0.0, 1.0)
>>> data.form.shape, shape_text(data)
((1, 28, 28), '28×28 grey')
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.errors import DataError

Array = npt.NDArray[Any]
NONE: Mapping[str, Any] = {}  # no arrays beside the inputs; nobody may change it
Index = npt.NDArray[np.int64]
Scale = float | tuple[float, ...]  # for all, or for each channel
BYTES, FLOATS, TOKENS, FLAGS = "bytes", "floats", "tokens", "flags"
MOST_DIMENSIONS = 5  # of inputs, n included
MOST_FURTHER = 16  # arrays beside the inputs
MOST_VALUES = 2**24  # of a sample
RESERVED = ("input", "target")  # names that a batch has for the inputs and the labels
_FURTHER_KINDS = {"b": FLAGS, "u": TOKENS, "i": TOKENS, "f": FLOATS}
_TYPES = {BYTES: np.uint8, FLOATS: np.float32, TOKENS: np.int64, FLAGS: np.bool_}
_FURTHER = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,39}):(floats|tokens|flags):((?:[0-9]{1,8}(?:,[0-9]{1,8}){0,3})?)")
_FILES = {"inputs": "images", "test_inputs": "test_images"}  # what the first version called them, in clients' folders too


def is_shape(sides: Sequence[Any]) -> bool:
    """Whether an array of one sample may have these sides: a network is tried out with one."""
    whole = all(type(side) is int and side > 0 for side in sides)
    return whole and len(sides) < MOST_DIMENSIONS and prod(sides) <= MOST_VALUES


def is_scale(mean: Any, std: Any, kind: str, shape: Sequence[int]) -> bool:
    """Whether these normalise inputs: finite numbers, `std` above 0; one for all, or of floats one for each channel."""
    shapes = [(), tuple(shape[:1])] if kind == FLOATS else [()]
    given = [np.asarray(mean), np.asarray(std)]
    finite = all(part.dtype.kind in "iuf" and part.shape in shapes and np.isfinite(part).all() for part in given)
    return finite and bool((given[1] > 0).all())


class Form(NamedTuple):
    """What one input of a dataset looks like."""

    shape: tuple[int, ...]
    kind: str = BYTES
    largest: int = 0  # token, as far as that is known
    further: Mapping[str, Form] = NONE  # the form of every array beside it

    def empty(self) -> Array:
        """An array of no inputs."""
        return np.zeros((0, *self.shape), _TYPES[self.kind])


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
    validation: Index | None = None  # training samples that stand in place of the test samples: nobody trains on them

    def without_samples(self) -> Dataset:
        """What its inputs look like and how they are normalised, and no more."""
        inputs, labels = self.inputs[:0].copy(), self.labels[:0].copy()
        none = self._replace(inputs=inputs, labels=labels, users=None, further=rows(self.further, slice(0)))
        return none.tested_on(slice(0))

    def trained_on(self) -> Index:
        """The training samples that may be dealt out: all but those for validation."""
        return np.setdiff1d(np.arange(len(self.labels)), [] if self.validation is None else self.validation)

    def tested_on(self, chosen: Index | slice) -> Dataset:
        """The dataset with some of its training samples in place of its test samples."""
        return self._replace(
            test_inputs=self.inputs[chosen], test_labels=self.labels[chosen], test_further=rows(self.further, chosen)
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
    forms = {}
    for name, array in parts[0].items():
        kind = _FURTHER_KINDS[array.dtype.kind]
        forms[name] = Form(array.shape[1:], kind, _largest(kind, *(part[name] for part in parts), none=1))
    return forms


def rows(further: Mapping[str, Array], chosen: Index | slice | npt.NDArray[np.bool_]) -> Mapping[str, Array]:
    """Some rows of every array."""
    return {name: array[chosen] for name, array in further.items()}


def further_text(forms: Mapping[str, Form]) -> str:
    """Forms by name as `read_further` takes them.

    >>> further_text(read_further("mask:flags:16;places:tokens:16,2"))
    'mask:flags:16;places:tokens:16,2'
    """
    return ";".join(f"{name}:{form.kind}:{','.join(map(str, form.shape))}" for name, form in sorted(forms.items()))


def read_further(text: str) -> dict[str, Form]:
    """Forms by name from a text such as `mask:flags:16`; several with semicolons between them."""
    forms: dict[str, Form] = {}
    for part in text.split(";") if text else ():
        match = _FURTHER.fullmatch(part)
        if match is None or len(forms) == MOST_FURTHER or match[1] in RESERVED:
            raise DataError(f"further inputs must be {MOST_FURTHER} or fewer, each as mask:flags:16, not '{part:.40}'")
        shape = tuple(int(side) for side in match[3].split(",") if side)
        if not is_shape(shape):
            raise DataError(f"further inputs have from 1 to {MOST_VALUES:,} values a sample, not '{part:.40}'")
        forms[match[1]] = Form(shape, match[2], 1 if match[2] == TOKENS else 0)
    return forms


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


def save(data: Dataset, folder: Path) -> None:
    """Put what training needs of a dataset where several processes can map it into memory."""
    for name, value in data._asdict().items():
        if name in ("further", "test_further"):
            for key, array in value.items():
                np.save(folder / f"{name}-{key}.npy", array)
        elif name not in ("users", "validation"):  # they mattered for dealing
            np.save(folder / f"{_FILES.get(name, name)}.npy", value)


def map_dataset(folder: Path) -> Dataset:
    """A dataset from such a folder; copy-on-write, so that processes share the memory and torch finds it writable."""
    inputs, labels, test_inputs, test_labels = (
        np.load(folder / f"{name}.npy", mmap_mode="c") for name in ("images", "labels", "test_images", "test_labels")
    )
    classes, mean, std = (np.load(folder / f"{name}.npy").tolist() for name in ("classes", "mean", "std"))
    mean, std = (tuple(scale) if isinstance(scale, list) else scale for scale in (mean, std))
    further, test_further = (
        {path.stem.removeprefix(f"{kind}-"): np.load(path, mmap_mode="c") for path in sorted(folder.glob(f"{kind}-*.npy"))}
        for kind in ("further", "test_further")
    )
    return Dataset(inputs, labels, test_inputs, test_labels, classes, mean, std, None, further, test_further)
