"""The fast engine: loss and gradients of an nn.Sequential without autograd, a training step in a few dozen calls.

It takes networks of convolutions of images or signals, linear layers, batch-norm, GroupNorm, LayerNorm of features, max-pooling by
2, tanh and ReLU, with or without biases and norms; any other layer among them is left to PyTorch, its norms to `traced`. Gradients
go straight into the flat vectors. Against PyTorch only rounding differs (tanh by less than 4e-7); sums have a fixed order.

>>> from bifl.nn.models import mnist_cnn
>>> type(engine_for(mnist_cnn(10), [], [])).__name__, type(engine_for(nn.LSTM(2, 3), [], [])).__name__
('SequentialEngine', 'PlainEngine')
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from bifl.nn.batch import INPUT, TARGET, Batch, judged
from bifl.nn.compute import Engine, Flat, Loss, PlainEngine, Raw, Slot, overheard
from bifl.nn.fast import kernels
from bifl.nn.fast.fused_norm import known
from bifl.nn.fast.kernels import Array
from bifl.nn.fast.memory_order import array, tensor
from bifl.nn.fast.norm_steps import NormStep
from bifl.nn.fast.recognise import ACTIVATIONS, dimensions, flattened, steps_of
from bifl.nn.fast.steps import Back, Others, Pass, Step
from bifl.nn.fast.traced import TracedEngine, hooked

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
