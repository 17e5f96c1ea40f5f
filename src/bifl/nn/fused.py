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
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

Array = np.ndarray[Any, Any]
Stage = Callable[[Tensor], Tensor]
_CHANNELS_LAST = torch.channels_last
_quiet = np.errstate(all="ignore")  # a training that diverges shows in its loss, and torch would say nothing here either


def stages(module: nn.Module) -> list[Stage]:
    """What to call one after the other instead of the module."""
    layers = _layers(module)
    found: list[Stage] = []
    while layers:
        run = layers[:4]
        if len(run) == 4 and type(run[0]) is nn.Conv2d and _joinable(*run[1:]):
            found += [run[0], NormPoolActivate(cast(nn.BatchNorm2d, run[1]), run[2:])]
            layers = layers[4:]
        else:
            found.append(layers.pop(0))
    return found


def _layers(module: nn.Module) -> list[nn.Module]:
    """The layers of a chain, chains within it opened."""
    return [layer for child in module for layer in _layers(child)] if type(module) is nn.Sequential else [module]


def _joinable(norm: nn.Module, *rest: nn.Module) -> bool:
    pools = [layer for layer in rest if type(layer) is nn.MaxPool2d]
    return (
        type(norm) is nn.BatchNorm2d and norm.affine and norm.momentum is not None and norm.track_running_stats
        and len(pools) == 1 and any(type(layer) in (nn.Tanh, nn.ReLU) for layer in rest)
        and all(getattr(pools[0], name) in (value, (value, value)) for name, value in _POOL.items())
    )  # fmt: skip


_POOL = {"kernel_size": 2, "stride": 2, "padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False}


class NormPoolActivate:
    """Batch-norm, pooling and activation as one stage. The norm keeps its parameters and statistics."""

    def __init__(self, norm: nn.BatchNorm2d, rest: list[nn.Module]) -> None:
        self.norm, self.rest = norm, rest
        self.relu = any(type(layer) is nn.ReLU for layer in rest)
        self.moments: tuple[Array, Array] | None = None  # (channels,) mean and variance of the last batch, float64

    def __call__(self, x: Tensor) -> Tensor:
        """Pooled activations of a convolution's output, which backward overwrites: nobody else may need it."""
        if self.norm.training and x.device.type == "cpu" and x.dtype == torch.float32 and not (x.shape[2] % 2 or x.shape[3] % 2):
            result: Tensor = _Joined.apply(x, self.norm.weight, self.norm.bias, self)  # type: ignore[no-untyped-call]
            return result
        for layer in (self.norm, *self.rest):
            x = layer(x)
        return x


class _Joined(torch.autograd.Function):
    """With μ, σ of the batch: y = act(γ·(top − μ)/σ + β), where top is the largest x of a window, or the smallest where γ < 0."""

    @staticmethod
    @_quiet
    def forward(ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, stage: NormPoolActivate) -> Tensor:
        from bifl.nn import kernels

        images, channels, height, width = x.shape
        x = x.contiguous(memory_format=_CHANNELS_LAST)
        top = torch.empty((images, channels, height // 2, width // 2), memory_format=_CHANNELS_LAST)
        # numpy, not torch, for what is as small as a channel: its calls take a third of the time
        mean, variance, gains = np.empty(channels), np.empty(channels), gamma.detach().numpy()
        kernels.pool(_pixels(x), gains, _pixels(top), mean, variance)
        stage.moments, count = (mean, variance), images * height * width
        _remember(stage.norm, mean, variance * (count / (count - 1)))
        deviation = np.sqrt(variance + stage.norm.eps)
        scale = gains / deviation
        shift = beta.detach().numpy() - mean * scale
        y = torch.empty_like(top)
        rows = [_pixels(tensor).reshape(-1, channels) for tensor in (top, y)]
        kernels.activate(rows[0], _single(scale), _single(shift), stage.relu, rows[1])
        ctx.stage, ctx.count, ctx.mean, ctx.deviation, ctx.scale = stage, count, mean, deviation, scale
        ctx.save_for_backward(x, top, y)  # y kept on ctx itself would be a cycle, and its memory lost for long
        return y

    @staticmethod
    @_quiet
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        from bifl.nn import kernels

        x, top, y = ctx.saved_tensors
        mean, deviation, scale = ctx.mean, ctx.deviation, ctx.scale
        images, channels, height, _ = y.shape
        upper = gradients[0].contiguous(memory_format=_CHANNELS_LAST)
        inner, sums = torch.empty_like(y), np.empty((2, channels))
        lines = [_pixels(tensor).reshape(images, height, -1) for tensor in (upper, y, top, inner)]
        kernels.deactivate(*lines[:3], _single(scale), ctx.stage.relu, lines[3], sums)
        for_beta, for_product = sums
        for_gamma = (for_product - mean * for_beta) / deviation
        # the gradient w.r.t. x is scale·(g − mean of g − x̂·mean of g·x̂), x̂ = (x − μ)/σ, and g is not zero at the tops alone
        slope = -scale * for_gamma / (deviation * ctx.count)
        shift = -scale * for_beta / ctx.count - slope * mean
        kernels.unpool(_pixels(x), _pixels(top), _pixels(inner), _single(shift), _single(slope))
        return x, torch.from_numpy(_single(for_gamma)), torch.from_numpy(_single(for_beta)), None


def _pixels(tensor: Tensor) -> Any:
    """(n, h, w, c) array of the same memory."""
    return tensor.detach().permute(0, 2, 3, 1).numpy()


def _single(channels: Array) -> Array:
    return channels.astype(np.float32)


def _remember(norm: nn.BatchNorm2d, mean: Array, variance: Array) -> None:
    """Let the running statistics follow, as nn.BatchNorm2d does."""
    if norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None:
        for running, new in ((norm.running_mean.numpy(), mean), (norm.running_var.numpy(), variance)):
            running[:] += norm.momentum * (new - running)
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
