"""FedPM (Isik et al., ICLR 2023): weights are random and never trained; clients learn which of them to use.

A weight is used with probability σ(score). Clients upload a drawn mask, the server broadcasts how often each weight was used.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from bifl import core
from bifl.core import BINARY, VOTES, Algorithm, Client, Floats, Forward, Latent, Message, Public

if TYPE_CHECKING:
    from torch import Tensor

SURE = 0.01  # probabilities are kept this far from 0 and 1


@lru_cache(maxsize=2)
def frozen(sizes: tuple[int, ...], fan_in: tuple[int, ...]) -> Floats:
    """(count,) the weights: ±e/√fan_in, the same in every run."""
    magnitudes = np.repeat(np.e / np.sqrt(fan_in), sizes).astype(np.float32)
    return core.random_signs(core.stream(0, 0, None, "fedpm"), sum(sizes)) * magnitudes


def weights(latent: Latent) -> Tensor:
    """Drawn anew in every step; the gradient to a score is that to its mask times σ(score)."""
    import torch

    chance = latent.aux.sigmoid() if latent.training else (latent.aux + 1) / 2
    mask = torch.bernoulli(chance.detach(), generator=latent.generator())
    through = latent.aux * chance.detach()
    constant = torch.from_numpy(frozen(latent.sizes, latent.fan_in)).to(mask.device)
    return constant * (mask + (through - through.detach()))


def upload(client: Client, public: Public) -> Message:
    """A mask drawn of the scores."""
    dice = public.stream(client.number, "mask").random(len(client.aux), np.float32)
    return Message.of((dice < 1 / (1 + np.exp(-client.aux))).astype(np.uint8), BINARY, client.real)


def update(client: Client, public: Public, news: Message) -> Client:
    """Scores of the probabilities that were broadcast."""
    chance = np.clip((public.weights + 1) / 2, SURE, 1 - SURE)
    return client._replace(aux=np.log(chance / (1 - chance)).astype(np.float32))


masked = Forward("masked", weights, scaled=False, clip=False, alphabet=BINARY)


@core.register
def fedpm() -> Algorithm:
    """FedPM: masks of random weights; a drawn mask up, vote counts down. It wants a large learning rate: lr=0.1.

    Take it to compare with, also under secure_sum=true: docs/results.md has the methods of the field side by side.
    """
    return Algorithm(upload, core.votes, update, forward=masked, keeps=(), broadcasts=VOTES)
