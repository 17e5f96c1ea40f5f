"""Inputs and labels as a network takes them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bifl.data.inputs import Array, Dataset, Scale
from bifl.errors import DataError


class Samples(NamedTuple):
    """Inputs and labels with the numbers that normalise the inputs."""

    images: Tensor  # (n, …), as the dataset has them
    labels: Tensor  # (n,) int64, or (n, outputs) float32
    mean: Scale
    std: Scale

    @classmethod
    def of(cls, images: Array, labels: Array, data: Dataset) -> Samples:
        """Inputs and labels of a dataset."""
        if images.dtype == np.uint8 and (isinstance(data.mean, tuple) or isinstance(data.std, tuple)):
            raise DataError("pixels are normalised by one mean and one deviation, not by one for each channel")
        if labels.size and labels.dtype.kind == "i" and not 0 <= labels.min() <= labels.max() < data.classes:
            raise DataError(f"labels must run from 0 to {data.classes - 1}, not from {labels.min()} to {labels.max()}")
        # PyTorch warns of arrays that it may not write
        tensors = [torch.from_numpy(np.require(array, requirements=("C", "W"))) for array in (images, labels)]
        return cls(tensors[0], tensors[1], data.mean, data.std)

    def on(self, device: torch.device) -> Samples:
        """The same in that device's memory."""
        return self._replace(images=self.images.to(device), labels=self.labels.to(device))

    def _on_cpu(self, index: Tensor | slice) -> Tensor:
        from bifl.nn.fast import kernels

        chosen = np.arange(*index.indices(len(self.images))) if isinstance(index, slice) else index.numpy()
        images = torch.empty((len(chosen), *self.images.shape[1:]))
        flat = [tensor.numpy().reshape(len(tensor), -1) for tensor in (self.images, images)]
        kernels.look_up(flat[0], chosen, _shades(self.mean, self.std), flat[1])
        return images

    def batch(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """The chosen inputs, pixels and floats normalised, tokens as they are; and their labels."""
        if self.images.dtype != torch.uint8:
            return self._others(index), self.labels[index]
        images = self._on_cpu(index) if self.images.device.type == "cpu" else _normalised(self.images[index], self.mean, self.std)
        # .to, not .contiguous: with one channel both orders are "contiguous", and only .to makes the layers take the fast one
        if images.dim() == 4:
            images = images.to(memory_format=torch.channels_last)
        return images, self.labels[index]

    def _others(self, index: Tensor | slice) -> Tensor:
        """Tokens, or floats normalised for each channel."""
        chosen = self.images[index]
        if not chosen.is_floating_point():
            return chosen.long()
        column = (-1, *[1] * (chosen.dim() - 2))
        mean, std = (torch.tensor(scale, dtype=torch.float32, device=chosen.device).view(column) for scale in (self.mean, self.std))
        found = (chosen.float() - mean) / std
        return found.to(memory_format=torch.channels_last) if found.dim() == 4 else found


def _normalised(pixels: Tensor, mean: Scale, std: Scale) -> Tensor:
    return pixels.to(torch.float32).div_(255.0).sub_(cast(float, mean)).div_(cast(float, std))


@lru_cache(maxsize=4)
def _shades(mean: Scale, std: Scale) -> npt.NDArray[np.float32]:
    """(256,) what each byte becomes."""
    found: npt.NDArray[np.float32] = _normalised(torch.arange(256), mean, std).numpy()
    return found
