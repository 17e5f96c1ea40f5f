"""What an experiment's settings stand for: data, split, network and the public state before the first round."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from bifl.algorithm import Algorithm, Schedule, Shared
from bifl.data.datasets import Dataset, dataset
from bifl.data.partition import Index, partition, split
from bifl.experiment import Experiment
from bifl.nn.flat import Network
from bifl.nn.models import model
from bifl.train import Plan, schedule


class World(NamedTuple):
    """An experiment with everything loaded and dealt out."""

    experiment: Experiment
    algorithm: Algorithm | Schedule
    data: Dataset
    network: Network
    parts: list[Index]  # images of each client
    shared: Shared  # before the first round: the common initialisation


def build(experiment: Experiment, kind: type[Network] = Network) -> World:
    """Load the data, deal it out, initialise the model; `kind` may be a network that computes in its own way."""
    algorithm = experiment.build()
    data = _load(experiment.dataset.name, tuple(experiment.dataset.parameters.items()))
    deal = partition.make(experiment.partition.name, experiment.partition.parameters)
    if algorithm.at(1).central:
        parts = [np.arange(len(data.labels))]
    else:
        parts = split(deal, data.labels, experiment.clients, experiment.seed)
    network = make_network(experiment, data.classes, kind)
    shared = Shared(experiment.seed, 0, network.layout, *network.initial())
    return World(experiment, algorithm, data, network, parts, shared)


@lru_cache(maxsize=1)
def _load(name: str, parameters: tuple[tuple[str, Any], ...]) -> Dataset:
    """A dataset, read once for several runs in a row."""
    return dataset.make(name, dict(parameters))


def make_network(experiment: Experiment, classes: int, kind: type[Network] = Network) -> Network:
    """The experiment's network with the initialisation that its seed gives."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed)
        return kind(model.make(experiment.model.name, experiment.model.parameters, classes))


def sampled(experiment: Experiment, clients: int, round: int) -> list[int]:
    """The clients that upload in a round: a random ⌈λM⌉ of them."""
    count = max(1, math.ceil(experiment.participation * clients - 1e-9))  # 0.07·100 is 7, not 7.000000000000001
    generator = np.random.default_rng([experiment.seed, round, 1])
    return sorted(generator.permutation(clients)[:count].tolist())


def plan(experiment: Experiment, round: int) -> Plan:
    """How clients train in a round."""
    lr = schedule(round, experiment.lr, experiment.lr_steps)
    return Plan(experiment.optimizer, lr, experiment.batch, experiment.local_epochs)
