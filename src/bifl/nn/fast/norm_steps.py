"""Steps of batch-norm, with the pooling and the activation that follow it; and of a first convolution that is never stored.

What the first convolution computes would be most of a step's traffic with memory. Its output x is a linear map of the image's
patches: Σ patch and Σ patch·patchᵀ give x's moments and its share in batch-norm's gradient; beyond that only the pixel on top of
each window counts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import nn

from bifl.nn.fast import batch_norm, first_layer, kernels, pooling
from bifl.nn.fast.batch_norm import BatchNorm, Gradients, Moments
from bifl.nn.fast.kernels import Array
from bifl.nn.fast.memory_order import pooled_shape
from bifl.nn.fast.steps import Back, ImageStep, Pass, Step


class NormStep(Step):
    """A batch-norm and an activation or none, of values that subclasses make of their input.

    Attributes:
        norm: the batch-norm.
    """

    def __init__(self, norm: BatchNorm, activation: int) -> None:
        self.norm, self._activation = norm, activation

    def _normalise(
        self, x: Array, through: Pass, measure: Callable[[], Moments], offset: Array | None = None
    ) -> tuple[Array, Callable[[Array], Gradients]]:
        """y, and the way back to x, to which the norm's input adds the offset."""
        if self.norm.training:
            moments = measure()
            seen = moments if offset is None else moments._replace(mean=moments.mean + offset)
            through.moments[self.norm] = seen
            batch_norm.remember(self.norm, seen)
        else:
            moments = batch_norm.running(self.norm)
            moments = moments if offset is None else moments._replace(mean=moments.mean - offset)
        gamma, beta = through.value(self.norm, "weight"), through.value(self.norm, "bias")
        y, normed = batch_norm.ahead(self.norm, self._activation, x, moments, gamma, beta)

        def back(upper: Array) -> Gradients:
            found = batch_norm.back(upper, x, y, normed)
            through.write(self.norm, "weight", found.gamma)
            through.write(self.norm, "bias", found.beta)
            return found

        return y, back


class NormRows(NormStep):
    """Batch-norm of (n, f) features, and an activation or none."""

    def ahead(self, x: Array, through: Pass) -> tuple[Array, Back]:
        """As `Step` says."""
        y, through_norm = self._normalise(x, through, lambda: batch_norm.measured(x))

        def back(upper: Array) -> Array:
            inner, _, _, shift, slope = through_norm(upper)
            inner += shift + slope * x
            return inner

        return y, back


class NormPixels(NormStep):
    """Batch-norm of images or signals, and an activation or none."""

    def ahead(self, x: Array, through: Pass) -> tuple[Array, Back]:
        """As `Step` says."""
        flat = x.reshape(-1, x.shape[-1])
        y, through_norm = self._normalise(x, through, lambda: batch_norm.measured(x))

        def back(upper: Array) -> Array:
            inner, _, _, shift, slope = through_norm(upper)
            kernels.add_line(inner.reshape(flat.shape), flat, shift, slope)
            return inner

        return y, back


class NormPool(NormStep, ImageStep):
    """Batch-norm of images, max-pooling of 2×2 windows (of a signal: of pairs), and an activation or none."""

    def __init__(self, norm: BatchNorm, activation: int, padding: int, *, owns: bool) -> None:
        super().__init__(norm, activation)
        self._padding, self._owns = padding, owns

    def _ahead(self, x: Array, through: Pass) -> tuple[Array, Back]:
        """Pooled first, by the sign of γ: the largest or the smallest of each window."""
        gains, (count, height, width, channels) = through.value(self.norm, "weight"), x.shape
        top = np.empty(pooled_shape(x, self._padding), np.float32)
        if self._padding or height % 2 or width % 2:
            pooling.largest(x, gains, self._padding, top)
            y, through_norm = self._normalise(top, through, lambda: batch_norm.measured(x))
        else:
            mean, variance = np.empty(channels), np.empty(channels)
            pooling.pool(x, gains, top, mean, variance)
            y, through_norm = self._normalise(top, through, lambda: Moments(mean, variance, count * height * width))

        def back(upper: Array) -> Array:
            inner, _, _, shift, slope = through_norm(upper)
            below = x if self._owns else x.copy()
            pooling.unpool(below, top, self._padding, inner, shift, slope)
            return below

        return y, back


class First(NormStep):
    """A first 3×3 convolution that keeps the size of grey images, then as `NormPool`; `steps` do the same where sides are odd."""

    first = True

    def __init__(self, convolution: nn.Conv2d, norm: BatchNorm, activation: int, steps: list[Step]) -> None:
        super().__init__(norm, activation)
        self._convolution, self._steps = convolution, steps

    def ahead(self, x: Array, through: Pass) -> tuple[Array, Back]:
        """As `Step` says."""
        return self._in_steps(x, through) if x.shape[1] % 2 or x.shape[2] % 2 else self._at_once(x, through)

    def _in_steps(self, x: Array, through: Pass) -> tuple[Array, Back]:
        backs = list[Back]()
        for step in self._steps:
            x, back = step.ahead(x, through)
            backs.append(back)

        def all_back(upper: Array | None) -> None:
            while upper is not None:
                upper = backs.pop()(upper)

        return x, all_back

    def _at_once(self, x: Array, through: Pass) -> tuple[Array, Back]:
        """Tops alone leave the loop; the moments come from the patches."""
        layer, images = self._convolution, x[..., 0]
        weights = np.ascontiguousarray(through.value(layer, "weight").reshape(-1, 9).T)  # (9, c)
        top = np.empty((*pooled_shape(x, 0)[:3], weights.shape[1]), np.float32)
        which, exact, sums, products = np.empty_like(top), weights.astype(np.float64), np.empty(9), np.empty((9, 9))
        first_layer.convolve(images, weights, through.value(self.norm, "weight"), top, which)

        def measure() -> Moments:
            first_layer.patches(images, sums, products)
            mean = sums @ exact / images.size
            square = np.sum(exact * (products @ exact), axis=0) / images.size
            return Moments(mean, np.maximum(square - mean**2, 0.0), images.size)

        # the bias moves all pixels of a channel alike, tops and mean: it is only added to the statistics
        bias = through.value(layer, "bias") if layer.bias is not None else None
        y, through_norm = self._normalise(top, through, measure, bias)

        def back(upper: Array) -> None:
            inner, _, _, shift, slope = through_norm(upper)
            if layer.bias is not None:
                through.write(layer, "bias", 0.0)
            if through.wants(layer, "weight"):
                tops = np.empty(exact.shape)
                first_layer.correlate(images, inner, which, tops)
                everywhere = np.outer(sums, shift) + products @ exact * slope
                through.write(layer, "weight", (tops + everywhere).T.reshape(-1, 1, 3, 3))

        return y, back
