"""Loss and gradients of a whole chain of layers without autograd: a training step in a few dozen calls.

Convolution – BatchNorm2d – MaxPool2d(2) – tanh or ReLU, any number of times, then Flatten, then linear layers, each with
BatchNorm1d and perhaps an activation: the paper's networks for digits and letters, and many small ones. `chain` says None to
anything else, which autograd then runs as ever. Images lie as (n, h, w, c) arrays. Against PyTorch only rounding differs; sums are
taken in a fixed order.

The first convolution never stores what it computes, which would be most of a step's traffic with memory. Its output x is a linear
map of the image's patches: Σ patch and Σ patch·patchᵀ give x's moments and its share in batch-norm's gradient; beyond that only the
pixel on top of each window counts.

>>> from bifl.nn.models import celeba_cnn, mnist_cnn
>>> [type(link).__name__ for link in chain(mnist_cnn(10)).links], chain(celeba_cnn(2))
(['First', 'Block', 'Dense', 'Dense'], None)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bifl.nn import first, kernels, norm
from bifl.nn.fused import ACTIVATIONS, flattened, joinable, planes, usual
from bifl.nn.kernels import Array
from bifl.nn.norm import BatchNorm, Gradients, Moments

# a layer and the name of its parameter → the array of its values, or of its gradient
Parameters = Callable[[nn.Module, str], Array]
# from the gradient w.r.t. an output to that w.r.t. the input, or None where nobody wants it; fills in those w.r.t. the parameters
Back = Callable[[Array, Parameters], Array | None]
Sides = tuple[int, int]
_quiet = np.errstate(all="ignore")  # a training that diverges shows in its loss, and torch would say nothing here either


class Passed(NamedTuple):
    """What came out of a link, and the way back, which may overwrite what lies on it."""

    y: Array
    moments: Moments  # by which the batch-norm normalised
    back: Back


class Link(ABC):
    """Some layers, the last of which are a batch-norm and its activation.

    Attributes:
        normal: the batch-norm.
        first: whether nobody wants the gradient w.r.t. the input.
    """

    def __init__(self, normal: BatchNorm, activation: nn.Module | None, *, first: bool) -> None:
        self.normal, self.first = normal, first
        self._activation = norm.activation(activation)

    @abstractmethod
    def sides(self, given: Sides) -> Sides | None:
        """Height and width of the output; None if such images do not fit."""

    @abstractmethod
    def ahead(self, x: Array, values: Parameters) -> Passed:
        """What the layers make of x, normalised by the batch if the norm is in training."""

    def _normalise(
        self, x: Array, values: Parameters, measure: Callable[[], Moments]
    ) -> tuple[Array, Moments, Callable[[Array, Parameters], Gradients]]:
        """y, the moments, and the way back to x."""
        moments = measure() if self.normal.training else norm.running(self.normal)
        if self.normal.training:
            norm.remember(self.normal, moments)
        gamma, beta = values(self.normal, "weight"), values(self.normal, "bias")
        y, normed = norm.ahead(self.normal, self._activation, x, moments, gamma, beta)

        def through(upper: Array, gradients: Parameters) -> Gradients:
            found = norm.back(upper, x, y, normed)
            gradients(self.normal, "weight")[:] = found.gamma
            gradients(self.normal, "bias")[:] = found.beta
            return found

        return y, moments, through


class Block(Link):
    """Convolution, batch-norm, pooling, activation."""

    def __init__(self, convolution: nn.Conv2d, normal: BatchNorm, activation: nn.Module, *, first: bool) -> None:
        super().__init__(normal, activation, first=first)
        self._convolution = convolution
        self._stride, self._padding, self._dilation = _pairs(convolution)

    def sides(self, given: Sides) -> Sides | None:
        """Pooled, which must come out even."""
        height, width = (
            (given[k] + 2 * self._padding[k] - self._dilation[k] * (self._convolution.kernel_size[k] - 1) - 1) // self._stride[k]
            + 1
            for k in (0, 1)
        )
        return None if height < 2 or width < 2 or height % 2 or width % 2 else (height // 2, width // 2)

    def ahead(self, x: Array, values: Parameters) -> Passed:
        """PyTorch's convolution, then two loops over what it made."""
        images, weights, groups = planes(x), torch.from_numpy(values(self._convolution, "weight")), self._convolution.groups
        how = (self._stride, self._padding, self._dilation)
        out = _pixels(torch.conv2d(images, weights, None, *how, groups))
        count, height, width, channels = out.shape
        top = np.empty((count, height // 2, width // 2, channels), np.float32)
        mean, variance = np.empty(channels), np.empty(channels)
        kernels.pool(out, values(self.normal, "weight"), top, mean, variance)
        y, moments, through = self._normalise(top, values, lambda: Moments(mean, variance, count * height * width))

        def back(upper: Array, gradients: Parameters) -> Array | None:
            inner, _, _, shift, slope = through(upper, gradients)
            kernels.unpool(out, top, inner, shift, slope)
            below, for_weights, _ = torch.ops.aten.convolution_backward(
                planes(out), images, weights, None, *how, False, (0, 0), groups, (not self.first, True, False)
            )
            gradients(self._convolution, "weight")[:] = for_weights.numpy()
            return None if self.first else _pixels(below)

        return Passed(y, moments, back)


class First(Link):
    """A first block that looks at grey images. Its 3×3 convolution keeps their size."""

    def __init__(self, convolution: nn.Conv2d, normal: BatchNorm, activation: nn.Module) -> None:
        super().__init__(normal, activation, first=True)
        self._convolution = convolution

    def sides(self, given: Sides) -> Sides | None:
        """Half of an even number."""
        return None if given[0] % 2 or given[1] % 2 else (given[0] // 2, given[1] // 2)

    def ahead(self, x: Array, values: Parameters) -> Passed:
        """Tops alone leave the loop; the moments come from the patches."""
        images, weights = x[..., 0], np.ascontiguousarray(values(self._convolution, "weight").reshape(-1, 9).T)  # (9, c)
        count, height, width = images.shape
        top = np.empty((count, height // 2, width // 2, weights.shape[1]), np.float32)
        which, exact, sums, products = np.empty_like(top), weights.astype(np.float64), np.empty(9), np.empty((9, 9))
        first.convolve(images, weights, values(self.normal, "weight"), top, which)

        def measure() -> Moments:
            first.patches(images, sums, products)
            mean = sums @ exact / images.size
            square = np.sum(exact * (products @ exact), axis=0) / images.size
            return Moments(mean, np.maximum(square - mean**2, 0.0), images.size)

        y, moments, through = self._normalise(top, values, measure)

        def back(upper: Array, gradients: Parameters) -> None:
            inner, _, _, shift, slope = through(upper, gradients)
            tops = np.empty(exact.shape)
            first.correlate(images, inner, which, tops)
            everywhere = np.outer(sums, shift) + products @ exact * slope
            into = gradients(self._convolution, "weight")
            into[:] = (tops + everywhere).T.reshape(into.shape)

        return Passed(y, moments, back)


class Dense(Link):
    """A linear layer, batch-norm, and an activation or none. What are images still is flattened as nn.Flatten does."""

    def __init__(self, linear: nn.Linear, normal: BatchNorm, activation: nn.Module | None, *, first: bool) -> None:
        super().__init__(normal, activation, first=first)
        self._linear, self._biased = linear, linear.bias is not None

    def sides(self, given: Sides) -> Sides | None:
        """Anything will do."""
        return given

    def ahead(self, x: Array, values: Parameters) -> Passed:
        """A matrix product, and two loops over what it made."""
        weights = torch.from_numpy(values(self._linear, "weight"))
        flat = torch.from_numpy(x if x.ndim == 2 else x.transpose(0, 3, 1, 2).reshape(len(x), -1))
        out = torch.mm(flat, weights.t()).numpy()
        if self._biased:
            out += values(self._linear, "bias")

        def measure() -> Moments:
            mean, variance = np.empty(out.shape[1]), np.empty(out.shape[1])
            kernels.moments(out, mean, variance)
            return Moments(mean, variance, len(out))

        y, moments, through = self._normalise(out, values, measure)

        def back(upper: Array, gradients: Parameters) -> Array | None:
            inner, _, _, shift, slope = through(upper, gradients)
            inner += shift + slope * out
            if self._biased:
                gradients(self._linear, "bias")[:] = inner.sum(0)
            above = torch.from_numpy(inner)
            torch.mm(above.t(), flat, out=torch.from_numpy(gradients(self._linear, "weight")))
            if self.first:
                return None
            below = torch.mm(above, weights).numpy()
            if x.ndim == 2:
                return below
            count, height, width, channels = x.shape
            return np.ascontiguousarray(below.reshape(count, channels, height, width).transpose(0, 2, 3, 1))

        return Passed(y, moments, back)


class Chain:
    """A network of links, with cross-entropy at its end.

    Attributes:
        links: what is called one after the other.
    """

    def __init__(self, links: list[Link]) -> None:
        self.links = links

    def fits(self, images: Tensor) -> bool:
        """Whether every pooled side is even."""
        sides: Sides | None = (images.shape[-2], images.shape[-1])
        for link in self.links:
            sides = link.sides(sides) if sides else None
        return sides is not None and images.dtype == torch.float32

    @_quiet
    def scores(self, images: Tensor, values: Parameters) -> Array:
        """(n, classes) of (n, c, h, w) images."""
        x = _pixels(images)
        for link in self.links:
            x = link.ahead(x, values).y
        return x

    @_quiet
    def moments(self, images: Tensor, values: Parameters) -> dict[nn.Module, Moments]:
        """Of what every batch-norm is given, if they are in training."""
        x, found = _pixels(images), dict[nn.Module, Moments]()
        for link in self.links:
            x, found[link.normal], _ = link.ahead(x, values)
        return found

    @_quiet
    def learn(self, images: Tensor, labels: Tensor, values: Parameters, gradients: Parameters) -> float:
        """The mean loss; fills in its gradients w.r.t. all parameters."""
        x, way_back = _pixels(images), list[Back]()
        for link in self.links:
            x, _, back = link.ahead(x, values)
            way_back.append(back)
        upper: Array | None = np.empty_like(x)
        loss = float(kernels.cross_entropy(x, labels.numpy(), upper))
        while upper is not None:
            upper = way_back.pop()(upper, gradients)
        return loss


def chain(module: nn.Module) -> Chain | None:
    """The module's layers as links, if they can be."""
    layers, links = flattened(module), list[Link]()
    if len(set(layers)) < len(layers) or any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers):
        return None  # a layer's gradients are filled in once, and nobody would call the hooks
    while len(layers) >= 4 and _convolves(layers[0]) and joinable(*layers[1:4]):
        convolution, normal, *rest = layers[:4]
        activation = next(layer for layer in rest if type(layer) in ACTIVATIONS)
        grey = not links and _looks_at_grey(convolution)
        links.append(First(convolution, normal, activation) if grey else Block(convolution, normal, activation, first=not links))  # type: ignore[arg-type]
        layers = layers[4:]
    flatten = layers.pop(0) if layers else None
    if not isinstance(flatten, nn.Flatten) or (flatten.start_dim, flatten.end_dim) != (1, -1):
        return None
    while len(layers) >= 2 and type(layers[0]) is nn.Linear and type(layers[1]) is nn.BatchNorm1d and usual(layers[1]):
        linear, normal, *rest = layers[:3]
        follows = rest[0] if rest and type(rest[0]) in ACTIVATIONS else None
        links.append(Dense(linear, normal, follows, first=not links))  # type: ignore[arg-type]
        layers = layers[2 + (follows is not None) :]
    return None if layers or not links or not isinstance(links[-1], Dense) else Chain(links)


def _convolves(layer: nn.Module) -> bool:
    return type(layer) is nn.Conv2d and layer.bias is None and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _pairs(c: nn.Conv2d) -> tuple[Sides, Sides, Sides]:
    """Stride, padding and dilation."""
    assert not isinstance(c.padding, str)
    (a, b), (d, e), (f, g) = c.stride, c.padding, c.dilation
    return (a, b), (d, e), (f, g)


def _looks_at_grey(c: nn.Module) -> bool:
    """Through kernels of 3×3, that is: PyTorch's own loops are as fast for larger ones."""
    return type(c) is nn.Conv2d and (c.in_channels, c.kernel_size) == (1, (3, 3)) and _pairs(c) == ((1, 1),) * 3


def _pixels(planes: Tensor) -> Array:
    """(n, h, w, c) array, of the same memory if it lies that way."""
    found: Array = planes.permute(0, 2, 3, 1).contiguous().numpy()
    return found
