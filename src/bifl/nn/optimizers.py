"""Optimisers for a few flat vectors. They equal torch.optim's, whose import alone would take each worker seconds."""

from __future__ import annotations

import math

import torch
from torch import Tensor

Floor = float | Tensor  # gradients much smaller than this are noise, per vector or per element


class Sgd:
    """Plain gradient descent. It never blows small gradients up, so it needs no floors."""

    def __init__(self, parameters: list[Tensor], lr: float, floors: list[Floor], limits: list[float] | None = None) -> None:
        self.parameters = parameters
        self.limits = limits or [math.inf] * len(parameters)  # after each step, a vector is clipped to ± its limit
        self.lr = lr

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradients, and forget them."""
        for parameter, limit in zip(self.parameters, self.limits, strict=True):
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=self.lr).clamp_(-limit, limit)
                parameter.grad = None


class Adam:
    """Adam with its usual constants (Kingma and Ba, 2015); `floors` are its ε. On a CPU it is one pass over memory."""

    beta1, beta2 = 0.9, 0.999

    def __init__(self, parameters: list[Tensor], lr: float, floors: list[Floor], limits: list[float] | None = None) -> None:
        self.parameters = parameters
        self.floors = floors
        self.limits = limits or [math.inf] * len(parameters)  # after each step, a vector is clipped to ± its limit
        self.lr = lr
        self.steps = 0
        self._stretches = [_stretches(floor, len(p)) for floor, p in zip(floors, parameters, strict=True)]
        self.moments = [(torch.zeros_like(p, requires_grad=False), torch.zeros_like(p, requires_grad=False)) for p in parameters]

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradients, and forget them."""
        self.steps += 1
        rate = self.lr / (1 - self.beta1**self.steps)
        correction = math.sqrt(1 - self.beta2**self.steps)
        for number, (parameter, moments) in enumerate(zip(self.parameters, self.moments, strict=True)):
            if parameter.grad is not None:
                limit = self.limits[number]
                if parameter.device.type == "cpu" and parameter.dtype == torch.float32:
                    _in_one_pass(parameter, parameter.grad, *moments, rate, correction, self._stretches[number], limit)
                else:
                    _in_several(parameter, parameter.grad, *moments, rate, correction, self.floors[number], limit)
                parameter.grad = None


def _in_several(w: Tensor, g: Tensor, first: Tensor, second: Tensor, rate: float, fix: float, floor: Floor, limit: float) -> None:
    first.lerp_(g, 1 - Adam.beta1)
    second.mul_(Adam.beta2).addcmul_(g, g, value=1 - Adam.beta2)
    w.addcdiv_(first, second.sqrt().div_(fix).add_(floor), value=-rate).clamp_(-limit, limit)


def _in_one_pass(
    w: Tensor, g: Tensor, first: Tensor, second: Tensor, rate: float, fix: float, stretches: list[tuple[slice, float]], limit: float
) -> None:
    from bifl.nn.fast import kernels

    vectors = [vector.detach().numpy() for vector in (w, g, first, second)]
    for part, epsilon in stretches:
        kernels.adam(*(vector[part] for vector in vectors), rate, fix, epsilon, limit)


def _stretches(floor: Floor, length: int) -> list[tuple[slice, float]]:
    """Parts of a vector with equal ε: nearly always it is the whole."""
    if not isinstance(floor, Tensor):
        return [(slice(0, length), floor)]
    floors, lengths = torch.unique_consecutive(floor, return_counts=True)
    ends = lengths.cumsum(0).tolist()
    return [(slice(end - size, end), epsilon) for epsilon, size, end in zip(floors.tolist(), lengths.tolist(), ends, strict=True)]


OPTIMIZERS: dict[str, type[Adam] | type[Sgd]] = {"adam": Adam, "sgd": Sgd}
