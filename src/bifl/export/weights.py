"""What ONNX and C both make of a network's weights: batch-norm folded into them, and those of two or three values as signs."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from bifl.errors import DataError
from bifl.nn import trace
from bifl.nn.batch import INPUT
from bifl.nn.trace import Layer

Floats = npt.NDArray[np.float32]


class Unsupported(DataError):
    """A network that cannot become C."""


def traced(module: nn.Module, example: Tensor) -> list[trace.Operation]:
    """The operations of a network, given an input in a batch of one."""
    try:
        return trace.read(module, {INPUT: example})
    except trace.Unreadable as error:
        raise Unsupported(f"its code cannot be traced, {error}") from error
    except (RuntimeError, ValueError, IndexError) as error:  # in a file that somebody edited
        raise Unsupported(f"it does not take inputs of shape {tuple(example.shape[1:])}") from error


@torch.no_grad()
def fold(module: nn.Module, example: Tensor) -> tuple[nn.Module, dict[str, str]]:
    """A copy of a network in evaluation mode, each batch-norm part of the convolution or linear layer that it follows.

    An Identity stands for each norm that is gone; also the names of these norms by those of the layers. A layer whose values
    something else reads too, or that is called twice, keeps its norm beside it.
    """
    operations = traced(module, example)
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


class Rows(NamedTuple):
    """Weights as signs times a size for each row.

    >>> rows_of(np.array([[2, -2], [0.5, 0]], np.float32))
    Rows(signs=array([[ 1, -1],
           [ 1,  0]], dtype=int8), sizes=array([2. , 0.5], dtype=float32))
    >>> rows_of(np.array([[2, -1]], np.float32)) is None
    True
    """

    signs: npt.NDArray[np.int8]  # −1, 0 or 1; of a row of zeros 1, so that one zero scale costs no third value
    sizes: Floats

    @property
    def binary(self) -> bool:
        """Whether no sign is 0."""
        return bool(self.signs.all())


def rows_of(weight: Floats) -> Rows | None:
    """The signs of binary or ternary weights, whose rows are ±s or ±s and 0; None where a row has several sizes."""
    sizes = np.abs(weight).reshape(len(weight), -1)
    largest = sizes.max(1, initial=0)
    if not np.isfinite(largest).all() or not ((sizes == largest[:, None]) | (sizes == 0)).all():
        return None
    signs = np.sign(weight).astype(np.int8)
    signs[largest == 0] = 1
    return Rows(signs, largest)
