"""Compiled loops of GroupNorm, there and back: groups of an image's channels are normalised by their own mean and deviation.

LayerNorm over the features of a row is the same with one group and one pixel. Sums over an image are taken channel by channel, in a
fixed order.
"""

from __future__ import annotations

import numpy as np

from bifl.nn.fast.kernels import Array, compiled


@compiled
def normalise(x: Array, gamma: Array, beta: Array, epsilon: float, y: Array, mean: Array, deviation: Array) -> None:
    """y ← γ·(x − μ)/σ + β, with μ and σ of every image and group.

    Args:
        x: (n, pixels, c)
        gamma: (c,)
        beta: (c,)
        epsilon: added to the variance.
        y: (n, pixels, c), written.
        mean: (n, groups), written: μ.
        deviation: (n, groups), written: σ.
    """
    (images, pixels, channels), groups = x.shape, mean.shape[1]
    width = channels // groups
    part, factor, shift = np.empty(channels, np.float32), np.empty(channels, np.float32), np.empty(channels, np.float32)
    for image in range(images):
        part[:] = 0
        for i in range(pixels):
            for c in range(channels):
                part[c] += x[image, i, c]
        for g in range(groups):
            mean[image, g] = part[g * width : (g + 1) * width].sum() / (pixels * width)
        for c in range(channels):
            shift[c] = mean[image, c // width]
        part[:] = 0
        for i in range(pixels):
            for c in range(channels):
                away = x[image, i, c] - shift[c]
                part[c] += away * away
        for g in range(groups):
            deviation[image, g] = np.sqrt(part[g * width : (g + 1) * width].sum() / (pixels * width) + epsilon)
        for c in range(channels):
            factor[c] = gamma[c] / deviation[image, c // width]
            shift[c] = beta[c] - mean[image, c // width] * factor[c]
        for i in range(pixels):
            for c in range(channels):
                y[image, i, c] = x[image, i, c] * factor[c] + shift[c]


@compiled
def denormalise(upper: Array, x: Array, gamma: Array, mean: Array, deviation: Array, for_gamma: Array, for_beta: Array) -> None:
    """Back through `normalise`, in place: upper becomes the gradient w.r.t. x.

    With x̂ = (x − μ)/σ and g = γ·upper it is (g − mean of g − x̂·mean of g·x̂)/σ, the means over an image's group.

    Args:
        upper: (n, pixels, c) gradient w.r.t. y, overwritten.
        x: (n, pixels, c)
        gamma: (c,)
        mean: (n, groups) from `normalise`.
        deviation: (n, groups) from `normalise`.
        for_gamma: (c,) written, the gradient w.r.t. γ.
        for_beta: (c,) written, the gradient w.r.t. β.
    """
    (images, pixels, channels), groups = x.shape, mean.shape[1]
    width = channels // groups
    total, product = np.empty(channels, np.float32), np.empty(channels, np.float32)
    middle, inverse = np.empty(channels, np.float32), np.empty(channels, np.float32)
    shift, slope = np.empty(channels, np.float32), np.empty(channels, np.float32)
    sums = np.zeros((2, channels))
    for image in range(images):
        total[:] = 0
        product[:] = 0
        for c in range(channels):
            middle[c], inverse[c] = mean[image, c // width], 1 / deviation[image, c // width]
        for i in range(pixels):
            for c in range(channels):
                total[c] += upper[image, i, c]
                product[c] += upper[image, i, c] * (x[image, i, c] - middle[c])
        for c in range(channels):
            product[c] *= inverse[c]
            sums[0, c] += product[c]
            sums[1, c] += total[c]
        for g in range(groups):
            of_total = of_product = 0.0
            for c in range(g * width, (g + 1) * width):
                of_total += gamma[c] * total[c]
                of_product += gamma[c] * product[c]
            for c in range(g * width, (g + 1) * width):
                shift[c] = of_total / (pixels * width)
                slope[c] = inverse[c] * of_product / (pixels * width)
        for i in range(pixels):
            for c in range(channels):
                away = x[image, i, c] - middle[c]
                upper[image, i, c] = inverse[c] * (gamma[c] * upper[image, i, c] - shift[c] - away * slope[c])
    for_gamma[:] = sums[0]
    for_beta[:] = sums[1]
