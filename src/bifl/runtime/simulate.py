"""The simulator: many clients on one machine, sending each other exactly the bytes that a deployment would.

>>> from bifl.experiment import Experiment
>>> for record in simulate(Experiment(rounds=1, clients=2, workers=1)):
...     print(record.round, record.clients, round(record.up_bpp, 2))
1 2 0.95
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bifl import wire
from bifl.algorithm import Message, Shared, absorb, server_turn
from bifl.errors import RunError
from bifl.experiment import Experiment
from bifl.model import Model
from bifl.runtime import calibration, checkpoint
from bifl.runtime.mailbox import BROADCAST, STATISTICS, Mailbox
from bifl.runtime.pool import Pool
from bifl.runtime.record import Record, Traffic, flips, layer_flips, spread, sureness
from bifl.runtime.worker import Task, Turn
from bifl.runtime.world import World, build, context, judge, sampled
from bifl.tally import ExactSum


def simulate(experiment: Experiment) -> Simulation:
    """Run an experiment: iterate over the result for one `Record` per round."""
    return Simulation(experiment)


class Simulation:
    """An experiment under way: an iterable of records.

    Args:
        experiment: what to run.
        folder: where a checkpoint is written after every round, and taken from if there is one; None keeps nothing.
        mailbox: keeps a copy of every message, if given.

    Attributes:
        shared: the global model after the last round.
        last: the record of the last complete round, if any.
    """

    def __init__(self, experiment: Experiment, folder: Path | None = None, mailbox: Mailbox | None = None) -> None:
        self.experiment = experiment
        self.world: World = build(experiment)
        self.shared: Shared = self.world.shared
        self.last: Record | None = None
        self._folder, self._mailbox = folder, mailbox
        self._trained: dict[int, int] = {}  # client → the last round in which it trained
        self._begun = False
        if folder is not None and (state := checkpoint.load_server(folder, self.shared)):
            self.shared, self.last, self._trained = state

    def model(self) -> Model:
        """The global model as it stands."""
        forward = self.world.algorithm.at(max(self.shared.round, 1)).forward
        return Model.of(self.experiment.model, self.world.network, self.world.data, self.shared, forward)

    def __iter__(self) -> Iterator[Record]:
        if self.shared.round >= self.experiment.rounds:
            return  # without starting workers
        if self._begun and self._folder is None:
            raise RunError("a simulation without a folder can be iterated only once: its clients are gone when the loop is left")
        self._begun = True
        with Pool(self.world._replace(shared=self.shared), self._folder, self._trained) as pool:
            while self.shared.round < self.experiment.rounds:
                self.last = self._round(pool)
                yield self.last

    def _round(self, pool: Pool) -> Record:
        began, before = time.perf_counter(), self.shared
        round, clients = before.round + 1, len(self.world.parts)
        voters = set(sampled(self.experiment, clients, round))
        counted = set(sampled(self.experiment, clients, round - 1)) if round > 1 else set()
        sleeping = self.experiment.idle == "sleep"
        awake = sorted(voters) if sleeping else range(clients)
        known = context(self.experiment, before)
        booth = Booth(self.world, known, self._keep)
        turns = pool.turns([Task(n, n in counted, n in voters) for n in awake])
        news = server_turn(self.world.algorithm, before, booth.ballots(turns), judge(self.world, round))
        news = news._replace(real=calibration.discreet(news.real, before, self.experiment, self.world.algorithm))
        data = wire.encode(news, known)
        self._keep(BROADCAST, data)
        after = absorb(self.world.algorithm, before, wire.decode(data, known))  # what the clients will read
        pool.hear(data)
        receivers = len(sampled(self.experiment, clients, round + 1)) if sleeping else clients
        traffic = Traffic(len(voters), booth.bytes, receivers, len(data), booth.ideal, wire.ideal_size(data, news, known))
        if calibration.wanted(self.experiment, self.world.algorithm, after):
            after, extra = self._recalibrate(pool, voters, after)
            traffic = traffic.plus(*extra)
        evaluation = pool.score()
        if self.world.algorithm.at(round).central:  # nothing leaves the one machine
            traffic = Traffic(len(voters), 0, receivers, 0)
        record = Record(
            round=round,
            accuracy=evaluation.accuracy,
            loss=evaluation.loss,
            train_loss=float(booth.losses.mean()),
            flips=flips(before, after),
            layer_flips=layer_flips(before, after),
            sureness=sureness(news),
            seconds=float(f"{time.perf_counter() - began:.3f}"),
            **traffic.fields(before.layout.parameters),
            **spread(evaluation.clients),
        )
        trained = self._trained | dict.fromkeys(awake, round)
        if self._folder is not None:
            checkpoint.save_server(self._folder, checkpoint.State(after, record, trained))
        self.shared, self._trained = after, trained
        return record

    def _recalibrate(self, pool: Pool, voters: set[int], shared: Shared) -> tuple[Shared, tuple[int, int]]:
        """Give the new global network statistics of its own; the bytes that went up, and those of the broadcast."""
        known, sizes = calibration.context(self.experiment, shared), []

        def opened(uploads: Iterable[bytes]) -> Iterator[Message]:
            for upload in uploads:
                sizes.append(len(upload))
                message = wire.decode(upload, known)
                self._keep(f"statistics-{message.sender:05d}", upload)
                yield message

        data = wire.encode(calibration.pooled(opened(pool.measure(voters)), shared.round), known)
        self._keep(STATISTICS, data)
        pool.settle(data)
        return calibration.settled(shared, wire.decode(data, known)), (sum(sizes), len(data))

    def _keep(self, name: str, data: bytes) -> None:
        if self._mailbox is not None:
            self._mailbox.keep(wire.read_header(data).round, name, data)


class Booth:
    """Opens the envelopes: decodes uploads one by one as they come, and notes their bytes and training losses."""

    def __init__(self, world: World, context: wire.Context, keep: Callable[[str, bytes], None]) -> None:
        self._world, self._context, self._keep = world, context, keep
        self.bytes = 0
        self.ideal: float | None = 0.0  # bytes, if the coder were ideal
        self.losses = ExactSum()

    def ballots(self, turns: Iterable[Turn]) -> Iterator[Message]:
        """The uploads in the order in which they arrive."""
        for turn in turns:
            self.losses.add(turn.loss, len(self._world.parts[turn.number]))
            if turn.upload is not None:
                self.bytes += len(turn.upload)
                self._keep(f"upload-{turn.number:05d}", turn.upload)
                upload = wire.decode(turn.upload, self._context)
                ideal = wire.ideal_size(turn.upload, upload, self._context)
                self.ideal = None if ideal is None or self.ideal is None else self.ideal + ideal
                yield upload
