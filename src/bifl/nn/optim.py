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
        self.moments = [(torch.zeros_like(p, requires_grad=False), torch.zeros_like(p, requires_grad=False)) for p in parameters]

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradients, and forget them."""
        self.steps += 1
        rate = self.lr / (1 - self.beta1**self.steps)
        correction = math.sqrt(1 - self.beta2**self.steps)
        for parameter, floor, limit, moments in zip(self.parameters, self.floors, self.limits, self.moments, strict=True):
            if parameter.grad is not None:
                update = _in_one_pass if parameter.device.type == "cpu" and parameter.dtype == torch.float32 else _in_several
                update(parameter, parameter.grad, *moments, rate, correction, floor, limit)
                parameter.grad = None


def _in_several(w: Tensor, g: Tensor, first: Tensor, second: Tensor, rate: float, fix: float, floor: Floor, limit: float) -> None:
    first.lerp_(g, 1 - Adam.beta1)
    second.mul_(Adam.beta2).addcmul_(g, g, value=1 - Adam.beta2)
    w.addcdiv_(first, second.sqrt().div_(fix).add_(floor), value=-rate).clamp_(-limit, limit)


def _in_one_pass(w: Tensor, g: Tensor, first: Tensor, second: Tensor, rate: float, fix: float, floor: Floor, limit: float) -> None:
    from bifl.nn import kernels

    # stretches of equal ε, nearly always the whole vector
    floors, lengths = torch.unique_consecutive(torch.as_tensor(floor, dtype=w.dtype).reshape(-1), return_counts=True)
    sizes = lengths.tolist() if isinstance(floor, Tensor) else [len(w)]
    for epsilon, *parts in zip(
        floors.tolist(), *(torch.split_with_sizes(v.detach(), sizes) for v in (w, g, first, second)), strict=True
    ):
        kernels.adam(*(part.numpy() for part in parts), rate, fix, epsilon, limit)


OPTIMIZERS: dict[str, type[Adam] | type[Sgd]] = {"adam": Adam, "sgd": Sgd}
