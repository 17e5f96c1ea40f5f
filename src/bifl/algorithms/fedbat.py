"""FedBAT (Li et al., ICML 2024): clients learn to binarise their updates while they train.

In the second half of the steps the update u is replaced by ±α, at random so that the mean is right; a layer's α is trained too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bifl import core
from bifl.core import BINARY, Algorithm, Client, Forward, Latent, Message, Public, Server, Tally

if TYPE_CHECKING:
    from torch import Tensor

STEEPNESS, LEAST, MOST = 6.0, 5e-4, 5e-2  # α = clip(mean|u|·exp(6·(ϑ − 1)), 0.0005, 0.05)


def weights(latent: Latent) -> Tensor:
    """Frozen weights plus the update: as it is at first, then binarised. α's gradient is the authors'."""
    import torch

    from bifl.core.straight_through import spread

    update = latent.aux - latent.start
    if not latent.training or latent.scales is None or latent.progress < 0.5:
        return latent.aux
    parts = [part.abs().mean().detach() for part in torch.split_with_sizes(update, latent.sizes)]
    alphas = (torch.stack(parts) * torch.exp(STEEPNESS * (latent.scales - 1))).clamp(LEAST, MOST)
    alpha = spread(alphas, latent.sizes)
    share = (update / alpha).detach()
    dice = torch.rand(len(update), generator=latent.generator())
    signs = 2 * ((share + 1) / 2 + dice).floor().clamp(0, 1) - 1
    within = share.abs() <= 1
    soft = update * within + alpha * torch.where(within, signs - share, share.sign())  # its gradients are the authors'
    return latent.start + (alpha * signs).detach() + (soft - soft.detach())


def upload(client: Client, public: Public) -> Message:
    """The update binarised once more, with α of every layer."""
    layers, by = len(public.layout.layers), core.change(client, public)
    usual = public.layout.per_layer(by, core.mean_magnitude)
    alphas = np.clip(usual * np.exp(STEEPNESS * (client.real[:layers] - 1)), LEAST, MOST).astype(np.float32)
    bits = core.random_levels(by / public.layout.per_weight(alphas), 2, public.stream(client.number, "binarise"))
    return Message.of(bits, BINARY, client.real, alphas)


def broadcast(tally: Tally, public: Public, server: Server) -> Message:
    """The mean; ϑ, which stands for α in training, starts from 1 in every round."""
    news, layers = core.means(tally, public, server), len(public.layout.layers)
    return news._replace(real=np.concatenate([np.ones(layers, np.float32), news.real[layers:]]))


binarised = Forward("binarised update", weights, scaled=False, clip=False, alphabet=core.real.alphabet)


@core.register
def fedbat(down: str = "float") -> Algorithm:
    """FedBAT: updates that are binarised while clients train, with a trained scale a layer.

    Take it to compare with: docs/results.md has the methods of the field side by side.
    """
    algorithm = Algorithm(upload, broadcast, core.replace, reads=core.scaled_change, forward=binarised, keeps=())
    return core.compress_broadcast(algorithm, down)
