"""The simulator: many clients on one machine, sending each other exactly the bytes that a deployment would.

>>> from bifl.experiment.settings import Experiment
>>> for record in simulate(Experiment(algorithm="biml", rounds=1, clients=2, workers=1)):
...     print(record.round, record.clients, record.up_bpp < 1)
1 2 True
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from functools import partial
from heapq import heapify, heapreplace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from bifl.core.message import Floats
from bifl.core.sides import Accumulator, Reply, Request, Score, ServerSide
from bifl.core.state import Public
from bifl.data.partitions import Drawn
from bifl.engine.backends.worker_processes import processes
from bifl.engine.catch_up import Journal
from bifl.engine.round import Attendance, Clients, NoteClients, Rounds
from bifl.engine.worker import Backend, Call, Job, Worker, Workers
from bifl.errors import ConfigError, RunError
from bifl.exchanges.exchange import Exchange, completing, last_telling
from bifl.experiment.model import Model
from bifl.experiment.objects import Data, Net, dataset_of, model_name
from bifl.experiment.run import simulated_identity
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import Setup, build
from bifl.files import writing
from bifl.runs.folder import Result
from bifl.runs.record import Record
from bifl.runs.results import frame
from bifl.training.evaluation import chunks

if TYPE_CHECKING:
    from pandas import DataFrame

T = TypeVar("T")


def simulate(
    experiment: Experiment, *, model: Net | None = None, data: Data | None = None, folder: str | Path | None = None,
    backend: Backend = processes,
) -> Simulation:  # fmt: skip
    """Run an experiment: iterate over the result for one `Record` per round.

    Args:
        experiment: what to run.
        model: a network instead of the one that the experiment names: an nn.Module, which is copied, never trained itself, and
            whose weights are those that the run begins with; or a function classes → nn.Module.
        data: samples instead of the dataset that the experiment names: arrays (inputs, labels), or more of them by the names that
            an .npz file has, or a `bifl.data.datasets.Dataset`.
        folder: where what is needed to go on is kept after every round, and taken from if it is there.
        backend: where the clients' workers run: see `bifl.engine.backends`. Results do not depend on it.
    """
    if model is not None:
        experiment = experiment.changed({"model": model_name(model)})
    given = None
    if data is not None:
        given = dataset_of(data)
        experiment = experiment.changed({"dataset": "given_data"})
    path = None if folder is None else Path(folder)
    if path is not None:
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
    return Simulation(build(experiment, data=given), path, backend)


class Simulation(Rounds):
    """An experiment under way on this machine: an iterable of records; for arguments and attributes see `Rounds`."""

    def __init__(
        self, setup: Setup, folder: Path | None = None, backend: Backend = processes, note_clients: NoteClients | None = None
    ) -> None:
        super().__init__(setup, partial(simulated_clients, start=backend), folder, note_clients=note_clients)
        self._records = list[Record]()

    def __iter__(self) -> Iterator[Record]:
        """Run the rounds that are left."""
        for record in super().__iter__():
            self._records.append(record)
            yield record

    def frame(self) -> DataFrame:
        """The rounds that were run here so far, a row each: see `bifl.runs.results.frame`."""
        return frame([Result("simulation", self.experiment, self._records)])

    def client_model(self, number: int) -> Model:
        """A client's own network: the one it would have in its hands after training once more, before anything is sent.

        It reacts to the last broadcast as in every round and trains on its own images, with the random streams of the next round.
        Where clients keep private weights it begins with those, otherwise with the global ones: then it is the global network,
        fine-tuned.
        """
        setup, run, state = self.setup, self.run, self.state
        if not 0 <= number < run.clients:
            raise ConfigError(f"client {number} is none of 0 to {run.clients - 1}")
        algorithm, voted = run.algorithm.at(self.public.round + 1), number in state.counted
        if algorithm.forward.of_scores:
            raise RunError(f"clients of algorithm '{algorithm.name}' train scores of constant weights: they have no own network")
        if self.folder is None and isinstance(self._clients, SimulatedClients):
            weights, real = self._clients.own_network(number, voted)
        else:
            past = {number: state.trained[number]} if number in state.trained else {}
            if past and self.folder is None and run.algorithm.at(past[number]).keeps:
                raise RunError(
                    f"what client {number} remembers is gone with the loop: ask for its model inside the loop, or give simulate a "
                    "folder"
                )
            parts, shards = {number: setup.parts[number]}, {number: setup.shards[number]}
            worker = Worker(Job(run, parts, shards, [], self.public, self.folder, past), setup.data)
            weights, real = worker.own_network(number, voted)
        return Model.of(run, setup.data, self.public._replace(weights=weights, real=real), algorithm.forward)


# ---- the clients -------------------------------------------------------------------------------------------------------


@contextmanager
def simulated_clients(rounds: Rounds, start: Backend = processes) -> Iterator[SimulatedClients]:
    """All clients of a run on this machine; a context, so that no process outlives it."""
    setup, run = rounds.setup, rounds.run
    workers = min(run.experiment.processes(), run.clients)
    # those who remember something, and secure sums have notes of their own
    fixed = bool(run.algorithm.keeps or run.remembering) or run.experiment.secure_sum
    dealer = Dealer(setup.parts, workers, fixed)
    with start([_job(rounds, dealer, rank) for rank in range(workers)], setup.data) as backend:
        clients = SimulatedClients(rounds, dealer, backend)
        del rounds  # who drops them ends their clients: what waits here must not keep them
        yield clients


def _job(rounds: Rounds, dealer: Dealer, rank: int) -> Job:
    """What one worker needs to know."""
    setup, run = rounds.setup, rounds.run
    owner, parts = dealer.owner, cast(Any, setup.parts)  # what is drawn when it is needed need not be sorted out
    if not isinstance(parts, Drawn):
        parts = {number: part for number, part in enumerate(parts) if not dealer.fixed or owner(number) == rank}
    held = {number: shard for number, shard in enumerate(setup.shards) if len(shard)}
    shards = {number: shard for number, shard in held.items() if not dealer.fixed or owner(number) == rank}
    test_chunks = list(chunks(len(setup.data.test_labels)))[rank :: dealer.workers]
    trained = {number: round for number, round in rounds.state.trained.items() if owner(number) == rank}
    identity = simulated_identity(run.experiment)
    return Job(run, parts, shards, test_chunks, rounds.public, rounds.folder, trained, rounds.keeps_messages, identity)


class SimulatedClients(Clients):
    """Asks workers, each for clients of its own, and counts what clients that slept would have to be sent."""

    def __init__(self, rounds: Rounds, dealer: Dealer, backend: Workers) -> None:
        self._dealer, self._backend, run = dealer, backend, rounds.run
        self.journal = Journal(run, rounds.public, rounds.state.steps, _name, told=range(run.clients))
        self._known, self._others = _known_states(rounds, self.journal.name)

    def begin(self) -> Attendance:
        """All are there."""
        self._dealer.begin()
        return Attendance()

    def collect(
        self, exchange: Exchange, requests: list[Request], note: Callable[[Reply], None], server: ServerSide
    ) -> Accumulator:
        """Let clients reply and add up what they say, each worker for its own."""
        ranks = self._dealer.deal(request.number for request in requests)
        dealt: dict[int, list[Request]] = {}
        for request in requests:
            self.journal.send(request.number, self._known.get(request.number, self._others))
            self._known[request.number] = self.journal.name
            dealt.setdefault(ranks[request.number], []).append(request)
        total = exchange.total(self.journal.public)
        calls = {rank: partial(Worker.collect, name=exchange.name, requests=some) for rank, some in dealt.items()}
        for result in self._backend.ask(calls):
            if isinstance(result, Reply):
                note(result)
            else:
                total.merge(result)
        return total

    def tell(self, exchange: Exchange, news: bytes, after: Public, hearers: Collection[int]) -> Collection[int]:
        """Give a broadcast to all workers; all who should hear it are there."""
        # as an array, which need not go through a pipe
        self._ask_all(partial(Worker.hear, name=exchange.name, news=np.frombuffer(news, np.uint8)))
        self.journal.add(exchange.name, news, after, hearers)
        return hearers

    def score(self) -> list[Score]:
        """Let the workers evaluate the global model on the test samples, each on its part."""
        return self._ask_all(Worker.score)

    def own_network(self, number: int, voted: bool) -> tuple[Floats, Floats]:
        """Weights and real parameters of a client's network after training once more."""
        call = partial(Worker.own_network, number=number, voted=voted)
        weights, real = self._backend.ask({self._dealer.owner(number): call})
        return weights, real

    def _ask_all(self, call: Call[T]) -> list[T]:
        """What comes of a call to every worker."""
        return list(self._backend.ask(dict.fromkeys(range(self._dealer.workers), call)))


