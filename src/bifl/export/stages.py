"""A network as C computes it: stages, each of which becomes one C function, and the memory that they share.

A stage reads one value (an addition two), computes a pixel of a convolution or a linear layer if it has one, norms and activates
it, pools, and writes. What lies between its layers is never stored.

Maps are stored channel last, as (height, width, channels); a sequence has height 1, a vector is one pixel. Flattening is no work
then: the values stay where they are, and the layers that follow take their weights in the stored order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bifl.export.weights import Floats, Unsupported, fold, traced
from bifl.nn import trace
from bifl.nn.trace import Activation, Add, Flatten, Input, Layer, Pair, Pool

Order = npt.NDArray[np.int64]
LAYERS = "Conv1d, Conv2d, Linear, BatchNorm, max and average pooling, Tanh, ReLU, GELU, Flatten, Dropout and addition"


class Shape(NamedTuple):
    """Of a value for one input."""

    channels: int
    height: int
    width: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self)


@dataclass(frozen=True, eq=False)
class Dot:
    """A convolution; a linear layer is one of a single pixel. A batch-norm after it is part of its weight and bias."""

    weight: Floats  # (outputs, height, width, inputs of a group): the stored order
    bias: Floats
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)  # before the first row and column
    dilation: Pair = (1, 1)
    groups: int = 1


@dataclass(frozen=True, eq=False)
class Affine:
    """x·scale + shift, by channel: a batch-norm that follows no convolution or linear layer."""

    scale: Floats
    shift: Floats


Pointwise = Affine | Activation
Work = Dot | Pointwise | Pool | Add | Input


@dataclass(eq=False)
class Stage:
    """A fused part of the network."""

    layers: list[str]  # names of what was fused, or what the network's code calls
    sources: tuple[int, ...]  # numbers of the stages that it reads: none for the input, two for an addition
    inner: Shape  # of what it computes pixel by pixel, before pooling
    shape: Shape  # of what it writes
    dot: Dot | None = None
    before: list[Pointwise] = field(default_factory=list)  # what follows on every pixel
    pool: Pool | None = None  # over those
    after: list[Pointwise] = field(default_factory=list)  # what follows on what was pooled

    @property
    def pixels(self) -> int:
        """How often the dot is computed: once a pixel, several times where windows of a pool overlap."""
        return self.inner.height * self.inner.width if self.pool is None else sum(self.windows(0)) * sum(self.windows(1))

    def windows(self, axis: int, outside: int = 0) -> list[int]:
        """How many rows (or columns) of the inner map, and of so many on either side of it, each pooled one is made of."""
        assert self.pool is not None
        size, stride, padding = self.pool.size[axis], self.pool.stride[axis], self.pool.padding[axis]
        starts = [at * stride - padding for at in range(self.shape[1 + axis])]
        return [min(start + size, self.inner[1 + axis] + outside) - max(start, -outside) for start in starts]

    @property
    def scaled_after(self) -> bool:
        """Whether sums are pooled before they are scaled: as no scale is negative (`weights.Rows`), the largest stays so."""
        return self.dot is not None and self.pool is not None and self.pool.name == "max" and not self.before

    @property
    def reads_in_place(self) -> bool:
        """Whether the dot reads its source directly: a kernel of one pixel, all channels, nothing outside of the map."""
        dot = self.dot
        return dot is not None and dot.weight.shape[1:3] == (1, 1) and dot.groups == 1 and dot.padding == (0, 0)

    @property
    def writes_in_place(self) -> bool:
        """Whether it may overwrite what it reads: it goes element by element."""
        return self.dot is None and self.pool is None and bool(self.sources)

    @property
    def window(self) -> int:
        """Floats of its input that the dot needs as a copy."""
        return 0 if self.dot is None or self.reads_in_place else self.dot.weight[0].size

    @property
    def scratch(self) -> int:
        """Floats that it needs beside what it reads and writes: a window of its input, and one pixel's sums."""
        return self.window + (self.inner.channels if self.pool is not None else 0)

    def joins(self, layers: list[str], work: Work, shape: Shape) -> bool:
        """Do what follows too, if it can, and gives values of this shape; whether it does."""
        if not self.sources or (isinstance(work, Affine) and len(work.scale) != self.shape.channels):
            return False  # the input, or a norm by element of a flattened map
        if isinstance(work, Pool) and self.pool is None:
            self.pool, self.shape = work, shape
            if work.name == "max" and all(isinstance(each, Activation) and each.name in ("tanh", "relu") for each in self.before):
                self.before, self.after = [], self.before  # they rise, so the largest stays the largest, for less work
        elif isinstance(work, (Affine, Activation)):
            (self.before if self.pool is None else self.after).append(work)
        else:
            return False
        self.layers += layers
        return True


