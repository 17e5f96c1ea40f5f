"""A client's own network: the one it would have in its hands after training once more, before anything is sent.

It reacts to the last broadcast as in every round and trains on its own images, with the random streams of the next round. Where
clients keep private weights it begins with those, otherwise with the global ones: then it is the global network, fine-tuned.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from bifl.core.forward import Forward, Latent
from bifl.core.layout import Layout
from bifl.core.message import TERNARY, Floats
from bifl.core.state import Client, Public
from bifl.engine.worker import Job, Worker
from bifl.errors import RunError
from bifl.experiment.model import Model
from bifl.experiment.setup import Setup
from bifl.nn.batch import Samples
from bifl.training.evaluation import image_moments

_MOST = 1024  # images to measure batch-norm on


def from_checkpoint(setup: Setup, number: int, voted: bool, folder: Path | None, trained: Mapping[int, int]) -> Client:
    """A client after training once more, from what is remembered of it.

    Args:
        setup: what is run, with the public state as it stands.
        number: of the client.
        voted: whether its ballot is in the last broadcast.
        folder: with clients' state; None where there is none.
        trained: client → the last round in which it trained.
    """
    past = {number: trained[number]} if number in trained else {}
    if past and folder is None and setup.run.algorithm.at(past[number]).keeps:
        raise RunError(
            f"what client {number} remembers is gone with the loop: ask for its model inside the loop, or give simulate a folder"
        )
    parts, shards = {number: setup.parts[number]}, {number: setup.shards[number]}
    job = Job(setup.run, parts, shards, [], setup.public, folder, past)
    return Worker(job, setup.data).train(number, voted)


def own_model(setup: Setup, public: Public, client: Client) -> Model:
    """The model that a client has after training, which it began with this public state.

    Batch-norm's statistics are measured in it on the client's own images: the running ones of a few steps are half those of the
    global network, which its own is far from by then.
    """
    algorithm = setup.run.algorithm.at(public.round + 1)
    forward = algorithm.forward
    if forward.of_scores:
        raise RunError(f"clients of algorithm '{algorithm.name}' train scores of constant weights: they have no own network")
    weights = _trits(client, forward, public.layout) if forward.alphabet == TERNARY else client.aux
    local = public._replace(weights=weights, real=client.real)
    if public.layout.moments:
        samples = Samples.training(setup.data)
        part = torch.from_numpy(setup.parts[client.number])
        moments = image_moments(setup.run.network, local, forward, samples, part, client.number, _MOST)
        local = local._replace(real=np.concatenate([client.real[: public.layout.trained], moments]))
    return Model.of(setup.run, setup.data, local, forward)


@torch.no_grad()
def _trits(client: Client, forward: Forward, layout: Layout) -> Floats:
    """What a ternary network makes of its auxiliary weights while it trains."""
    aux, scales = torch.from_numpy(client.aux), torch.from_numpy(client.real[: len(layout.layers)].copy())
    flat = forward.weights(Latent(aux, aux, scales=scales, sizes=layout.sizes, fan_in=layout.fan_in, training=True))
    return np.sign(flat.numpy() * layout.per_weight(np.sign(scales.numpy()))).astype(np.float32)
