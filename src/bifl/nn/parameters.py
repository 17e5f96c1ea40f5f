"""What a module computes with, by who may change it: training (slots), nobody (constants), or the module itself (buffers)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from bifl.core.message import Floats
from bifl.nn.compute import Place, Slot


class Trainable:
    """A module's trainable parameters, to be taken out of it one by one; a tied one has several places."""

    def __init__(self, module: nn.Module) -> None:
        self._places: dict[int, list[Place]] = {}
        for child in module.modules():
            for attribute, parameter in child._parameters.items():
                if parameter is not None and parameter.requires_grad:
                    self._places.setdefault(id(parameter), []).append((child, attribute))

    def left(self, layer: nn.Module) -> list[str]:
        """Those of a layer's own parameters that were not taken, by name."""
        return [attribute for attribute, parameter in layer._parameters.items() if id(parameter) in self._places]

    def take(self, layer: nn.Module, attribute: str) -> tuple[Slot, Tensor]:
        """Make a parameter, wherever it is used, a plain attribute that anyone may set; its slot and its initial value."""
        parameter: Tensor = getattr(layer, attribute)
        slot, value = Slot(tuple(self._places.pop(id(parameter)))), parameter.detach().clone()
        for child, name in slot.places:
            delattr(child, name)
        slot.put(value)
        return slot, value


class Constants:
    """What is neither trained nor sent: frozen parameters, and buffers that are no statistics of a norm.

    Both ends of a run have them from the network's own initialisation. A module may change its buffers as it trains; `reset` undoes
    that, so that no client's training depends on who trained before.
    """

    def __init__(self, module: nn.Module, norms: Iterable[nn.Module]) -> None:
        statistics = {id(norm._buffers[name]) for norm in norms for name in ("running_mean", "running_var")}
        self._buffers: list[tuple[nn.Module, str, Tensor]] = []  # with their initial values
        self._saved: list[Tensor] = []  # frozen parameters, and the initial values of buffers that PyTorch would save
        for child in module.modules():
            self._saved += [p.data for p in child._parameters.values() if p is not None and not p.requires_grad]
            for name, buffer in child._buffers.items():
                if buffer is not None and id(buffer) not in statistics:
                    self._buffers.append((child, name, buffer.detach().clone()))
                    saved = name not in child._non_persistent_buffers_set and buffer.is_floating_point()
                    self._saved += [self._buffers[-1][2]] if saved else []

    @torch.no_grad()
    def reset(self) -> None:
        """Give all buffers their initial values."""
        for child, name, initial in self._buffers:
            now = child._buffers[name]
            if now is None or now.shape != initial.shape or now.dtype != initial.dtype:
                child._buffers[name] = initial.clone()
            else:
                now.copy_(initial)

    def size(self) -> int:
        """How many numbers there are to save."""
        return sum(tensor.numel() for tensor in self._saved)

    def read(self) -> Floats:
        """(size,) what a saved model needs beside the vectors."""
        parts = [tensor.detach().float().cpu().numpy().ravel() for tensor in self._saved]
        return np.concatenate([np.zeros(0, np.float32), *parts])

    @torch.no_grad()
    def write(self, values: Floats) -> None:
        """The inverse of `read`."""
        parts = torch.split_with_sizes(torch.from_numpy(values), [tensor.numel() for tensor in self._saved])
        for tensor, part in zip(self._saved, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))
        self.reset()
