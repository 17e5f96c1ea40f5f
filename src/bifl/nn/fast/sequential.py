"""The fast engine: loss and gradients of an nn.Sequential without autograd, a training step in a few dozen calls.

It takes networks of convolutions of images or signals, linear layers, batch-norm, GroupNorm, LayerNorm of features, max-pooling by
2, tanh and ReLU, with or without biases and norms; any other layer among them is left to PyTorch (`Others`), its norms to `traced`.
Gradients go straight into the flat vectors. Against PyTorch only rounding differs (tanh by less than 4e-7); sums have a fixed
order.

`steps_of` says which steps compute a sequence of layers, `engine_for` which engine takes a module, and `SequentialEngine` computes.

>>> from bifl.nn.models import celeba_cnn, mnist_cnn
>>> [type(step).__name__ for step in steps_of(flattened(mnist_cnn(10)), ())]
['First', 'Convolution', 'NormPool', 'Flatten', 'Dense', 'NormRows', 'Dense', 'NormRows']
>>> [type(step).__name__ for step in steps_of(flattened(celeba_cnn(2))[:5], ())]
['Convolution', 'NormPool', 'Convolution']
>>> type(engine_for(mnist_cnn(10), [], [])).__name__, type(engine_for(nn.LSTM(2, 3), [], [])).__name__
('SequentialEngine', 'PlainEngine')
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from bifl.nn.batch import INPUT, TARGET, Batch, judged
from bifl.nn.compute import Engine, Flat, Loss, PlainEngine, Raw, Slot, overheard, placed, write
from bifl.nn.fast import batch_norm, kernels
from bifl.nn.fast.batch_norm import First, NormPixels, NormPool, NormRows, NormStep
from bifl.nn.fast.fused_norm import known
from bifl.nn.fast.kernels import Array
from bifl.nn.fast.steps import Activation, Back, Convolution, Dense, Flatten, GroupNorm, Pass, Pool, Step, array, tensor
from bifl.nn.fast.traced import Traced, TracedEngine, hooked


class Others(Step):
    """Layers that no loop is written for: PyTorch computes them, and autograd their gradients."""

    def __init__(self, layers: Sequence[nn.Module], slots: Sequence[Slot]) -> None:
        children = {child for layer in layers for child in layer.modules()}
        self.children = children
        self._layers = [Traced(layer) for layer in layers]
        self._slots = [slot for slot in slots if slot.places[0][0] in children]
        self._changes_its_input = any(getattr(child, "inplace", False) for child in children)

    def ahead(self, x: Array, through: Pass) -> tuple[Array, Back]:
        """As `Step` says."""
        given, places = tensor(x), [slot.places[0] for slot in self._slots]
        wanted = bool(through.gradients)
        leaves = placed(self._slots, [torch.from_numpy(through.values[place]) for place in places]) if wanted else []
        given = given.requires_grad_(wanted and not self.first)
        with torch.set_grad_enabled(wanted):
            out = given.clone() if self._changes_its_input else given
            for layer in self._layers:
                out = layer(out)

        def back(upper: Array) -> Array | None:
            inputs = leaves if self.first else [*leaves, given]
            found = torch.autograd.grad(out, inputs, tensor(upper), allow_unused=True) if inputs else ()
            write(found[: len(leaves)], [torch.from_numpy(through.gradients[place]) for place in places])
            if self.first:
                return None
            return np.zeros_like(x) if found[-1] is None else array(found[-1])

        return array(out.detach()), back


ACTIVATIONS = (nn.Tanh, nn.ReLU)
# layers that are left to PyTorch and give as many dimensions as they take
_KEEP_DIMENSIONS = (
    nn.Identity, nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.MaxPool2d, nn.AvgPool2d,
    nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.InstanceNorm2d, nn.LayerNorm, nn.GroupNorm,
    nn.LocalResponseNorm, nn.ZeroPad2d, nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d, nn.Dropout1d,
    nn.Conv1d, nn.Conv2d, nn.GELU, nn.SiLU, nn.ELU, nn.SELU, nn.LeakyReLU, nn.PReLU, nn.Sigmoid,
    nn.Hardtanh, nn.ReLU6, nn.Hardswish, nn.Softplus, nn.Mish,
)  # fmt: skip


class Kinds(NamedTuple):
    """The layers of images, or of signals."""

    convolution: type[nn.Module]
    norm: type[nn.Module]
    pool: type[nn.Module]


_KINDS = {3: Kinds(nn.Conv1d, nn.BatchNorm1d, nn.MaxPool1d), 4: Kinds(nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d)}


class Tail(NamedTuple):
    """What follows a layer directly: an activation and a pooling by 2, in either order, or only one of them.

    Both activations are monotone, so that pooling first gives the same numbers for less work.
    """

    activation: int
    padding: int | None  # of the pooling; None if there is none
    layers: int  # how many these are


def flattened(module: nn.Module) -> list[nn.Module]:
    """The layers of an nn.Sequential, those within it opened."""
    return [layer for child in module for layer in flattened(child)] if type(module) is nn.Sequential else [module]


def dimensions(layers: Sequence[nn.Module]) -> int:
    """Of what a network takes: 2 for features, 3 for signals, 4 for images."""
    return {nn.Linear: 2, nn.Conv1d: 3}.get(type(layers[0]), 4) if layers else 4


def steps_of(layers: Sequence[nn.Module], slots: Sequence[Slot]) -> list[Step]:
    """The steps, in order; layers that nothing is known of are joined and left to PyTorch."""
    steps, at = _first(layers)
    left, sides = list[nn.Module](), dimensions(layers)
    while at < len(layers):
        found, taken, given = _known(layers[at:], sides, steps[-1] if steps and not left else None)
        if not found:
            layer = layers[at]
            left.append(layer)
            sides = sides if type(layer) in _KEEP_DIMENSIONS else 0  # 0: nobody knows
            at += 1
            continue
        if left:
            steps.append(Others(left, slots))
            left = []
        steps, sides, at = steps + found, given, at + taken
    steps += [Others(left, slots)] if left else []
    for step in steps:
        step.first = True
        if not isinstance(step, Flatten | Activation | Pool):
            break
    return steps


def _first(layers: Sequence[nn.Module]) -> tuple[list[Step], int]:
    """`First`, if it is known how to compute the first layers so. For kernels larger than 3×3 PyTorch's own loops are as fast."""
    convolution, norm = (*layers[:2], None, None)[:2]
    tail = _tail(layers[2:])
    if type(convolution) is not nn.Conv2d or norm is None or not _usual(norm, nn.BatchNorm2d) or tail.padding != 0:
        return [], 0
    how = (convolution.stride, convolution.padding, convolution.dilation, convolution.kernel_size)
    if how != ((1, 1), (1, 1), (1, 1), (3, 3)) or convolution.in_channels != 1 or convolution.padding_mode != "zeros":
        return [], 0
    normal = cast(nn.BatchNorm2d, norm)
    steps: list[Step] = [Convolution(convolution, normed=True), NormPool(normal, tail.activation, 0, owns=True)]
    steps[0].first = True
    return [First(convolution, normal, tail.activation, steps)], 2 + tail.layers


