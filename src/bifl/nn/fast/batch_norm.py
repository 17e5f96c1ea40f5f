"""Batch-norm and activation over the last axis of an array, there and back, and the steps that consist of them.

y = act(γ·(x − μ)/σ + β), where μ and σ are the moments of the batch. After 2×2 pooling x are the windows' tops, while the moments
are those of all pixels.

What a first convolution computes is never stored: it would be most of a step's traffic with memory. Its output x is a linear map
of the image's patches: Σ patch and Σ patch·patchᵀ give x's moments and its share in batch-norm's gradient; beyond that only the
pixel on top of each window counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from bifl.nn.fast import first_layer, kernels, pooling
from bifl.nn.fast.kernels import Array
from bifl.nn.fast.steps import Back, Moments, Pass, Step, of_images

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d


# w.r.t. values x it is shift + slope·x everywhere, plus inner, like x, at those that came out on top; shift and slope are (c,)
Gradients = tuple[Array, Array, Array]  # inner, shift, slope


def usual(norm: nn.Module) -> bool:
    """Whether it is a batch-norm that trains γ and β and keeps running statistics in the usual way."""
    return (
        isinstance(norm, BatchNorm) and type(norm) in (nn.BatchNorm1d, nn.BatchNorm2d)
        and norm.affine and norm.bias is not None and norm.momentum is not None and norm.track_running_stats
    )  # fmt: skip


def measured(x: Array) -> Moments:
    """Of features (n, c), signals (n, t, c) or images (n, h, w, c)."""
    channels = x.shape[-1]
    mean, variance = np.empty(channels), np.empty(channels)
    if x.ndim == 2:
        kernels.moments(x, mean, variance)
    else:
        kernels.pixel_moments(x.reshape(len(x), -1, channels), mean, variance)
    return Moments(mean, variance, x.size // channels)


def pooled_shape(x: Array, padding: int) -> tuple[int, int, int, int]:
    """Of (n, h, w, c) pixels in windows of 2×2; a signal has one row, before and after."""
    count, height, width, channels = x.shape
    return count, max((height + 2 * padding) // 2, 1), (width + 2 * padding) // 2, channels


class NormStep(Step):
    """A batch-norm and an activation or none, of values that subclasses make of their input."""

    def __init__(self, norm: BatchNorm, activation: int) -> None:
        self.norm, self._activation = norm, activation

    def _normalise(
        self, x: Array, through: Pass, measure: Callable[[], Moments], offset: Array | None = None
    ) -> tuple[Array, Callable[[Array], Gradients]]:
        """y, and the way back to x, to which the norm's input adds the offset."""
        norm: Any = self.norm
        if norm.training:
            moments = measure()
            seen = moments if offset is None else moments._replace(mean=moments.mean + offset)
            through.moments[norm] = seen
            kernels.follow(norm.running_mean.numpy(), norm.running_var.numpy(), norm.momentum, *seen)
            norm.num_batches_tracked.numpy()[...] += 1
        else:
            mean, variance = norm.running_mean.double().numpy(), norm.running_var.double().numpy()
            moments = Moments(mean if offset is None else mean - offset, variance, 0)
        gamma, beta = through.value(self.norm.weight), through.value(self.norm.bias)
        y, scale = np.empty_like(x), np.empty(len(gamma))
        (flat, out), how = (array.reshape(-1, len(gamma)) for array in (x, y)), (self.norm.eps, self._activation)
        kernels.normalise(flat, moments.mean, moments.variance, gamma, beta, *how, out, scale)

        def through_norm(upper: Array) -> Gradients:
            inner, gradients = np.empty_like(upper), np.empty((4, len(gamma)), np.float32)
            shape = (len(upper), upper.shape[1] if upper.ndim == 4 else 1, -1)
            lines = [array.reshape(shape) for array in (upper, y, x)]
            kernels.denormalise(*lines, *moments, scale, *how, inner.reshape(shape), gradients)
            through.write(self.norm.weight, gradients[0])
            through.write(self.norm.bias, gradients[1])
            return inner, gradients[2], gradients[3]

        return y, through_norm


class Norm(NormStep):
    """Batch-norm of features, signals or images, and an activation or none."""

    def ahead(self, x: Array, through: Pass) -> tuple[Array, Back]:
        """As `Step` says."""
        flat = x.reshape(-1, x.shape[-1])
        y, through_norm = self._normalise(x, through, lambda: measured(x))

        def back(upper: Array) -> Array:
            inner, shift, slope = through_norm(upper)
            if x.ndim == 2:
                inner += shift + slope * x  # a few rows; and rounded as it always was
            else:
                kernels.add_line(inner.reshape(flat.shape), flat, shift, slope)
            return inner

        return y, back


