"""Loops that numba compiles: each does in one pass over memory what PyTorch does in several. Import it late, numba takes a second.

Images lie as (n, h, w, c) float32, so that the innermost loops run over channels. Sums are taken in a fixed order, by one
thread: in float32 within an image, in float64 over the images.

>>> import numpy as np
>>> weights, gradient, zeros = np.ones(2, np.float32), np.array([3, -4], np.float32), np.zeros(2, np.float32)
>>> adam(weights, gradient, zeros, zeros.copy(), 0.5, np.sqrt(0.001), 1e-8, 1.0)  # the first step of Adam is lr·sign(gradient)
>>> weights  # the second one would be 1.05, but is clipped
array([0.95, 1.  ], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

Array = np.ndarray[Any, Any]
_ZERO, _ONE, _TWO, _THREE = np.float32(0), np.float32(1), np.float32(2), np.float32(3)
# Sums may be regrouped for vector instructions; NaN and infinity stay what they are, a diverged training must show.
_OPTIONS: dict[str, Any] = {"fastmath": {"contract", "reassoc", "nsz"}, "error_model": "numpy"}


NONE, TANH, RELU = 0, 1, 2  # activations


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, and keep the result on disk where a place for it can be found."""
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)  # type: ignore[no-any-return]
    except RuntimeError:
        return numba.njit(**_OPTIONS)(function)  # type: ignore[no-any-return]


# tanh as a quotient of polynomials, |error| < 4e-7: the minimax fit that Eigen and XLA use; beyond ±LIMIT it is ±1
_LIMIT = np.float32(7.90531110763549805)
_P1, _P3, _P5 = np.float32(4.89352455891786e-03), np.float32(6.37261928875436e-04), np.float32(1.48572235717979e-05)
_P7, _P9, _P11 = np.float32(5.12229709037114e-08), np.float32(-8.60467152213735e-11), np.float32(2.00018790482477e-13)
_P13 = np.float32(-2.76076847742355e-16)
_Q0, _Q2 = np.float32(4.89352518554385e-03), np.float32(2.26843463243900e-03)
_Q4, _Q6 = np.float32(1.18534705686654e-04), np.float32(1.19825839466702e-06)


@compiled
def look_up(images: Array, chosen: Array, shades: Array, out: Array) -> None:
    """Rows of `images`, (n, pixels) bytes, each byte as its shade: out[i] ← shades[images[chosen[i]]]."""
    pixels = images.shape[1]
    for i in range(len(chosen)):
        image, line = images[chosen[i]], out[i]
        for j in range(pixels):
            line[j] = shades[image[j]]


@compiled
def pool(x: Array, gains: Array, top: Array, mean: Array, variance: Array) -> None:
    """Largest of each 2×2 window (smallest where the gain is negative), and mean and variance over all pixels.

    Args:
        x: (n, h, w, c), h and w even.
        gains: (c,) γ.
        top: (n, h/2, w/2, c), written.
        mean: (c,) float64, written.
        variance: (c,) float64, written.
    """
    images, height, width, channels = x.shape
    # sums of x − x[0, 0, 0] and of its square: about some pixel, which avoids cancellation
    pivot, part, part_square = x[0, 0, 0].copy(), np.zeros(channels, np.float32), np.zeros(channels, np.float32)
    sign, total, square = np.ones(channels, np.float32), np.zeros(channels), np.zeros(channels)
    for c in range(channels):
        if gains[c] < _ZERO:
            sign[c] = -_ONE
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
def normalise(
    x: Array, mean: Array, variance: Array, size: int, gamma: Array, beta: Array, epsilon: float, activation: int,
    y: Array, scale: Array,
) -> None:  # fmt: skip
    """y ← act(γ·(x − μ)/σ + β), where σ² is the variance plus ε.

    Args:
        x: (pixels, c)
        mean: (c,) float64, μ.
        variance: (c,) float64
        size: of how many values; not needed here.
        gamma: (c,)
        beta: (c,)
        epsilon: of batch-norm.
        activation: NONE, TANH or RELU.
        y: (pixels, c), written.
        scale: (c,) float64, written: γ/σ.
    """
    pixels, channels = x.shape
    factor, shift = np.empty(channels, np.float32), np.empty(channels, np.float32)
    for c in range(channels):
        scale[c] = gamma[c] / np.sqrt(variance[c] + epsilon)
        factor[c], shift[c] = scale[c], beta[c] - mean[c] * scale[c]
    for i in range(pixels):
        if activation == TANH:
            for c in range(channels):
                z = x[i, c] * factor[c] + shift[c]
                z = -_LIMIT if z < -_LIMIT else z  # so written, here and below, NaN stays NaN
                z = _LIMIT if z > _LIMIT else z
                s = z * z
                p = ((((((_P13 * s + _P11) * s + _P9) * s + _P7) * s + _P5) * s + _P3) * s + _P1) * z
                y[i, c] = p / (((_Q6 * s + _Q4) * s + _Q2) * s + _Q0)
        else:
            for c in range(channels):
                z = x[i, c] * factor[c] + shift[c]
                y[i, c] = _ZERO if activation == RELU and z < _ZERO else z


