"""One C function per stage, written by `c/stage.c.jinja`: loops over the pixels, calls of the kernels of `c/kernels.c` inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, PackageLoader, StrictUndefined

from bifl.export.raw import Normalisation
from bifl.export.stages import Affine, Dot, Pointwise, Shape, Stage
from bifl.export.weights import rows_of
from bifl.nn.trace import Pool

WIDTH = 120  # of a line of numbers
TEMPLATES = Environment(
    loader=PackageLoader("bifl.export", "c"), undefined=StrictUndefined,
    trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
)  # fmt: skip


class Array(NamedTuple):
    """A constant array."""

    name: str
    values: npt.NDArray[np.generic]  # uint8, uint32 or float32

    @property
    def text(self) -> str:
        """Its definition."""
        spell, kind = _SPELLED[self.values.dtype.name]
        numbers = " ".join(f"{spell(value)}," for value in self.values.flat)
        lines = fill(numbers, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4, break_on_hyphens=False)
        return f"static const {kind} {self.name}[{self.values.size}] = {{\n{lines}\n}};\n"


def number(value: Any) -> str:
    """A float32 as C, exactly: the shortest digits that give it back."""
    text = str(np.float32(value))
    return f"{text}f" if any(mark in text for mark in ".e") else f"{text}.0f"


_SPELLED: dict[str, tuple[Callable[[Any], str], str]] = {
    "uint8": (lambda value: str(int(value)), "uint8_t"),
    "uint32": (lambda value: f"0x{int(value):08x}", "uint32_t"),
    "float32": (number, "float"),
}


class Packed(NamedTuple):
    """The constants of a stage's convolution or linear layer."""

    kind: str  # binary, ternary or real
    weights: list[Array]  # two of them where weights are ternary
    reals: list[Array]  # scale and shift of the sums of signs; the bias of real weights
    step: int  # elements of the weights of one group


