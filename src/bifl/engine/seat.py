"""A client at work, as an exchange sees it (`bifl.core.exchange.Seat`): the same in the simulator, the loop and a deployment."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import NamedTuple

import torch
from torch import Tensor

from bifl.attacks import attack, liars
from bifl.attacks.attack import true_labels
from bifl.core.algorithm import Algorithms
from bifl.core.exchange import Identity
from bifl.core.message import Floats
from bifl.core.randomness import stream
from bifl.core.state import Client, Public
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import plan
from bifl.nn.compute import Loss
from bifl.nn.network import Network
from bifl.training.local import train
from bifl.training.measuring import image_moments
from bifl.training.samples import Samples


class Workplace(NamedTuple):
    """What a client works with."""

    experiment: Experiment
    algorithm: Algorithms
    network: Network
    samples: Samples
    loss: Loss


def arrived(experiment: Experiment, client: Client, fresh: Floats, public: Public) -> Client:
    """A client as its turn comes. Where a run has a warm start, one that never trained begins with the public weights.

    Args:
        experiment: what is run.
        client: as it is remembered.
        fresh: aux of clients before their first round: the network's own initialisation, all that a node of a deployment has.
        public: the public state.
    """
    if not experiment.start or client.aux is not fresh:
        return client
    return client._replace(aux=public.weights, start=public.weights)


class Desk(NamedTuple):
    """What a client has to itself: the server's last letter to it, its notes, and its keys."""

    letter: bytes
    notes: MutableMapping[str, bytes]
    identity: Identity | None


class Seat:
    """One client in the round under way; `part` are its images among the samples."""

    def __init__(self, place: Workplace, part: Tensor, public: Public, client: Client, desk: Desk) -> None:
        self._place, self._part, self._public, self.client = place, part, public, client
        self.letter, self.notes, self.identity = desk

    def train(self, client: Client) -> tuple[Client, float]:
        """Local training in the round under way."""
        (experiment, algorithm, network, samples, loss), round = self._place, self._public.round + 1
        samples = self._believed(experiment, samples)
        return train(client, network, algorithm.at(round).forward, samples, self._part, plan(experiment, round), loss)

    def _believed(self, experiment: Experiment, samples: Samples) -> Samples:
        """The samples with the labels that a lying client trains on; usually as they are."""
        lies = attack.make(experiment.attack.name, experiment.attack.parameters)
        if lies is None or lies.labels is true_labels:
            return samples
        if self.client.number not in liars(experiment.seed, experiment.clients, lies.share):
            return samples
        own = samples.labels.cpu().numpy().copy()
        dice = stream(experiment.seed, 0, None, "attack labels")
        part = self._part.numpy()
        own[part] = lies.labels(own[part], int(own.max()) + 1, dice)
        return samples._replace(labels=torch.from_numpy(own).to(samples.labels.device))

    def measure(self) -> Floats:
        """Moments of the global network on some of the client's images."""
        (experiment, algorithm, network, samples, _), public = self._place, self._public
        forward, most = algorithm.at(public.round).forward, 2 * experiment.batch
        return image_moments(network, public, forward, samples, self._part, self.client.number, most)