@compiled
def denormalise(
    upper: Array, y: Array, x: Array, mean: Array, variance: Array, size: int, scale: Array, epsilon: float, activation: int,
    inner: Array, gradients: Array,
) -> None:  # fmt: skip
    """Back through `normalise`. With g the gradient w.r.t. x̂·γ + β, x̂ = (x − μ)/σ, the one w.r.t. x is
    scale·(g − mean of g − x̂·mean of g·x̂): that is shift + slope·x everywhere, plus inner = scale·g where there is a g.

    The inner loop runs over a whole line of pixels: 16 channels alone are too few for vector instructions.

    Args:
        upper: (n, h, w·c) gradient w.r.t. y.
        y: (n, h, w·c) what `normalise` made of x.
        x: (n, h, w·c).
        mean: (c,) float64
        variance: (c,) float64
        size: how many values a channel these are of.
        scale: (c,) float64, from `normalise`.
        epsilon: as there.
        activation: as there.
        inner: (n, h, w·c), written.
        gradients: (4, c), written: w.r.t. γ and β, shift, slope.
    """
    images, height, line = y.shape
    channels = len(scale)
    factors, part, part_product = np.empty(line, np.float32), np.zeros(line, np.float32), np.zeros(line, np.float32)
    total, product = np.zeros(channels), np.zeros(channels)
    for i in range(line):
        factors[i] = scale[i % channels]
    for image in range(images):
        for row in range(height):
            above, active, value, out = upper[image, row], y[image, row], x[image, row], inner[image, row]
            for i in range(line):
                t = active[i]
                g = above[i] * (_ONE - t * t if activation == TANH else (_ONE if activation == NONE or t > _ZERO else _ZERO))
                out[i] = g * factors[i]
                part[i] += g
                part_product[i] += g * value[i]
        for i in range(line):
            total[i % channels] += part[i]
            product[i % channels] += part_product[i]
            part[i] = part_product[i] = 0
    for c in range(channels):
        deviation = np.sqrt(variance[c] + epsilon)
        for_gamma = (product[c] - mean[c] * total[c]) / deviation
        slope = -scale[c] * for_gamma / (deviation * size)
        gradients[0, c], gradients[1, c] = for_gamma, total[c]
        gradients[2, c], gradients[3, c] = -scale[c] * total[c] / size - slope * mean[c], slope


