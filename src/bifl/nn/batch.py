"""A batch: tensors by name, and which of them a network and a task's functions take; and the samples that batches are chosen of.

A network's first argument is `input`; what else its forward names, such as `mask` or `attention_mask`, it gets where the data have
it. A function of a task, (output, targets), may ask for more in the same way, by parameters without a default.

>>> import torch
>>> def loss(output, targets, mask, weight=None): ...
>>> task_arguments(loss)
('mask',)
>>> tensor_of(torch.ones(2, 3)).shape
torch.Size([2, 3])
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bifl.data.inputs import NONE, Array, Dataset, Scale
from bifl.errors import DataError

INPUT, TARGET = "input", "target"
Batch = Mapping[str, Tensor]  # `input`, `target`, and whatever else the data have for every sample
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _after(function: Callable[..., Any], first: int) -> list[inspect.Parameter]:
    """The parameters after the first ones, as far as they can be given by name."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin function tells nothing
        return []
    return [parameter for parameter in parameters[first:] if parameter.kind in _NAMED and parameter.name != TARGET]


def network_arguments(module: nn.Module) -> tuple[str, ...]:
    """What a module's forward takes beside its first argument."""
    return tuple(parameter.name for parameter in _after(module.forward, 1))


def needed_arguments(module: nn.Module) -> tuple[str, ...]:
    """Those of them that have no default."""
    return tuple(parameter.name for parameter in _after(module.forward, 1) if parameter.default is inspect.Parameter.empty)


def task_arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    """What a function of a task takes beside (output, targets). Those with a default are its own, such as `reduction`."""
    return tuple(parameter.name for parameter in _after(function, 2) if parameter.default is inspect.Parameter.empty)


def among(batch: Batch, names: Iterable[str]) -> dict[str, Tensor]:
    """Those of these tensors that the batch has."""
    return {name: batch[name] for name in names if name in batch}


def judged(function: Callable[..., Tensor], output: Tensor, batch: Batch) -> Tensor:
    """What a task's function makes of an output and the targets."""
    names = task_arguments(function) if batch.keys() > {INPUT, TARGET} else ()
    return function(output, batch[TARGET], **among(batch, names))


def tensor_of(made: Any) -> Tensor:
    """The tensor that a module returned, or the `logits` of the object that modules of Hugging Face return."""
    if isinstance(made, Tensor):
        return made
    logits = getattr(made, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise TypeError(f"it gives a {type(made).__name__} instead of a tensor, or of an object that has one as logits")


class Samples(NamedTuple):
    """Inputs and labels with the numbers that normalise the inputs."""

    inputs: Tensor  # (n, …), as the dataset has them
    labels: Tensor  # (n,) int64, (n, outputs) float32, or whatever else the task takes
    mean: Scale
    std: Scale
    further: Mapping[str, Tensor] = NONE  # name → (n, …) what a network or a task takes beside the inputs

    @classmethod
    def training(cls, data: Dataset) -> Samples:
        """The training samples of a dataset."""
        return cls.of(data.inputs, data.labels, data, data.further)

    @classmethod
    def testing(cls, data: Dataset) -> Samples:
        """The test samples of a dataset."""
        return cls.of(data.test_inputs, data.test_labels, data, data.test_further)

    @classmethod
    def of(cls, images: Array, labels: Array, data: Dataset, further: Mapping[str, Array] = NONE) -> Samples:
        """Inputs and labels of a dataset, and the arrays beside them."""
        if images.dtype == np.uint8 and (isinstance(data.mean, tuple) or isinstance(data.std, tuple)):
            raise DataError("pixels are normalised by one mean and one deviation, not by one for each channel")
        if labels.size and labels.dtype.kind == "i" and labels.ndim == 1 and not 0 <= labels.min() <= labels.max() < data.classes:
            raise DataError(f"labels must run from 0 to {data.classes - 1}, not from {labels.min()} to {labels.max()}")
        return cls(_tensor(images), _tensor(labels), data.mean, data.std, {name: _tensor(found) for name, found in further.items()})

    def on(self, device: torch.device) -> Samples:
        """The same in that device's memory."""
        further = {name: found.to(device) for name, found in self.further.items()}
        return self._replace(inputs=self.inputs.to(device), labels=self.labels.to(device), further=further)

    def _on_cpu(self, index: Tensor | slice) -> Tensor:
        from bifl.nn.fast import kernels

        chosen = np.arange(*index.indices(len(self.inputs))) if isinstance(index, slice) else index.numpy()
        images = torch.empty((len(chosen), *self.inputs.shape[1:]))
        flat = [tensor.numpy().reshape(len(tensor), -1) for tensor in (self.inputs, images)]
        kernels.look_up(flat[0], chosen, _shades(self.mean, self.std), flat[1])
        return images

    def batch(self, index: Tensor | slice) -> Batch:
        """The chosen samples: inputs, pixels and floats normalised, tokens as they are; targets; and all else by name."""
        batch = {INPUT: self._inputs(index), TARGET: self.labels[index]}
        for name, found in self.further.items():
            batch[name] = as_taken(found[index])
        return batch

    def _inputs(self, index: Tensor | slice) -> Tensor:
        looked_up = self.inputs.dtype == torch.uint8 and self.inputs.device.type == "cpu"
        inputs = self._on_cpu(index) if looked_up else normalise(self.inputs[index], self.mean, self.std)
        if inputs.dim() != 4 or not inputs.is_floating_point():
            return inputs
        # .to, not .contiguous: with one channel both orders are "contiguous", and only .to makes the layers take the fast one
        return inputs.to(memory_format=torch.channels_last)


def normalise(raw: Tensor, mean: Scale, std: Scale) -> Tensor:
    """Raw inputs as a network takes them: pixels normalised, floats too, for each channel, and tokens as they are."""
    if raw.dtype == torch.uint8:
        return raw.to(torch.float32).div_(255.0).sub_(cast(float, mean)).div_(cast(float, std))
    if not raw.is_floating_point():
        return raw.long()
    column = (-1, *[1] * (raw.dim() - 2))
    centre, deviation = (torch.tensor(scale, dtype=torch.float32, device=raw.device).view(column) for scale in (mean, std))
    return (raw.float() - centre) / deviation


def as_taken(found: Tensor) -> Tensor:
    """An array beside the inputs as a network takes it: whole numbers as int64, floats as float32, true and false as they are."""
    if found.dtype == torch.bool:
        return found
    return found.float() if found.is_floating_point() else found.long()


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(np.require(array, requirements=("C", "W")))  # PyTorch warns of arrays that it may not write


@lru_cache(maxsize=4)
def _shades(mean: Scale, std: Scale) -> npt.NDArray[np.float32]:
    """(256,) what each byte becomes."""
    shades: npt.NDArray[np.float32] = normalise(torch.arange(256, dtype=torch.uint8), mean, std).numpy()
    return shades
