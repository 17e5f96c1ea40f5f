"""Optimisers for a few flat vectors. The built-in ones equal torch.optim's, whose import alone would take each worker seconds.

An optimiser of your own is a function in a Python file, for `optimizer=my.py:mine`; what it returns may be one of torch.optim's:

    @optimizer
    def mine(alpha: float = 0.99) -> Optimizer:
        "RMSprop."
        return Optimizer(lambda trained: torch.optim.RMSprop(trained.vectors, trained.lr, alpha))

>>> optimizer.parameters("sgd")
{'momentum': 0.0, 'weight_decay': 0.0}
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bifl.errors import ConfigError
from bifl.registry import Registry

Floor = float | Tensor  # gradients much smaller than this are noise, per vector or per element
BETA1, BETA2 = 0.9, 0.999  # Adam's usual constants
SIGNATURE = "a bifl.nn.optimizers.Optimizer(begin), where begin(trained) gives an object with step(), such as one of torch.optim's"


class Trained(NamedTuple):
    """What a client trains in a round: flat vectors, whose gradients are in `.grad` at every step."""

    vectors: list[Tensor]  # the coded weights, and the trained real parameters
    lr: float
    floors: list[Floor]  # at least Adam's ε, and that of methods like it
    limits: list[float]  # after each step, a vector is clipped to ± its limit
    decayed: list[slice]  # the parts that weight decay is for: not ϑ, whose size may have no effect


@dataclass(frozen=True)
class Optimizer:
    """How gradients are applied. It begins anew in every round."""

    begin: Callable[[Trained], Any]  # → an object whose `step()` applies the gradients; clipping to the limits is done for it
    stride: float = 1.0  # how far a step may move a number, in learning rates: the server bounds what clients say by twice that
    plain: bool = False  # whether a step is the learning rate times the gradient and nothing else, which some algorithms need
    name: str = ""  # what errors call it; filled in where it is chosen


optimizer: Registry[Optimizer] = Registry("optimizer")


def begin(chosen: Optimizer, trained: Trained) -> Callable[[], None]:
    """The function that applies the gradients of a step, keeps vectors within their limits, and forgets the gradients."""
    found = chosen.begin(trained)
    if isinstance(found, Adam | Sgd):  # these do it all in one pass
        return found.step
    if not callable(getattr(found, "step", None)):
        raise ConfigError(f"optimizer '{chosen.name}' must return {SIGNATURE}; its begin gave a {type(found).__name__}")

    def step() -> None:
        found.step()
        with torch.no_grad():
            for vector, limit in zip(trained.vectors, trained.limits, strict=True):
                vector.clamp_(-limit, limit)
                vector.grad = None

    return step


def checked(name: str, found: object) -> Optimizer:
    """What an optimiser's factory returned, under the name that errors call it."""
    if not isinstance(found, Optimizer):
        raise ConfigError(f"optimizer '{name}' must return {SIGNATURE}, not a {type(found).__name__}")
    return replace(found, name=name)


