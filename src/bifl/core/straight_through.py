"""The arithmetic of `bifl.core.forward`: signs and trits with the gradients that training gives them (paper §1, §5)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bifl.core.message import TERNARY_THRESHOLD


class _StraightThroughSign(torch.autograd.Function):
    """Forward: Sign(w), Sign(0) = −1. Backward: the gradient w.r.t. the sign is applied to w unchanged."""

    @staticmethod
    def forward(ctx: Any, aux: Tensor) -> Tensor:
        return torch.gt(aux, 0, out=torch.empty_like(aux)).mul_(2).sub_(1)  # several times faster than torch.where with scalars

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def straight_through_sign(aux: Tensor) -> Tensor:
    """±1 with the straight-through gradient."""
    signs: Tensor = _StraightThroughSign.apply(aux)  # type: ignore[no-untyped-call]
    return signs


class _TrainedTernary(torch.autograd.Function):
    """Forward: w_q·I, I = θ > Δ minus θ < −Δ, Δ = 0.7·mean|θ| per layer.

    Backward: to θ goes w_q·g where |θ| > Δ and g elsewhere, to w_q goes Σ g·I.
    """

    @staticmethod
    def forward(ctx: Any, aux: Tensor, scales: Tensor, sizes: tuple[int, ...]) -> Tensor:
        trits, weights = torch.empty_like(aux), torch.empty_like(aux)
        for part, own, scaled, factor in zip(*_layers(sizes, aux, trits, weights), scales, strict=True):
            threshold = part.abs().mean().mul_(TERNARY_THRESHOLD)
            torch.gt(part, threshold, out=own).sub_(torch.lt(part, -threshold, out=scaled))
            torch.mul(own, factor, out=scaled)
        ctx.save_for_backward(trits, scales)
        ctx.sizes = sizes
        return weights

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        trits, scales = ctx.saved_tensors
        to_aux, to_scales = torch.empty_like(trits), []
        for gradient, own, product, factor in zip(*_layers(ctx.sizes, gradients[0], trits, to_aux), scales, strict=True):
            to_scales.append(torch.mul(gradient, own, out=product).sum())
            kept = own.abs()  # torch.where would take three times as long
            torch.mul(kept, factor, out=product).add_(kept.neg_().add_(1)).mul_(gradient)
        return to_aux, torch.stack(to_scales), None


def _layers(sizes: tuple[int, ...], *vectors: Tensor) -> list[tuple[Tensor, ...]]:
    """Each vector cut into layers: what all of a layer is multiplied by need not be as long as the vector."""
    return [torch.split_with_sizes(vector, sizes) for vector in vectors]


def spread(per_layer: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """(layers,) → (count,)."""
    return torch.repeat_interleave(per_layer, torch.tensor(sizes, device=per_layer.device), output_size=sum(sizes))


def trained_ternary(aux: Tensor, scales: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """w_q·I with the gradients of trained ternary quantisation."""
    weights: Tensor = _TrainedTernary.apply(aux, scales, sizes)  # type: ignore[no-untyped-call]
    return weights
