"""FedMRN (Li et al., ACM MM 2024): an update is noise that both ends derive, times a mask of one bit a weight.

In training the update u is replaced, more and more often, by noise n times a mask m, drawn so that the mean is u where u is between
0 and n.
"""

from __future__ import annotations

from functools import lru_cache, partial
from math import inf
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bifl import core
from bifl.core import BINARY, Algorithm, Client, Floats, Forward, Latent, Message, Public

if TYPE_CHECKING:
    from torch import Tensor


@lru_cache(maxsize=2)
def noise(key: int, count: int, width: float) -> Floats:
    """(count,) uniform on ±width, of a client and a round; only the generator's bits are used, so both ends draw the same."""
    return centred(core.random_words(np.random.Generator(np.random.PCG64(key)), count)) * np.float32(width)


def centred(words: npt.NDArray[np.uint64]) -> Floats:
    """Uniform on ±1 and never 0, by which updates are divided: 23 bits and a half are what a float holds exactly."""
    return ((words >> np.uint64(41)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-22) - 1


def weights(latent: Latent, width: float) -> Tensor:
    """Frozen weights plus masked noise, with probability `progress`, or else the update as far as noise can tell it."""
    import torch

    if not latent.training:
        return latent.aux
    update, dice = latent.aux - latent.start, latent.generator()
    drawn = torch.from_numpy(noise(latent.key, len(update), width)).to(update.device)
    share = (update / drawn).clamp(0, 1)
    mask = (share.detach() + torch.rand(len(update), generator=dice)).floor().clamp(0, 1)
    told = torch.where(torch.rand(len(update), generator=dice) < latent.progress, mask, share.detach())
    return latent.start + (told * drawn).detach() + (update - update.detach())


@core.register
def fedmrn(width: float = 0.01, down: str = "float") -> Algorithm:
    """FedMRN: updates that are masked random noise; a mask of one bit a weight up.

    Take it to compare with: docs/results.md has the methods of the field side by side.
    """
    core.require(0 < width < inf, "width", width, "greater than 0")

    def upload(client: Client, public: Public) -> Message:
        by, drawn = core.change(client, public), noise(public.forward_key(client.number), public.layout.count, width)
        return Message.of(core.round_at_random(by / drawn, 2, public.stream(client.number, "mask")), BINARY, client.real)

    def reads(upload: Message, public: Public) -> Message:
        drawn = noise(public.forward_key(upload.sender or 0), public.layout.count, width)
        return core.apply_change(upload, public, upload.update.symbols * drawn)

    forward = Forward("masked noise", partial(weights, width=width), scaled=False, clip=False, alphabet=core.real.alphabet)
    algorithm = Algorithm(upload, core.means, core.replace, reads=reads, forward=forward, keeps=())
    return core.compress_broadcast(algorithm, down)
