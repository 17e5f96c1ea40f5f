"""The same network, computed faster: batch-norm, 2×2 pooling and activation as one step in the loops of `kernels`.

A module stays what it is. `stages` reads an nn.Sequential and joins each run convolution – BatchNorm2d – MaxPool2d(2) – tanh or
ReLU (the last two in either order: both activations are monotone); any other module or layer runs as PyTorch runs it, and
so does everything in evaluation, on a GPU, in double precision and where sides are odd.

Against PyTorch only rounding differs (tanh by less than 4e-7); results are deterministic, whatever the number of workers.

>>> from bifl.nn.models import mnist_cnn
>>> [type(stage).__name__ for stage in stages(mnist_cnn(10))][:5]
['Conv2d', 'NormPoolActivate', 'Conv2d', 'NormPoolActivate', 'Flatten']
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from bifl.nn.norm import Moments

Array = np.ndarray[Any, Any]
Stage = Callable[[Tensor], Tensor]
ACTIVATIONS = (nn.Tanh, nn.ReLU)
_CHANNELS_LAST = torch.channels_last


def stages(module: nn.Module) -> list[Stage]:
    """What to call one after the other instead of the module."""
    layers = flattened(module)
    found: list[Stage] = []
    while layers:
        run = layers[:4]
        if len(run) == 4 and type(run[0]) is nn.Conv2d and joinable(*run[1:]):
            found += [run[0], NormPoolActivate(cast(nn.BatchNorm2d, run[1]), run[2:])]
            layers = layers[4:]
        else:
            found.append(layers.pop(0))
    return found


def flattened(module: nn.Module) -> list[nn.Module]:
    """The layers of a chain, chains within it opened."""
    return [layer for child in module for layer in flattened(child)] if type(module) is nn.Sequential else [module]


def joinable(norm: nn.Module, *rest: nn.Module) -> bool:
    """Whether these are batch-norm, and 2×2 pooling and an activation in either order."""
    pools = [layer for layer in rest if type(layer) is nn.MaxPool2d]
    return (
        type(norm) is nn.BatchNorm2d and usual(norm)
        and len(pools) == 1 and any(type(layer) in ACTIVATIONS for layer in rest)
        and all(getattr(pools[0], name) in (value, (value, value)) for name, value in _POOL.items())
    )  # fmt: skip


def usual(norm: nn.BatchNorm1d | nn.BatchNorm2d) -> bool:
    """Whether it trains γ and β and keeps running statistics in the usual way."""
    return norm.affine and norm.momentum is not None and norm.track_running_stats


_POOL = {"kernel_size": 2, "stride": 2, "padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False}


class NormPoolActivate:
    """Batch-norm, pooling and activation as one stage. The norm keeps its parameters and statistics."""

    def __init__(self, norm: nn.BatchNorm2d, rest: list[nn.Module]) -> None:
        self.norm, self.rest = norm, rest
        self.moments: Moments | None = None  # of the last batch

    def __call__(self, x: Tensor) -> Tensor:
        """Pooled activations of a convolution's output, which backward overwrites: nobody else may need it."""
        if self.norm.training and x.device.type == "cpu" and x.dtype == torch.float32 and not (x.shape[2] % 2 or x.shape[3] % 2):
            result: Tensor = _Joined.apply(x, self.norm.weight, self.norm.bias, self)  # type: ignore[no-untyped-call]
            return result
        for layer in (self.norm, *self.rest):
            x = layer(x)
        return x


class _Joined(torch.autograd.Function):
    """`norm`'s way there and back, after pooling: the largest x of a window, or the smallest where γ < 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, stage: NormPoolActivate) -> Tensor:
        from bifl.nn import kernels, norm

        images, channels, height, width = x.shape
        x = x.contiguous(memory_format=_CHANNELS_LAST)
        top = torch.empty((images, channels, height // 2, width // 2), memory_format=_CHANNELS_LAST)
        mean, variance, gains = np.empty(channels), np.empty(channels), gamma.detach().numpy()
        activation = norm.activation(next(layer for layer in stage.rest if type(layer) in ACTIVATIONS))
        kernels.pool(_pixels(x), gains, _pixels(top), mean, variance)
        moments = norm.Moments(mean, variance, images * height * width)
        norm.remember(stage.norm, moments)
        values, ctx.normed = norm.ahead(stage.norm, activation, _pixels(top), moments, gains, beta.detach().numpy())
        stage.moments, y = moments, planes(values)
        ctx.save_for_backward(x, top, y)  # y kept on ctx itself would be a cycle, and its memory lost for long
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        from bifl.nn import kernels, norm

        x, top, y = ctx.saved_tensors
        upper = gradients[0].contiguous(memory_format=_CHANNELS_LAST)
        found = norm.back(_pixels(upper), _pixels(top), _pixels(y), ctx.normed)
        kernels.unpool(_pixels(x), _pixels(top), found.inner, found.shift, found.slope)
        return x, torch.from_numpy(found.gamma), torch.from_numpy(found.beta), None


def _pixels(tensor: Tensor) -> Any:
    """(n, h, w, c) array of the same memory."""
    return tensor.detach().permute(0, 2, 3, 1).numpy()


def planes(pixels: Array) -> Tensor:
    """(n, c, h, w) tensor of the same memory."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)
