"""A network as a list of operations, read from PyTorch's own trace of it: for the fast engine, the exporters and the cost tables.

`read` traces the module (torch.fx), calls it once with an example, and says of every call what it does, in one vocabulary for
layers and functions: `nn.ReLU()`, `torch.relu(x)` and `x.relu()` are all `Activation("relu")`. Whoever uses the list goes through
it in order; `sources` are the numbers of the operations whose values one takes. A `Call` is whatever has no name here: its `node`
says what is called.

>>> from bifl.nn.models import Residual
>>> for operation in read(nn.Sequential(Residual(2, 2, 1), nn.Flatten()), {"input": torch.zeros(2, 2, 6, 6)}):
...     print(operation.name, type(operation.work).__name__, operation.sources, operation.shape)
input Input () (2, 2, 6, 6)
0.conv1 Layer (0,) (2, 2, 6, 6)
0.norm1 Layer (1,) (2, 2, 6, 6)
relu Activation (2,) (2, 2, 6, 6)
0.conv2 Layer (3,) (2, 2, 6, 6)
0.norm2 Layer (4,) (2, 2, 6, 6)
add Add (5, 0) (2, 2, 6, 6)
relu Activation (6,) (2, 2, 6, 6)
1 Flatten (7,) (2, 72)
"""

from __future__ import annotations

import inspect
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from bifl.nn.batch import INPUT, Batch

Pair = tuple[int, int]


@dataclass(frozen=True)
class Input:
    """What the network is given."""


@dataclass(frozen=True)
class Layer:
    """A layer with weights: of exactly one of the classes `LAYERS`, as one derived from them may do anything."""

    module: nn.Module


@dataclass(frozen=True)
class Activation:
    """tanh, relu, gelu or gelu_tanh."""

    name: str


@dataclass(frozen=True)
class Pool:
    """The largest or the mean value of windows; a signal has one row."""

    name: str  # max or mean
    size: Pair
    stride: Pair
    padding: Pair
    count_padding: bool = False  # whether a mean divides by what lies outside of the map too
    ceil: bool = False  # whether a window may begin in the map and end outside


@dataclass(frozen=True)
class Add:
    """The sum of two values of one shape."""


@dataclass(frozen=True)
class Flatten:
    """One row of numbers for every sample, in PyTorch's order."""


@dataclass(frozen=True)
class Call:
    """Something else."""


