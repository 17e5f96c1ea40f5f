"""Optimisers for a few flat vectors. They equal torch.optim's, whose import alone would take each worker seconds."""

from __future__ import annotations

import math

import torch
from torch import Tensor

Floor = float | Tensor  # gradients much smaller than this are noise, per vector or per element


class Sgd:
    """Plain gradient descent. It never blows small gradients up, so it needs no floors."""

    def __init__(self, parameters: list[Tensor], lr: float, floors: list[Floor]) -> None:
        self.parameters = parameters
        self.lr = lr

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradients, and forget them."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=self.lr)
                parameter.grad = None


class Adam:
    """Adam with its usual constants (Kingma and Ba, 2015); `floors` are its ε."""

    beta1, beta2 = 0.9, 0.999

    def __init__(self, parameters: list[Tensor], lr: float, floors: list[Floor]) -> None:
        self.parameters = parameters
        self.floors = floors
        self.lr = lr
        self.steps = 0
        self.moments = [(torch.zeros_like(p, requires_grad=False), torch.zeros_like(p, requires_grad=False)) for p in parameters]

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradients, and forget them."""
        self.steps += 1
        rate = self.lr / (1 - self.beta1**self.steps)
        correction = math.sqrt(1 - self.beta2**self.steps)
        for parameter, floor, (first, second) in zip(self.parameters, self.floors, self.moments, strict=True):
            if parameter.grad is None:
                continue
            first.lerp_(parameter.grad, 1 - self.beta1)
            second.mul_(self.beta2).addcmul_(parameter.grad, parameter.grad, value=1 - self.beta2)
            parameter.addcdiv_(first, second.sqrt().div_(correction).add_(floor), value=-rate)
            parameter.grad = None


OPTIMIZERS: dict[str, type[Adam] | type[Sgd]] = {"adam": Adam, "sgd": Sgd}