def _known_states(rounds: Rounds, now: str) -> tuple[dict[int, str], str]:
    """The states that clients know: of some by number, and of all others; `now` is the one that stands."""
    setup, run, state, exchanges = rounds.setup, rounds.run, rounds.state, rounds.run.exchanges
    if state.public.round and run.idle_trains:
        return {}, now  # everyone was asked something since
    evaluated = _last_evaluated(state.record, run.experiment) if any(map(len, setup.shards)) else 0
    known = {number: _last_heard(exchanges, round) for number, round in state.trained.items() if round > evaluated}
    if evaluated:
        return known, f"{evaluated} {last_telling(exchanges).name}"
    return known, "" if run.warm else _name(setup.public, last_telling(exchanges).name)  # who lacks the first model is sent it


def _last_heard(exchanges: Sequence[Exchange], round: int) -> str:
    """The state before the round's last exchange: what a client knows that last took part in this round."""
    before = [exchange for exchange in exchanges[:-1] if exchange.tells] or [last_telling(exchanges)]
    complete = completing(exchanges) in exchanges[:-1]
    return f"{round if complete else round - 1} {before[-1].name}"


def _name(public: Public, exchange: str) -> str:
    """A name for the state that an exchange of a round led to: in a simulation there is only one."""
    return f"{public.round} {exchange}"