LAYERS = (nn.Conv1d, nn.Conv2d, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
Work = Input | Layer | Activation | Pool | Add | Flatten | Call


class Operation(NamedTuple):
    """One call."""

    name: str  # of the layer, or of the function that the network's code calls
    work: Work
    sources: tuple[int, ...]  # numbers of the operations whose values it takes
    node: fx.Node
    shape: tuple[int, ...] | None  # of the tensor that it gives for the example; None if that is no tensor
    dtype: torch.dtype | None


class Unreadable(Exception):
    """A trace of the network would not do the same as the network; the text says why."""


def read(module: nn.Module, example: Batch) -> list[Operation]:
    """The operations of a module in the mode that it is in (training, evaluation), in order; the last one gives its output.

    Its buffers are the same afterwards, and so are the random numbers to come. Raises `Unreadable` where a trace would not do the
    same, and what PyTorch does, RuntimeError, ValueError or IndexError, where the module does not take the example.
    """
    with _same_buffers(module), _same_dice():
        graph = _trace(module, [name for name in example if name != INPUT])
        given = [example.get(str(node.target), example[INPUT]) for node in graph.nodes if node.op == "placeholder"]
        with torch.no_grad():
            _Notes(module, graph=graph).run(*given)
    operations, numbers = list[Operation](), dict[fx.Node, int]()
    for node in graph.nodes:
        if node.op == "output":
            return _needed(operations, numbers[node.args[0]])
        if _keeps(module, node):
            numbers[node] = numbers[node.all_input_nodes[0]]
            continue
        numbers[node] = len(operations)
        name = str(node.target) if node.op in ("placeholder", "call_module") else function_name(node)
        work, sources = _work(module, node)
        operations.append(Operation(name, work, tuple(numbers[source] for source in sources), node, *node.meta["tensor"]))
    raise Unreadable("it gives no output")


def function_name(node: fx.Node) -> str:
    """What a node calls, without its module."""
    return str(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", node.target))


def opened(module: nn.Module) -> list[nn.Module]:
    """The module, and those in it whose own code a trace takes down."""
    return [child for child in module.modules() if child is module or not fx.Tracer().is_leaf_module(child, "")]


def has_hooks(layer: nn.Module) -> bool:
    """Whether somebody wants to be called when a layer computes."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)


class _Notes(fx.Interpreter):
    """Notes shape and type of every tensor that a node gives."""

    def run_node(self, node: fx.Node) -> Any:
        value = super().run_node(node)
        node.meta["tensor"] = (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else (None, None)
        return value


def _needed(operations: list[Operation], output: int) -> list[Operation]:
    needed = {output}
    for number in reversed(range(output + 1)):
        needed.update(operations[number].sources if number in needed else ())
    numbers = {old: new for new, old in enumerate(sorted(needed))}
    return [
        operations[old]._replace(sources=tuple(numbers[source] for source in operations[old].sources)) for old in sorted(needed)
    ]


# Tracing


def _trace(module: nn.Module, further: Sequence[str]) -> fx.Graph:
    """The calls of a module, given its input and these further arguments."""
    children = opened(module)
    if any(map(has_hooks, children)):
        raise Unreadable("somebody waits for its modules to be called")
    defaults = _defaults(module, further)
    before = [_attributes(child) for child in children]
    with _same_dice() as drawn:
        try:
            graph = fx.Tracer().trace(module, defaults)
        except Exception as error:  # whatever a foreign forward does that cannot be traced
            raise Unreadable(f"it decides by what it computes ({str(error).partition(chr(10))[0]})") from error
    if drawn() or any(_changed(_attributes(child), old) for child, old in zip(children, before, strict=True)):
        raise Unreadable("what its code draws or counts would be the same in every call")
    for node in reversed(list(graph.nodes)):
        if node.op == "output" and not isinstance(node.args[0], fx.Node):
            raise Unreadable("it gives something other than one value")
        unused = not node.users and node.op != "output"
        if unused and (node.op == "placeholder" or function_name(node) in ("_assert", "_assert_is_none", "eq")):
            graph.erase_node(node)  # an argument that it does not get, and what makes sure of that
        elif in_place(module, node) and not _used_once(module, node.all_input_nodes[0]):
            raise Unreadable(f"its code calls {function_name(node)} in place on a value that it uses again")
    return graph


def _defaults(module: nn.Module, further: Sequence[str]) -> dict[str, Any]:
    parameters = list(inspect.signature(module.forward).parameters.values())[1:]
    missing = {parameter.name: parameter for parameter in parameters if parameter.name not in further}
    if any(parameter.default is inspect.Parameter.empty for parameter in missing.values()):
        raise Unreadable("it takes arguments that it does not get, or any")
    return {name: parameter.default for name, parameter in missing.items()}


def _attributes(child: nn.Module) -> dict[str, Any]:
    return {**vars(child), **child._parameters, **child._buffers}


def _changed(now: dict[str, Any], before: dict[str, Any]) -> bool:
    return now.keys() != before.keys() or any(now[name] is not value for name, value in before.items())


def in_place(module: nn.Module, node: fx.Node) -> bool:
    """Whether a node writes to the value that it is given."""
    if not node.all_input_nodes:
        return False
    if node.op == "call_module":
        return any(getattr(child, "inplace", False) for child in module.get_submodule(str(node.target)).modules())
    name, flags = function_name(node), (*node.args[1:], *node.kwargs.values())
    return name.endswith("_") or name in _IN_PLACE or any(flag is True for flag in flags)


def _used_once(module: nn.Module, node: fx.Node) -> bool:
    """Whether nobody else reads the memory of a node's value: a function may give what it was given in another shape."""
    if node.op == "placeholder" or len(node.users) > 1:
        return False
    if node.op == "call_module" and not isinstance(module.get_submodule(str(node.target)), (nn.Identity, nn.Flatten, *_DROPOUTS)):
        return True
    return all(_used_once(module, source) for source in node.all_input_nodes)


@contextmanager
def _same_buffers(module: nn.Module) -> Iterator[None]:
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


@contextmanager
def _same_dice() -> Iterator[Callable[[], bool]]:
    """Put back all that a forward may draw from; gives a function that tells whether there was need to."""
    states, changed = (torch.get_rng_state(), np.random.get_state(), random.getstate()), False  # noqa: NPY002  (a foreign forward may)
    try:
        yield lambda: changed
    finally:
        same = torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[2]
        changed = not (same and all(np.array_equal(*pair) for pair in zip(np.random.get_state(), states[1], strict=True)))  # noqa: NPY002
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])


