"""The arithmetic of `bifl.core.forward`: signs and trits with the gradients that training gives them (paper §1, §5)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bifl.core.forward import TERNARY_THRESHOLD


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
        threshold = spread(
            torch.stack([part.abs().mean() for part in torch.split_with_sizes(aux, sizes)]).mul_(TERNARY_THRESHOLD), sizes
        )
        trits = (aux > threshold).to(aux.dtype) - (aux < -threshold).to(aux.dtype)
        factors = spread(scales, sizes)
        ctx.save_for_backward(trits, factors)
        ctx.sizes = sizes
        return trits * factors

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        trits, factors = ctx.saved_tensors
        kept = trits.abs()
        to_scales = torch.stack([part.sum() for part in torch.split_with_sizes(gradients[0] * trits, ctx.sizes)])
        return gradients[0] * (kept * factors + (1 - kept)), to_scales, None


def spread(per_layer: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """(layers,) → (count,)."""
    return torch.repeat_interleave(per_layer, torch.tensor(sizes, device=per_layer.device), output_size=sum(sizes))


def trained_ternary(aux: Tensor, scales: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """w_q·I with the gradients of trained ternary quantisation."""
    weights: Tensor = _TrainedTernary.apply(aux, scales, sizes)  # type: ignore[no-untyped-call]
    return weights
