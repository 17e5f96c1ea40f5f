"""A network as a list of simple operations, from PyTorch's own trace of it: what the C exporter and the cost tables read.

Maps are stored channel last, as (height, width, channels); a sequence has height 1, a vector is one pixel. Flattening is no work
then: the values stay where they are, and the layers that follow take their weights in the stored order.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from bifl.errors import DataError
from bifl.export import layer_work
from bifl.export.operations import Add, Dot, Input, Operation, Shape, Work

LAYERS = "Conv1d, Conv2d, Linear, BatchNorm, max and average pooling, Tanh, ReLU, GELU, Flatten, Dropout and addition"


class Value(NamedTuple):
    """What a node of the trace gives."""

    operation: int
    order: npt.NDArray[np.int64] | None = None  # of a vector that was a map: which element stands at each stored position


class Unsupported(DataError):
    """A network that cannot become C."""


def trace(module: nn.Module, input_shape: tuple[int, ...]) -> list[Operation]:
    """The operations of a network in evaluation mode, for inputs of one shape; the last one gives its output.

    Raises:
        Unsupported: it has a layer that the C exporter does not know, or no fixed order of layers.
    """
    try:
        traced = fx.symbolic_trace(module)
    except Exception as error:
        raise Unsupported(f"its code cannot be traced, it decides by what it computes ({_line(error)})") from error
    traced.graph.eliminate_dead_code()
    device = next((tensor.device for tensor in module.parameters()), torch.device("cpu"))
    try:
        ShapeProp(traced).propagate(torch.zeros(1, *input_shape, device=device))
    except (RuntimeError, ValueError, IndexError) as error:  # in a file that somebody edited
        raise Unsupported(f"it does not take inputs of shape {input_shape}") from error
    return _Reader(traced, module).read()


class _Reader:
    """Translates the nodes of a trace one after the other."""

    def __init__(self, traced: fx.GraphModule, module: nn.Module) -> None:
        self._traced = traced
        self._layers = dict(module.named_modules())
        self._operations: list[Operation] = []
        self._values: dict[fx.Node, Value] = {}

    def read(self) -> list[Operation]:
        for node in self._traced.graph.nodes:
            if node.op == "output":
                return self._finished(node.args[0])
            if _shape(node) is not None or node.op == "get_attr":
                self._values[node] = self._value(node)
        raise Unsupported("it gives no output")

    def _finished(self, result: Any) -> list[Operation]:
        if not isinstance(result, fx.Node) or result not in self._values:
            raise Unsupported("it gives something other than one array of scores")
        value = self._values[result]
        shape = self._operations[value.operation].shape
        if value.order is not None and (value.order != np.arange(shape.size)).any():
            raise Unsupported("its scores are a flattened map; end it with a linear layer or a pooling of the whole map")
        if len(self._operations) == 1 or value.operation != len(self._operations) - 1:
            raise Unsupported("its last layer is not what it gives")
        return self._operations

    def _value(self, node: fx.Node) -> Value:
        if node.op == "placeholder":
            return self._add(node, Input(), ())
        if node.op == "get_attr":
            raise Unsupported(f"its code computes with '{node.target}' by itself; C has {LAYERS}")
        sources = [argument for argument in node.all_input_nodes if argument in self._values]
        name = _name(node)
        if name in ("add", "iadd", "add_") and len(sources) == 2 and not node.kwargs:
            return self._sum(node, *(self._values[source] for source in sources))
        if len(sources) != 1:
            raise Unsupported(f"its code calls {name}; C has {LAYERS}")
        source, value = sources[0], self._values[sources[0]]
        layer = self._layers[str(node.target)] if node.op == "call_module" else None
        if _flattens(node, source, layer):
            return self._flat(value)
        if type(layer) in (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d) or name in ("dropout", "contiguous"):
            return value
        return self._computed(node, value, layer)

    def _computed(self, node: fx.Node, value: Value, layer: nn.Module | None) -> Value:
        before, order = self._operations[value.operation].shape, value.order
        rank = len(node.all_input_nodes[0].meta["tensor_meta"].shape)
        work = layer_work.of_layer(layer, before, order) if layer is not None else layer_work.of_call(_name(node), node, before)
        if work is None or (isinstance(layer, nn.Linear) and rank != 2):
            kind = type(layer).__name__ if layer is not None else ""
            what = f"layer '{node.target}' is a {kind}" if layer is not None else f"its code calls {_name(node)}"
            raise Unsupported(f"{what}{' of a map' if isinstance(layer, nn.Linear) else ''}; C has {LAYERS}")
        kept = order if not isinstance(work, Dot) else None
        return self._add(node, work, (value.operation,), kept)

    def _sum(self, node: fx.Node, one: Value, other: Value) -> Value:
        shapes = [self._operations[value.operation].shape for value in (one, other)]
        orders = [value.order if value.order is not None else np.zeros(0, np.int64) for value in (one, other)]
        if shapes[0] != shapes[1] or not np.array_equal(orders[0], orders[1]):
            raise Unsupported(f"'{node.name}' adds values of different shapes, {tuple(shapes[0])} and {tuple(shapes[1])}")
        return self._add(node, Add(), (one.operation, other.operation), one.order)

    def _add(self, node: fx.Node, work: Work, sources: tuple[int, ...], order: npt.NDArray[np.int64] | None = None) -> Value:
        shape = _shape(node)
        assert shape is not None
        name = str(node.target) if node.op == "call_module" else _name(node)
        self._operations.append(Operation(name, work, sources, shape))
        return Value(len(self._operations) - 1, order)

    def _flat(self, value: Value) -> Value:
        """The same values as a vector: an element's position in a map of (height, width, channels) is not PyTorch's."""
        operation = self._operations[value.operation]
        if value.order is not None or operation.shape[1:] == (1, 1):
            return value
        channels, height, width = operation.shape
        order = np.arange(operation.shape.size).reshape(channels, height, width).transpose(1, 2, 0).ravel()
        return Value(value.operation, order)


def _flattens(node: fx.Node, source: fx.Node, layer: nn.Module | None) -> bool:
    """Whether a node makes one vector of every input and changes nothing else."""
    if not isinstance(layer, nn.Flatten) and (layer is not None or _name(node) not in ("flatten", "view", "reshape", "squeeze")):
        return False
    shape, before = node.meta["tensor_meta"].shape, source.meta["tensor_meta"].shape
    return tuple(shape) == (1, prod(before)) and before[0] == 1


def _shape(node: fx.Node) -> Shape | None:
    """Of what a node gives for one input; None where that is no array of floats."""
    found = node.meta.get("tensor_meta")
    if found is None or not hasattr(found, "shape"):
        return None
    sizes = tuple(found.shape)[1:]
    if len(sizes) == 3:
        return Shape(*sizes)
    if len(sizes) == 2:
        return Shape(sizes[0], 1, sizes[1])
    if len(sizes) == 1:
        return Shape(sizes[0], 1, 1)
    raise Unsupported(f"'{node.name}' gives values of shape {sizes}, C has maps, sequences and vectors")


def _name(node: fx.Node) -> str:
    """What a node calls, without its module."""
    return str(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", node.target))


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]
