"""The simulator's readable twin: one process, one list of clients, no bookkeeping. Tests hold the two to the same bytes.

>>> from bifl.experiment import Experiment
>>> news, shared = next(loop(Experiment(rounds=1, clients=2, algorithm="up_down")))
>>> shared.round, news.symbols.shape
(1, (81958,))
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from bifl import wire
from bifl.algorithm import Client, Message, Shared, absorb, client_turn, key, server_turn
from bifl.experiment import Experiment
from bifl.nn.flat import Network
from bifl.runtime import calibration
from bifl.runtime.bounds import Bounds
from bifl.runtime.world import World, build, context, judge, plan, sampled
from bifl.train import Samples, train


def loop(experiment: Experiment, kind: type[Network] = Network) -> Iterator[tuple[Message, Shared]]:
    """Each round's broadcast and the public state after it; with `kind=PlainNetwork` in PyTorch's own layers throughout."""
    world = build(experiment, kind)
    shared, bounds = world.shared, Bounds(world)
    clients = [Client(shared.weights, shared.weights, shared.real, len(part), 0) for part in world.parts]
    counted: list[int] = []
    for round in range(1, experiment.rounds + 1):
        voters, known = sampled(experiment, len(clients), round), context(experiment, shared)
        uploads = []
        for number in voters if experiment.idle == "sleep" else range(len(clients)):
            client = clients[number]._replace(key=key(experiment.seed, round, number), voted=number in counted)
            local = partial(_train, world=world, shared=shared, number=number)
            clients[number], upload = client_turn(world.algorithm, client, shared, local)
            if number in voters:
                uploads.append(wire.encode(upload._replace(sender=number), known))
        ballots = (bounds.ballot(wire.decode(upload, known), shared) for upload in uploads)
        said = server_turn(world.algorithm, shared, ballots, judge(world, round))
        said = said._replace(real=calibration.discreet(said.real, shared, experiment, world.algorithm))
        news = wire.decode(wire.encode(said, known), known)
        shared = absorb(world.algorithm, shared, news)
        if calibration.wanted(experiment, world.algorithm, shared):
            shared = _recalibrated(shared, world, voters, bounds)
        counted = voters
        yield news, shared


def _recalibrated(shared: Shared, world: World, voters: list[int], bounds: Bounds) -> Shared:
    samples, known = Samples.of(world.data.images, world.data.labels, world.data), calibration.context(world.experiment, shared)
    said = []
    for number in voters:
        part = torch.from_numpy(world.parts[number])
        message = calibration.measured(shared, world.algorithm, world.network, samples, part, number, world.experiment.batch)
        said.append(wire.decode(wire.encode(message, known), known))
    news = calibration.pooled(bounds.statistics(said, shared), shared.round)
    return calibration.settled(shared, wire.decode(wire.encode(news, known), known))


def _train(client: Client, world: World, shared: Shared, number: int) -> Client:
    data = world.data
    samples = Samples.of(data.images, data.labels, data)
    index = torch.from_numpy(world.parts[number])
    forward = world.algorithm.at(shared.round + 1).forward
    trained, _ = train(client, world.network, forward, samples, index, plan(world.experiment, shared.round + 1))
    return trained._replace(real=calibration.discreet(trained.real, shared, world.experiment, world.algorithm))
