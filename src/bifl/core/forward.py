"""How a network is trained: which weights it computes with, given the auxiliary ones (paper §1, §5), and what steps add.

Binary layer l computes ϑ_l·f_l(Sign(W̄_l), x). ϑ_l may as well multiply the weights, which is cheaper and what networks do.
Ternary layer l computes f_l(w_q·I, x) with I ∈ {−1, 0, 1}; its w_q is ϑ_l too.

A step of local training moves the trained weights w by the gradient of the loss on a batch, plus what an algorithm adds (`Local`):

    correction + pull · (w − centre) + gradient of `loss` at w

FedProx is a pull towards the weights that the round began with, SCAFFOLD a correction by how clients' gradients differ.

PyTorch is imported when a network computes: an algorithm can be described without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bifl.core.message import BINARY, FLOAT32, TERNARY, Alphabet, Floats

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Latent(NamedTuple):
    """What the weights of a step may depend on."""

    aux: Tensor  # (count,) auxiliary weights, trained
    start: Tensor  # (count,) aux as this round's training began
    progress: float = 1.0  # share of this round's steps already done; 1 when evaluated
    key: int = 0  # of the client and round: the only randomness, see `generator`
    scales: Tensor | None = None  # (layers,) ϑ, trained; the network puts it here
    sizes: tuple[int, ...] = ()  # how many of aux belong to each layer; the network puts it here
    fan_in: tuple[int, ...] = ()  # how many inputs an output of each layer has; the network puts it here
    step: int = 0  # of this round's training
    training: bool = False  # as opposed to evaluating

    def generator(self) -> torch.Generator:
        """Random numbers of this step, the same whenever the step is computed again."""
        import torch

        return torch.Generator(self.aux.device).manual_seed((self.key + 0x9E3779B97F4A7C15 * (self.step + 1)) & (2**63 - 1))


def everything(layer: int, layers: int, attribute: str) -> bool:
    """All weights and biases of the layers are coded."""
    return True


def inner_weights(layer: int, layers: int, attribute: str) -> bool:
    """Only weights, and not those of the first and last layer, are coded."""
    return 0 < layer < layers - 1 and attribute == "weight"


@dataclass(frozen=True)
class Forward:
    """How a network uses its auxiliary weights."""

    name: str  # what tables call it; the names of `FORWARDS` stand in model files
    weights: Callable[[Latent], Tensor]  # (count,) weights, differentiable
    scaled: bool  # whether each layer is multiplied by its trainable ϑ
    clip: bool  # whether training keeps aux within [−1, 1]
    alphabet: Alphabet  # what the weights of the finished model are made of
    # (layer, number of layers, weight or bias) → whether that tensor is coded; the others stay real and are averaged
    codes: Callable[[int, int, str], bool] = everything
    straight: bool = False  # whether the gradient w.r.t. aux is that w.r.t. the weights, so that nobody need ask autograd
    all_layers: bool = False  # whether all layers but norms are coded, not convolutions and linear layers alone

    @property
    def of_scores(self) -> bool:
        """Whether aux are scores of weights that never change, as masks have them: they are no network's weights."""
        return self.alphabet == BINARY and not self.scaled


def _signs(latent: Latent) -> Tensor:
    from bifl.core.straight_through import straight_through_sign

    return straight_through_sign(latent.aux)


def _as_they_are(latent: Latent) -> Tensor:
    return latent.aux


def _trits(latent: Latent) -> Tensor:
    """w_q·I while training. What the server broadcast is ternary already, or meant to be used as it is: then w_q times that."""
    from bifl.core.straight_through import spread, trained_ternary

    if latent.scales is None or not latent.sizes:
        return latent.aux
    if not latent.training:
        return latent.aux * spread(latent.scales, latent.sizes)
    return trained_ternary(latent.aux, latent.scales, latent.sizes)


binary = Forward("binary", _signs, scaled=True, clip=True, alphabet=BINARY, straight=True)
real = Forward("real", _as_they_are, scaled=False, clip=False, alphabet=FLOAT32, straight=True, all_layers=True)
ternary = Forward("ternary", _trits, scaled=False, clip=False, alphabet=TERNARY, codes=inner_weights)
FORWARDS = {forward.name: forward for forward in (binary, real, ternary)}


class Local(NamedTuple):
    """What every local step of one client in one round adds."""

    correction: Floats | None = None  # (count,) added to the gradient w.r.t. the coded weights
    pull: float = 0.0  # µ of µ/2·‖w − centre‖² in the loss, over the coded weights and the trained real parameters
    centre: tuple[Floats, Floats] | None = None  # (count,) weights and (reals,) parameters; None: those as this training begins
    loss: Callable[[Tensor], Tensor] | None = None  # coded weights → a further term of the loss, a differentiable scalar


PLAIN = Local()
