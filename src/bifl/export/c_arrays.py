"""Numbers as C: the constant arrays of a stage, and what they take of a device's flash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.export.bits import signs_of, words_of
from bifl.export.operations import Affine
from bifl.export.stages import Stage

WIDTH = 120  # of a line of numbers


class Array(NamedTuple):
    """A constant array."""

    name: str
    values: npt.NDArray[np.generic]  # uint8, uint32 or float32

    @property
    def text(self) -> str:
        """Its definition."""
        spell, kind = _SPELLED[self.values.dtype.name]
        numbers = [spell(value) for value in self.values.flat]
        return f"static const {kind} {self.name}[{self.values.size}] = {{\n{_lines(numbers)}\n}};\n"


def number(value: Any) -> str:
    """A float32 as C, exactly: the shortest digits that give it back."""
    text = str(np.float32(value))
    return f"{text}f" if any(mark in text for mark in ".e") else f"{text}.0f"


_SPELLED: dict[str, tuple[Callable[[Any], str], str]] = {
    "uint8": (lambda value: str(int(value)), "uint8_t"),
    "uint32": (lambda value: f"0x{int(value):08x}", "uint32_t"),
    "float32": (number, "float"),
}


def _lines(words: Sequence[str]) -> str:
    lines, line = [], "   "
    for word in words:
        if len(line) + len(word) + 2 > WIDTH:
            lines.append(line)
            line = "   "
        line += f" {word},"
    return "\n".join([*lines, line])


class Packed(NamedTuple):
    """The constants of a stage's convolution or linear layer."""

    kind: str  # binary, ternary or real
    weights: list[Array]  # two of them where weights are ternary
    scale: Array
    shift: Array

    @property
    def arrays(self) -> list[Array]:
        """All of them."""
        return [*self.weights, self.scale, self.shift]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(array.values.nbytes for array in self.arrays)


def pack(stage: Stage, name: str) -> Packed:
    """The constants of a stage with a dot: ϑ is part of the scale, so that the weights are bits; no scale is negative."""
    dot, scale, shift = stage.dot, stage.scale, stage.shift
    assert dot is not None
    assert scale is not None
    assert shift is not None
    outputs = len(dot.weight)
    flip = np.where(scale < 0, np.float32(-1), np.float32(1))
    groups = (dot.weight * flip[:, None, None, None]).reshape(dot.groups, outputs // dot.groups, -1)
    scale = np.abs(scale)
    signs = signs_of(groups)
    if signs is None:
        weights = [Array(f"{name}_weights", np.ascontiguousarray(groups.transpose(0, 2, 1)).astype(np.float32))]
        kind = "real"
    else:
        planes = [np.stack([words_of(group) for group in plane]) for plane in signs.planes]
        names = ["bits"] if len(planes) == 1 else ["upper_bits", "lower_bits"]
        weights = [Array(f"{name}_{each}", plane) for each, plane in zip(names, planes, strict=True)]
        scale, kind = scale * signs.size / len(planes), ("binary", "ternary")[len(planes) - 1]
    reals = [Array(f"{name}_{each}", values.astype(np.float32)) for each, values in (("scale", scale), ("shift", shift))]
    return Packed(kind, weights, *reals)


def affine_arrays(stage: Stage, name: str) -> dict[int, tuple[Array, Array]]:
    """The constants of norms that no dot takes in, by the identity of the norm."""
    found: dict[int, tuple[Array, Array]] = {}
    for work in (*stage.before, *stage.after):
        if isinstance(work, Affine):
            own = f"{name}_norm{len(found) + 1}"
            found[id(work)] = (
                Array(f"{own}_scale", work.scale.astype(np.float32)),
                Array(f"{own}_shift", work.shift.astype(np.float32)),
            )
    return found
