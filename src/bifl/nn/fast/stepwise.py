"""The fast engine: loss and gradients of a network without autograd, a training step in a few dozen calls.

`plan` reads a network (`bifl.nn.trace`) and joins what one loop computes: a norm, the activation and the pooling after it. It takes
convolutions of images or signals, linear layers, batch-norm, GroupNorm, LayerNorm of features, max-pooling by 2, tanh, ReLU and
shortcuts, with or without biases and norms; any other call among them is left to PyTorch. Gradients go straight into the flat
vectors. Against PyTorch only rounding differs (tanh by less than 4e-7); sums have a fixed order.

>>> from bifl.nn.models import Residual, mnist_cnn
>>> def steps_of(module, *shape):
...     return [type(planned.step).__name__ for planned in plan(module, {INPUT: torch.zeros(2, *shape)}) or ()]
>>> steps_of(mnist_cnn(10), 1, 28, 28)
['First', 'Convolution', 'NormPool', 'Flatten', 'Dense', 'Norm', 'Dense', 'Norm']
>>> steps_of(nn.Sequential(Residual(2, 2, 1), nn.AvgPool2d(2)), 2, 6, 6)
['Convolution', 'Norm', 'Convolution', 'Norm', 'Add', 'Activation', 'Call']
>>> steps_of(nn.Softmax(1), 3)
[]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bifl.nn import trace
from bifl.nn.batch import INPUT, TARGET, Batch, judged
from bifl.nn.compute import Engine, Loss, Raw, Slot, Vectors, overheard
from bifl.nn.fast import batch_norm, group_norm, kernels, steps
from bifl.nn.fast.kernels import Array
from bifl.nn.fast.steps import Back, Pass, Step

_ACTIVATIONS = {"tanh": kernels.TANH, "relu": kernels.RELU}
_CONVOLUTIONS = {3: nn.Conv1d, 4: nn.Conv2d}  # by the dimensions of what they take


class Planned(NamedTuple):
    """A step and the numbers of the values that it takes: 0 is the input, `plan[n]` gives n + 1."""

    step: Step
    sources: tuple[int, ...]


def plan(module: nn.Module, batch: Batch) -> list[Planned] | None:
    """The steps that compute a module in the mode that it is in, planned with a batch of what it takes.

    None if they would not do the same in every call, or are mostly PyTorch's.
    """
    used = [id(one) for child in module.modules() for one in child._parameters.values() if one is not None and one.requires_grad]
    if len(used) > len(set(used)) or any(map(trace.has_hooks, module.modules())):
        return None  # here a gradient is written once, not added, even if parameters are tied; and nobody would call the hooks
    if any(map(_holds_tensors, trace.opened(module))):
        return None  # a trace would take them for constants
    try:
        operations = trace.read(module, batch)
    except (trace.Unreadable, RuntimeError, ValueError, IndexError):
        return None
    layers = [module.get_submodule(one.name) for one in operations if one.node.op == "call_module"]
    trained = [layer for layer in layers if any(map(_holds_tensors, layer.modules()))]
    if len(trained) > len(set(trained)) or any(one.dtype != torch.float32 for one in operations):
        return None
    planned = _Planner(module, operations).plan()
    others = sum(isinstance(one.step, steps.Call) for one in planned)
    return planned if 2 * others < len(planned) else None


def _holds_tensors(child: nn.Module) -> bool:
    """Whether a module has parameters, buffers or other tensors of its own."""
    held = [*child._parameters.values(), *child._buffers.values(), *vars(child).values()]
    return any(isinstance(value, Tensor) for value in held)


class Tail(NamedTuple):
    """An activation and a pooling by 2, in either order: both are monotone, and pooling first is less work. Or only one of them."""

    activation: int
    padding: int | None  # of the pooling; None if there is none
    length: int  # how many operations these are


def _tail(works: Sequence[trace.Work]) -> Tail:
    """What these operations begin with."""
    activation, padding, length = kernels.NONE, None, 0
    for work in works[:2]:
        if not activation and _activation(work):
            activation = _activation(work)
        elif padding is None and isinstance(work, trace.Pool) and _halves(work):
            padding = work.padding[1]
        else:
            break
        length += 1
    return Tail(activation, padding, length)


def _activation(work: trace.Work) -> int:
    """What the loops call it, if that is what an operation does."""
    return _ACTIVATIONS.get(work.name, kernels.NONE) if isinstance(work, trace.Activation) else kernels.NONE


def _halves(pool: trace.Pool) -> bool:
    """Whether it takes the largest of windows of 2×2 of images, or of pairs of a signal."""
    windows = [((2, 2), (0, 0)), ((2, 2), (1, 1)), ((1, 2), (0, 0)), ((1, 2), (0, 1))]
    return pool.name == "max" and pool.size == pool.stride and (pool.size, pool.padding) in windows and not pool.ceil


class _Planner:
    """Joins operations to steps."""

    def __init__(self, module: nn.Module, operations: list[trace.Operation]) -> None:
        self._module, self._operations = module, operations
        self._readers: list[list[int]] = [[] for _ in operations]
        for number, operation in enumerate(operations):
            for source in operation.sources:
                self._readers[source].append(number)

    def plan(self) -> list[Planned]:
        planned, values, trained = list[Planned](), {0: 0}, [False]
        for number, operation in enumerate(self._operations[1:], start=1):
            if number not in values:
                run = self._run(number)
                step, length = self._step(operation, [self._operations[one].work for one in run])
                sources = tuple(values[source] for source in operation.sources)
                step.first = not any(trained[source] for source in sources)
                planned.append(Planned(step, sources))
                trained.append(step.trained or not step.first)
                values.update(dict.fromkeys(run[:length], len(planned)))
        return planned

    def _run(self, number: int) -> list[int]:
        """An operation and those after it, of which each one alone reads what the one before gives."""
        run = [number]
        while len(self._readers[run[-1]]) == 1:
            run += self._readers[run[-1]]
        return run

    def _step(self, operation: trace.Operation, works: list[trace.Work]) -> tuple[Step, int]:
        """What computes an operation, and how many of the works that begin there."""
        shapes, tail, work = [self._operations[source].shape or () for source in operation.sources], _tail(works), works[0]
        if isinstance(work, trace.Layer):
            known = self._of_convolution(operation, work.module, works) or self._of_layer(operation, work.module, works)
            if known is not None:
                return known
        elif tail.padding is not None:
            return batch_norm.Pool(tail.activation, tail.padding, owns=self._owns(operation)), tail.length
        elif tail.activation:
            return steps.Activation(tail.activation), 1
        elif isinstance(work, trace.Flatten) and len(shapes[0]) <= 4:
            return steps.Flatten(), 1
        elif isinstance(work, trace.Add) and shapes[0] == shapes[1]:
            return steps.Add(), 1
        node = operation.node
        layer = self._module.get_submodule(operation.name) if node.op == "call_module" else None
        return steps.Call(node, layer, changes=trace.in_place(self._module, node)), 1

    def _of_convolution(self, operation: trace.Operation, layer: Any, works: list[trace.Work]) -> tuple[Step, int] | None:
        """`First`, if it can compute the network's beginning. For kernels larger than 3×3 PyTorch's own loops are as fast."""
        if not self._is_convolution(operation):
            return None
        norm: Any = works[1].module if len(works) > 1 and isinstance(works[1], trace.Layer) else None
        if norm is None or not batch_norm.usual(norm):
            return steps.Convolution(layer, normed=False), 1
        how = (layer.stride, layer.padding, layer.dilation, layer.kernel_size, layer.in_channels)
        tail, (_, _, *sides) = _tail(works[2:]), self._operations[0].shape or ()
        even = operation.sources == (0,) and all(side % 2 == 0 for side in sides)
        if even and tail.padding == 0 and how == ((1, 1), (1, 1), (1, 1), (3, 3), 1):
            return batch_norm.First(layer, norm, tail.activation), 2 + tail.length
        return steps.Convolution(layer, normed=True), 1

    def _of_layer(self, operation: trace.Operation, layer: Any, works: list[trace.Work]) -> tuple[Step, int] | None:
        """For a linear layer of features, or a norm; None if there is no loop for it."""
        kind, tail, follows = type(layer), _tail(works[1:]), _activation(works[1]) if len(works) > 1 else kernels.NONE
        dimensions = len(operation.shape or ())
        if batch_norm.usual(layer):
            if tail.padding is None:
                return batch_norm.Norm(layer, tail.activation), 1 + tail.length
            return batch_norm.NormPool(layer, tail.activation, tail.padding, owns=self._owns(operation)), 1 + tail.length
        if kind is nn.Linear and dimensions == 2:
            return steps.Dense(layer), 1
        grouped = (kind is nn.LayerNorm and dimensions == 2) or (kind is nn.GroupNorm and dimensions <= 4)
        if grouped and layer.weight is not None and layer.bias is not None:
            return group_norm.GroupNorm(layer, follows), 1 + (follows != kernels.NONE)
        return None

    def _is_convolution(self, operation: trace.Operation) -> bool:
        """Whether `steps.Convolution` computes it."""
        layer: Any = operation.work.module if isinstance(operation.work, trace.Layer) else None
        kind = _CONVOLUTIONS.get(len(operation.shape or ()))
        return layer is not None and type(layer) is kind and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)

    def _owns(self, operation: trace.Operation) -> bool:
        """Whether an operation may overwrite what it is given: nobody else reads that, and a convolution needs it no more."""
        (source,) = operation.sources
        return self._is_convolution(self._operations[source]) and len(self._readers[source]) == 1


_quiet = np.errstate(all="ignore")  # a training that diverges shows in its loss, and torch would say nothing here either


def _slope(scores: Array, batch: Batch, loss: Loss) -> tuple[float, Array]:
    """The loss, and its gradient w.r.t. the output: cross-entropy of rows by a loop of our own, others by autograd."""
    if loss is nn.functional.cross_entropy and scores.ndim == 2:
        upper = np.empty_like(scores)
        return float(kernels.cross_entropy(scores, batch[TARGET].numpy(), upper)), upper
    leaf = steps.tensor(scores).requires_grad_()
    with torch.enable_grad():
        value = judged(loss, leaf, batch)
    return value.item(), steps.array(torch.autograd.grad(value, leaf)[0])


class StepEngine(Engine):
    """Computes steps one after the other on a CPU in single precision; leaves all else to PyTorch."""

    def __init__(self, module: nn.Module, slots: Sequence[Slot], norms: Sequence[nn.Module]) -> None:
        super().__init__(module, slots, norms)
        self._children = list(module.modules())
        self._plans: dict[tuple[Any, ...], list[Planned] | None] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return StepEngine, (self.module, self.slots, self.norms)

    @_quiet
    def learn(self, batch: Batch, values: Vectors, gradients: Vectors, loss: Loss) -> float:
        """As `Engine` says."""
        planned = self.plan_of(batch, training=True)
        if planned is None:
            return super().learn(batch, values, gradients, loss)
        known, wanted = self._by_parameter(values), self._by_parameter(gradients)
        scores, backs = _ahead(planned, batch, Pass(known, wanted, {}))
        value, upper = _slope(scores, batch, loss)
        _back(planned, backs, upper)
        return value

    @_quiet
    def scores(self, batch: Batch) -> Tensor:
        """As `Engine` says."""
        planned = self.plan_of(batch, training=False)
        if planned is None:
            return super().scores(batch)
        return steps.tensor(_ahead(planned, batch, Pass({}, {}, {}))[0])

    @_quiet
    def moments(self, batch: Batch) -> dict[nn.Module, Raw]:
        """As `Engine` says."""
        planned = self.plan_of(batch, training=True)
        if planned is None:
            return super().moments(batch)
        through = Pass({}, {}, {})
        with overheard(self.norms) as seen:  # those that PyTorch computes
            _ahead(planned, batch, through)
        return seen | {norm: moments.raw() for norm, moments in through.moments.items()}

    def _by_parameter(self, vectors: Vectors) -> dict[Tensor | None, Array]:
        arrays = [vector.numpy() for vector in vectors]
        return {slot.parameter: slot.of(arrays) for slot in self.slots}

    def plan_of(self, batch: Batch, *, training: bool) -> list[Planned] | None:
        """The steps for a batch, with all batch-norms in training (of more than one sample) or all not; None if it is PyTorch's."""
        inputs = batch[INPUT]
        if inputs.device.type != "cpu" or inputs.dtype != torch.float32 or (training and len(inputs) < 2):
            return None
        if any(norm.training != training for norm in self.norms) or any(name in batch for name in self._arguments):
            return None
        # a forward may ask for the mode of every layer, and for the size of what it is given
        key = (inputs.shape[1:], *(child.training for child in self._children))
        if key not in self._plans:
            self._plans[key] = plan(self.module, {INPUT: inputs[:2]})
        return self._plans[key]


def _ahead(planned: list[Planned], batch: Batch, through: Pass) -> tuple[Array, list[Back]]:
    """The output as an array, and the way back of every step."""
    values, backs = [steps.array(batch[INPUT])], list[Back]()
    for step, (source, *others) in planned:
        value, back = step.ahead(values[source], through, *(values[other] for other in others))
        values.append(value)
        backs.append(back)
    return values[-1], backs


def _back(planned: list[Planned], backs: list[Back], upper: Array) -> None:
    """From the gradient w.r.t. the output to those w.r.t. the parameters, which the steps write."""
    gradients = {len(planned): upper}  # by value
    for number in range(len(planned), 0, -1):
        back = backs.pop()
        if number not in gradients:  # nothing trained is below
            continue
        below = back(gradients.pop(number))
        for source, gradient in zip(planned[number - 1].sources, below if isinstance(below, tuple) else (below,), strict=False):
            if gradient is not None:
                gradients[source] = gradients[source] + gradient if source in gradients else gradient
