"""One C function per stage: loops over the pixels that it writes, calls of the kernels in `c_kernels` inside."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from bifl.export.c_arrays import Array, Packed, affine_arrays, number, pack
from bifl.export.c_rows import in_rows, of_rows
from bifl.export.operations import Affine, Pool, Shape
from bifl.export.stages import Pointwise, Stage, in_place


class Function(NamedTuple):
    """A stage as C."""

    name: str
    arrays: list[Array]
    text: str
    kernels: set[str]  # that it calls
    weights: str  # what they are made of
    scratch: bool  # whether it takes working memory


class Normalisation(NamedTuple):
    """What makes floats of the raw inputs: (x/divisor − mean)/std, by channel or for all."""

    kind: str  # the C type of a raw value
    divisor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


def function_name(number: int, stage: Stage) -> str:
    """A name that C takes: the stage's number and its first layer."""
    return f"s{number}_{re.sub('[^A-Za-z0-9]', '_', stage.layers[0])}"


def of_stage(number: int, stage: Stage, source: Shape | None, how: Normalisation) -> Function:
    """The function of a stage; `source` is the shape of what it reads."""
    name = function_name(number, stage)
    if stage.kind == "input":
        return _input(name, stage, how)
    assert source is not None
    return _Body(name, stage, source).function()


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
    return Function(name, arrays, text, set(), "", False)