def _known(layers: Sequence[nn.Module], dimensions: int, before: Step | None) -> tuple[list[Step], int, int]:
    """Steps for the next layers, how many layers these are, and how many dimensions they give; no step if none is known."""
    layer, owns = layers[0], isinstance(before, Convolution)
    if type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
        return [Flatten()], 1, 2
    if dimensions in _KINDS:
        steps, taken = _of_images(layers, _KINDS[dimensions], owns=owns)
    elif dimensions == 2:
        steps, taken = _of_rows(layers)
    else:
        return [], 0, 0
    return steps, taken, dimensions


def _of_images(layers: Sequence[nn.Module], kinds: Kinds, *, owns: bool) -> tuple[list[Step], int]:
    """The next steps for (n, c, …) images or signals; `owns` tells whether they may overwrite what they are given."""
    layer, tail = layers[0], _tail(layers[1:], kinds.pool)
    if type(layer) is kinds.convolution and layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        normed = len(layers) > 1 and _usual(layers[1], kinds.norm)
        return [Convolution(cast(nn.Conv1d | nn.Conv2d, layer), normed=normed)], 1
    if _usual(layer, kinds.norm):
        norm = cast(batch_norm.BatchNorm, layer)
        if tail.padding is None:
            return [NormPixels(norm, tail.activation)], 1 + tail.layers
        return [NormPool(norm, tail.activation, tail.padding, owns=owns)], 1 + tail.layers
    if type(layer) is nn.GroupNorm and layer.affine and layer.bias is not None:
        follows = _follows(layers)
        return [GroupNorm(layer, follows)], 1 + (follows > 0)
    tail = _tail(layers, kinds.pool)
    pool: list[Step] = [] if tail.padding is None else [Pool(tail.padding, owns=owns)]
    return [*pool, *([Activation(tail.activation)] if tail.activation else [])], tail.layers


