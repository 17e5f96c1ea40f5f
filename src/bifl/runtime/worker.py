"""A worker: one thread of arithmetic that owns some of the clients and keeps their state.

Between it and the server go the wire's messages, as in a deployment. `main` makes a process one.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bifl import wire
from bifl.algorithm import NOTHING, Algorithm, Client, Schedule, Shared, absorb, client_turn, key, remembered
from bifl.data.datasets import Dataset, mapped
from bifl.errors import BiflError, Diverged, RunError
from bifl.experiment import Experiment
from bifl.nn.flat import Network
from bifl.runtime import calibration, checkpoint
from bifl.runtime.shelf import LIMIT, Shelf
from bifl.runtime.turns import Score, Task, Turn
from bifl.runtime.world import context, device_of, plan
from bifl.train import CHUNK, Samples, evaluate, train


class Job(NamedTuple):
    """What a worker needs to know once."""

    experiment: Experiment
    algorithm: Algorithm | Schedule
    network: Network
    parts: dict[int, np.ndarray[Any, Any]]  # images of the clients that this worker owns
    shards: dict[int, np.ndarray[Any, Any]]  # images that they hold out
    chunks: list[int]  # parts of the test set that this worker evaluates
    shared: Shared
    checkpoint: Path | None  # where clients' state is kept
    trained: dict[int, int]  # those of its clients whose state is there already, and of which round


class Worker:
    """Runs its clients one after the other."""

    def __init__(self, job: Job, data: Dataset) -> None:
        self.experiment, self.parts, self.checkpoint = job.experiment, job.parts, job.checkpoint
        self.shards = job.shards
        self.algorithm, self.network, self.chunks = job.algorithm, job.network, job.chunks
        device = device_of(job.experiment)
        self.network.move(device)
        self.samples = Samples.of(data.images, data.labels, data).on(device)
        self.test = Samples.of(data.test_images, data.test_labels, data).on(device)
        self.take_over(job.shared)
        self.fresh, _ = self.network.initial()
        self.clients = self._room()
        # update, unlike an assignment, leaves these in memory: they are all the same
        self.clients.update({n: Client(self.fresh, self.fresh, NOTHING, len(part), 0) for n, part in job.parts.items()})
        for number, round in job.trained.items():
            if job.checkpoint is not None:
                keeps = self.algorithm.at(round).keeps
                self.clients[number] = checkpoint.load_client(job.checkpoint, number, round, self.clients[number], keeps)

    def _room(self) -> dict[int, Client]:
        """Memory, or a file if what clients have to remember might not fit."""
        vectors = len({"aux", "start", "memory"} & set(self.algorithm.at(1).keeps))
        much = vectors * len(self.parts) * self.fresh.nbytes > LIMIT
        return Shelf(self.fresh, self.checkpoint) if much else {}

    def turn(self, task: Task) -> Turn:
        """Let a client react to the news, train and, if it is sampled, upload."""
        round = self.shared.round + 1
        index = torch.from_numpy(self.parts[task.number])
        client = self.clients[task.number]._replace(key=key(self.shared.seed, round, task.number), voted=task.voted)
        losses = []

        def local(ready: Client) -> Client:
            forward = self.algorithm.at(round).forward
            trained, loss = train(ready, self.network, forward, self.samples, index, plan(self.experiment, round))
            losses.append(loss)
            return trained._replace(real=calibration.discreet(trained.real, self.shared, self.experiment, self.algorithm))

        client, upload = client_turn(self.algorithm, client, self.shared, local)
        if not np.isfinite(losses[0]):
            raise Diverged(f"round {round}: the loss of client {task.number} is {losses[0]}: the training diverged; lower lr")
        keeps = self.algorithm.at(round).keeps
        self.clients[task.number] = remembered(client, keeps, Client(self.fresh, self.fresh, NOTHING, client.weight, 0))
        if self.checkpoint is not None:
            checkpoint.save_client(self.checkpoint, task.number, round, client, keeps)
        said = wire.encode(upload._replace(sender=task.number), self.context) if task.uploads else None
        return Turn(task.number, said, losses[0], len(index))

    def hear(self, news: bytes) -> None:
        """Absorb a broadcast."""
        self.take_over(absorb(self.algorithm, self.shared, wire.decode(news, self.context)))

    def take_over(self, shared: Shared) -> None:
        """Go on from this public state."""
        self.shared, self.context = shared, context(self.experiment, shared)

    def measure(self, clients: list[int]) -> list[tuple[int, bytes]]:
        """What some of its clients say of batch-norm in the new global network."""
        known, parts = calibration.context(self.experiment, self.shared), {n: torch.from_numpy(self.parts[n]) for n in clients}
        batch = self.experiment.batch
        return [
            (n, wire.encode(calibration.measured(self.shared, self.algorithm, self.network, self.samples, part, n, batch), known))
            for n, part in parts.items()
        ]

    def settle(self, news: bytes) -> None:
        """Take the pooled statistics over."""
        said = wire.decode(news, calibration.context(self.experiment, self.shared))
        self.take_over(calibration.settled(self.shared, said))

    def score(self) -> list[Score]:
        """The global model on this worker's part of the test images, and on what its clients hold out."""
        self.network.show(self.shared.weights, self.shared.real, self.algorithm.at(self.shared.round).forward)
        tests = [(None, chunk, self.test, torch.arange(len(self.test.labels))[_part(chunk)]) for chunk in self.chunks]
        own = [
            (number, chunk, self.samples, torch.from_numpy(shard[_part(chunk)]))
            for number, shard in self.shards.items()
            for chunk in range(-(-len(shard) // CHUNK))
        ]
        return [Score(who, n, len(part), *evaluate(self.network, samples, part)) for who, n, samples, part in (*tests, *own)]


def _part(chunk: int) -> slice:
    return slice(chunk * CHUNK, (chunk + 1) * CHUNK)


def main() -> None:
    """Serve the server's requests, over the pipe whose number it gave us, until it hangs up."""
    with Connection(int(sys.argv[1])) as server:
        try:
            job, folder = pickle.loads(server.recv())
            worker = Worker(job, mapped(folder))
            server.send(None)  # ready
            while True:
                name, arguments = server.recv()
                if name == "turn":
                    for task in arguments:
                        server.send(worker.turn(task))
                else:
                    server.send(getattr(worker, name)(*arguments))
        except (EOFError, ConnectionError):
            return  # the server is gone
        except Exception as error:
            if not isinstance(error, BiflError):  # a mistake in an algorithm, most likely: its author wants to see where
                traceback.print_exc()
                error = RunError(f"a client's turn failed with {type(error).__name__}: {error}")
            with suppress(ConnectionError):
                server.send(error)
