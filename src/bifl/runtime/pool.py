"""The workers of a simulation: in this process, or one process per core that each own a slice of the clients."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cloudpickle

from bifl import wire
from bifl.algorithm import Message, Shared
from bifl.data.datasets import save
from bifl.errors import BiflError, RunError
from bifl.files import writing
from bifl.processes import KEEPS_MEMORY
from bifl.runtime.turns import Evaluation, Score, Task, Troubles, Turn
from bifl.runtime.worker import Job, Worker
from bifl.runtime.world import World
from bifl.train import CHUNK


class Pool(AbstractContextManager["Pool"]):
    """Runs clients' turns and evaluations; a context, so that no process outlives it.

    Args:
        world: what is run.
        checkpoint: where the clients' state is kept.
        trained: the clients whose state is there already, and of which round.
    """

    def __init__(self, world: World, checkpoint: Path | None, trained: dict[int, int]) -> None:
        self._world, self._checkpoint, self._trained = world, checkpoint, trained
        self._count = min(world.experiment.processes(), len(world.parts))
        self._stack = ExitStack()
        self._local: Worker | None = None
        self._workers: list[Connection] = []

    def __enter__(self) -> Pool:
        try:
            jobs = [self._job(rank) for rank in range(self._count)]
            if self._count == 1:
                self._local = Worker(jobs[0], self._world.data)
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
        return ()

    def turns(self, tasks: list[Task]) -> Iterator[Turn]:
        """Run the tasks; each turn as soon as it is done, in no particular order."""
        if self._local is not None:
            yield from map(self._local.turn, tasks)
            return
        waiting: dict[Any, int] = {}
        for rank, worker in enumerate(self._workers):
            own = [task for task in tasks if task.number % self._count == rank]
            if own:
                self._send(worker, ("turn", own))
                waiting[worker] = len(own)
        while waiting:
            for ready in wait(list(waiting)):
                yield self._receive(ready)
                waiting[ready] -= 1
                if not waiting[ready]:
                    del waiting[ready]

    def opened(self, number: int, upload: bytes, context: wire.Context) -> Message | None:
        """What a client said: our own workers send nothing that cannot be read."""
        return wire.decode(upload, context)

    def hear(self, news: bytes, after: Shared) -> range:
        """Give a broadcast to all workers; every client hears it."""
        self._ask("hear", [(news,)] * self._count)
        return range(len(self._world.parts))

    def measure(self, clients: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """What clients say of batch-norm in the global network."""
        owned = [[number for number in sorted(clients) if number % self._count == rank] for rank in range(self._count)]
        for said in self._ask("measure", [(own,) for own in owned]):
            yield from said

    def settle(self, news: bytes, after: Shared) -> None:
        """Give the pooled statistics to all workers."""
        self._ask("settle", [(news,)] * self._count)

    def score(self) -> Evaluation:
        """Let the workers evaluate the global model."""
        return Evaluation.of([score for scores in self._ask("score", [()] * self._count) for score in scores])

    def troubles(self) -> Troubles:
        """None: a worker that fails ends the run."""
        return Troubles()

    def _ask(self, name: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        """Let every worker do something at the same time; their answers."""
        if self._local is not None:
            return [getattr(self._local, name)(*arguments[0])]
        for worker, given in zip(self._workers, arguments, strict=True):
            self._send(worker, (name, given))
        return [self._receive(worker) for worker in self._workers]

    def _job(self, rank: int) -> Job:
        world = self._world
        parts = {number: part for number, part in enumerate(world.parts) if number % self._count == rank}
        shards = {number: world.shards[number] for number in parts}
        chunks = list(range(rank, -(-len(world.data.test_labels) // CHUNK), self._count))
        trained = {number: round for number, round in self._trained.items() if number in parts}
        return Job(world.experiment, world.algorithm, world.network, parts, shards, chunks, world.shared, self._checkpoint, trained)

    def _start(self, jobs: list[Job]) -> list[Connection]:
        paths = os.pathsep.join(path for path in sys.path if path)  # what this process can import, and not the current folder (-P)
        environment = KEEPS_MEMORY | os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        program = "from bifl.runtime.worker import main; main()"
        # the workers map the data into memory and the folder is gone before the first round: nothing is left if we are killed later
        with tempfile.TemporaryDirectory(prefix="bifl-") as name:
            folder = Path(name)
            with writing(folder):
                save(self._world.data, folder)
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
                self._send(ours, cloudpickle.dumps((job, folder)))  # algorithms of a script or a notebook go along by value
            for worker in workers:
                self._receive(worker)  # ready, or why not
        return workers

    def _send(self, worker: Connection, request: Any) -> None:
        try:
            worker.send(request)
        except OSError as error:
            raise self._lost() from error

    def _receive(self, worker: Any) -> Any:
        try:
            reply: Turn | list[Score] | BiflError = worker.recv()
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