class _Value(NamedTuple):
    """What a step of the trace gives."""

    stage: int
    order: Order | None = None  # of a vector that was a map: which element stands at each stored position


def read(module: nn.Module, shape: tuple[int, ...]) -> list[Stage]:
    """The stages of a network in evaluation mode, for inputs of one shape; the last one gives its output."""
    device = next((tensor.device for tensor in module.parameters()), torch.device("cpu"))
    example = torch.zeros(1, *shape, device=device)
    folded, norms = fold(module, example)
    stages, values, steps = list[Stage](), list[_Value](), traced(folded, example)
    alone = _read_once(steps)
    for step in steps:
        sources = [values[source] for source in step.sources]
        if isinstance(step.work, Flatten):
            values.append(_flat(sources[0], stages[sources[0].stage].shape))
            continue
        if isinstance(step.work, Add):
            _refuse_unequal(step, sources, stages)
        work = _work(step, steps)
        if work is None:
            raise _refusal(step, folded)
        order = sources[0].order if sources else None
        work = work if order is None else _in_order(work, order)
        layers = [step.name, norms[step.name]] if step.name in norms else [step.name]
        gives = _shape(step)
        home = sources[0].stage if sources else 0
        if not (sources and alone[step.sources[0]] and stages[home].joins(layers, work, gives)):
            home = len(stages)
            stages.append(_new_stage(layers, work, tuple(source.stage for source in sources), gives, stages))
        values.append(_Value(home, None if isinstance(work, Dot) else order))
    if len(stages) == 1:
        raise Unsupported("it gives what it is given")
    if (last := values[-1].order) is not None and (last != np.arange(len(last))).any():
        raise Unsupported("its scores are a flattened map; end it with a linear layer or a pooling of the whole map")
    return stages


def _read_once(steps: list[trace.Operation]) -> list[bool]:
    """Of each step whether one other step takes its values, flattened or not."""
    given: list[int] = []  # of each step: the one that computes its values
    for number, step in enumerate(steps):
        given.append(given[step.sources[0]] if isinstance(step.work, Flatten) else number)
    readers = Counter(given[source] for step in steps if not isinstance(step.work, Flatten) for source in step.sources)
    return [readers[number] == 1 for number in given]


def _new_stage(layers: list[str], work: Work, sources: tuple[int, ...], shape: Shape, stages: list[Stage]) -> Stage:
    if isinstance(work, (Input, Dot, Add)):
        return Stage(layers, sources, shape, shape, work if isinstance(work, Dot) else None)
    pixels = stages[sources[0]].shape if isinstance(work, Pool) else shape
    stage = Stage([], sources, pixels, pixels)
    stage.joins(layers, work, shape)
    return stage


def _refusal(step: trace.Operation, module: nn.Module) -> Unsupported:
    """Of a step that C has nothing for."""
    if step.node.op == "get_attr":
        return Unsupported(f"its code computes with '{step.node.target}' by itself; C has {LAYERS}")
    if step.node.op != "call_module":
        return Unsupported(f"its code calls {trace.function_name(step.node)}; C has {LAYERS}")
    kind = type(module.get_submodule(step.name))
    return Unsupported(f"layer '{step.name}' is a {kind.__name__}{' of a map' if kind is nn.Linear else ''}; C has {LAYERS}")


def _refuse_unequal(step: trace.Operation, values: list[_Value], stages: list[Stage]) -> None:
    """Refuse an addition of values that are not stored alike."""
    shapes = [stages[value.stage].shape for value in values]
    orders = [value.order if value.order is not None else np.zeros(0, np.int64) for value in values]
    if shapes[0] != shapes[1] or not np.array_equal(orders[0], orders[1]):
        raise Unsupported(f"'{step.node.name}' adds values of different shapes, {tuple(shapes[0])} and {tuple(shapes[1])}")


