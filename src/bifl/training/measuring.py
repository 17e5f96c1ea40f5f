"""What batch-norm sees in a network: the moments of its inputs, on a client's images or on noise."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from bifl.core.forward import Forward
from bifl.core.message import Floats
from bifl.core.randomness import stream
from bifl.core.state import Public
from bifl.data.inputs import FLAGS, FLOATS, TOKENS, Form
from bifl.nn.batch import INPUT, Batch
from bifl.nn.network import Network
from bifl.training.samples import Samples
from bifl.training.threads import one_thread

_NOISE = 64  # images


@one_thread()
@torch.no_grad()
def image_moments(
    network: Network, public: Public, forward: Forward, samples: Samples, part: Tensor, number: int, most: int
) -> Floats:
    """(moments,) of the inputs of every batch-norm in the public model, on at most so many of a client's images."""
    network.show(public.weights, public.real, forward)
    network.train_norms()
    order = stream(public.seed, public.round, number, "statistics").permutation(len(part))
    return network.input_moments(samples.batch(part[torch.from_numpy(order[:most])]))


@one_thread()
@torch.no_grad()
def noise_squares(network: Network, public: Public, forward: Forward, form: Form) -> Floats:
    """(channels,) E[x²] of every batch-norm input where inputs are noise: random tokens that all embeddings know, or numbers.

    Half of the numbers' noise is the same all over an input. What a network takes beside inputs is as in `example`.
    """
    network.show(public.weights, public.real, forward)
    network.train_norms()
    dice = np.random.default_rng(0)
    beside, shape = example(form, _NOISE), form.shape
    if form.kind == TOKENS:
        known = [child.num_embeddings for child in network.module.modules() if isinstance(child, nn.Embedding | nn.EmbeddingBag)]
        drawn = torch.from_numpy(dice.integers(min(known, default=1), size=(_NOISE, *shape)))
        return np.split(network.input_moments(_on(network, {**beside, INPUT: drawn})), 2)[1]
    images = (dice.standard_normal((_NOISE, *shape)) + dice.standard_normal((_NOISE, *[1] * len(shape)))) / np.sqrt(2)
    noise = torch.from_numpy(images.astype(np.float32))
    noise = noise.to(memory_format=torch.channels_last) if noise.dim() == 4 else noise
    _, squares = np.split(network.input_moments(_on(network, {**beside, INPUT: noise})), 2)
    return squares


def example(form: Form, count: int) -> Batch:
    """Samples to try a network out with: inputs are 0 or the largest token, what lies beside them 1, true or its largest token."""
    batch = {INPUT: torch.full((count, *form.shape), form.largest) if form.kind == TOKENS else torch.zeros(count, *form.shape)}
    for name, one in form.further.items():
        full: dict[str, bool | float] = {FLAGS: True, FLOATS: 1.0, TOKENS: one.largest}
        batch[name] = torch.full((count, *one.shape), full[one.kind])
    return batch


def _on(network: Network, batch: Batch) -> Batch:
    """The batch where the network computes."""
    return {name: found.to(network.device) for name, found in batch.items()}
