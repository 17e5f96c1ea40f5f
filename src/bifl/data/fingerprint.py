"""What was loaded: how many samples, of what kind, and a digest of them. A run's folder tells, so that other data show.

>>> import numpy as np
>>> pixels, labels = np.zeros((3, 1, 28, 28), np.uint8), np.array([0, 1, 0])
>>> digits = loaded(Dataset(pixels, labels, pixels[:1], labels[:1], 2, 0.0, 1.0))
>>> sentence(digits)
'3 to train, 1 to test, 2 classes, 28×28 grey, digest ecce7af5'
>>> from_json(to_json(digits)) == digits
True
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from bifl.data.inputs import Array, Dataset, shape_text
from bifl.files import parse_json

BLOCK = 2**24  # bytes that are read at a time: the array may lie on the disk
WHOLE = 2**32
"""Bytes of an array that are read for its digest: of a larger one only every second block, or third, …, spread over all of it."""
LETTERS = 8  # of a digest that people see
MOST_BYTES = 2**16  # of a data.json
_LONGEST = 80  # letters of `inputs`
_DIGEST = re.compile("[0-9a-f]{64}")
_ONE = {"classes": "class", "outputs": "output"}


class Loaded(NamedTuple):
    """What was loaded. A server whose clients have the data has none, 0 samples."""

    train: int  # samples
    test: int  # 0 where validation samples stand in their place
    classes: int  # or outputs
    labels: str  # which of the two: "classes" or "outputs"
    inputs: str  # what one looks like: "28×28 grey"
    train_sha256: str  # of inputs, labels and users
    test_sha256: str  # of those that are evaluated on
    validation: int = 0  # samples that are evaluated on instead of test samples; the rest of `train_sha256` is trained on

    @property
    def digest(self) -> str:
        """Of everything, for people."""
        return hashlib.sha256(f"{self.train_sha256} {self.test_sha256}".encode()).hexdigest()[:LETTERS]


def loaded(data: Dataset) -> Loaded:
    """What a dataset is, with labels as its task takes them. It is read from one end to the other: keep what this returns."""
    users = [] if data.users is None else [data.users]
    validation = 0 if data.validation is None else len(data.validation)
    return Loaded(
        len(data.labels) - validation, len(data.test_labels) - validation, int(data.classes),
        "classes" if data.labels.ndim == 1 else "outputs", shape_text(data),
        _digest(data.inputs, data.labels, *users, *_in_order(data.further)),
        _digest(data.test_inputs, data.test_labels, *_in_order(data.test_further)), validation,
    )  # fmt: skip


def _in_order(further: Mapping[str, Array]) -> list[Array]:
    return [further[name] for name in sorted(further)]


def _digest(*arrays: Array) -> str:
    """Of the numbers, wherever the arrays lie and in whatever order of bytes or axes."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.name} {array.shape} ".encode())
        rows = max(1, BLOCK * len(array) // max(1, array.nbytes))
        step = rows * -(-array.nbytes // WHOLE)
        for start in range(0, len(array), step or 1):
            block = array[start : start + rows]
            digest.update(np.ascontiguousarray(block, block.dtype.newbyteorder("<")).data)
    return digest.hexdigest()


def sentence(data: Loaded) -> str:
    """For people, in one line without its end."""
    looks = f"{data.classes:,} {data.labels if data.classes != 1 else _ONE[data.labels]}, {data.inputs}"
    if not data.train + data.test + data.validation:
        return f"none on this machine, {looks}"
    tests = f"{data.validation:,} to validate (no test sample is used)" if data.validation else f"{data.test:,} to test"
    return f"{data.train:,} to train, {tests}, {looks}, digest {data.digest}"


def facts(data: Loaded) -> dict[str, Any]:
    """The same by name."""
    return {name: value for name, value in data._asdict().items() if value or name != "validation"}


def to_json(data: Loaded) -> str:
    """The contents of a data.json."""
    return json.dumps(facts(data), ensure_ascii=False)


def from_json(text: str | bytes) -> Loaded:
    """What such a text says; ValueError if it says something else."""
    return from_facts(parse_json(text))


def from_facts(facts: Any) -> Loaded:
    """The same from what a parser of JSON makes of it."""
    if not isinstance(facts, dict):
        raise ValueError("it is no object")
    facts = {"validation": 0} | facts
    for name in Loaded._fields:
        if not _fits(name, facts.get(name)):
            raise ValueError(f"{name} is {facts.get(name)!r:.40}")
    return Loaded(**{name: facts[name] for name in Loaded._fields})


def _fits(name: str, value: object) -> bool:
    if name in ("train", "test", "classes", "validation"):
        return type(value) is int and 0 <= value < 2**63  # True is none
    if not isinstance(value, str):
        return False
    if name == "labels":
        return value in _ONE
    if name == "inputs":
        return len(value) <= _LONGEST and value.isprintable()
    return _DIGEST.fullmatch(value) is not None