@compiled
def unpool(x: Array, top: Array, inner: Array, shift: Array, slope: Array) -> None:
    """Through pooling and batch-norm, in place: x ← shift + slope·x, plus inner at the first pixel that was its window's top.

    Args:
        x: (n, h, w, c), overwritten with the gradient w.r.t. it.
        top: (n, h/2, w/2, c) what `pool` found.
        inner: (n, h/2, w/2, c) gradient w.r.t. the pooled values; zeroed on the way, so that of equal pixels one gets it.
        shift: (c,)
        slope: (c,)
    """
    images, height, width, channels = x.shape
    for image in range(images):
        for i in range(height):
            for j in range(width):
                pixel, best, rest = x[image, i, j], top[image, i // 2, j // 2], inner[image, i // 2, j // 2]
                for c in range(channels):
                    value, share = pixel[c], rest[c]
                    hit = value == best[c]
                    pixel[c] = shift[c] + slope[c] * value + (share if hit else _ZERO)
                    rest[c] = _ZERO if hit else share


@compiled
def convolve(images: Array, weights: Array, gains: Array, top: Array, which: Array) -> None:
    """The largest of each 2×2 window of a 3×3 convolution (smallest where the gain is negative), and which it is.

    Args:
        images: (n, h, w), h and w even; beyond their edges is zero.
        weights: (9, c)
        gains: (c,) γ.
        top: (n, h/2, w/2, c), written.
        which: (n, h/2, w/2, c), written: 0, 1, 2 or 3, in reading order; of equal pixels the first. Float, to loop in one type.
    """
    (count, height, width), channels = images.shape, weights.shape[1]
    padded, patch, sign = np.zeros((height + 2, width + 2), np.float32), np.empty(16, np.float32), np.ones(channels, np.float32)
    for c in range(channels):
        if gains[c] < _ZERO:
            sign[c] = -_ONE
    for image in range(count):
        padded[1:-1, 1:-1] = images[image]
        for i in range(height // 2):
            for j in range(width // 2):
                for k in range(16):  # all that the window's four pixels see
                    patch[k] = padded[2 * i + k // 4, 2 * j + k % 4]
                out, winner = top[image, i, j], which[image, i, j]
                for c in range(channels):
                    first = second = third = fourth = _ZERO
                    for row in range(3):
                        for column in range(3):
                            weight, k = weights[3 * row + column, c], 4 * row + column
                            first += weight * patch[k]
                            second += weight * patch[k + 1]
                            third += weight * patch[k + 4]
                            fourth += weight * patch[k + 5]
                    s, number = sign[c], _ZERO
                    best = first * s
                    number = _ONE if second * s > best else number
                    best = second * s if second * s > best else best
                    number = _TWO if third * s > best else number
                    best = third * s if third * s > best else best
                    number = _THREE if fourth * s > best else number
                    best = fourth * s if fourth * s > best else best
                    out[c], winner[c] = best * s, number


@compiled
def correlate(images: Array, inner: Array, which: Array, gradient: Array) -> None:
    """The gradient w.r.t. a 3×3 convolution's weights, if the one w.r.t. its output is zero but for one pixel of each 2×2 window.

    Args:
        images: (n, h, w)
        inner: (n, h/2, w/2, c) the gradient there.
        which: (n, h/2, w/2, c) where that is, from `convolve`.
        gradient: (9, c) float64, written.
    """
    (count, height, width), channels = images.shape, inner.shape[3]
    padded, part = np.zeros((height + 2, width + 2), np.float32), np.zeros((9, channels), np.float32)
    gradient[:] = 0
    for image in range(count):
        padded[1:-1, 1:-1] = images[image]
        for i in range(height // 2):
            above, upper, lower, below = padded[2 * i], padded[2 * i + 1], padded[2 * i + 2], padded[2 * i + 3]
            for j in range(width // 2):
                # sixteen names and nine lines: loops over an array of them keep the compiler from vector instructions (6 × slower)
                k = 2 * j
                a0, a1, a2, a3 = above[k], above[k + 1], above[k + 2], above[k + 3]
                u0, u1, u2, u3 = upper[k], upper[k + 1], upper[k + 2], upper[k + 3]
                l0, l1, l2, l3 = lower[k], lower[k + 1], lower[k + 2], lower[k + 3]
                b0, b1, b2, b3 = below[k], below[k + 1], below[k + 2], below[k + 3]
                values, winner = inner[image, i, j], which[image, i, j]
                for c in range(channels):
                    number, g = winner[c], values[c]
                    p = g if number == _ZERO else _ZERO
                    q = g if number == _ONE else _ZERO
                    r = g if number == _TWO else _ZERO
                    s = g if number == _THREE else _ZERO
                    part[0, c] += (p * a0 + q * a1) + (r * u0 + s * u1)
                    part[1, c] += (p * a1 + q * a2) + (r * u1 + s * u2)
                    part[2, c] += (p * a2 + q * a3) + (r * u2 + s * u3)
                    part[3, c] += (p * u0 + q * u1) + (r * l0 + s * l1)
                    part[4, c] += (p * u1 + q * u2) + (r * l1 + s * l2)
                    part[5, c] += (p * u2 + q * u3) + (r * l2 + s * l3)
                    part[6, c] += (p * l0 + q * l1) + (r * b0 + s * b1)
                    part[7, c] += (p * l1 + q * l2) + (r * b1 + s * b2)
                    part[8, c] += (p * l2 + q * l3) + (r * b2 + s * b3)
        for tap in range(9):
            for c in range(channels):
                gradient[tap, c] += part[tap, c]
                part[tap, c] = 0


@compiled
def patches(images: Array, sums: Array, products: Array) -> None:
    """Over every pixel's 3×3 patch, as a vector: the sum of patch, and of patch·patchᵀ.

    Args:
        images: (n, h, w); beyond their edges is zero.
        sums: (9,) float64, written.
        products: (9, 9) float64, written.
    """
    count, height, width = images.shape
    padded, columns = np.zeros((height + 2, width + 2), np.float32), np.empty((9, height * width), np.float32)
    sums[:] = 0
    products[:] = 0
    for image in range(count):
        padded[1:-1, 1:-1] = images[image]
        for tap in range(9):
            values = columns[tap]
            for i in range(height):
                line = padded[i + tap // 3]
                for j in range(width):
                    values[i * width + j] = line[j + tap % 3]
        for tap in range(9):
            values, total = columns[tap], _ZERO
            for i in range(height * width):
                total += values[i]
            sums[tap] += total
            for other in range(tap + 1):
                others, product = columns[other], _ZERO
                for i in range(height * width):
                    product += values[i] * others[i]
                products[tap, other] += product
    for tap in range(9):
        for other in range(tap):
            products[other, tap] = products[tap, other]


@compiled
def moments(x: Array, mean: Array, variance: Array) -> None:
    """Mean and variance, both (c,) float64, of the rows of an (n, c) array."""
    rows, channels = x.shape
    mean[:] = 0
    variance[:] = 0
    for i in range(rows):
        for c in range(channels):
            mean[c] += x[i, c]
    for c in range(channels):
        mean[c] /= rows
    for i in range(rows):
        for c in range(channels):
            away = x[i, c] - mean[c]
            variance[c] += away * away
    for c in range(channels):
        variance[c] /= rows


@compiled
def follow(running_mean: Array, running_variance: Array, momentum: float, mean: Array, variance: Array, size: int) -> None:
    """Move running statistics, (c,) each, towards a batch's of that size, as nn.BatchNorm2d does."""
    for c in range(len(mean)):
        running_mean[c] += momentum * (mean[c] - running_mean[c])
        running_variance[c] += momentum * (variance[c] * size / (size - 1) - running_variance[c])


@compiled
def cross_entropy(scores: Array, labels: Array, gradient: Array) -> Any:
    """Mean of −log softmax(scores)[label] over the rows of an (n, classes) array; its gradient w.r.t. the scores is written."""
    rows, classes = scores.shape
    loss = 0.0
    for i in range(rows):
        top = scores[i].max()
        total = 0.0
        for c in range(classes):
            gradient[i, c] = np.exp(scores[i, c] - top)
            total += gradient[i, c]
        loss += np.log(total) - (scores[i, labels[i]] - top)
        for c in range(classes):
            gradient[i, c] /= total * rows
        gradient[i, labels[i]] -= _ONE / rows
    return loss / rows


@compiled
def adam(
    weights: Array, gradient: Array, first: Array, second: Array, rate: float, correction: float, floor: float, limit: float
) -> None:
    """One step of Adam: both moments, the weights and their clipping to ±limit, all (n,), in one pass."""
    r, s, e, b = np.float32(rate), np.float32(1 / correction), np.float32(floor), np.float32(limit)
    b1, b2 = np.float32(0.1), np.float32(0.001)
    for i in range(len(weights)):
        g = gradient[i]
        m = first[i] + b1 * (g - first[i])
        v = second[i] + b2 * (g * g - second[i])
        w = weights[i] - r * m / (np.sqrt(v) * s + e)
        first[i], second[i] = m, v
        w = -b if w < -b else w
        weights[i] = b if w > b else w