def _of_rows(layers: Sequence[nn.Module]) -> tuple[list[Step], int]:
    """The next steps for (n, f) features."""
    layer, follows = layers[0], _follows(layers)
    if type(layer) is nn.Linear:
        return [Dense(layer)], 1
    if _usual(layer, nn.BatchNorm1d):
        return [NormRows(cast(nn.BatchNorm1d, layer), follows)], 1 + (follows > 0)
    layered = type(layer) is nn.LayerNorm and len(layer.normalized_shape) == 1 and layer.elementwise_affine
    if (layered or (type(layer) is nn.GroupNorm and layer.affine)) and layer.bias is not None:
        return [GroupNorm(cast(nn.GroupNorm | nn.LayerNorm, layer), follows)], 1 + (follows > 0)
    activation = batch_norm.activation(layer)
    return ([Activation(activation)], 1) if activation else ([], 0)


def _follows(layers: Sequence[nn.Module]) -> int:
    """The activation right after the first of these layers, if there is one."""
    return batch_norm.activation(layers[1]) if len(layers) > 1 else kernels.NONE


def _tail(layers: Sequence[nn.Module], pool: type[nn.Module] = nn.MaxPool2d) -> Tail:
    activation, padding, taken = 0, None, 0
    for layer in layers[:2]:
        if not activation and type(layer) in ACTIVATIONS:
            activation = batch_norm.activation(layer)
        elif padding is None and type(layer) is pool and _halves(cast(nn.MaxPool2d, layer)):
            padding = _number(cast(nn.MaxPool2d, layer).padding)
        else:
            break
        taken += 1
    return Tail(activation, padding, taken)


def _usual(norm: nn.Module, kind: type[nn.Module]) -> bool:
    return type(norm) is kind and batch_norm.usual(norm)


def _halves(layer: nn.MaxPool2d) -> bool:
    """Whether it pools windows of 2×2, or of 2, with stride 2."""
    if layer.ceil_mode or layer.return_indices:
        return False
    return [_number(n) for n in (layer.kernel_size, layer.stride, layer.dilation)] == [2, 2, 1] and _number(layer.padding) in (0, 1)


def _number(pair: int | tuple[int, ...]) -> int:
    """The number of a pair of equal ones; −1 for others."""
    if isinstance(pair, int):
        return pair
    return pair[0] if len(set(pair)) == 1 else -1


_quiet = np.errstate(all="ignore")  # a training that diverges shows in its loss, and torch would say nothing here either


