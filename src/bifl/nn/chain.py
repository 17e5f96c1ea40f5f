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

import numpy as np
import torch
from torch import Tensor, nn

from bifl.nn import kernels, norm
from bifl.nn.fused import ACTIVATIONS, flattened, joinable, planes, usual
from bifl.nn.norm import Array, BatchNorm, Gradients, Moments, Normed

# a layer and the name of its parameter → the array of its values, or of its gradient
Parameters = Callable[[nn.Module, str], Array]
Sides = tuple[int, int]
_quiet = np.errstate(all="ignore")  # a training that diverges shows in its loss, and torch would say nothing here either


class Link(ABC):
    """Some layers, the last of which are a batch-norm and its activation. It remembers for `back` what `ahead` did.

    Attributes:
        normal: the batch-norm.
        moments: of what that was given last.
    """

    def __init__(self, normal: BatchNorm, activation: nn.Module | None) -> None:
        self.normal = normal
        self.moments: Moments | None = None
        self._activation = norm.activation(activation)

    @abstractmethod
    def sides(self, given: Sides) -> Sides | None:
        """Height and width of the output; None if such images do not fit."""

    @abstractmethod
    def ahead(self, x: Array, values: Parameters) -> Array:
        """What the layers make of x, normalised by the batch if the norm is in training."""

    @abstractmethod
    def back(self, upper: Array, gradients: Parameters, *, last: bool) -> Array:
        """From the gradient w.r.t. the output to that w.r.t. x, unless that is the last; fills in those of the parameters."""

    def _normalise(self, x: Array, values: Parameters, measure: Callable[[], Moments]) -> Array:
        moments = measure() if self.normal.training else norm.running(self.normal)
        if self.normal.training:
            norm.remember(self.normal, moments)
        self.moments, self._x = moments, x
        gamma, beta = values(self.normal, "weight"), values(self.normal, "bias")
        self._y, self._normed = norm.ahead(self.normal, self._activation, x, moments, gamma, beta)
        return self._y

    def _through(self, upper: Array, gradients: Parameters) -> Gradients:
        """Back to x."""
        found = norm.back(upper, self._x, self._y, self._normed)
        gradients(self.normal, "weight")[:] = found.gamma
        gradients(self.normal, "bias")[:] = found.beta
        return found

    _x: Array
    _y: Array
    _normed: Normed


