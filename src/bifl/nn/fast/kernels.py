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
_ZERO, _ONE = np.float32(0), np.float32(1)
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
def tanh(z: Any) -> Any:
    """Of a float32, for loops."""
    z = -_LIMIT if z < -_LIMIT else z  # so written, here and below, NaN stays NaN
    z = _LIMIT if z > _LIMIT else z
    s = z * z
    p = ((((((_P13 * s + _P11) * s + _P9) * s + _P7) * s + _P5) * s + _P3) * s + _P1) * z
    return p / (((_Q6 * s + _Q4) * s + _Q2) * s + _Q0)


@compiled
def activate(x: Array, activation: int, y: Array) -> None:
    """y ← act(x), both (n,); TANH or RELU."""
    if activation == TANH:
        for i in range(len(x)):
            y[i] = tanh(x[i])
    else:
        for i in range(len(x)):
            y[i] = _ZERO if x[i] < _ZERO else x[i]


@compiled
def deactivate(upper: Array, activation: int, y: Array) -> None:
    """Back through `activate`, in place: upper ← upper·act′(x), all (n,)."""
    for i in range(len(y)):
        t = y[i]
        upper[i] *= _ONE - t * t if activation == TANH else (_ONE if t > _ZERO else _ZERO)


@compiled
def look_up(images: Array, chosen: Array, shades: Array, out: Array) -> None:
    """Rows of `images`, (n, pixels) bytes, each byte as its shade: out[i] ← shades[images[chosen[i]]]."""
    pixels = images.shape[1]
    for i in range(len(chosen)):
        image, line = images[chosen[i]], out[i]
        for j in range(pixels):
            line[j] = shades[image[j]]


@compiled
def normalise(
    x: Array, mean: Array, variance: Array, gamma: Array, beta: Array, epsilon: float, activation: int, y: Array, scale: Array
) -> None:  # fmt: skip
    """y ← act(γ·(x − μ)/σ + β), where σ² is the variance plus ε, and scale ← γ/σ.

    x and y: (pixels, c); mean, variance and scale: (c,) float64; gamma and beta: (c,).
    """
    pixels, channels = x.shape
    factor, shift = np.empty(channels, np.float32), np.empty(channels, np.float32)
    for c in range(channels):
        scale[c] = gamma[c] / np.sqrt(variance[c] + epsilon)
        factor[c], shift[c] = scale[c], beta[c] - mean[c] * scale[c]
    for i in range(pixels):
        if activation == TANH:
            for c in range(channels):
                y[i, c] = tanh(x[i, c] * factor[c] + shift[c])
        else:
            for c in range(channels):
                z = x[i, c] * factor[c] + shift[c]
                y[i, c] = _ZERO if activation == RELU and z < _ZERO else z


@compiled
def denormalise(
    upper: Array, y: Array, x: Array, mean: Array, variance: Array, size: int, scale: Array, epsilon: float, activation: int,
    inner: Array, gradients: Array,
) -> None:  # fmt: skip
    """Back through `normalise`; `size` is how many values a channel these are of.

    With g the gradient w.r.t. x̂·γ + β, x̂ = (x − μ)/σ, the one w.r.t. x is scale·(g − mean of g − x̂·mean of g·x̂): that is shift
    + slope·x everywhere, plus inner = scale·g where there is a g. Written are inner and gradients, (4, c): w.r.t. γ and β, shift,
    slope. upper, y, x and inner are (n, h, w·c): a loop over a whole line of pixels, as 16 channels alone are too few for vector
    instructions.
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
def add_line(inner: Array, x: Array, shift: Array, slope: Array) -> None:
    """inner ← inner + shift + slope·x, where inner and x are (pixels, c), shift and slope (c,)."""
    pixels, channels = x.shape
    for i in range(pixels):
        for c in range(channels):
            inner[i, c] += shift[c] + slope[c] * x[i, c]


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
def pixel_moments(x: Array, mean: Array, variance: Array) -> None:
    """Mean and variance, both (c,) float64, over all pixels of (n, pixels, c) images, in one pass."""
    images, pixels, channels = x.shape
    # sums of x − x[0, 0] and of its square: about some pixel, which avoids cancellation
    pivot, part, part_square = x[0, 0].copy(), np.zeros(channels, np.float32), np.zeros(channels, np.float32)
    total, square = np.zeros(channels), np.zeros(channels)
    for image in range(images):
        for i in range(pixels):
            for c in range(channels):
                away = x[image, i, c] - pivot[c]
                part[c] += away
                part_square[c] += away * away
        for c in range(channels):
            total[c] += part[c]
            square[c] += part_square[c]
            part[c] = part_square[c] = 0
    for c in range(channels):
        offset = total[c] / (images * pixels)
        mean[c] = pivot[c] + offset
        variance[c] = max(square[c] / (images * pixels) - offset * offset, 0.0)


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
