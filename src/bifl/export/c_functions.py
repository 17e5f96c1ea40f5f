"""One C function per stage: loops over the pixels that it writes, calls of the kernels of `c/kernels.c` inside."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.export.raw import Normalisation
from bifl.export.stages import Affine, Dot, Pointwise, Shape, Stage
from bifl.export.weights import rows_of
from bifl.nn.trace import Pool

WIDTH = 120  # of a line of numbers


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


class Function(NamedTuple):
    """A stage as C."""

    name: str
    stage: Stage
    arrays: list[Array]
    text: str
    kernels: set[str]  # that it calls
    weights: str = ""  # what they are made of: binary, ternary or real; empty where there are none
    scratch: bool = False  # whether it takes working memory

    @property
    def flash(self) -> int:
        """Bytes of its constants."""
        return sum(array.values.nbytes for array in self.arrays)


def of_stage(number: int, stage: Stage, source: Shape | None, how: Normalisation) -> Function:
    """The function of a stage, named after its number and first layer; `source` is the shape of what it reads."""
    name = f"s{number}_{re.sub('[^A-Za-z0-9]', '_', stage.layers[0])}"
    return _input(name, stage, how) if source is None else _Body(name, stage, source).function()


def _input(name: str, stage: Stage, how: Normalisation) -> Function:
    """Raw values, channel after channel, to normalised floats, channel last."""
    channels, pixels = stage.shape.channels, stage.shape.height * stage.shape.width
    value = f"(float)in[c * {pixels} + i]"
    value = value if how.divisor == 1 else f"{value} / {number(how.divisor)}"
    arrays, means, stds = list[Array](), number(how.mean[0]), number(how.std[0])
    if len(how.mean) > 1:
        arrays = [Array(f"{name}_mean", np.array(how.mean, np.float32)), Array(f"{name}_std", np.array(how.std, np.float32))]
        means, stds = f"{name}_mean[c]", f"{name}_std[c]"
    text = f"""\
/* The input, normalised and channel last: {_spelled(stage.shape)}. */
static void {name}(const model_input *in, float *out)
{{
    for (int c = 0; c < {channels}; c++)
        for (int i = 0; i < {pixels}; i++)
            out[i * {channels} + c] = ({value} - {means}) / {stds};
}}
"""
    return Function(name, stage, arrays, text, set())


class _Packed(NamedTuple):
    """The constants of a stage's convolution or linear layer."""

    kind: str  # binary, ternary or real
    weights: list[Array]  # two of them where weights are ternary
    reals: list[Array]  # scale and shift of the sums of signs; the bias of real weights


