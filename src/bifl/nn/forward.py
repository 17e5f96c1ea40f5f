"""From auxiliary weights to the weights that a network computes with (paper §1).

Binary layer l computes ϑ_l·f_l(Sign(W̄_l), x). ϑ_l may as well multiply the weights, which is cheaper and what `flat` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bifl.message import BINARY, FLOAT32, Alphabet


class Latent(NamedTuple):
    """What the weights of a step may depend on."""

    aux: Tensor  # (count,) auxiliary weights, trained
    start: Tensor  # (count,) aux as this round's training began
    progress: float  # share of this round's steps already done; 1 when evaluated
    key: int  # of the client and round: the only randomness; 0 when evaluated


@dataclass(frozen=True)
class Forward:
    """How a network uses its auxiliary weights.

    Attributes:
        name: what tables call it; the names of `FORWARDS` stand in model files.
        weights: latent → (count,) weights, differentiable.
        scaled: whether each layer is multiplied by its trainable ϑ.
        clip: whether training keeps aux within [−1, 1].
        alphabet: what the weights of the finished model are made of.
    """

    name: str
    weights: Callable[[Latent], Tensor]
    scaled: bool
    clip: bool
    alphabet: Alphabet


class _StraightThroughSign(torch.autograd.Function):
    """Forward: Sign(w), Sign(0) = −1. Backward: the gradient w.r.t. the sign is applied to w unchanged."""

    @staticmethod
    def forward(ctx: Any, aux: Tensor) -> Tensor:
        return torch.gt(aux, 0, out=torch.empty_like(aux)).mul_(2).sub_(1)  # several times faster than torch.where with scalars

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def straight_through_sign(latent: Latent) -> Tensor:
    """±1 with the straight-through gradient."""
    signs: Tensor = _StraightThroughSign.apply(latent.aux)  # type: ignore[no-untyped-call]
    return signs


def _as_they_are(latent: Latent) -> Tensor:
    return latent.aux


binary = Forward("binary", straight_through_sign, scaled=True, clip=True, alphabet=BINARY)
real = Forward("real", _as_they_are, scaled=False, clip=False, alphabet=FLOAT32)
FORWARDS = {forward.name: forward for forward in (binary, real)}