def _shape(step: trace.Operation) -> Shape:
    """Of what a step gives for one input."""
    match (step.shape or ())[1:]:
        case (channels, height, width):
            return Shape(channels, height, width)
        case (channels, width):
            return Shape(channels, 1, width)
        case (channels,):
            return Shape(channels, 1, 1)
        case sizes:
            raise Unsupported(f"'{step.node.name}' gives values of shape {sizes}, C has maps, sequences and vectors")


def _flat(value: _Value, shape: Shape) -> _Value:
    """The same values as a vector: an element's position in a map of (height, width, channels) is not PyTorch's."""
    channels, height, width = shape
    if value.order is not None or (height, width) == (1, 1):
        return value
    return value._replace(order=np.arange(shape.size).reshape(channels, height, width).transpose(1, 2, 0).ravel())


def _in_order(work: Work, order: Order) -> Work:
    """The same work on a vector that was a map, in the stored order."""
    if isinstance(work, Dot):
        return replace(work, weight=work.weight[..., order])
    if isinstance(work, Affine) and len(work.scale) == len(order):
        return Affine(work.scale[order], work.shift[order])
    return work


# ---- what a layer does, in numbers -------------------------------------------------------------------------------------


def _work(step: trace.Operation, steps: list[trace.Operation]) -> Work | None:
    """What a step does; None where C has nothing for it."""
    if not isinstance(step.work, Layer):
        return step.work if isinstance(step.work, (Activation, Add, Input, Pool)) else None
    layer = step.work.module
    if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        return _convolution(layer)
    if isinstance(layer, nn.Linear) and len(steps[step.sources[0]].shape or ()) == 2:
        return Dot(_array(layer.weight)[:, None, None, :], _bias(layer))
    return _affine(layer) if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)) else None


def _array(tensor: Tensor) -> Floats:
    return tensor.detach().cpu().float().numpy()


def _bias(layer: nn.Conv1d | nn.Conv2d | nn.Linear) -> Floats:
    return np.zeros(len(layer.weight), np.float32) if layer.bias is None else _array(layer.bias)


def _convolution(layer: nn.Conv1d | nn.Conv2d) -> Dot | None:
    if layer.padding_mode != "zeros":
        return None
    weight = _array(layer.weight)
    weight = weight[:, :, None] if weight.ndim == 3 else weight
    return Dot(np.ascontiguousarray(weight.transpose(0, 2, 3, 1)), _bias(layer), *trace.geometry(layer), layer.groups)


def _affine(layer: nn.BatchNorm1d | nn.BatchNorm2d) -> Affine | None:
    """Batch-norm by its running statistics: computed in double precision, rounded once."""
    if layer.running_mean is None or layer.running_var is None:
        return None
    mean, variance = _array(layer.running_mean).astype(np.float64), _array(layer.running_var).astype(np.float64)
    scale = 1 / np.sqrt(variance + layer.eps)
    if layer.affine:
        scale = scale * _array(layer.weight)
    shift = -mean * scale + (_array(layer.bias) if layer.affine else 0)
    return Affine(scale.astype(np.float32), shift.astype(np.float32))


# ---- memory ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """Where the stages keep their values."""

    values: list[tuple[int, int]]  # (offset, length) of each stage's output in the working memory; the last one's is the caller's
    scratch: list[tuple[int, int]]  # of what a stage needs while it runs
    size: int  # of the working memory, in floats


def place(stages: list[Stage]) -> Memory:
    """Offsets such that no two values that are needed at one time overlap, each as low as possible."""
    last = {source: number for number, stage in enumerate(stages) for source in stage.sources}
    values: list[tuple[int, int]] = []
    scratch: list[tuple[int, int]] = []
    for number, stage in enumerate(stages):
        alive = [values[old] for old in range(number) if last[old] >= number]
        reuse = next((old for old in stage.sources if last[old] == number), None)
        if number == len(stages) - 1:
            values.append((0, 0))
        elif stage.writes_in_place and reuse is not None:
            values.append(values[reuse])
        else:
            values.append(_lowest(alive, stage.shape.size))
        scratch.append(_lowest([*alive, values[-1]], stage.scratch))
    return Memory(values, scratch, max(offset + length for offset, length in (*values, *scratch)))


def _lowest(alive: list[tuple[int, int]], length: int) -> tuple[int, int]:
    """The first gap that is long enough."""
    offset = 0
    for start, size in sorted(alive):
        if size and length and start < offset + length:
            offset = max(offset, start + size)
    return offset, length
