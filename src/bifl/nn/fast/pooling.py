"""Compiled loops of 2×2 max-pooling with stride 2, there and back, for `steps`; images lie as (n, h, w, c) float32."""

from __future__ import annotations

import numpy as np

from bifl.nn.fast.kernels import Array, compiled

_ZERO, _ONE = np.float32(0), np.float32(1)


@compiled
def pool(x: Array, gains: Array, top: Array, mean: Array, variance: Array) -> None:
    """Largest of each 2×2 window (smallest where the gain is negative), and mean and variance over all pixels.

    x: (n, h, w, c), h and w even; gains: (c,) γ. Written are top, (n, h/2, w/2, c), mean and variance, (c,) float64.
    """
    images, height, width, channels = x.shape
    # sums of x − x[0, 0, 0] and of its square: about some pixel, which avoids cancellation
    pivot, part, part_square = x[0, 0, 0].copy(), np.zeros(channels, np.float32), np.zeros(channels, np.float32)
    sign, total, square = np.where(gains < _ZERO, -_ONE, _ONE), np.zeros(channels), np.zeros(channels)
    for image in range(images):
        for i in range(height // 2):
            for j in range(width // 2):
                first, second, out = x[image, 2 * i, 2 * j], x[image, 2 * i, 2 * j + 1], top[image, i, j]
                third, fourth = x[image, 2 * i + 1, 2 * j], x[image, 2 * i + 1, 2 * j + 1]
                for c in range(channels):
                    s, p = sign[c], pivot[c]
                    out[c] = s * max(max(first[c] * s, second[c] * s), max(third[c] * s, fourth[c] * s))  # noqa: PLW3301  (pairs are what vectorises)
                    a, b, d, e = first[c] - p, second[c] - p, third[c] - p, fourth[c] - p
                    part[c] += (a + b) + (d + e)
                    part_square[c] += (a * a + b * b) + (d * d + e * e)
        for c in range(channels):
            total[c] += part[c]
            square[c] += part_square[c]
            part[c] = part_square[c] = 0
    count = images * height * width
    for c in range(channels):
        offset = total[c] / count
        mean[c] = pivot[c] + offset
        variance[c] = max(square[c] / count - offset * offset, 0.0)


@compiled
def largest(x: Array, gains: Array, padding: int, top: Array) -> None:
    """Largest pixel of each 2×2 window (smallest where the gain is negative), for sides and paddings that `pool` does not take.

    The padding is 0 or 1; pixels beyond the edges never count. Written is top, (n, h', w', c).
    """
    images, height, width, channels = x.shape
    sign = np.where(gains < _ZERO, -_ONE, _ONE)
    for image in range(images):
        for i in range(top.shape[1]):
            upper, lower = max(2 * i - padding, 0), min(2 * i + 1 - padding, height - 1)
            for j in range(top.shape[2]):
                left, right = max(2 * j - padding, 0), min(2 * j + 1 - padding, width - 1)
                first, second, out = x[image, upper, left], x[image, upper, right], top[image, i, j]
                third, fourth = x[image, lower, left], x[image, lower, right]
                for c in range(channels):
                    s, a, b, d, e = sign[c], first[c], second[c], third[c], fourth[c]
                    # max drops NaN; the second term does not
                    out[c] = s * max(max(a * s, b * s), max(d * s, e * s)) + _ZERO * ((a + b) + (d + e))  # noqa: PLW3301


@compiled
def unpool(x: Array, top: Array, padding: int, inner: Array, shift: Array, slope: Array) -> None:
    """Back through pooling and batch-norm, in place: x ← shift + slope·x, plus inner at the first pixel that was its window's top.

    top is from `pool` or `largest`, the padding as there; inner, the gradient w.r.t. the pooled values, is zeroed on the way, so
    that of equal pixels one gets it.
    """
    images, height, width, channels = x.shape
    rows, columns = min(height, 2 * top.shape[1] - padding), min(width, 2 * top.shape[2] - padding)  # the others have no window
    for image in range(images):
        for i in range(rows):
            for j in range(columns):
                row, column = (i + padding) // 2, (j + padding) // 2
                pixel, best, rest = x[image, i, j], top[image, row, column], inner[image, row, column]
                for c in range(channels):
                    value, share = pixel[c], rest[c]
                    hit = value == best[c]
                    pixel[c] = shift[c] + slope[c] * value + (share if hit else _ZERO)
                    rest[c] = _ZERO if hit else share
        for i in range(height):
            for j in range(columns if i < rows else 0, width):
                for c in range(channels):
                    x[image, i, j, c] = shift[c] + slope[c] * x[image, i, j, c]
