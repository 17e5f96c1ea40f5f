"""From auxiliary weights to the weights that a network computes with (paper §1, §5).

Binary layer l computes ϑ_l·f_l(Sign(W̄_l), x). ϑ_l may as well multiply the weights, which is cheaper and what `flat` does.
Ternary layer l computes f_l(w_q·I, x) with I ∈ {−1, 0, 1}; its w_q is ϑ_l too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bifl.message import BINARY, FLOAT32, TERNARY, Alphabet

TERNARY_THRESHOLD = 0.7  # Δ / mean|θ|: FTTQ's (paper §5)


class Latent(NamedTuple):
    """What the weights of a step may depend on."""

    aux: Tensor  # (count,) auxiliary weights, trained
    start: Tensor  # (count,) aux as this round's training began
    progress: float  # share of this round's steps already done; 1 when evaluated
    key: int  # of the client and round: the only randomness; 0 when evaluated
    scales: Tensor | None = None  # (layers,) ϑ, trained; `Network.place` puts it here
    sizes: tuple[int, ...] = ()  # how many of aux belong to each layer


def everything(layer: int, layers: int, attribute: str) -> bool:
    """All weights and biases of convolutions and linear layers are coded."""
    return True


def inner_weights(layer: int, layers: int, attribute: str) -> bool:
    """Only weights, and not those of the first and last layer, are coded."""
    return 0 < layer < layers - 1 and attribute == "weight"


@dataclass(frozen=True)
class Forward:
    """How a network uses its auxiliary weights.

    Attributes:
        name: what tables call it; the names of `FORWARDS` stand in model files.
        weights: latent → (count,) weights, differentiable.
        scaled: whether each layer is multiplied by its trainable ϑ.
        clip: whether training keeps aux within [−1, 1].
        alphabet: what the weights of the finished model are made of.
        codes: (layer, number of layers, weight or bias) → whether that tensor is coded; the others stay real and are averaged.
        straight: whether the gradient w.r.t. aux is that w.r.t. the weights, so that nobody need ask autograd.
    """

    name: str
    weights: Callable[[Latent], Tensor]
    scaled: bool
    clip: bool
    alphabet: Alphabet
    codes: Callable[[int, int, str], bool] = everything
    straight: bool = False


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


class _TrainedTernary(torch.autograd.Function):
    """Forward: w_q·I, I = θ > Δ minus θ < −Δ, Δ = 0.7·mean|θ| per layer.

    Backward: to θ goes w_q·g where |θ| > Δ and g elsewhere, to w_q goes Σ g·I.
    """

    @staticmethod
    def forward(ctx: Any, aux: Tensor, scales: Tensor, sizes: tuple[int, ...]) -> Tensor:
        threshold = _spread(
            torch.stack([part.abs().mean() for part in torch.split_with_sizes(aux, sizes)]).mul_(TERNARY_THRESHOLD), sizes
        )
        trits = (aux > threshold).to(aux.dtype) - (aux < -threshold).to(aux.dtype)
        factors = _spread(scales, sizes)
        ctx.save_for_backward(trits, factors)
        ctx.sizes = sizes
        return trits * factors

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        trits, factors = ctx.saved_tensors
        kept = trits.abs()
        to_scales = torch.stack([part.sum() for part in torch.split_with_sizes(gradients[0] * trits, ctx.sizes)])
        return gradients[0] * (kept * factors + (1 - kept)), to_scales, None


def _spread(per_layer: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """(layers,) → (count,)."""
    return torch.repeat_interleave(per_layer, torch.tensor(sizes), output_size=sum(sizes))


def trained_ternary(latent: Latent) -> Tensor:
    """w_q·I while training. What the server broadcast is ternary already, or meant to be used as it is: then w_q times that."""
    if latent.scales is None or not latent.sizes:
        return latent.aux
    if latent.progress == 1:
        return latent.aux * _spread(latent.scales, latent.sizes)
    weights: Tensor = _TrainedTernary.apply(latent.aux, latent.scales, latent.sizes)  # type: ignore[no-untyped-call]
    return weights


binary = Forward("binary", straight_through_sign, scaled=True, clip=True, alphabet=BINARY, straight=True)
real = Forward("real", _as_they_are, scaled=False, clip=False, alphabet=FLOAT32, straight=True)
ternary = Forward("ternary", trained_ternary, scaled=False, clip=False, alphabet=TERNARY, codes=inner_weights)
FORWARDS = {forward.name: forward for forward in (binary, real, ternary)}
