"""Why a network does not take an input, in words of the data rather than of PyTorch.

>>> from torch import nn, zeros
>>> refusal(nn.Sequential(nn.Conv2d(3, 8, 3)), zeros(1, 1, 28, 28), RuntimeError("Given groups=1, …"))
Misfit(reason='it takes 3 channels, the data have 1', parameter='channels', taken=3, given=1)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

REFUSALS = (RuntimeError, ValueError, IndexError)  # what PyTorch raises


class Misfit(NamedTuple):
    """Why a network does not take an input."""

    reason: str  # in a sentence
    parameter: str = ""  # the usual name of a network's parameter that says how many it takes; empty where that is not the reason
    taken: int = 0  # that many it takes,
    given: int = 0  # and that many the data have


class _Clash(NamedTuple):
    parameter: str
    unit: str
    taken: int
    given: int

    def counted(self) -> str:
        return f"{self.taken:,} {self.unit if self.taken != 1 else self.unit.removesuffix('s')}"


def refusal(module: nn.Module, inputs: Tensor, error: Exception) -> Misfit:
    """Why a module raised an error for inputs: by the first layer that is given what it does not take, or as PyTorch says."""
    for number, (name, layer, shape) in enumerate(_calls(module, inputs)):
        clash = _clash(layer, shape)
        if clash is not None and number == 0:
            return Misfit(f"it takes {clash.counted()}, the data have {clash.given:,}", clash.parameter, clash.taken, clash.given)
        if clash is not None:
            return Misfit(f"its layer {name} takes {clash.counted()} and is given {clash.given:,}")
    return Misfit(str(error).partition("\n")[0])


def _clash(layer: nn.Module, shape: tuple[int, ...]) -> _Clash | None:
    if isinstance(layer, nn.Linear):
        return _Clash("inputs", "numbers", layer.in_features, shape[-1]) if shape[-1] != layer.in_features else None
    assert isinstance(layer, _ConvNd)
    if len(shape) != len(layer.kernel_size) + 2:  # PyTorch may take them for a single image without its batch
        return _Clash("", "dimensions", len(layer.kernel_size) + 1, len(shape) - 1)
    return _Clash("channels", "channels", layer.in_channels, shape[1]) if shape[1] != layer.in_channels else None


@torch.no_grad()
def _calls(module: nn.Module, inputs: Tensor) -> list[tuple[str, nn.Module, tuple[int, ...]]]:
    """The convolutions and linear layers that are called for inputs until one fails, and the shapes that they are given."""
    calls: list[tuple[str, nn.Module, tuple[int, ...]]] = []

    def watched(name: str, layer: nn.Module) -> torch.utils.hooks.RemovableHandle:
        return layer.register_forward_pre_hook(lambda _, given: calls.append((name, layer, tuple(given[0].shape))))

    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, (_ConvNd, nn.Linear))]
    handles = [watched(name, layer) for name, layer in layers]
    try:
        module(inputs)
    except REFUSALS:
        pass
    finally:
        for handle in handles:
            handle.remove()
    return calls