# What a node does


def _keeps(module: nn.Module, node: fx.Node) -> bool:
    """Whether a node gives the value that it is given."""
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        return type(layer) is nn.Identity or (type(layer) in _DROPOUTS and not layer.training)
    return node.target == "contiguous" or (node.target is functional.dropout and node.kwargs.get("training") is False)


def _work(module: nn.Module, node: fx.Node) -> tuple[Work, list[fx.Node]]:
    """What a node does, and the nodes whose values that takes."""
    if node.op == "placeholder":
        return Input(), []
    sources, (result, _) = node.all_input_nodes, node.meta["tensor"]
    tensors = [source for source in sources if source.meta["tensor"][0] is not None]
    addends = [argument for argument in node.args if isinstance(argument, fx.Node) and argument in tensors]
    if node.op != "call_module" and node.target in _ADDS and len(addends) == len(node.args) == 2 and not node.kwargs:
        return Add(), addends
    work: Work | None = None
    if len(tensors) == 1 and node.args[0] is tensors[0] and result is not None:
        (shape, _) = tensors[0].meta["tensor"]
        if node.op != "call_module" or len(sources) == 1:
            work = _of_one(module, node, shape)
        work = None if isinstance(work, Flatten) and result != (shape[0], prod(shape[1:])) else work
    return (Call(), sources) if work is None else (work, tensors)


def _of_one(module: nn.Module, node: fx.Node, shape: tuple[int, ...]) -> Work | None:
    """What a layer does, or a function that the network's code calls, with one value of a shape; None if it has no name here."""
    layer = module.get_submodule(str(node.target)) if node.op == "call_module" else None
    if layer is not None and type(layer) in LAYERS:
        return Layer(layer)
    name = _NAMES.get(node.target if layer is None else type(layer), "")
    options = _options(name, node, layer)
    work: Work | None = None
    match name:
        case "tanh" | "relu":
            work = Activation(name)
        case "gelu":
            work = Activation("gelu" if options.get("approximate", "none") == "none" else "gelu_tanh")
        case "flatten":
            work = Flatten()
        case "max" | "mean":
            work = _pool(name, options, shape)
        case "adaptive mean":
            work = _adaptive(options.get("output_size"), shape)
        case "mean of dimensions" if _of_whole_map(options, len(shape)):
            work = _adaptive(1, shape)
    return work


def _options(name: str, node: fx.Node, layer: nn.Module | None) -> dict[str, Any]:
    """The options that a layer has, or that a function is called with after the value."""
    names = _OPTIONS.get(name, ())
    if layer is None:
        return dict(zip(names, node.args[1:], strict=False)) | dict(node.kwargs)
    return {option: getattr(layer, option) for option in names if hasattr(layer, option)}


