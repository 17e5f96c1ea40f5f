"""A network's layers as steps over arrays, there and back without autograd: the fast engine's parts.

Images lie as (n, h, w, c) arrays, signals as (n, t, c), features as (n, f): PyTorch's tensors of the same memory have channels
second. A step returns its output and a function for the way back, which may overwrite the gradient it is given, and what the step
computed. Steps of norms are in `batch_norm` and `group_norm`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn

from bifl.nn.compute import put, write
from bifl.nn.fast import kernels
from bifl.nn.fast.kernels import Array
from bifl.nn.trace import geometry, pair

# from the gradient w.r.t. an output to that w.r.t. the input, or one for each input; None where nobody wants it. It writes those
# w.r.t. the parameters
Back = Callable[[Array], Array | tuple[Array, ...] | None]


def planes(pixels: Array) -> Tensor:
    """(n, c, h, w) tensor of the same memory."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def pixels(planes: Tensor) -> Array:
    """(n, h, w, c) array, of the same memory if it lies that way."""
    values: Array = planes.permute(0, 2, 3, 1).contiguous().numpy()
    return values


def tensor(x: Array) -> Tensor:
    """What PyTorch's layers take: (n, c, h, w) images, (n, c, t) signals or (n, f) features."""
    if x.ndim == 3:
        return torch.from_numpy(x).transpose(1, 2)
    return planes(x) if x.ndim == 4 else torch.from_numpy(x)


def array(x: Tensor) -> Array:
    """The inverse of `tensor`."""
    if x.dim() == 4:
        return pixels(x)
    values: Array = (x.transpose(1, 2) if x.dim() == 3 else x).contiguous().numpy()
    return values


class Moments(NamedTuple):
    """Of what a batch-norm was given in a batch, per channel."""

    mean: Array  # (c,) float64
    variance: Array  # (c,) float64
    size: int  # values a channel

    def raw(self) -> tuple[Array, Array]:
        """E[x] and E[x²]."""
        return self.mean, self.variance + self.mean**2


class Pass(NamedTuple):
    """One computation of a whole network."""

    values: Mapping[Tensor | None, Array]  # of parameters; others hold their own
    gradients: Mapping[Tensor | None, Array]  # where to write the gradients; empty if nobody wants them
    moments: dict[nn.Module, Moments]  # of what every batch-norm was given, filled in on the way

    def value(self, parameter: Tensor) -> Array:
        """What a parameter is."""
        value = self.values.get(parameter)
        return parameter.detach().numpy() if value is None else value

    def write(self, parameter: Tensor | None, gradient: Array | float) -> None:
        """Say what the gradient w.r.t. a parameter is, if somebody wants it."""
        if parameter in self.gradients:
            self.gradients[parameter][...] = gradient


class Step:
    """Some layers."""

    ahead: Callable[..., tuple[Array, Back]]  # (input, `Pass`, further inputs) → what they make of them, and the way back
    trained = True  # whether it has parameters
    first = False  # whether nobody wants the gradient w.r.t. the input


def of_images(step: Callable[[Any, Array, Pass], tuple[Array, Back]]) -> Callable[[Any, Array, Pass], tuple[Array, Back]]:
    """A step of (n, h, w, c) images that takes signals too: as images of one row."""

    def called(self: Any, x: Array, through: Pass) -> tuple[Array, Back]:
        if x.ndim == 4:
            return step(self, x, through)
        y, through_images = step(self, _row(x), through)

        def back(upper: Array) -> Array | None:
            below: Any = through_images(_row(upper))
            return None if below is None else below[:, 0]

        return y[:, 0], back

    return called


def _row(signal: Array) -> Array:
    """(n, 1, t, c); reshaped, as a new axis of stride 0 would hide from PyTorch that channels are last."""
    return signal.reshape(len(signal), 1, *signal.shape[1:])


class Convolution(Step):
    """PyTorch's convolution. Where batch-norm follows, the bias has no effect in training: its gradient is zero."""

    def __init__(self, convolution: nn.Conv1d | nn.Conv2d, *, normed: bool) -> None:
        self._weight, self._bias, self._normed = convolution.weight, convolution.bias, normed
        self._how, self._kernel, self._groups = geometry(convolution), pair(convolution.kernel_size, 1), convolution.groups

    @of_images
    def ahead(self, x: Array, through: Pass) -> tuple[Array, Back]:
        """As `Step` says."""
        images, given = planes(x), through.value(self._weight)
        weights = torch.from_numpy(given).view(*given.shape[:2], *self._kernel)
        bias = None if self._bias is None else torch.from_numpy(through.value(self._bias))
        out = pixels(torch.conv2d(images, weights, bias, *self._how, self._groups))

        def back(upper: Array) -> Array | None:
            biased = not self._normed and self._bias in through.gradients
            wanted = (not self.first, self._weight in through.gradients, biased)
            below, for_weights, for_bias = torch.ops.aten.convolution_backward(
                planes(upper), images, weights, [len(weights)], *self._how, False, (0, 0), self._groups, wanted
            )
            if wanted[1]:
                through.write(self._weight, for_weights.numpy().reshape(given.shape))
            through.write(self._bias, for_bias.numpy() if biased else 0.0)
            return None if self.first else pixels(below)

        return out, back


