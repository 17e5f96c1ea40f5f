"""A network as C computes it: the operations that `nn.trace` reads, with numbers for the layers.

Maps are stored channel last, as (height, width, channels); a sequence has height 1, a vector is one pixel. Flattening is no work
then: the values stay where they are, and the layers that follow take their weights in the stored order.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from bifl.errors import DataError
from bifl.nn import trace
from bifl.nn.batch import INPUT
from bifl.nn.trace import Activation, Add, Flatten, Input, Layer, Pair, Pool, function_name

Floats = npt.NDArray[np.float32]
Order = npt.NDArray[np.int64]

LAYERS = "Conv1d, Conv2d, Linear, BatchNorm, max and average pooling, Tanh, ReLU, GELU, Flatten, Dropout and addition"


class Unsupported(DataError):
    """A network that cannot become C."""


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


Work = Dot | Affine | Activation | Pool | Add | Input


class Operation(NamedTuple):
    """A step of the network."""

    layers: tuple[str, ...]  # names of the layers, or what the network's code calls
    work: Work
    sources: tuple[int, ...]  # numbers of the operations that it reads
    shape: Shape  # of what it gives


@torch.no_grad()
def fold(module: nn.Module, example: Tensor) -> tuple[nn.Module, dict[str, str]]:
    """A copy of a network in evaluation mode, each batch-norm part of the convolution or linear layer that it follows.

    A layer whose values something else reads too, or that is called twice, keeps its norm beside it.

    Args:
        module: the network.
        example: an input, in a batch of one.

    Returns:
        The network, with an Identity for each norm that is gone, and the names of these norms by those of the layers.

    Raises:
        Unsupported: its code cannot be traced, or does not take the example.
    """
    operations = _read(module, example)
    readers = Counter(source for operation in operations for source in operation.sources)
    calls = Counter(operation.name for operation in operations)
    folded, norms = copy.deepcopy(module), dict[str, str]()
    for norm in operations:
        before = operations[norm.sources[0]] if norm.sources else norm
        both = norm.name != before.name and calls[norm.name] == calls[before.name] == readers[norm.sources[0]] == 1
        if both and _takes_in(before, norm):
            _scale(folded.get_submodule(before.name), folded.get_submodule(norm.name))
            parent, _, name = norm.name.rpartition(".")
            setattr(folded.get_submodule(parent), name, nn.Identity())
            norms[before.name] = norm.name
    return folded, norms


def _read(module: nn.Module, example: Tensor) -> list[trace.Operation]:
    try:
        return trace.read(module, {INPUT: example})
    except trace.Unreadable as error:
        raise Unsupported(f"its code cannot be traced, {error}") from error
    except (RuntimeError, ValueError, IndexError) as error:  # in a file that somebody edited
        raise Unsupported(f"it does not take inputs of shape {tuple(example.shape[1:])}") from error


def _takes_in(before: trace.Operation, norm: trace.Operation) -> bool:
    """Whether a norm is one of the channels of the layer before it."""
    if not isinstance(norm.work, Layer) or not isinstance(before.work, Layer):
        return False
    layer, batch = before.work.module, norm.work.module
    if not isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Linear)) or not isinstance(batch, (nn.BatchNorm1d, nn.BatchNorm2d)):
        return False
    return batch.running_mean is not None and len(before.shape or ()) == layer.weight.ndim


def _scale(layer: Any, norm: Any) -> None:
    """Let a layer do what a batch-norm does after it. In double precision: weights are rounded once, and equal ones stay equal."""
    tensors = (layer.weight, layer.bias, norm.running_mean, norm.running_var, norm.weight, norm.bias)
    doubles: list[Any] = [None if tensor is None else tensor.double() for tensor in tensors]
    weight, bias, mean, variance, gamma, beta = doubles
    weight, bias = fuse_conv_bn_weights(weight, bias, mean, variance, norm.eps, gamma, beta)
    layer.weight, layer.bias = nn.Parameter(weight.float()), nn.Parameter(bias.float())


class _Value(NamedTuple):
    """What a step of the trace gives."""

    operation: int
    order: Order | None = None  # of a vector that was a map: which element stands at each stored position


def read(module: nn.Module, shape: tuple[int, ...]) -> list[Operation]:
    """The operations of a network in evaluation mode, for inputs of one shape; the last one gives its output.

    Raises:
        Unsupported: it has a layer that the C exporter does not know, or no fixed order of layers.
    """
    device = next((tensor.device for tensor in module.parameters()), torch.device("cpu"))
    example = torch.zeros(1, *shape, device=device)
    folded, norms = fold(module, example)
    operations, values, steps = list[Operation](), list[_Value](), _read(folded, example)
    for step in steps:
        sources = [values[source] for source in step.sources]
        if isinstance(step.work, Flatten):
            values.append(_flat(sources[0], operations[sources[0].operation].shape))
            continue
        if isinstance(step.work, Add):
            _refuse_unequal(step, sources, operations)
        work = _work(step, steps)
        if work is None:
            raise _refusal(step, folded)
        order = sources[0].order if sources else None
        work = work if order is None else _in_order(work, order)
        layers = (step.name, norms[step.name]) if step.name in norms else (step.name,)
        operations.append(Operation(layers, work, tuple(source.operation for source in sources), _shape(step)))
        values.append(_Value(len(operations) - 1, None if isinstance(work, Dot) else order))
    if len(operations) == 1:
        raise Unsupported("it gives what it is given")
    if (last := values[-1].order) is not None and (last != np.arange(len(last))).any():
        raise Unsupported("its scores are a flattened map; end it with a linear layer or a pooling of the whole map")
    return operations


def _refusal(step: trace.Operation, module: nn.Module) -> Unsupported:
    """Of a step that C has nothing for."""
    if step.node.op == "get_attr":
        return Unsupported(f"its code computes with '{step.node.target}' by itself; C has {LAYERS}")
    if step.node.op != "call_module":
        return Unsupported(f"its code calls {function_name(step.node)}; C has {LAYERS}")
    kind = type(module.get_submodule(step.name))
    return Unsupported(f"layer '{step.name}' is a {kind.__name__}{' of a map' if kind is nn.Linear else ''}; C has {LAYERS}")


def _refuse_unequal(step: trace.Operation, values: list[_Value], operations: list[Operation]) -> None:
    """Refuse an addition of values that are not stored alike."""
    shapes = [operations[value.operation].shape for value in values]
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
    stride, dilation = _pair(layer.stride, 1), _pair(layer.dilation, 1)
    if layer.padding == "same":
        reach = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:], strict=True)]
        padding = (reach[0] // 2, reach[1] // 2)
    else:
        padding = (0, 0) if isinstance(layer.padding, str) else _pair(layer.padding, 0)
    return Dot(np.ascontiguousarray(weight.transpose(0, 2, 3, 1)), _bias(layer), stride, padding, dilation, layer.groups)


def _pair(sizes: tuple[int, ...], fill: int) -> Pair:
    """Height and width; a sequence has a width alone, and `fill` for the height."""
    return (sizes[0], sizes[1]) if len(sizes) == 2 else (fill, sizes[0])


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
