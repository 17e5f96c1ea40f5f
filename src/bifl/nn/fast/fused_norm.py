"""A norm, the end of a shortcut and the activation after it as one operation of autograd, for networks that are no sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bifl.nn.fast import batch_norm, group_norm, kernels
from bifl.nn.fast.steps import array, tensor

_ACTIVATIONS: dict[int, Callable[[Tensor], Tensor]] = {
    kernels.NONE: lambda x: x, kernels.TANH: torch.tanh, kernels.RELU: torch.relu
}  # fmt: skip
_DIMENSIONS: dict[type[nn.Module], tuple[int, ...]] = {
    nn.BatchNorm1d: (2, 3), nn.BatchNorm2d: (4,), nn.GroupNorm: (2, 3, 4), nn.LayerNorm: tuple(range(2, 9))
}  # fmt: skip
_quiet = np.errstate(all="ignore")  # a training that diverges shows in its loss


def known(norm: nn.Module) -> bool:
    """Whether there are loops for a norm."""
    if type(norm) is nn.LayerNorm and len(norm.normalized_shape) == 1:
        return norm.elementwise_affine and norm.bias is not None
    return (type(norm) is nn.GroupNorm and norm.affine) or batch_norm.usual(norm)


class NormActivation(nn.Module):
    """Computes act(norm(x)), or act(norm(x) + skip) for a GroupNorm, in loops; and by PyTorch what those do not take."""

    def __init__(self, norm: nn.Module, activation: int) -> None:
        super().__init__()
        self.norm, self._activation = norm, activation

    def forward(self, x: Tensor, skip: Tensor | None = None) -> Tensor:
        """As the norm and the activation would."""
        norm: Any = self.norm
        if not self._takes(x) or (skip is not None and (skip.shape != x.shape or skip.dtype != x.dtype)):
            result: Tensor = norm(x) if skip is None else norm(x) + skip
            return _ACTIVATIONS[self._activation](result)
        if type(norm) is nn.LayerNorm:
            rows = x.reshape(-1, x.shape[-1])
            return _group(rows, norm.weight, norm.bias, None, 1, norm.eps, self._activation).view(x.shape)
        if type(norm) is nn.GroupNorm:
            return _group(x, norm.weight, norm.bias, skip, norm.num_groups, norm.eps, self._activation)
        return _batch(x, norm.weight, norm.bias, norm, self._activation)

    def _takes(self, x: Tensor) -> bool:
        norm = self.norm
        if x.device.type != "cpu" or x.dtype != torch.float32 or not x.numel() or norm._forward_pre_hooks or norm._forward_hooks:
            return False
        return x.dim() in _DIMENSIONS[type(norm)] and (len(x) > 1 or not norm.training)


class _Group(torch.autograd.Function):
    @staticmethod
    @_quiet
    def forward(
        ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, skip: Tensor | None, groups: int, epsilon: float, activation: int
    ) -> Tensor:
        given, ctx.skips = array(x), skip is not None
        shortcut = None if skip is None else array(skip)
        y, ctx.grouped = group_norm.ahead(given, gamma.numpy(), beta.numpy(), groups, epsilon, activation, shortcut)
        out = tensor(y)
        ctx.save_for_backward(tensor(given), gamma, *([out] if activation else []))  # y, so that nobody changes it unnoticed
        return out

    @staticmethod
    @_quiet
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, *active = ctx.saved_tensors
        given = array(x)
        y = array(active[0]) if active else given
        inner = np.empty_like(given) if ctx.skips else None
        below, found = group_norm.back(array(gradients[0]), given, y, gamma.numpy(), ctx.grouped, inner)
        return tensor(below), *torch.from_numpy(found), None if inner is None else tensor(inner), None, None, None


class _Batch(torch.autograd.Function):
    @staticmethod
    @_quiet
    def forward(ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, norm: batch_norm.BatchNorm, activation: int) -> Tensor:
        given, ctx.training = array(x), norm.training
        if norm.training:
            moments = batch_norm.measured(given)
            batch_norm.remember(norm, moments)
        else:
            moments = batch_norm.running(norm)
        y, ctx.normed = batch_norm.ahead(norm, activation, given, moments, gamma.numpy(), beta.numpy())
        out = tensor(y)
        ctx.save_for_backward(tensor(given), *([out] if activation else []))
        return out

    @staticmethod
    @_quiet
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *active = ctx.saved_tensors
        given = array(x)
        y = array(active[0]) if active else given
        inner, gamma, beta, shift, slope = batch_norm.back(array(gradients[0]), given, y, ctx.normed)
        if ctx.training:  # else the moments are constants
            flat = (-1, given.shape[-1])
            kernels.add_line(inner.reshape(flat), given.reshape(flat), shift, slope)
        return tensor(inner), torch.from_numpy(gamma), torch.from_numpy(beta), None, None


def _group(*given: Any) -> Tensor:
    found: Tensor = _Group.apply(*given)  # type: ignore[no-untyped-call]
    return found


def _batch(*given: Any) -> Tensor:
    found: Tensor = _Batch.apply(*given)  # type: ignore[no-untyped-call]
    return found
