"""Batch-norm and activation over the last axis of an array, there and back, for `norm_steps`.

y = act(γ·(x − μ)/σ + β), where μ and σ are the moments of the batch. After 2×2 pooling x are the windows' tops, while the moments
are those of all pixels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import nn

from bifl.nn.fast import kernels
from bifl.nn.fast.kernels import Array

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d


class Moments(NamedTuple):
    """Of a batch, per channel."""

    mean: Array  # (c,) float64
    variance: Array  # (c,) float64
    size: int  # values a channel

    def raw(self) -> tuple[Array, Array]:
        """E[x] and E[x²]."""
        return self.mean, self.variance + self.mean**2


class Normed(NamedTuple):
    """What the way back needs to know, beside x and y."""

    moments: Moments
    scale: Array  # (c,) float64, γ/σ
    epsilon: float
    activation: int


class Gradients(NamedTuple):
    """W.r.t. all values it is shift + slope·x, plus `inner` at those that came out on top; and w.r.t. the parameters."""

    inner: Array  # like x
    gamma: Array  # (c,), like the rest
    beta: Array
    shift: Array
    slope: Array


def ahead(norm: BatchNorm, activation: int, x: Array, moments: Moments, gamma: Array, beta: Array) -> tuple[Array, Normed]:
    """y of x (…, c), normalised by the moments."""
    y, normed = np.empty_like(x), Normed(moments, np.empty(len(gamma)), norm.eps, activation)
    flat = [array.reshape(-1, len(gamma)) for array in (x, y)]
    kernels.normalise(flat[0], moments.mean, moments.variance, gamma, beta, norm.eps, activation, flat[1], normed.scale)
    return y, normed


def back(upper: Array, x: Array, y: Array, normed: Normed) -> Gradients:
    """From the gradient w.r.t. y to that w.r.t. x."""
    inner, gradients = np.empty_like(upper), np.empty((4, len(normed.scale)), np.float32)
    shape = (len(upper), upper.shape[1] if upper.ndim == 4 else 1, -1)
    lines = [array.reshape(shape) for array in (upper, y, x, inner)]
    kernels.denormalise(*lines[:3], *normed.moments, *normed[1:], lines[3], gradients)
    return Gradients(inner, *gradients)


def activation(layer: nn.Module | None) -> int:
    """What `kernels.normalise` calls it."""
    return {nn.Tanh: kernels.TANH, nn.ReLU: kernels.RELU}.get(type(layer), kernels.NONE)


def usual(norm: nn.Module) -> bool:
    """Whether it is a batch-norm that trains γ and β and keeps running statistics in the usual way."""
    return (
        type(norm) in (nn.BatchNorm1d, nn.BatchNorm2d) and isinstance(norm, BatchNorm)
        and norm.affine and norm.bias is not None and norm.momentum is not None and norm.track_running_stats
    )  # fmt: skip


def measured(x: Array) -> Moments:
    """Of features (n, c), signals (n, t, c) or images (n, h, w, c)."""
    channels = x.shape[-1]
    mean, variance = np.empty(channels), np.empty(channels)
    if x.ndim == 2:
        kernels.moments(x, mean, variance)
    else:
        kernels.pixel_moments(x.reshape(len(x), -1, channels), mean, variance)
    return Moments(mean, variance, x.size // channels)


def running(norm: BatchNorm) -> Moments:
    """What a norm uses in evaluation."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return Moments(norm.running_mean.double().numpy(), norm.running_var.double().numpy(), 0)


def remember(norm: BatchNorm, moments: Moments) -> None:
    """Let the running statistics follow a batch's, as PyTorch does."""
    if norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None:
        kernels.follow(norm.running_mean.numpy(), norm.running_var.numpy(), norm.momentum, *moments)
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.numpy()[...] += 1
