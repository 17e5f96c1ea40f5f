"""The workers of a simulation: in this process, or one process per core that each own a slice of the clients.

Each worker runs clients with about as many images as the others', since a round waits for the last one.

>>> dealer = Dealer([range(5), range(3), range(2)], workers=2, fixed=False)
>>> dealer.deal([0, 1, 2])
{0: 0, 1: 1, 2: 1}
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, ExitStack
from heapq import heapify, heapreplace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

import numpy as np

from bifl.core.sides import Abandoned, Accumulator, Reply, Request, ServerSide
from bifl.core.state import Client, Public
from bifl.data.datasets import save
from bifl.data.shared import Drawn
from bifl.engine import channel
from bifl.engine.catch_up import MissedBytes, Step
from bifl.engine.round import Troubles
from bifl.engine.worker import Job, Worker
from bifl.errors import BiflError, RunError
from bifl.exchanges.exchange import Exchange
from bifl.exchanges.scoring import Score
from bifl.experiment.run import simulated_identity
from bifl.experiment.setup import Setup
from bifl.experiment.transfer import dumps
from bifl.files import writing
from bifl.processes import KEEPS_MEMORY
from bifl.training.evaluation import chunks


class Pool(AbstractContextManager["Pool"]):
    """Runs clients and evaluations; a context, so that no process outlives it.

    Args:
        setup: what is run, with the public state as it stands.
        fresh: the public state before the first round.
        steps: the last broadcasts, if the run was continued.
        checkpoint: where the clients' state is kept.
        trained: the clients whose state is there already, and of which round.
        keep_messages: whether uploads are wanted as bytes.
        evaluated: the last round that was evaluated, if the run was continued.
    """

    def __init__(
        self, setup: Setup, fresh: Public, steps: tuple[Step, ...], checkpoint: Path | None,
        trained: dict[int, int], keep_messages: bool, evaluated: int = 0,
    ) -> None:  # fmt: skip
        run = setup.run
        self._setup, self._checkpoint, self._trained, self._keep_messages = setup, checkpoint, trained, keep_messages
        self._count = min(run.experiment.processes(), run.clients)
        # those who remember something, and secure sums have notes of their own
        fixed = bool(run.algorithm.keeps or run.remembering) or run.experiment.secure_sum
        self._dealer = Dealer(setup.parts, self._count, fixed)
        self._stack = ExitStack()
        self._local: Worker | None = None
        self._workers: list[Connection] = []
        self._missed = MissedBytes(setup, fresh, steps, trained, evaluated)

    def __enter__(self) -> Pool:
        try:
            jobs = [self._job(rank) for rank in range(self._count)]
            if self._count == 1:
                self._local = Worker(jobs[0], self._setup.data)
            else:
                self._workers = self._start(jobs)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def barred(self) -> tuple[int, ...]:
        """None: they are all ours."""
        self._dealer.begin()
        return ()

    def there(self) -> int:
        """All of them."""
        return self._setup.run.clients

    def collect(
        self, exchange: Exchange, requests: list[Request], note: Callable[[Reply], None], server: ServerSide
    ) -> Accumulator:
        """Let clients reply and add up what they say, each worker for its own."""
        self._missed.ask(request.number for request in requests)
        total = exchange.total(self._missed.public)
        if self._local is not None:
            for found in self._local.collect(exchange.name, requests):
                if isinstance(found, Reply):
                    note(found)
                else:
                    total = found
            return total
        waiting: list[Any] = []
        ranks = self._dealer.deal(request.number for request in requests)
        for rank, worker in enumerate(self._workers):
            own = [request for request in requests if ranks[request.number] == rank]
            if own:
                self._send(worker, ("collect", (exchange.name, own)))
                waiting.append(worker)
        while waiting:
            for ready in wait(waiting):
                found = self._receive(ready)
                if isinstance(found, Reply):
                    note(found)
                else:
                    total.merge(found)
                    waiting.remove(ready)
        return total

    def hold_again(self, error: Abandoned) -> None:
        """Nothing: nobody here is at fault on purpose."""

    def do_without(self, error: Abandoned) -> None:
        """Nothing, as well."""

    def tell(self, exchange: Exchange, news: bytes, after: Public, hearers: Collection[int]) -> Collection[int]:
        """Give a broadcast to all workers; all who should hear it are there."""
        self._ask("hear", [(exchange.name, np.frombuffer(news, np.uint8))] * self._count)  # an array need not go through a pipe
        self._missed.add(exchange.name, news, after, hearers)
        return hearers

    def score(self) -> list[Score]:
        """Let the workers evaluate the global model on the test samples, each on its part."""
        return [score for scores in self._ask("score", [()] * self._count) for score in scores]

    def steps(self) -> tuple[Step, ...]:
        """The last broadcasts."""
        return self._missed.steps

    def troubles(self) -> Troubles:
        """Nothing but bytes for those who had slept: a worker that fails ends the run."""
        return Troubles(catch_up_bytes=self._missed.settle())

    def trained(self, number: int, voted: bool) -> Client:
        """A client as it would be after training once more."""
        if self._local is not None:
            return self._local.trained(number, voted)
        owner = self._workers[self._dealer.owner(number)]
        self._send(owner, ("trained", (number, voted)))
        found: Client = self._receive(owner)
        return found

    def _ask(self, name: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        """Let every worker do something at the same time; their answers."""
        if self._local is not None:
            return [getattr(self._local, name)(*arguments[0])]
        for worker, given in zip(self._workers, arguments, strict=True):
            self._send(worker, (name, given))
        return [self._receive(worker) for worker in self._workers]

    def _job(self, rank: int) -> Job:
        setup = self._setup
        owner, parts = self._dealer.owner, cast(Any, setup.parts)  # what is drawn when it is needed need not be sorted out
        if not isinstance(parts, Drawn):
            parts = {number: part for number, part in enumerate(parts) if not self._dealer.fixed or owner(number) == rank}
        held = {number: shard for number, shard in enumerate(setup.shards) if len(shard)}
        shards = {number: shard for number, shard in held.items() if not self._dealer.fixed or owner(number) == rank}
        own = list(chunks(len(setup.data.test_labels)))[rank :: self._count]
        trained = {number: round for number, round in self._trained.items() if owner(number) == rank}
        return Job(
            setup.run, parts, shards, own, setup.public, self._checkpoint, trained, self._keep_messages,
            simulated_identity(setup.run.experiment),
        )  # fmt: skip

    def _start(self, jobs: list[Job]) -> list[Connection]:
        paths = os.pathsep.join(path for path in sys.path if path)  # what this process can import, and not the current folder (-P)
        environment = KEEPS_MEMORY | os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        program = "from bifl.engine.worker import main; main()"
        # the workers map the data into memory and the folder is gone before the first round: nothing is left if we are killed later
        with tempfile.TemporaryDirectory(prefix="bifl-") as name:
            folder = Path(name)
            with writing(folder):
                save(self._setup.data, folder)
            workers = []
            for job in jobs:
                ours, theirs = Pipe()
                workers.append(self._stack.enter_context(ours))
                with theirs:
                    descriptor = theirs.fileno()
                    process = subprocess.Popen(
                        [sys.executable, "-P", "-c", program, str(descriptor)], env=environment, pass_fds=[descriptor],
                        stdin=subprocess.DEVNULL, start_new_session=True,  # Ctrl-C is for us
                    )  # fmt: skip
                self._stack.callback(_end, process)
                self._send(ours, dumps((job, folder), job.run, self._setup.data))
            for worker in workers:
                self._receive(worker)  # ready, or why not
        return workers

    def _send(self, worker: Connection, request: Any) -> None:
        try:
            channel.send(worker, request)
        except OSError as error:
            raise self._lost() from error

    def _receive(self, worker: Any) -> Any:
        try:
            reply: Reply | Accumulator | list[Score] | BiflError = channel.receive(worker)
        except (EOFError, OSError) as error:
            raise self._lost() from error
        if isinstance(reply, BiflError):
            raise reply
        return reply

    def _lost(self) -> RunError:
        return RunError("a worker process ended unexpectedly, perhaps for want of memory: try again with fewer workers")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


class Dealer:
    """Deals clients out to workers.

    Clients that remember something stay with the worker that keeps it. The others go to whoever has least to do in a round: of ten
    clients that are drawn from a hundred, one of two workers would otherwise have six or more.

    Args:
        parts: images of each client.
        workers: how many there are.
        fixed: whether clients stay with their worker.
    """

    def __init__(self, parts: Sequence[Sized], workers: int, fixed: bool) -> None:
        self._count, self.fixed = workers, fixed
        # those who draw when they are asked all draw the same number, and may be a billion
        self._sizes = None if isinstance(parts, Drawn) else [len(part) for part in parts]
        self._owners: Mapping[int, int] = {} if self._sizes is None else self._even(range(len(parts)))
        self._dealt: dict[int, int] = {}

    def owner(self, number: int) -> int:
        """The worker that has a client's samples and what it remembers."""
        return self._owners.get(number, number % self._count)

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
        loads = [(0, worker) for worker in range(self._count)]
        heapify(loads)
        found = {}
        for number in sorted(numbers, key=self._size, reverse=True):
            load, worker = loads[0]
            found[number] = worker
            heapreplace(loads, (load + self._size(number), worker))
        return found

    def _size(self, number: int) -> int:
        return 1 if self._sizes is None else self._sizes[number]
