"""Loops of a network's first convolution, 3×3 over grey images, that is never stored; compiled as those of `kernels`."""

from __future__ import annotations

import numpy as np

from bifl.nn.fast.kernels import Array, compiled

_ZERO, _ONE, _TWO, _THREE = np.float32(0), np.float32(1), np.float32(2), np.float32(3)


@compiled
def convolve(images: Array, weights: Array, gains: Array, top: Array, which: Array) -> None:
    """The largest of each 2×2 window of a 3×3 convolution (smallest where the gain is negative), and which it is.

    images: (n, h, w), h and w even, zero beyond their edges; weights: (9, c); gains: (c,) γ. Written are top and which, (n, h/2,
    w/2, c): which is 0, 1, 2 or 3, in reading order; of equal pixels the first. It is float, to loop in one type.
    """
    (count, height, width), channels = images.shape, weights.shape[1]
    padded, patch = np.zeros((height + 2, width + 2), np.float32), np.empty(16, np.float32)
    sign = np.where(gains < _ZERO, -_ONE, _ONE)
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

    images: (n, h, w); inner: (n, h/2, w/2, c), the gradient there; which: where that is, from `convolve`; gradient: (9, c) float64,
    written.
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
    """Over every pixel's 3×3 patch of (n, h, w) images: sums, (9,) float64, ← Σ patch and products, (9, 9) ← Σ patch·patchᵀ."""
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
