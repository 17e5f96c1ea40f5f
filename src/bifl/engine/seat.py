"""A client at work, as an exchange sees it (`bifl.core.exchange.Seat`): the same in the simulator, the loop and a deployment."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from bifl.core.algorithm import Algorithms
from bifl.core.message import Floats
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


class Seat:
    """One client in the round under way; `part` are its images among the samples."""

    def __init__(self, place: Workplace, part: Tensor, public: Public, client: Client) -> None:
        self._place, self._part, self._public, self.client = place, part, public, client

    def train(self, client: Client) -> tuple[Client, float]:
        """Local training in the round under way."""
        (experiment, algorithm, network, samples, loss), round = self._place, self._public.round + 1
        return train(client, network, algorithm.at(round).forward, samples, self._part, plan(experiment, round), loss)

    def measure(self) -> Floats:
        """Moments of the global network on some of the client's images."""
        (experiment, algorithm, network, samples, _), public = self._place, self._public
        forward, most = algorithm.at(public.round).forward, 2 * experiment.batch
        return image_moments(network, public, forward, samples, self._part, self.client.number, most)