def _last_evaluated(record: Record | None, experiment: Experiment) -> int:
    """The last round in which clients were asked to evaluate, as far as the last record tells; 0 before the first."""
    if record is None:
        return 0
    return record.round if record.evaluated else record.round - record.round % experiment.evaluate_every


class Dealer:
    """Deals clients out to workers, so that in a round each has about as many images: it waits for the last one.

    >>> dealer = Dealer([range(5), range(3), range(2)], workers=2, fixed=False)
    >>> dealer.deal([0, 1, 2])
    {0: 0, 1: 1, 2: 1}

    Clients that remember something stay with the worker that keeps it. The others go to whoever has least to do in a round: of ten
    clients that are drawn from a hundred, one of two workers would otherwise have six or more.

    Args:
        parts: images of each client.
        workers: how many there are.
        fixed: whether clients stay with their worker.
    """

    def __init__(self, parts: Sequence[Sized], workers: int, fixed: bool) -> None:
        self.workers, self.fixed = workers, fixed
        # those who draw when they are asked all draw the same number, and may be a billion
        self._sizes = None if isinstance(parts, Drawn) else [len(part) for part in parts]
        self._owners: Mapping[int, int] = {} if self._sizes is None else self._even(range(len(parts)))
        self._dealt: dict[int, int] = {}

    def owner(self, number: int) -> int:
        """The worker that has a client's samples and what it remembers."""
        return self._owners.get(number, number % self.workers)

    def begin(self) -> None:
        """A round begins: whoever takes part in it stays with one worker until its end."""
        self._dealt = {}

    def deal(self, numbers: Iterable[int]) -> dict[int, int]:
        """The worker of each of these clients."""
        numbers = list(numbers)
        if self.fixed:
            return {number: self.owner(number) for number in numbers}
        self._dealt |= self._even([number for number in numbers if number not in self._dealt])
        return {number: self._dealt[number] for number in numbers}

    def _even(self, numbers: Iterable[int]) -> dict[int, int]:
        """Each in turn, the largest first, to the worker with the fewest images so far."""
        loads = [(0, worker) for worker in range(self.workers)]
        heapify(loads)
        dealt_to = {}
        for number in sorted(numbers, key=self._size, reverse=True):
            load, worker = loads[0]
            dealt_to[number] = worker
            heapreplace(loads, (load + self._size(number), worker))
        return dealt_to

    def _size(self, number: int) -> int:
        return 1 if self._sizes is None else self._sizes[number]
