"""What PyTorch's layers and functions do, as the operations of `operations`; None where C has nothing for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, fx, nn

from bifl.export.operations import Activation, Affine, Dot, Floats, Pair, Pool, Shape, Work

Order = npt.NDArray[np.int64] | None
Maker = Callable[[Any, Shape, Order], Work | None]


def of_layer(layer: nn.Module, before: Shape, order: Order) -> Work | None:
    """The work of a layer of PyTorch's, in evaluation mode; a class derived from one may do anything, so it is not known."""
    maker = _MAKERS.get(type(layer))
    return maker(layer, before, order) if maker else None


def of_call(name: str, node: fx.Node, before: Shape) -> Work | None:
    """The work of a function that the network's code calls on one value."""
    arguments = dict(zip(_ARGUMENTS.get(name, ()), node.args[1:], strict=False)) | dict(node.kwargs)
    arguments.pop("inplace", None)
    rank = len(node.all_input_nodes[0].meta["tensor_meta"].shape)
    if name in ("tanh", "relu", "relu_", "tanh_") and not arguments:
        return Activation(name.rstrip("_"))
    if name == "gelu":
        return _gelu(str(arguments.get("approximate", "none")))
    if name == "mean":
        return _mean(arguments, before)
    if name in ("adaptive_avg_pool1d", "adaptive_avg_pool2d"):
        return _adaptive(arguments.get("output_size"), before, one=rank == 3)
    if name in _ARGUMENTS and "kernel_size" in arguments:
        return _pool("mean" if name.startswith("avg") else "max", arguments, one=rank == 3)
    return None


_POOLING = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_MEANS = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
_ARGUMENTS = {
    "mean": ("dim", "keepdim"), "gelu": (), "relu": ("inplace",), "boolean_dispatch": _POOLING, "max_pool2d": _POOLING,
    "max_pool1d": _POOLING, "avg_pool2d": _MEANS, "avg_pool1d": _MEANS, "adaptive_avg_pool2d": ("output_size",),
    "adaptive_avg_pool1d": ("output_size",),
}  # fmt: skip


def _array(tensor: Tensor | None) -> Floats:
    assert tensor is not None
    return tensor.detach().cpu().float().numpy() if tensor.device.type != "meta" else np.ones(tensor.shape, np.float32)