class NormPool(NormStep):
    """Batch-norm of images, max-pooling of 2×2 windows (of a signal: of pairs), and an activation or none."""

    def __init__(self, norm: BatchNorm, activation: int, padding: int, *, owns: bool) -> None:
        super().__init__(norm, activation)
        self._padding, self._owns = padding, owns

    @of_images
    def ahead(self, x: Array, through: Pass) -> tuple[Array, Back]:
        """Pooled first, by the sign of γ: the largest or the smallest of each window."""
        gains, (count, height, width, channels) = through.value(self.norm.weight), x.shape
        top = np.empty(pooled_shape(x, self._padding), np.float32)
        if self._padding or height % 2 or width % 2:
            pooling.largest(x, gains, self._padding, top)
            y, through_norm = self._normalise(top, through, lambda: measured(x))
        else:
            mean, variance = np.empty(channels), np.empty(channels)
            pooling.pool(x, gains, top, mean, variance)
            y, through_norm = self._normalise(top, through, lambda: Moments(mean, variance, count * height * width))

        def back(upper: Array) -> Array:
            inner, shift, slope = through_norm(upper)
            below = x if self._owns else x.copy()
            pooling.unpool(below, top, self._padding, inner, shift, slope)
            return below

        return y, back


class Pool(Step):
    """Max-pooling of 2×2 windows, or of pairs, and an activation or none, where no norm comes before."""

    trained = False

    def __init__(self, activation: int, padding: int, *, owns: bool) -> None:
        self._activation, self._padding, self._owns = activation, padding, owns

    @of_images
    def ahead(self, x: Array, through: Pass) -> tuple[Array, Back]:
        """As `Step` says."""
        channels = x.shape[3]
        top = np.empty(pooled_shape(x, self._padding), np.float32)
        pooling.largest(x, np.ones(channels, np.float32), self._padding, top)
        y = np.empty_like(top) if self._activation else top
        if self._activation:
            kernels.activate(top.reshape(-1), self._activation, y.reshape(-1))

        def back(upper: Array) -> Array:
            if self._activation:
                kernels.deactivate(upper.reshape(-1), self._activation, y.reshape(-1))
            below, nothing = x if self._owns else x.copy(), np.zeros(channels, np.float32)
            pooling.unpool(below, top, self._padding, upper, nothing, nothing)
            return below

        return y, back


class First(NormStep):
    """A first 3×3 convolution that keeps the size of grey images, whose sides are even, then as `NormPool`."""

    def __init__(self, convolution: nn.Conv2d, norm: BatchNorm, activation: int) -> None:
        super().__init__(norm, activation)
        self._convolution = convolution

    def ahead(self, x: Array, through: Pass) -> tuple[Array, Back]:
        """Tops alone leave the loop; the moments come from the patches."""
        layer, images = self._convolution, x[..., 0]
        weights = np.ascontiguousarray(through.value(layer.weight).reshape(-1, 9).T)  # (9, c)
        top = np.empty((*pooled_shape(x, 0)[:3], weights.shape[1]), np.float32)
        which, exact, sums, products = np.empty_like(top), weights.astype(np.float64), np.empty(9), np.empty((9, 9))
        first_layer.convolve(images, weights, through.value(self.norm.weight), top, which)

        def measure() -> Moments:
            first_layer.patches(images, sums, products)
            mean = sums @ exact / images.size
            square = np.sum(exact * (products @ exact), axis=0) / images.size
            return Moments(mean, np.maximum(square - mean**2, 0.0), images.size)

        # the bias moves all pixels of a channel alike, tops and mean: it is only added to the statistics
        bias = through.value(layer.bias) if layer.bias is not None else None
        y, through_norm = self._normalise(top, through, measure, bias)

        def back(upper: Array) -> None:
            inner, shift, slope = through_norm(upper)
            through.write(layer.bias, 0.0)
            if layer.weight in through.gradients:
                tops = np.empty(exact.shape)
                first_layer.correlate(images, inner, which, tops)
                everywhere = np.outer(sums, shift) + products @ exact * slope
                through.write(layer.weight, (tops + everywhere).T.reshape(-1, 1, 3, 3))

        return y, back
