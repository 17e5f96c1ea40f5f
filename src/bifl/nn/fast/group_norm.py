"""GroupNorm and an activation, there and back, in compiled loops: groups of an image's channels have moments of their own.

y = act(γ·(x − μ)/σ + β). LayerNorm over the features of a row is the same with one group and one pixel. An image lies as rows of
whole pixels, (rows, line): a handful of channels alone is too few for vector instructions. Sums over an image are taken position
by position of a row, in a fixed order.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from bifl.nn.fast.kernels import NONE, RELU, TANH, Array, compiled, tanh
from bifl.nn.fast.steps import Back, Pass, Step

_ZERO, _ONE = np.float32(0), np.float32(1)
_LINE = 128  # values: what a loop keeps of every one of them fits into the first cache many times


class GroupNorm(Step):
    """GroupNorm, or LayerNorm over the features of a row, and an activation or none."""

    def __init__(self, norm: nn.GroupNorm | nn.LayerNorm, activation: int) -> None:
        self._norm, self._activation, self._groups = norm, activation, norm.num_groups if isinstance(norm, nn.GroupNorm) else 1

    def ahead(self, x: Array, through: Pass) -> tuple[Array, Back]:
        """As `Step` says."""
        gamma, beta, activation = through.value(self._norm.weight), through.value(self._norm.bias), self._activation
        y, mean, inverse = np.empty_like(x), np.empty((len(x), self._groups)), np.empty((len(x), self._groups))
        normalise(_rows(x), gamma, beta, self._norm.eps, activation, _rows(y), mean, inverse)

        def back(upper: Array) -> Array:
            below, gradients = np.empty_like(x), np.empty((2, len(gamma)), np.float32)
            denormalise(_rows(upper), _rows(x), _rows(y), gamma, mean, inverse, activation, _rows(below), gradients)
            through.write(self._norm.weight, gradients[0])
            through.write(self._norm.bias, gradients[1])
            return below

        return y, back


def _rows(x: Array) -> Array:
    """(n, …, c) values as (n, rows, line), of the same memory."""
    pixels, channels = x[:1].size // x.shape[-1], x.shape[-1]
    whole = max((count for count in range(1, _LINE // channels + 1) if pixels % count == 0), default=1)
    return x.reshape(len(x), pixels // whole, whole * channels)


@compiled
def _tile(values: Array, line: Array) -> None:
    """Every pixel of the line ← values, (c,). Without the remainders of positions: dividing costs more than all else here."""
    channels = len(values)
    for start in range(0, len(line), channels):
        for c in range(channels):
            line[start + c] = values[c]


@compiled
def _fold(line: Array, sums: Array) -> None:
    """sums, (c,) float64, ← over the pixels of the line, which becomes 0."""
    channels = len(sums)
    sums[:] = 0
    for start in range(0, len(line), channels):
        for c in range(channels):
            sums[c] += line[start + c]
            line[start + c] = 0


@compiled
def _add_up(x: Array, pivot: Array, part: Array, part_square: Array) -> None:
    """part, (line,), += sum over the rows of x − pivot, and part_square that of its square."""
    height, line = x.shape
    for row in range(height // 2):  # two at a time: the sums go through memory half as often
        value, other = x[2 * row], x[2 * row + 1]
        for i in range(line):
            away, apart = value[i] - pivot[i], other[i] - pivot[i]
            part[i] += away + apart
            part_square[i] += away * away + apart * apart
    if height % 2:
        value = x[height - 1]
        for i in range(line):
            away = value[i] - pivot[i]
            part[i] += away
            part_square[i] += away * away


@compiled
def normalise(
    x: Array, gamma: Array, beta: Array, epsilon: float, activation: int, y: Array, mean: Array, inverse: Array
) -> None:  # fmt: skip
    """y ← act(γ·(x − μ)/σ + β), with μ and σ of every image and group; written are also mean ← μ and inverse ← 1/σ.

    x and y: (n, rows, line); gamma and beta: (c,); epsilon: added to the variance; mean and inverse: (n, groups) float64.
    """
    (images, height, line), channels, groups = x.shape, len(gamma), mean.shape[1]
    width, pixels = channels // groups, height * (line // channels)
    pivot, part, part_square = np.empty(line, np.float32), np.zeros(line, np.float32), np.zeros(line, np.float32)
    factor, shift, total, square = np.empty(line, np.float32), np.empty(line, np.float32), np.empty(channels), np.empty(channels)
    for image in range(images):
        # sums of x − x[0] and of its square: about some pixel, which avoids cancellation
        _tile(x[image, 0, :channels], pivot)
        _add_up(x[image], pivot, part, part_square)
        _fold(part, total)
        _fold(part_square, square)
        for g in range(groups):
            middle = about = 0.0
            for c in range(g * width, (g + 1) * width):
                middle += (pivot[c] + total[c] / pixels) / width
            for c in range(g * width, (g + 1) * width):
                gap = pivot[c] - middle
                about += square[c] + gap * (2 * total[c] + pixels * gap)
            variance = about / (pixels * width)  # so written, NaN stays NaN
            mean[image, g], inverse[image, g] = middle, 1 / np.sqrt((0.0 if variance < 0 else variance) + epsilon)
            for c in range(g * width, (g + 1) * width):
                total[c] = gamma[c] * inverse[image, g]
                square[c] = beta[c] - middle * total[c]
        _tile(total, factor)
        _tile(square, shift)
        for row in range(height):
            value, out = x[image, row], y[image, row]
            for i in range(line):
                z = value[i] * factor[i] + shift[i]
                out[i] = _ZERO if activation == RELU and z < _ZERO else z
            if activation == TANH:
                for i in range(line):
                    out[i] = tanh(out[i])


@compiled
def denormalise(
    upper: Array, x: Array, y: Array, gamma: Array, mean: Array, inverse: Array, activation: int, below: Array, gradients: Array
) -> None:  # fmt: skip
    """Back through `normalise`: upper is the gradient w.r.t. y, below that w.r.t. x, gradients, (2, c), those w.r.t. γ and β.

    With x̂ = (x − μ)/σ and g the gradient w.r.t. γ·x̂ + β the one w.r.t. x is (γ·g − mean of γ·g − x̂·mean of γ·g·x̂)/σ, by group.
    """
    (images, height, line), channels, groups = x.shape, len(gamma), mean.shape[1]
    width, pixels = channels // groups, height * (line // channels)
    part, part_product, middle = np.zeros(line, np.float32), np.zeros(line, np.float32), np.empty(line, np.float32)
    factor, shift, slope = np.empty(line, np.float32), np.empty(line, np.float32), np.empty(line, np.float32)
    total, product, sums, first = np.empty(channels), np.empty(channels), np.zeros((2, channels)), np.empty(channels)
    for image in range(images):
        first[:] = np.repeat(mean[image], width)
        _tile(first, middle)
        for row in range(height):
            above, value, active, out = upper[image, row], x[image, row], y[image, row], below[image, row]
            for i in range(line):
                t = active[i]
                g = above[i] * (_ONE - t * t if activation == TANH else (_ONE if activation == NONE or t > _ZERO else _ZERO))
                out[i] = g
                part[i] += g
                part_product[i] += g * (value[i] - middle[i])
        _fold(part, total)
        _fold(part_product, product)
        for g in range(groups):
            of_total = of_product = 0.0
            for c in range(g * width, (g + 1) * width):
                product[c] *= inverse[image, g]
                sums[0, c] += product[c]
                sums[1, c] += total[c]
                of_total += gamma[c] * total[c] / (pixels * width)
                of_product += gamma[c] * product[c] / (pixels * width)
            incline = -of_product * inverse[image, g] ** 2
            for c in range(g * width, (g + 1) * width):
                first[c], product[c] = gamma[c] * inverse[image, g], incline
                total[c] = -of_total * inverse[image, g] - mean[image, g] * incline
        _tile(first, factor)
        _tile(total, shift)
        _tile(product, slope)
        for row in range(height):
            value, out = x[image, row], below[image, row]
            for i in range(line):
                out[i] = factor[i] * out[i] + (shift[i] + slope[i] * value[i])
    gradients[:] = sums