def _convolution(layer: nn.Conv1d | nn.Conv2d, before: Shape, order: Order) -> Dot | None:
    if layer.padding_mode != "zeros":
        return None
    weight = _array(layer.weight)
    weight = weight[:, :, None] if weight.ndim == 3 else weight
    stride, dilation = _two(layer.stride), _two(layer.dilation)
    if layer.padding == "same":
        reach = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:], strict=True)]
        padding = (reach[0] // 2, reach[1] // 2)
    else:
        padding = (0, 0) if layer.padding == "valid" else _two(layer.padding, fill=0)
    bias = None if layer.bias is None else _array(layer.bias)
    return Dot(np.ascontiguousarray(weight.transpose(0, 2, 3, 1)), bias, stride, padding, dilation, layer.groups)


def _linear(layer: nn.Linear, before: Shape, order: Order) -> Dot:
    weight = _array(layer.weight)
    weight = weight if order is None else weight[:, order]
    bias = None if layer.bias is None else _array(layer.bias)
    return Dot(weight[:, None, None, :], bias, (1, 1), (0, 0), (1, 1), 1)


def _norm(layer: nn.BatchNorm1d | nn.BatchNorm2d, before: Shape, order: Order) -> Affine | None:
    """Batch-norm by its running statistics, in double precision: it is rounded once, when it is folded."""
    if layer.running_mean is None or layer.running_var is None:
        return None
    mean, variance = _array(layer.running_mean).astype(np.float64), _array(layer.running_var).astype(np.float64)
    scale = 1 / np.sqrt(variance + layer.eps)
    if layer.weight is not None:
        scale = scale * _array(layer.weight)
    shift = -mean * scale + (0 if layer.bias is None else _array(layer.bias))
    if order is not None and len(scale) == len(order):  # by element of a vector that was a map
        scale, shift = scale[order], shift[order]
    return Affine(scale, shift)


def _gelu(approximate: str) -> Activation:
    return Activation("gelu" if approximate == "none" else "gelu_tanh")


def _pool(name: str, options: dict[str, Any], one: bool) -> Pool | None:
    size, padding = options["kernel_size"], options.get("padding", 0)
    stride = options.get("stride")
    plain = options.get("dilation", 1) in (1, (1, 1)) and not options.get("return_indices")
    if not plain or options.get("divisor_override") is not None:
        return None
    fill = 1 if one else None
    sizes = _two(size, fill)
    return Pool(
        name, sizes, sizes if stride in (None, []) else _two(stride, fill), _two(padding, 0 if one else None),
        bool(options.get("count_include_pad", True)),
    )  # fmt: skip


def _pool_layer(layer: Any, before: Shape, order: Order) -> Pool | None:
    name = "max" if "Max" in type(layer).__name__ else "mean"
    names = (*_POOLING, *_MEANS)
    options = {option: getattr(layer, option) for option in names if hasattr(layer, option)}
    for option, value in options.items():  # the layers of sequences keep tuples of one
        if isinstance(value, tuple) and len(value) == 1:
            options[option] = value[0]
    return _pool(name, options, one=type(layer).__name__.endswith("1d"))


def _adaptive(size: Any, before: Shape, one: bool) -> Pool | None:
    """Windows of one size, where the map divides evenly."""
    wanted = (None, None) if size is None else (1, size if isinstance(size, int) else size[0]) if one else _pair(size)
    outputs = [full if out is None else out for out, full in zip(wanted, before[1:], strict=True)]
    if any(not out or full % out for out, full in zip(outputs, before[1:], strict=True)):
        return None
    window = (before.height // outputs[0], before.width // outputs[1])
    return Pool("mean", window, window, (0, 0))


def _mean(arguments: dict[str, Any], before: Shape) -> Pool | None:
    """The mean of a whole map or sequence."""
    dims = arguments.get("dim")
    found = {dims} if isinstance(dims, int) else set(dims or ())
    if found not in ({2, 3}, {-1, -2}) and not (found in ({2}, {-1}) and before.height == 1):
        return None
    return Pool("mean", (before.height, before.width), (before.height, before.width), (0, 0))


def _pair(size: Any) -> tuple[int | None, int | None]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _two(size: Any, fill: int | None = 1) -> Pair:
    """Two sizes; a sequence has one, which is its width's: `fill` stands for the height's."""
    sizes = tuple(size) if isinstance(size, (tuple, list)) else (size,)
    if len(sizes) == 2:
        return (int(sizes[0]), int(sizes[1]))
    return (int(sizes[0]) if fill is None else fill, int(sizes[0]))


_MAKERS: dict[type[nn.Module], Maker] = {
    nn.Conv1d: _convolution, nn.Conv2d: _convolution, nn.Linear: _linear, nn.BatchNorm1d: _norm, nn.BatchNorm2d: _norm,
    nn.Tanh: lambda layer, before, order: Activation("tanh"), nn.ReLU: lambda layer, before, order: Activation("relu"),
    nn.GELU: lambda layer, before, order: _gelu(layer.approximate),
    nn.MaxPool1d: _pool_layer, nn.MaxPool2d: _pool_layer, nn.AvgPool1d: _pool_layer, nn.AvgPool2d: _pool_layer,
    nn.AdaptiveAvgPool1d: lambda layer, before, order: _adaptive(layer.output_size, before, one=True),
    nn.AdaptiveAvgPool2d: lambda layer, before, order: _adaptive(layer.output_size, before, one=False),
}  # fmt: skip