def engine_for(module: nn.Module, slots: Sequence[Slot], norms: Sequence[nn.Module]) -> Engine:
    """The fastest engine that takes a module.

    Args:
        module: the network.
        slots: its parameters.
        norms: those of its layers that keep statistics of their inputs.
    """
    plain, layers = PlainEngine(module, slots, norms), flattened(module)
    if any(map(hooked, module.modules())):  # nobody would call the hooks
        return plain
    tied, steps = any(len(slot.places) > 1 for slot in slots), steps_of(layers, slots)
    if tied or _shares(layers) or all(isinstance(step, Others) for step in steps):  # here a gradient is written once, not added
        return TracedEngine(module, slots, norms) if any(map(known, module.modules())) else plain
    return SequentialEngine(steps, plain, dimensions(layers))


def _shares(layers: Sequence[nn.Module]) -> bool:
    """Whether a layer other than an activation, pooling and the like is used twice."""
    again = {layer for number, layer in enumerate(layers) if layer in layers[:number]}
    return any(type(layer) not in (*ACTIVATIONS, nn.MaxPool1d, nn.MaxPool2d, nn.Flatten, nn.Dropout) for layer in again)


def _slope(scores: Array, batch: Batch, loss: Loss) -> tuple[float, Array | None]:
    """The loss, and its gradient w.r.t. the output: cross-entropy of rows by a loop of our own, others by autograd."""
    if loss is nn.functional.cross_entropy and scores.ndim == 2:
        upper = np.empty_like(scores)
        return float(kernels.cross_entropy(scores, batch[TARGET].numpy(), upper)), upper
    leaf = tensor(scores).requires_grad_()
    with torch.enable_grad():
        found = judged(loss, leaf, batch)
    return found.item(), array(torch.autograd.grad(found, leaf)[0])


class SequentialEngine:
    """Computes steps one after the other on a CPU in single precision; leaves all else to the plain engine."""

    def __init__(self, steps: list[Step], plain: PlainEngine, dimensions: int) -> None:
        self.steps, self._plain, self._dimensions = steps, plain, dimensions
        self._places = [slot.places[0] for slot in plain.slots]
        self._norms = [step.norm for step in steps if isinstance(step, NormStep)]
        children = {child for step in steps if isinstance(step, Others) for child in step.children}
        self._other_norms = [norm for norm in plain.norms if norm in children]

    @_quiet
    def learn(self, batch: Batch, values: Flat, gradients: Flat, loss: Loss) -> float:
        """As `Engine` says."""
        if not self._takes(batch[INPUT], training=True):
            return self._plain.learn(batch, values, gradients, loss)
        known, wanted = (dict(zip(self._places, flat.arrays(), strict=True)) for flat in (values, gradients))
        through = Pass(known, wanted, {})
        scores, backs = self._ahead(batch[INPUT], through)
        value, upper = _slope(scores, batch, loss)
        while upper is not None and backs:
            upper = backs.pop()(upper)
        return value

    @_quiet
    def scores(self, batch: Batch) -> Tensor:
        """As `Engine` says."""
        if not self._takes(batch[INPUT], training=False):
            return self._plain.scores(batch)
        return tensor(self._ahead(batch[INPUT], Pass({}, {}, {}))[0])

    @_quiet
    def moments(self, batch: Batch) -> dict[nn.Module, Raw]:
        """As `Engine` says."""
        if not self._takes(batch[INPUT], training=True):
            return self._plain.moments(batch)
        through = Pass({}, {}, {})
        with overheard(self._other_norms) as found:
            self._ahead(batch[INPUT], through)
        return found | {norm: moments.raw() for norm, moments in through.moments.items()}

    def _ahead(self, inputs: Tensor, through: Pass) -> tuple[Array, list[Back]]:
        """The output as an array, and the way back."""
        x, backs = array(inputs), list[Back]()
        for step in self.steps:
            x, back = step.ahead(x, through)
            backs.append(back)
        return x, backs

    def _takes(self, inputs: Tensor, *, training: bool) -> bool:
        """Whether it can compute these inputs, with all batch-norms in training (of more than one sample) or all not."""
        if (
            inputs.device.type != "cpu"
            or inputs.dtype != torch.float32
            or inputs.dim() != self._dimensions
            or (training and len(inputs) < 2)
        ):
            return False
        return all(norm.training == training for norm in self._norms)