class Sgd:
    """Gradient descent, as torch.optim.SGD. It never blows small gradients up, so it needs no floors."""

    def __init__(self, trained: Trained, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        self.trained, self.momentum, self.weight_decay = trained, momentum, weight_decay
        self.speeds = [torch.zeros_like(vector, requires_grad=False) for vector in trained.vectors] if momentum else []

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradients, and forget them."""
        vectors, lr, _, limits, decayed = self.trained
        for number, (parameter, limit) in enumerate(zip(vectors, limits, strict=True)):
            if parameter.grad is not None:
                gradient = _decaying(parameter, parameter.grad, decayed[number], self.weight_decay)
                if self.momentum:
                    gradient = self.speeds[number].mul_(self.momentum).add_(gradient)
                parameter.sub_(gradient, alpha=lr).clamp_(-limit, limit)
                parameter.grad = None


class Adam:
    """Adam (Kingma and Ba, 2015), as torch.optim.Adam and AdamW; its ε are the `floors`, but at least `eps`."""

    def __init__(
        self, trained: Trained, betas: tuple[float, float] = (BETA1, BETA2), eps: float = 0.0, weight_decay: float = 0.0,
        shrink: float = 0.0,
    ) -> None:  # fmt: skip
        floors: list[Floor] = [floor.clamp(min=eps) if isinstance(floor, Tensor) else max(floor, eps) for floor in trained.floors]
        self.trained, self.betas, self.weight_decay, self.shrink = trained._replace(floors=floors), betas, weight_decay, shrink
        self.steps, vectors = 0, trained.vectors
        self._stretches = [_stretches(floor, len(vector)) for floor, vector in zip(floors, vectors, strict=True)]
        self.moments = [(torch.zeros_like(p, requires_grad=False), torch.zeros_like(p, requires_grad=False)) for p in vectors]

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradients, and forget them."""
        self.steps += 1
        vectors, lr, floors, limits, decayed = self.trained
        rate = lr / (1 - self.betas[0] ** self.steps)
        correction = math.sqrt(1 - self.betas[1] ** self.steps)
        usual = self.betas == (BETA1, BETA2)  # on a CPU that is one pass over memory
        for number, (parameter, moments) in enumerate(zip(vectors, self.moments, strict=True)):
            if parameter.grad is not None:
                limit, part = limits[number], decayed[number]
                if self.shrink:
                    parameter[part].mul_(1 - lr * self.shrink)
                gradient = _decaying(parameter, parameter.grad, part, self.weight_decay)
                if usual and parameter.device.type == "cpu" and parameter.dtype == torch.float32:
                    _in_one_pass(parameter, gradient, *moments, rate, correction, self._stretches[number], limit)
                else:
                    _in_several(parameter, gradient, *moments, self.betas, rate, correction, floors[number], limit)
                parameter.grad = None


def _decaying(w: Tensor, g: Tensor, part: slice, weight_decay: float) -> Tensor:
    """The gradient with that of weight_decay/2·‖w‖², in place."""
    if weight_decay:
        g[part].add_(w[part], alpha=weight_decay)
    return g


def _in_several(
    w: Tensor, g: Tensor, first: Tensor, second: Tensor, betas: tuple[float, float], rate: float, fix: float, floor: Floor,
    limit: float,
) -> None:  # fmt: skip
    first.lerp_(g, 1 - betas[0])
    second.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
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


@optimizer
def adam(beta1: float = BETA1, beta2: float = BETA2, eps: float = 1e-8, weight_decay: float = 0.0) -> Optimizer:
    """Adam; weight_decay is part of the gradient."""
    _check_adam(beta1, beta2, eps, weight_decay)
    return Optimizer(partial(Adam, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay))


@optimizer
def sgd(momentum: float = 0.0, weight_decay: float = 0.0) -> Optimizer:
    """Gradient descent, with momentum and weight decay if wanted."""
    if not 0 <= momentum < 1:
        raise ConfigError(f"optimizer.momentum must be at least 0 and below 1, not {momentum}")
    _not_negative("weight_decay", weight_decay)

    return Optimizer(
        partial(Sgd, momentum=momentum, weight_decay=weight_decay), stride=1 / (1 - momentum), plain=momentum == weight_decay == 0
    )


@optimizer
def adamw(beta1: float = BETA1, beta2: float = BETA2, eps: float = 1e-8, weight_decay: float = 0.01) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""
    _check_adam(beta1, beta2, eps, weight_decay)
    return Optimizer(partial(Adam, betas=(beta1, beta2), eps=eps, shrink=weight_decay))


def _check_adam(beta1: float, beta2: float, eps: float, weight_decay: float) -> None:
    for name, beta in {"beta1": beta1, "beta2": beta2}.items():
        if not 0 <= beta < 1:
            raise ConfigError(f"optimizer.{name} must be at least 0 and below 1, not {beta}")
    if not 0 < eps < math.inf:
        raise ConfigError(f"optimizer.eps must be greater than 0, not {eps}")
    _not_negative("weight_decay", weight_decay)


def _not_negative(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ConfigError(f"optimizer.{name} must be 0 or more, not {value}")
