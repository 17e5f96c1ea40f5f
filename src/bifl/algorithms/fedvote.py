"""FedVote (Yue et al., 2022): weights are tanh(1.5·h) in training, and clients vote for their signs at random.

A vote is +1 with probability (1 + w)/2, so the mean vote p is the mean weight; h starts again from atanh(p)/1.5. The model is
Sign(p).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bifl import core
from bifl.core import BINARY, VOTES, Algorithm, Client, Forward, Latent, Message, Public

if TYPE_CHECKING:
    from torch import Tensor

STEEPNESS = 1.5
SURE = 1e-4  # mean votes are kept this far from ±1


def weights(latent: Latent) -> Tensor:
    """Soft signs of h in training, signs of p otherwise."""
    return (STEEPNESS * latent.aux).tanh() if latent.training else (latent.aux > 0).to(latent.aux.dtype) * 2 - 1


def upload(client: Client, public: Public) -> Message:
    """A sign drawn for every weight."""
    dice = public.stream(client.number, "votes").random(len(client.aux), np.float32)
    return Message.of((dice * 2 - 1 < np.tanh(STEEPNESS * client.aux)).astype(np.uint8), BINARY, client.real)


def update(client: Client, public: Public, news: Message) -> Client:
    """h ← atanh(p)/1.5."""
    p = np.clip(public.weights, SURE - 1, 1 - SURE)
    return client._replace(aux=(np.arctanh(p) / STEEPNESS).astype(np.float32))


soft_signs = Forward("soft signs", weights, scaled=True, clip=False, alphabet=BINARY)


@core.register
def fedvote() -> Algorithm:
    """FedVote: a binary network trained by soft signs; one random vote a weight up, vote counts down.

    Take it to compare with, also under secure_sum=true: docs/results.md has the methods of the field side by side.
    """
    return Algorithm(upload, core.votes, update, forward=soft_signs, keeps=(), broadcasts=VOTES)