class Block(Link):
    """Convolution, batch-norm, pooling, activation."""

    def __init__(self, convolution: nn.Conv2d, normal: BatchNorm, activation: nn.Module) -> None:
        super().__init__(normal, activation)
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

    def ahead(self, x: Array, values: Parameters) -> Array:
        """PyTorch's convolution, then two loops over what it made."""
        self._images, self._weights = planes(x), torch.from_numpy(values(self._convolution, "weight"))
        self._out = _pixels(
            torch.conv2d(self._images, self._weights, None, self._stride, self._padding, self._dilation, self._convolution.groups)
        )
        count, height, width, channels = self._out.shape
        top = np.empty((count, height // 2, width // 2, channels), np.float32)
        mean, variance = np.empty(channels), np.empty(channels)
        kernels.pool(self._out, values(self.normal, "weight"), top, mean, variance)
        return self._normalise(top, values, lambda: Moments(mean, variance, count * height * width))

    def back(self, upper: Array, gradients: Parameters, *, last: bool) -> Array:
        """Two loops, then PyTorch's."""
        inner, _, _, shift, slope = self._through(upper, gradients)
        kernels.unpool(self._out, self._x, inner, shift, slope)
        how = (self._stride, self._padding, self._dilation, False, (0, 0), self._convolution.groups)
        below, for_weights, _ = torch.ops.aten.convolution_backward(
            planes(self._out), self._images, self._weights, None, *how, (not last, True, False)
        )
        gradients(self._convolution, "weight")[:] = for_weights.numpy()
        return upper if last else _pixels(below)

    _images: Tensor
    _weights: Tensor
    _out: Array


class First(Link):
    """A block that looks at grey images, and nobody wants the gradient w.r.t. those. Its 3×3 convolution keeps their size."""

    def __init__(self, convolution: nn.Conv2d, normal: BatchNorm, activation: nn.Module) -> None:
        super().__init__(normal, activation)
        self._convolution = convolution

    def sides(self, given: Sides) -> Sides | None:
        """Half of an even number."""
        return None if given[0] % 2 or given[1] % 2 else (given[0] // 2, given[1] // 2)

    def ahead(self, x: Array, values: Parameters) -> Array:
        """Tops alone leave the loop; the moments come from the patches."""
        self._images = x[..., 0]
        weights = np.ascontiguousarray(values(self._convolution, "weight").reshape(-1, 9).T)  # (9, c)
        count, height, width = self._images.shape
        top = np.empty((count, height // 2, width // 2, weights.shape[1]), np.float32)
        self._which, self._weights = np.empty_like(top), weights.astype(np.float64)
        kernels.convolve(self._images, weights, values(self.normal, "weight"), top, self._which)
        return self._normalise(top, values, self._measure)

    def _measure(self) -> Moments:
        self._sums, self._products, pixels = np.empty(9), np.empty((9, 9)), self._images.size
        kernels.patches(self._images, self._sums, self._products)
        mean = self._sums @ self._weights / pixels
        square = np.sum(self._weights * (self._products @ self._weights), axis=0) / pixels
        return Moments(mean, np.maximum(square - mean**2, 0.0), pixels)

    def back(self, upper: Array, gradients: Parameters, *, last: bool) -> Array:
        """The weights' gradient: from the tops, and from what batch-norm adds everywhere."""
        inner, _, _, shift, slope = self._through(upper, gradients)
        tops = np.empty(self._weights.shape)
        kernels.correlate(self._images, inner, self._which, tops)
        everywhere = np.outer(self._sums, shift) + self._products @ self._weights * slope
        into = gradients(self._convolution, "weight")
        into[:] = (tops + everywhere).T.reshape(into.shape)
        return upper

    _images: Array
    _weights: Array
    _which: Array
    _sums: Array
    _products: Array


class Dense(Link):
    """A linear layer, batch-norm, and an activation or none. Blocks' outputs are flattened as nn.Flatten does."""

    def __init__(self, linear: nn.Linear, normal: BatchNorm, activation: nn.Module | None) -> None:
        super().__init__(normal, activation)
        self._linear, self._biased = linear, linear.bias is not None

    def sides(self, given: Sides) -> Sides | None:
        """Anything will do."""
        return given

    def ahead(self, x: Array, values: Parameters) -> Array:
        """A matrix product, and two loops over what it made."""
        self._shape, self._weights = x.shape, torch.from_numpy(values(self._linear, "weight"))
        self._flat = torch.from_numpy(x if x.ndim == 2 else x.transpose(0, 3, 1, 2).reshape(len(x), -1))
        out = torch.mm(self._flat, self._weights.t()).numpy()
        if self._biased:
            out += values(self._linear, "bias")

        def measure() -> Moments:
            mean, variance = np.empty(out.shape[1]), np.empty(out.shape[1])
            kernels.moments(out, mean, variance)
            return Moments(mean, variance, len(out))

        return self._normalise(out, values, measure)

    def back(self, upper: Array, gradients: Parameters, *, last: bool) -> Array:
        """Two matrix products, the first straight into its place."""
        inner, _, _, shift, slope = self._through(upper, gradients)
        inner += shift + slope * self._x
        if self._biased:
            gradients(self._linear, "bias")[:] = inner.sum(0)
        above = torch.from_numpy(inner)
        torch.mm(above.t(), self._flat, out=torch.from_numpy(gradients(self._linear, "weight")))
        if last:
            return upper
        below = torch.mm(above, self._weights).numpy()
        if len(self._shape) == 2:
            return below
        count, height, width, channels = self._shape
        return np.ascontiguousarray(below.reshape(count, channels, height, width).transpose(0, 2, 3, 1))

    _shape: tuple[int, ...]
    _weights: Tensor
    _flat: Tensor


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

    def moments(self, images: Tensor, values: Parameters) -> dict[nn.Module, Moments]:
        """Of what every batch-norm in training is given."""
        self.scores(images, values)
        return {link.normal: link.moments for link in self.links if link.moments is not None}

    @_quiet
    def learn(self, images: Tensor, labels: Tensor, values: Parameters, gradients: Parameters) -> float:
        """The mean loss; fills in its gradients w.r.t. all parameters."""
        scores = self.scores(images, values)
        upper = np.empty_like(scores)
        loss = float(kernels.cross_entropy(scores, labels.numpy(), upper))
        for link in reversed(self.links):
            upper = link.back(upper, gradients, last=link is self.links[0])
        return loss

    def scores(self, images: Tensor, values: Parameters) -> Array:
        """(n, classes) scores of (n, c, h, w) images, or (n, c) rows."""
        x = _pixels(images) if images.ndim == 4 else images.numpy()
        for link in self.links:
            x = link.ahead(x, values)
        return x


def chain(module: nn.Module) -> Chain | None:
    """The module's layers as links, if they can be."""
    layers, links = flattened(module), list[Link]()
    while len(layers) >= 4 and _convolves(layers[0]) and joinable(*layers[1:4]):
        convolution, normal, *rest = layers[:4]
        kind = First if not links and _looks_at_grey(convolution) else Block
        links.append(kind(convolution, normal, next(layer for layer in rest if type(layer) in ACTIVATIONS)))  # type: ignore[arg-type]
        layers = layers[4:]
    if links and (not layers or type(layers[0]) is not nn.Flatten or layers.pop(0).start_dim != 1):
        return None
    while len(layers) >= 2 and type(layers[0]) is nn.Linear and type(layers[1]) is nn.BatchNorm1d and usual(layers[1]):
        linear, normal, *rest = layers[:3]
        activation = rest[0] if rest and type(rest[0]) in ACTIVATIONS else None
        links.append(Dense(linear, normal, activation))  # type: ignore[arg-type]
        layers = layers[2 + (activation is not None) :]
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
