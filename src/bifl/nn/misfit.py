"""Why a network does not take an input, in words of the data rather than of PyTorch.

>>> from torch import nn, zeros
>>> refusal(nn.Sequential(nn.Conv2d(3, 8, 3)), zeros(1, 1, 28, 28), RuntimeError("Given groups=1, …"))
Misfit(reason='it takes 3 channels, the data have 1', parameter='channels', taken=3, given=1)
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from bifl.nn.compute import watched

REFUSALS = (RuntimeError, ValueError, IndexError)  # what PyTorch raises


class Misfit(NamedTuple):
    """Why a network does not take an input."""

    reason: str  # in a sentence
    parameter: str = ""  # the usual name of a network's parameter that says how many it takes; empty where that is not the reason
    taken: int = 0  # that many it takes,
    given: int = 0  # and that many the data have


def refusal(module: nn.Module, inputs: Tensor, error: Exception) -> Misfit:
    """Why a module raised an error for inputs: by the first layer that is given what it does not take, or as PyTorch says."""
    for number, (name, layer, shape) in enumerate(_calls(module, inputs)):
        parameter, unit, taken, given = _numbers(layer, shape)
        counted = f"{taken:,} {unit if taken != 1 else unit.removesuffix('s')}"
        if taken != given and number == 0:
            return Misfit(f"it takes {counted}, the data have {given:,}", parameter, taken, given)
        if taken != given:
            return Misfit(f"its layer {name} takes {counted} and is given {given:,}")
    return Misfit(str(error).partition("\n")[0])


def _numbers(layer: nn.Module, shape: tuple[int, ...]) -> tuple[str, str, int, int]:
    """A parameter's name, what it counts, how many of them a layer takes, and how many it is given."""
    if isinstance(layer, nn.Linear):
        return "inputs", "numbers", layer.in_features, shape[-1]
    assert isinstance(layer, _ConvNd)
    if len(shape) != len(layer.kernel_size) + 2:  # PyTorch may take them for a single image without its batch
        return "", "dimensions", len(layer.kernel_size) + 1, len(shape) - 1
    return "channels", "channels", layer.in_channels, shape[1]


@torch.no_grad()
def _calls(module: nn.Module, inputs: Tensor) -> list[tuple[str, nn.Module, tuple[int, ...]]]:
    """The convolutions and linear layers that are called for inputs until one fails, and the shapes that they are given."""
    names: dict[nn.Module, str] = {layer: name for name, layer in module.named_modules() if isinstance(layer, (_ConvNd, nn.Linear))}
    calls: list[tuple[str, nn.Module, tuple[int, ...]]] = []
    with watched(names, lambda layer, given: calls.append((names[layer], layer, tuple(given[0].shape)))), suppress(*REFUSALS):
        module(inputs)
    return calls