class _Body:
    """Writes the function of one stage."""

    def __init__(self, name: str, stage: Stage, source: Shape) -> None:
        self._name, self._stage, self._source = name, stage, source
        self._packed: Packed | None = pack(stage, name) if stage.dot is not None else None
        self._norms = affine_arrays(stage, name)
        self._kernels: set[str] = set()

    def function(self) -> Function:
        """All of it."""
        stage = self._stage
        lines = self._whole() if stage.dot is None and stage.pool is None else self._pixel_by_pixel()
        arrays = [array for pair in self._norms.values() for array in pair] + (self._packed.arrays if self._packed else [])
        scratch = any("scratch" in line for line in lines)
        head = "const float *in, const float *other, float *out" if stage.kind == "add" else "const float *in, float *out"
        head += ", float *scratch" if scratch else ""
        window = self._window() if "window" in self._kernels else ""
        text = f"/* {self._about()} */\n{window}static void {self._name}({head})\n{{\n" + "\n".join(lines) + "\n}\n"
        return Function(self._name, arrays, text, self._kernels, self._packed.kind if self._packed else "", scratch)

    def _about(self) -> str:
        stage = self._stage
        text = f"{' + '.join(stage.layers)}: {_spelled(self._source)} -> {_spelled(stage.shape)}"
        if stage.dot is not None and self._packed is not None:
            text += f", {stage.dot.weight.size:,} {self._packed.kind} weights"
        return text

    def _whole(self) -> list[str]:
        """Element by element, all at once; `out` may be `in`."""
        stage, size = self._stage, self._stage.shape.size
        value = "in[i] + other[i]" if stage.kind == "add" else "in[i]"
        lines = [f"    for (int i = 0; i < {size}; i++)", f"        out[i] = {value};"]
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
        soon = [] if stage.pool is None or late else stage.after
        before = stage.before if stage.pool is not None or not late else []
        inner = self._pooled(stage.pool, to, y, x) if stage.pool is not None else self._pixel(to, y, x, before)
        inner += self._pointwise(soon, to, step)
        rest = self._pointwise(late, "out", stage.shape.size)
        if single:
            return inner + rest
        lines = [
            "    float *pixel = out;",
            f"    for (int y = 0; y < {height}; y++)",
            f"        for (int x = 0; x < {width}; x++, pixel += {step}) {{",
            *(f"        {line}" for line in inner),
            "        }",
        ]
        if self._packed is not None and in_rows(stage, self._packed.kind):
            self._kernels.add("rows")
            lines = ["#if MODEL_WIDE", *of_rows(self._name, stage, self._packed), "#else", *lines, "#endif"]
        return lines + rest

    def _pooled(self, pool: Pool, to: str, y: str, x: str) -> list[str]:
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
        if stage.kind == "pixel" and not stage.before:
            values = f"in + (row * {stage.inner.width} + column) * {channels}"
        else:
            values = self._sums()
            at = (values, "row", "column")
            pixel = self._added(*at) if stage.scaled_after else self._pixel(*at, stage.before)
            lines += [f"        {line}" for line in pixel]
        lines += [f"            {_POOLING[pool.name]}({to}, {values}, {channels});", "        }"]
        lines += [self._scaled(to)] if stage.scaled_after else []
        return lines + self._mean(pool, to)

    def _checks(self, pool: Pool) -> list[str]:
        """What tells pixels outside of the map, where windows reach over its edge."""
        found = []
        for axis, name in enumerate(("row", "column")):
            end = (self._stage.shape[1 + axis] - 1) * pool.stride[axis] - pool.padding[axis] + pool.size[axis]
            found += [f"{name} < 0"] if pool.padding[axis] else []
            found += [f"{name} >= {self._stage.inner[1 + axis]}"] if end > self._stage.inner[1 + axis] else []
        return found

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

    def _sums(self) -> str:
        """Where one pixel's values stand before they are pooled."""
        dot = self._stage.dot
        size = 0 if dot is None or in_place(self._stage) else dot.weight[0].size
        return f"scratch + {size}" if size else "scratch"

    def _pixel(self, to: str, row: str, column: str, before: list[Pointwise]) -> list[str]:
        """One pixel's values before pooling, written to `to`."""
        stage, channels = self._stage, self._stage.inner.channels
        if stage.dot is None:
            at = f"(({row}) * {stage.inner.width} + {column}) * {channels} + c"
            value = f"in[{at}] + other[{at}]" if stage.kind == "add" else f"in[{at}]"
            lines = [f"    for (int c = 0; c < {channels}; c++)", f"        ({to})[c] = {value};"]
            return lines + self._pointwise(before, to, channels)
        return [*self._added(to, row, column), self._scaled(to), *self._pointwise(before, to, channels)]

    def _added(self, to: str, row: str, column: str) -> list[str]:
        """One pixel's sums, not yet scaled."""
        self._kernels.add("fill")
        return [f"    fill({to}, 0.0f, {self._stage.inner.channels});", *self._dot(to, row, column)]

    def _scaled(self, to: str) -> str:
        self._kernels.add("scale")
        return f"    scale_and_shift({to}, {self._name}_scale, {self._name}_shift, {self._stage.inner.channels});"

    def _dot(self, to: str, row: str, column: str) -> list[str]:
        """The sums of one pixel, group by group."""
        dot, packed = self._stage.dot, self._packed
        assert dot is not None
        assert packed is not None
        inputs, outputs = dot.weight[0].size, len(dot.weight) // dot.groups
        kernel = "add_products" if packed.kind == "real" else "add_signs"
        self._kernels.add("products" if packed.kind == "real" else "signs")
        step = inputs * outputs if packed.kind == "real" else -(-inputs // 32) * outputs
        if in_place(self._stage):
            at = f"(({row}) * {dot.stride[0] * self._source.width} + ({column}) * {dot.stride[1]}) * {inputs}"
            source = "in" if self._stage.inner[1:] == (1, 1) else f"in + {at}"
            return [f"    {kernel}({to}, {array.name}, {source}, {inputs}, {outputs});" for array in packed.weights]
        self._kernels.add("window")
        shape = f"&{self._name}_window"
        if dot.groups == 1:
            calls = [f"    {kernel}({to}, {array.name}, scratch, {inputs}, {outputs});" for array in packed.weights]
            return [f"    take_window(scratch, in, {shape}, {row}, {column});", *calls]
        depth = dot.weight.shape[3]
        calls = [
            f"        {kernel}({to} + g * {outputs}, {array.name} + g * {step}, scratch, {inputs}, {outputs});"
            for array in packed.weights
        ]
        loop = f"    for (int g = 0; g < {dot.groups}; g++) {{"
        return [loop, f"        take_window(scratch, in + g * {depth}, {shape}, {row}, {column});", *calls, "    }"]

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
                self._kernels.add("scale")
                scale, shift = (array.name for array in self._norms[id(work)])
                lines.append(f"    scale_and_shift({to}, {scale}, {shift}, {count});")
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
