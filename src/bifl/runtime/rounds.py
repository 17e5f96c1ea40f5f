"""A round from ballots to record, the same whoever trains: worker processes on this machine, or nodes of a federation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from bifl import wire
from bifl.algorithm import Message, Shared, absorb, server_turn
from bifl.errors import RunError
from bifl.experiment import Experiment
from bifl.model import Model
from bifl.runtime import calibration, checkpoint
from bifl.runtime.bounds import Bounds
from bifl.runtime.mailbox import BROADCAST, STATISTICS, Mailbox
from bifl.runtime.record import Record, Traffic, flips, layer_flips, spread, sureness
from bifl.runtime.turns import Evaluation, NobodyVotes, Task, Troubles, Turn
from bifl.runtime.world import World, context, judge, sampled
from bifl.tally import ExactSum


class Clients(Protocol):
    """Those who train, as a round sees them."""

    def barred(self) -> Collection[int]:
        """A round begins: the clients that may not take part in it."""

    def turns(self, tasks: list[Task]) -> Iterator[Turn]:
        """Let clients train; each turn as soon as it is done, in no particular order. Not every task need be done.

        Raises:
            NobodyVotes: those who were to upload are barred by now.
        """

    def hear(self, news: bytes, after: Shared) -> Collection[int]:
        """Tell a broadcast, with which the public state is `after`; the clients that are there to hear it."""

    def measure(self, clients: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """What clients say of batch-norm in the global network: number and upload."""

    def settle(self, news: bytes, after: Shared) -> None:
        """Tell the pooled statistics."""

    def score(self) -> Evaluation:
        """Evaluate the global model."""

    def opened(self, number: int, upload: bytes, context: wire.Context) -> Message | None:
        """What a client said; None if that cannot be counted, which is then noted."""

    def troubles(self) -> Troubles:
        """What went wrong since the last round."""


class Rounds:
    """An experiment under way: an iterable of records.

    Args:
        experiment: what to run.
        world: the same with everything loaded.
        folder: where a checkpoint is written after every round, and taken from if there is one; None keeps nothing.
        mailbox: keeps a copy of every message, if given.

    Attributes:
        shared: the global model after the last round.
        last: the record of the last complete round, if any.
    """

    def __init__(self, experiment: Experiment, world: World, folder: Path | None = None, mailbox: Mailbox | None = None) -> None:
        self.experiment, self.world = experiment, world
        self.shared: Shared = world.shared
        self.last: Record | None = None
        self._folder, self._mailbox = folder, mailbox
        self._trained: dict[int, int] = {}  # client → the last round in which it trained
        self._counted: frozenset[int] = frozenset()  # the clients whose ballots are in the last broadcast
        self._begun = False
        self._bounds = Bounds(world)
        if folder is not None and (state := checkpoint.load_server(folder, self.shared)):
            self.shared, self.last, self._trained, self._counted = state

    def model(self) -> Model:
        """The global model as it stands."""
        forward = self.world.algorithm.at(max(self.shared.round, 1)).forward
        return Model.of(self.experiment.model, self.world.network, self.world.data, self.shared, forward)

    def __iter__(self) -> Iterator[Record]:
        if self.shared.round >= self.experiment.rounds:
            return  # without starting anyone
        if self._begun and self._folder is None:
            raise RunError("a simulation without a folder can be iterated only once: its clients are gone when the loop is left")
        self._begun = True
        with self._clients() as clients:
            while self.shared.round < self.experiment.rounds:
                try:
                    self.last = self._round(clients)
                except NobodyVotes:
                    continue
                yield self.last

    def _clients(self) -> AbstractContextManager[Clients]:
        """Those who train from now on."""
        raise NotImplementedError

    def _round(self, clients: Clients) -> Record:
        began, before = time.perf_counter(), self.shared
        round, count = before.round + 1, len(self.world.parts)
        barred = clients.barred()
        voters = set(sampled(self.experiment, count, round, barred))
        sleeping = self.experiment.idle == "sleep"
        known = context(self.experiment, before)
        booth = Booth(clients, known, self._keep)
        awake = sorted(voters) if sleeping else [n for n in range(count) if n not in barred]
        tasks = [Task(n, n in self._counted, n in voters) for n in awake]
        ballots = (self._bounds.ballot(ballot, before) for ballot in booth.ballots(clients.turns(tasks)))
        news = server_turn(self.world.algorithm, before, ballots, judge(self.world, round))
        news = news._replace(real=calibration.discreet(news.real, before, self.experiment, self.world.algorithm))
        data = wire.encode(news, known)
        self._keep(BROADCAST, data)
        after = absorb(self.world.algorithm, before, wire.decode(data, known))  # what the clients will read
        present = clients.hear(data, after)
        receivers = len(set(sampled(self.experiment, count, round + 1, barred)).intersection(present)) if sleeping else len(present)
        traffic = Traffic(len(booth.counted), booth.bytes, receivers, len(data), booth.ideal, wire.ideal_size(data, news, known))
        if calibration.wanted(self.experiment, self.world.algorithm, after):
            after, extra = self._recalibrate(clients, booth.counted, after)
            traffic = traffic.plus(*extra)
        evaluation, troubles = clients.score(), clients.troubles()
        traffic = traffic._replace(catch_up=troubles.catch_up_bytes)
        if self.world.algorithm.at(round).central:  # nothing leaves the one machine
            traffic = Traffic(len(booth.counted), 0, receivers, 0)
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
            refused=troubles.refused,
            missing=troubles.missing,
        )
        self._complete(checkpoint.State(after, record, self._trained | dict.fromkeys(booth.trained, round), booth.counted))
        return record

    def _complete(self, state: checkpoint.State) -> None:
        if self._folder is not None:
            checkpoint.save_server(self._folder, state)
        self.shared, _, self._trained, self._counted = state

    def _recalibrate(self, clients: Clients, voters: Iterable[int], shared: Shared) -> tuple[Shared, tuple[int, int]]:
        """Give the new global network statistics of its own; the bytes that went up, and those of the broadcast."""
        known = calibration.context(self.experiment, shared)
        sizes: list[int] = []

        def opened() -> Iterator[Message]:
            for number, upload in clients.measure(voters):
                message = clients.opened(number, upload, known)
                if message is not None:
                    sizes.append(len(upload))
                    self._keep(f"statistics-{number:05d}", upload)
                    yield message

        said = self._bounds.statistics(opened(), shared)
        if not said:
            return shared, (0, 0)  # everyone went away: the last statistics must do
        data = wire.encode(calibration.pooled(said, shared.round), known)
        self._keep(STATISTICS, data)
        after = calibration.settled(shared, wire.decode(data, known))
        clients.settle(data, after)
        return after, (sum(sizes), len(data))

    def _keep(self, name: str, data: bytes) -> None:
        if self._mailbox is not None:
            self._mailbox.keep(wire.read_header(data).round, name, data)


class Booth:
    """Opens the envelopes: decodes uploads one by one as they come, and notes their bytes, senders and training losses."""

    def __init__(self, clients: Clients, context: wire.Context, keep: Callable[[str, bytes], None]) -> None:
        self._clients, self._context, self._keep = clients, context, keep
        self.bytes = 0
        self.losses = ExactSum()
        self.trained: set[int] = set()
        self._senders: set[int] = set()
        self._ideals: list[float | None] = []  # bytes of each upload, if the coder were ideal

    @property
    def ideal(self) -> float | None:
        """Their sum, in whatever order they came."""
        known = [size for size in self._ideals if size is not None]
        return math.fsum(known) if len(known) == len(self._ideals) else None

    @property
    def counted(self) -> frozenset[int]:
        """The clients whose ballots were counted."""
        return frozenset(self._senders)

    def ballots(self, turns: Iterable[Turn]) -> Iterator[Message]:
        """The uploads in the order in which they arrive."""
        for turn in turns:
            ballot = None if turn.upload is None else self._clients.opened(turn.number, turn.upload, self._context)
            if turn.upload is not None and ballot is None:
                continue  # refused
            self.losses.add(turn.loss, turn.images)
            self.trained.add(turn.number)
            if turn.upload is not None and ballot is not None:
                self._count(turn.number, turn.upload, ballot)
                yield ballot

    def _count(self, number: int, data: bytes, ballot: Message) -> None:
        self._senders.add(number)
        self.bytes += len(data)
        self._keep(f"upload-{number:05d}", data)
        self._ideals.append(wire.ideal_size(data, ballot, self._context))
