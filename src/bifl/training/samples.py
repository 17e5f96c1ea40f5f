"""Images and labels as a network takes them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bifl.data.arrays import Dataset
from bifl.errors import DataError


class Samples(NamedTuple):
    """Images and labels with the numbers that normalise the images."""

    images: Tensor  # (n, channels, height, width) uint8
    labels: Tensor  # (n,) int64
    mean: float
    std: float

    @classmethod
    def of(cls, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], data: Dataset) -> Samples:
        """Images and labels of a dataset."""
        if labels.size and not 0 <= labels.min() <= labels.max() < data.classes:
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
        """The chosen images as normalised floats, and their labels."""
        images = self._on_cpu(index) if self.images.device.type == "cpu" else _normalised(self.images[index], self.mean, self.std)
        # .to, not .contiguous: with one channel both orders are "contiguous", and only .to makes the layers take the fast one
        return images.to(memory_format=torch.channels_last), self.labels[index]


def _normalised(pixels: Tensor, mean: float, std: float) -> Tensor:
    return pixels.to(torch.float32).div_(255.0).sub_(mean).div_(std)


@lru_cache(maxsize=4)
def _shades(mean: float, std: float) -> npt.NDArray[np.float32]:
    """(256,) what each byte becomes."""
    found: npt.NDArray[np.float32] = _normalised(torch.arange(256), mean, std).numpy()
    return found