def _packed(dot: Dot, name: str) -> _Packed:
    """Bits where they do; ϑ and batch-norm are their scale then."""
    grouped = (dot.groups, len(dot.weight) // dot.groups, -1)
    rows = rows_of(dot.weight)
    if rows is None:
        weights = np.ascontiguousarray(dot.weight.reshape(grouped).transpose(0, 2, 1))
        return _Packed("real", [Array(f"{name}_weights", weights)], [Array(f"{name}_bias", dot.bias)])
    signs, sizes = rows.signs.reshape(grouped), rows.sizes
    if rows.binary:
        planes = {"bits": signs > 0}
    else:  # the mean of two planes of ±1
        planes, sizes = {"upper_bits": signs >= 0, "lower_bits": signs > 0}, sizes / np.float32(2)
    words = [Array(f"{name}_{each}", np.stack([words_of(group) for group in plane])) for each, plane in planes.items()]
    return _Packed("binary" if rows.binary else "ternary", words, [Array(f"{name}_scale", sizes), Array(f"{name}_shift", dot.bias)])


def words_of(signs: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """(outputs, inputs) → (⌈inputs/32⌉, outputs) words: bit j of a word is the sign of input 32·row + j, 1 where it is negative.

    >>> words_of(np.array([[True, False, True], [False, False, True]])).tolist()
    [[2, 3]]
    """
    padded = np.pad(~signs, ((0, 0), (0, -signs.shape[1] % 32)))
    packed = np.ascontiguousarray(np.packbits(padded, axis=1, bitorder="little"))
    return np.ascontiguousarray(packed.view("<u4").astype(np.uint32).T)


class _Body:
    """Writes the function of one stage."""

    def __init__(self, name: str, stage: Stage, source: Shape) -> None:
        self._name, self._stage, self._source = name, stage, source
        self._packed = _packed(stage.dot, name) if stage.dot is not None else None
        self._norms: list[Array] = []
        self._kernels: set[str] = set()

    def function(self) -> Function:
        """All of it."""
        stage, packed = self._stage, self._packed
        lines = self._whole() if stage.dot is None and stage.pool is None else self._pixel_by_pixel()
        arrays = self._norms + ([*packed.weights, *packed.reals] if packed else [])
        scratch = any("scratch" in line for line in lines)
        head = "const float *in, const float *other, float *out" if len(stage.sources) == 2 else "const float *in, float *out"
        head += ", float *scratch" if scratch else ""
        window = self._window() if "window" in self._kernels else ""
        text = f"/* {self._about()} */\n{window}static void {self._name}({head})\n{{\n" + "\n".join(lines) + "\n}\n"
        return Function(self._name, stage, arrays, text, self._kernels, packed.kind if packed else "", scratch)

    def _about(self) -> str:
        stage = self._stage
        text = f"{' + '.join(stage.layers)}: {_spelled(self._source)} -> {_spelled(stage.shape)}"
        if stage.dot is not None and self._packed is not None:
            text += f", {stage.dot.weight.size:,} {self._packed.kind} weights"
        return text

    def _value(self, at: str) -> str:
        """An element of what a stage without a dot reads."""
        return f"in[{at}] + other[{at}]" if len(self._stage.sources) == 2 else f"in[{at}]"

    def _whole(self) -> list[str]:
        """Element by element, all at once; `out` may be `in`."""
        stage, size = self._stage, self._stage.shape.size
        lines = [f"    for (int i = 0; i < {size}; i++)", f"        out[i] = {self._value('i')};"]
        for work in stage.before:
            if isinstance(work, Affine):
                channels = len(work.scale)
                lines.append(f"    for (int i = 0; i < {size}; i += {channels})")
                lines += [f"    {line}" for line in self._pointwise([work], "out + i", channels)]
            else:
                lines += self._pointwise([work], "out", size)
        return lines

    def _pixel_by_pixel(self) -> list[str]:
        """Loops over the pixels that are written; activations in the end, of all at once: long loops are the fast ones."""
        stage = self._stage
        step, height, width = stage.shape
        single = (height, width) == (1, 1)
        to, y, x = ("out", "0", "0") if single else ("pixel", "y", "x")
        tail = stage.before if stage.pool is None else stage.after
        late = tail if not any(isinstance(work, Affine) for work in tail) else []
        soon = [] if late else tail
        inner = self._pixel(to, y, x, soon) if stage.pool is None else self._pooled(stage.pool, to, y, x, soon)
        rest = self._pointwise(late, "out", stage.shape.size)
        if single:
            return inner + rest
        return [
            "    float *pixel = out;",
            f"    for (int y = 0; y < {height}; y++)",
            f"        for (int x = 0; x < {width}; x++, pixel += {step}) {{",
            *(f"        {line}" for line in inner),
            "        }",
            *rest,
        ]

    def _pooled(self, pool: Pool, to: str, y: str, x: str, after: list[Pointwise]) -> list[str]:
        """A pooled pixel: the windows' pixels one after the other, none of them stored."""
        stage, channels = self._stage, self._stage.inner.channels
        start = "-FLT_MAX" if pool.name == "max" else "0.0f"
        self._kernels |= {"fill", pool.name}
        lines = [
            f"    fill({to}, {start}, {channels});",
            f"    for (int v = 0; v < {pool.size[0]}; v++)",
            f"        for (int u = 0; u < {pool.size[1]}; u++) {{",
            f"            const int row = {_coordinate(y, 'v', pool, 0)}, column = {_coordinate(x, 'u', pool, 1)};",
        ]
        if checks := self._checks(pool):
            lines += [f"            if ({' || '.join(checks)})", "                continue;"]
        if stage.dot is None and len(stage.sources) == 1 and not stage.before:
            values = f"in + (row * {stage.inner.width} + column) * {channels}"
        else:
            values = f"scratch + {stage.window}" if stage.window else "scratch"
            at = (values, "row", "column")
            pixel = self._sums(*at) if stage.scaled_after else self._pixel(*at, stage.before)
            lines += [f"        {line}" for line in pixel]
        lines += [f"            {_POOLING[pool.name]}({to}, {values}, {channels});", "        }"]
        lines += self._scaled(to) if stage.scaled_after else []
        return lines + self._mean(pool, to) + self._pointwise(after, to, channels)

    def _checks(self, pool: Pool) -> list[str]:
        """What tells pixels outside of the map, where windows reach over its edge."""
        checks = []
        for axis, name in enumerate(("row", "column")):
            end = (self._stage.shape[1 + axis] - 1) * pool.stride[axis] - pool.padding[axis] + pool.size[axis]
            checks += [f"{name} < 0"] if pool.padding[axis] else []
            checks += [f"{name} >= {self._stage.inner[1 + axis]}"] if end > self._stage.inner[1 + axis] else []
        return checks

    def _mean(self, pool: Pool, to: str) -> list[str]:
        """The division of a mean, by as many values as PyTorch counts."""
        if pool.name != "mean":
            return []
        channels, factors = self._stage.inner.channels, []
        for axis, at in enumerate("yx"):
            size, stride, padding, full = pool.size[axis], pool.stride[axis], pool.padding[axis], self._stage.inner[1 + axis]
            low = 0 if not pool.count_padding else -padding
            high = full if not pool.count_padding else full + padding
            starts = [number * stride - padding for number in range(self._stage.shape[1 + axis])]
            counts = [min(start + size, high) - max(start, low) for start in starts]
            if len(set(counts)) == 1:
                factors.append(str(counts[0]))
            else:  # the windows at the edge hold fewer values
                table = ", ".join(map(str, counts))
                factors.append(f"((const int[]){{{table}}})[{at}]")
        plain = all(factor.isdecimal() for factor in factors)
        by = f"{int(factors[0]) * int(factors[1])}.0f" if plain else f"(float)({factors[0]} * {factors[1]})"
        return [f"    divide({to}, {by}, {channels});"]

    def _pixel(self, to: str, row: str, column: str, before: list[Pointwise]) -> list[str]:
        """One pixel's values before pooling, written to `to`."""
        stage, channels = self._stage, self._stage.inner.channels
        if stage.dot is None:
            at = f"(({row}) * {stage.inner.width} + {column}) * {channels} + c"
            lines = [f"    for (int c = 0; c < {channels}; c++)", f"        ({to})[c] = {self._value(at)};"]
        else:
            lines = self._sums(to, row, column) + self._scaled(to)
        return lines + self._pointwise(before, to, channels)

    def _sums(self, to: str, row: str, column: str) -> list[str]:
        """One pixel's sums, not yet scaled; those of real weights start from the bias."""
        dot, packed = self._stage.dot, self._packed
        assert dot is not None
        assert packed is not None
        inputs, outputs = dot.weight[0].size, len(dot.weight) // dot.groups
        if packed.kind == "real":
            self._kernels.add("products")
            kernel, step = "add_products", inputs * outputs
            first = f"    memcpy({to}, {packed.reals[0].name}, sizeof {packed.reals[0].name});"
        else:
            self._kernels |= {"signs", "fill"}
            kernel, step = "add_signs", -(-inputs // 32) * outputs
            first = f"    fill({to}, 0.0f, {self._stage.inner.channels});"

        def calls(source: str, sums: str = to, offset: str = "") -> list[str]:
            return [f"    {kernel}({sums}, {array.name}{offset}, {source}, {inputs}, {outputs});" for array in packed.weights]

        if self._stage.reads_in_place:
            at = f"(({row}) * {dot.stride[0] * self._source.width} + ({column}) * {dot.stride[1]}) * {inputs}"
            return [first, *calls("in" if self._stage.inner[1:] == (1, 1) else f"in + {at}")]
        self._kernels.add("window")
        window = f"&{self._name}_window, {row}, {column});"
        if dot.groups == 1:
            return [first, f"    take_window(scratch, in, {window}", *calls("scratch")]
        start = f"in + g * {dot.weight.shape[3]}"
        group = [f"    take_window(scratch, {start}, {window}", *calls("scratch", f"{to} + g * {outputs}", f" + g * {step}")]
        return [first, f"    for (int g = 0; g < {dot.groups}; g++) {{", *(f"    {line}" for line in group), "    }"]

    def _scaled(self, to: str) -> list[str]:
        if self._packed is None or self._packed.kind == "real":
            return []
        return [self._scale_and_shift(to, self._packed.reals, self._stage.inner.channels)]

    def _scale_and_shift(self, to: str, reals: list[Array], count: int) -> str:
        self._kernels.add("scale")
        return f"    scale_and_shift({to}, {reals[0].name}, {reals[1].name}, {count});"

    def _window(self) -> str:
        dot, source = self._stage.dot, self._source
        assert dot is not None
        _, rows, columns, depth = dot.weight.shape
        numbers = (source.height, source.width, source.channels, rows, columns, depth, *dot.stride, *dot.padding, *dot.dilation)
        return f"static const struct window {self._name}_window = {{{', '.join(map(str, numbers))}}};\n\n"

    def _pointwise(self, works: Iterable[Pointwise], to: str, count: int) -> list[str]:
        lines = []
        for work in works:
            if isinstance(work, Affine):
                name = f"{self._name}_norm{len(self._norms) // 2 + 1}"
                reals = [Array(f"{name}_scale", work.scale), Array(f"{name}_shift", work.shift)]
                self._norms += reals
                lines.append(self._scale_and_shift(to, reals, count))
            else:
                self._kernels |= {work.name} | ({"tanh"} if work.name == "gelu_tanh" else set())
                lines.append(f"    activate_{work.name}({to}, {count});")
        return lines


_POOLING = {"max": "keep_larger", "mean": "add_to"}


def _coordinate(outer: str, inner: str, pool: Pool, axis: int) -> str:
    """The row or column of the inner map that a window looks at."""
    stride, padding = pool.stride[axis], pool.padding[axis]
    return (inner if outer == "0" else f"{outer} * {stride} + {inner}") + (f" - {padding}" if padding else "")


def _spelled(shape: Shape) -> str:
    """A shape for people: 16x14x14, 9x128 or 100."""
    channels, height, width = shape
    return f"{channels}x{height}x{width}" if height > 1 else f"{channels}x{width}" if width > 1 else str(channels)