def _packed(dot: Dot, name: str) -> Packed:
    """Bits where they do; ϑ and batch-norm are their scale then."""
    inputs, outputs = dot.weight[0].size, len(dot.weight) // dot.groups
    grouped = (dot.groups, outputs, -1)
    rows = rows_of(dot.weight)
    if rows is None:
        weights = np.ascontiguousarray(dot.weight.reshape(grouped).transpose(0, 2, 1))
        return Packed("real", [Array(f"{name}_weights", weights)], [Array(f"{name}_bias", dot.bias)], inputs * outputs)
    signs, sizes = rows.signs.reshape(grouped), rows.sizes
    if rows.binary:
        planes = {"bits": signs > 0}
    else:  # the mean of two planes of ±1
        planes, sizes = {"upper_bits": signs >= 0, "lower_bits": signs > 0}, sizes / np.float32(2)
    words = [Array(f"{name}_{each}", np.stack([words_of(group) for group in plane])) for each, plane in planes.items()]
    reals = [Array(f"{name}_scale", sizes), Array(f"{name}_shift", dot.bias)]
    return Packed("binary" if rows.binary else "ternary", words, reals, -(-inputs // 32) * outputs)


def words_of(signs: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """(outputs, inputs) → (⌈inputs/32⌉, outputs) words: bit j of a word is the sign of input 32·row + j, 1 where it is negative.

    >>> words_of(np.array([[True, False, True], [False, False, True]])).tolist()
    [[2, 3]]
    """
    padded = np.pad(~signs, ((0, 0), (0, -signs.shape[1] % 32)))
    packed = np.ascontiguousarray(np.packbits(padded, axis=1, bitorder="little"))
    return np.ascontiguousarray(packed.view("<u4").astype(np.uint32).T)


@dataclass(frozen=True, eq=False)
class Function:
    """A stage as C: what its template reads."""

    name: str
    stage: Stage
    source: Shape | None  # of what it reads; the input has none
    how: Normalisation  # of raw inputs

    @cached_property
    def packed(self) -> Packed | None:
        """The constants of its dot."""
        return None if self.stage.dot is None else _packed(self.stage.dot, self.name)

    @cached_property
    def norms(self) -> dict[Affine, tuple[Array, Array]]:
        """The constants of its batch-norms."""
        norms = [work for work in (*self.stage.before, *self.stage.after) if isinstance(work, Affine)]
        names = [f"{self.name}_norm{number}" for number in range(1, len(norms) + 1)]
        return {
            norm: (Array(f"{name}_scale", norm.scale), Array(f"{name}_shift", norm.shift))
            for norm, name in zip(norms, names, strict=True)
        }

    @property
    def late(self) -> list[Pointwise]:
        """What is done in the end, of all pixels at once: long loops are the fast ones."""
        tail = self.stage.before if self.stage.pool is None else self.stage.after
        return [] if any(isinstance(work, Affine) for work in tail) else tail

    @property
    def arrays(self) -> list[Array]:
        """Its constants."""
        if self.source is None:
            scales = {"mean": self.how.mean, "std": self.how.std} if len(self.how.mean) > 1 else {}
            return [Array(f"{self.name}_{each}", np.array(scale, np.float32)) for each, scale in scales.items()]
        norms = [array for constants in self.norms.values() for array in constants]
        return norms + ([*self.packed.weights, *self.packed.reals] if self.packed else [])

    @property
    def flash(self) -> int:
        """Bytes of its constants."""
        return sum(array.values.nbytes for array in self.arrays)

    @cached_property
    def text(self) -> str:
        """The C."""
        if self.source is None:
            about = f"The input, normalised and channel last: {_spelled(self.stage.shape)}."
            return f"/* {about} */\n" + self._written("input")
        about = f"{' + '.join(self.stage.layers)}: {_spelled(self.source)} -> {_spelled(self.stage.shape)}"
        if self.stage.dot is not None and self.packed is not None:
            about += f", {self.stage.dot.weight.size:,} {self.packed.kind} weights"
        return f"/* {about} */\n" + self._window(self.stage.dot, self.source) + self._written("body")

    def _written(self, macro: str) -> str:
        text = getattr(TEMPLATES.get_template("stage.c.jinja").module, macro)(self, number)
        return "".join(f"{line}\n" for line in text.splitlines() if line.strip())

    def _window(self, dot: Dot | None, source: Shape) -> str:
        """What `take_window` must know, where it is called."""
        if dot is None or self.stage.reads_in_place:
            return ""
        _, rows, columns, depth = dot.weight.shape
        numbers = (source.height, source.width, source.channels, rows, columns, depth, *dot.stride, *dot.padding, *dot.dilation)
        return f"static const struct window {self.name}_window = {{{', '.join(map(str, numbers))}}};\n\n"

    @property
    def scratch(self) -> bool:
        """Whether it takes working memory."""
        return bool(self.stage.window) or (self.stage.pool is not None and not self.reads_map)

    @property
    def reads_map(self) -> bool:
        """Whether it pools what it is given, as it is."""
        return self.stage.dot is None and len(self.stage.sources) == 1 and not self.stage.before

    def checks(self, pool: Pool) -> list[str]:
        """What tells pixels outside of the map, where windows reach over its edge."""
        checks = []
        for axis, name in enumerate(("row", "column")):
            end = (self.stage.shape[1 + axis] - 1) * pool.stride[axis] - pool.padding[axis] + pool.size[axis]
            checks += [f"{name} < 0"] if pool.padding[axis] else []
            checks += [f"{name} >= {self.stage.inner[1 + axis]}"] if end > self.stage.inner[1 + axis] else []
        return checks

    def divisor(self, pool: Pool) -> str:
        """Of a mean: as many values as PyTorch counts."""
        factors = []
        for axis, at in enumerate("yx"):
            counts = self.stage.windows(axis, pool.padding[axis] if pool.count_padding else 0)
            if len(set(counts)) == 1:
                factors.append(str(counts[0]))
            else:  # the windows at the edge hold fewer values
                factors.append(f"((const int[]){{{', '.join(map(str, counts))}}})[{at}]")
        plain = all(factor.isdecimal() for factor in factors)
        return f"{int(factors[0]) * int(factors[1])}.0f" if plain else f"(float)({factors[0]} * {factors[1]})"


def _spelled(shape: Shape) -> str:
    """A shape for people: 16x14x14, 9x128 or 100."""
    channels, height, width = shape
    return f"{channels}x{height}x{width}" if height > 1 else f"{channels}x{width}" if width > 1 else str(channels)