def _pool(name: str, options: dict[str, Any], shape: tuple[int, ...]) -> Pool | None:
    """Windows of a map, (n, c, h, w), or a sequence, (n, c, t)."""
    plain = options.get("dilation", 1) in (1, (1,), (1, 1)) and not options.get("return_indices")
    if not plain or options.get("divisor_override") is not None or len(shape) not in (3, 4):
        return None
    one, none = (1, 0) if len(shape) == 3 else (None, None)
    size, stride = pair(options["kernel_size"], one), options.get("stride")
    return Pool(
        name, size, size if stride in (None, []) else pair(stride, one), pair(options.get("padding", 0), none),
        name == "mean" and bool(options.get("count_include_pad", True)), bool(options.get("ceil_mode", False)),
    )  # fmt: skip


def _adaptive(size: Any, shape: tuple[int, ...]) -> Pool | None:
    """Windows of one size, where the map divides evenly."""
    if len(shape) not in (3, 4):
        return None
    before = (shape[-2] if len(shape) == 4 else 1, shape[-1])
    wanted = (size, size) if isinstance(size, int) or size is None else (1, *size)[-2:]
    wanted = (1, wanted[1]) if len(shape) == 3 else wanted
    outputs = [full if out is None else out for out, full in zip(wanted, before, strict=True)]
    if any(not out or full % out for out, full in zip(outputs, before, strict=True)):
        return None
    window = (before[0] // outputs[0], before[1] // outputs[1])
    return Pool("mean", window, window, (0, 0))


def _of_whole_map(options: dict[str, Any], dimensions: int) -> bool:
    """Whether a mean is over all but samples and channels."""
    dims = options.get("dim")
    axes = {axis % dimensions for axis in ((dims,) if isinstance(dims, int) else dims or ())}
    return axes == set(range(2, dimensions)) and not set(options) - {"dim", "keepdim"}


def pair(size: Any, height: int | None = None) -> Pair:
    """Height and width, of one number or two; the one of a sequence is its width, and the height as said."""
    sizes = tuple(size) if isinstance(size, (tuple, list)) else (size,)
    return (int(sizes[0] if len(sizes) == 2 or height is None else height), int(sizes[-1]))


def geometry(layer: nn.Conv1d | nn.Conv2d) -> tuple[Pair, Pair, Pair]:
    """Stride, padding before the first row and column, and dilation of a convolution; a sequence is a map of one row."""
    stride, dilation = pair(layer.stride, 1), pair(layer.dilation, 1)
    if layer.padding == "same":
        rows, columns = pair(layer.kernel_size, 1)
        return stride, (dilation[0] * (rows - 1) // 2, dilation[1] * (columns - 1) // 2), dilation
    return stride, (0, 0) if isinstance(layer.padding, str) else pair(layer.padding, 0), dilation


_IN_PLACE = {
    "setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor", "ilshift",
    "irshift",
}  # fmt: skip
_ADDS = (operator.add, operator.iadd, torch.add, "add", "add_")
_WAYS: dict[str, tuple[Any, ...]] = {  # what layers, functions and methods of a tensor do
    "tanh": (nn.Tanh, torch.tanh, torch.tanh_, functional.tanh, "tanh", "tanh_"),
    "relu": (nn.ReLU, torch.relu, torch.relu_, functional.relu, "relu", "relu_"),
    "gelu": (nn.GELU, functional.gelu),
    "flatten": (nn.Flatten, torch.flatten, torch.reshape, torch.squeeze, "flatten", "view", "reshape", "squeeze"),
    "max": (nn.MaxPool1d, nn.MaxPool2d, functional.max_pool1d, functional.max_pool2d, torch.max_pool1d, torch.max_pool2d),
    "mean": (nn.AvgPool1d, nn.AvgPool2d, functional.avg_pool1d, functional.avg_pool2d, torch.avg_pool1d),
    "adaptive mean": (
        nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d,
    ),
    "mean of dimensions": (torch.mean, "mean"),
}  # fmt: skip
_NAMES = {way: name for name, ways in _WAYS.items() for way in ways}
_OPTIONS = {  # of those that have any, in the order of a call
    "gelu": ("approximate",),
    "max": ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"),
    "mean": ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
    "adaptive mean": ("output_size",),
    "mean of dimensions": ("dim", "keepdim"),
}
