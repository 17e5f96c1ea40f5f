"""Between PyTorch's tensors, channels second, and the loops' arrays, channels last."""

from __future__ import annotations

import torch
from torch import Tensor

from bifl.nn.fast.kernels import Array


def planes(pixels: Array) -> Tensor:
    """(n, c, h, w) tensor of the same memory."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def pixels(planes: Tensor) -> Array:
    """(n, h, w, c) array, of the same memory if it lies that way."""
    found: Array = planes.permute(0, 2, 3, 1).contiguous().numpy()
    return found


def tensor(x: Array) -> Tensor:
    """What PyTorch's layers take: (n, c, h, w) images, (n, c, t) signals or (n, f) features."""
    if x.ndim == 3:
        return torch.from_numpy(x).transpose(1, 2)
    return planes(x) if x.ndim == 4 else torch.from_numpy(x)


def array(x: Tensor) -> Array:
    """The inverse of `tensor`."""
    if x.dim() == 4:
        return pixels(x)
    found: Array = (x.transpose(1, 2) if x.dim() == 3 else x).contiguous().numpy()
    return found


def pooled_shape(x: Array, padding: int) -> tuple[int, int, int, int]:
    """Of (n, h, w, c) pixels in windows of 2×2; a signal has one row, before and after."""
    count, height, width, channels = x.shape
    return count, max((height + 2 * padding) // 2, 1), (width + 2 * padding) // 2, channels