class Dense(Step):
    """A linear layer of (n, f) features."""

    def __init__(self, linear: nn.Linear) -> None:
        self._weight, self._bias = linear.weight, linear.bias

    def ahead(self, x: Array, through: Pass) -> tuple[Array, Back]:
        """As `Step` says."""
        given, weights = torch.from_numpy(x), torch.from_numpy(through.value(self._weight))
        out = torch.mm(given, weights.t()).numpy()
        if self._bias is not None:
            out += through.value(self._bias)

        def back(upper: Array) -> Array | None:
            above = torch.from_numpy(upper)
            if self._bias in through.gradients:
                through.write(self._bias, upper.sum(0))
            if self._weight in through.gradients:
                torch.mm(above.t(), given, out=torch.from_numpy(through.gradients[self._weight]))
            return None if self.first else torch.mm(above, weights).numpy()

        return out, back


class Flatten(Step):
    """Images or signals as features, in the order of nn.Flatten."""

    trained = False

    def ahead(self, x: Array, through: Pass) -> tuple[Array, Back]:
        """As `Step` says."""
        if x.ndim == 2:
            return x, lambda upper: upper
        count, *sides, channels = x.shape

        def back(upper: Array) -> Array:
            return np.ascontiguousarray(np.moveaxis(upper.reshape(count, channels, *sides), 1, -1))

        return np.moveaxis(x, -1, 1).reshape(count, -1), back


class Activation(Step):
    """tanh or ReLU."""

    trained = False

    def __init__(self, kind: int) -> None:
        self._kind = kind

    def ahead(self, x: Array, through: Pass) -> tuple[Array, Back]:
        """As `Step` says."""
        y = np.empty_like(x)
        kernels.activate(x.reshape(-1), self._kind, y.reshape(-1))

        def back(upper: Array) -> Array:
            kernels.deactivate(upper.reshape(-1), self._kind, y.reshape(-1))
            return upper

        return y, back


class Add(Step):
    """The end of a shortcut."""

    trained = False

    def ahead(self, x: Array, through: Pass, other: Array) -> tuple[Array, Back]:
        """As `Step` says."""
        return x + other, lambda upper: (upper, upper.copy())


class Call(Step):
    """What no loop is written for: PyTorch computes it, and autograd its gradients. `changes` if it writes to its input."""

    def __init__(self, node: fx.Node, layer: nn.Module | None, *, changes: bool) -> None:
        self._node, self._layer, self._changes = node, layer, changes
        self._parameters = [] if layer is None else [one for one in layer.parameters() if one.requires_grad]
        self.trained = bool(self._parameters)

    def ahead(self, x: Array, through: Pass, *others: Array) -> tuple[Array, Back]:
        """As `Step` says."""
        wanted = bool(through.gradients)
        given = [tensor(value).requires_grad_(wanted and not self.first) for value in (x, *others)]
        leaves = self._parameters if wanted else []
        put((leaf, torch.from_numpy(through.values[leaf])) for leaf in leaves)
        with torch.set_grad_enabled(wanted):
            out = self._called([one.clone() if self._changes else one for one in given])

        def back(upper: Array) -> tuple[Array, ...]:
            inputs = leaves if self.first else [*leaves, *given]
            gradients = torch.autograd.grad(out, inputs, tensor(upper), allow_unused=True, materialize_grads=True) if inputs else ()
            write(gradients[: len(leaves)], [torch.from_numpy(through.gradients[leaf]) for leaf in leaves])
            # copies where there are several: they may lie in the same memory
            return tuple(array(one.clone() if len(given) > 1 else one) for one in gradients[len(leaves) :])

        return array(out.detach()), back

    def _called(self, given: list[Tensor]) -> Tensor:
        node, values = self._node, dict(zip(self._node.all_input_nodes, given, strict=True))
        (args, kwargs) = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        function: Any = self._layer if self._layer is not None else node.target
        if node.op == "call_method":
            function, args = getattr(args[0], function), args[1:]
        out: Tensor = function(*args, **kwargs)
        return out
