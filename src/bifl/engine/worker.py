"""A worker: one thread of arithmetic that owns some of the clients and keeps their state.

Between it and the server go the wire's messages, as in a deployment. `main` makes a process one.
"""

from __future__ import annotations

import sys
import traceback
from collections import defaultdict
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from bifl import codec
from bifl.core.message import NOTHING
from bifl.core.sides import Accumulator, Identity
from bifl.core.state import Client, Public, remembered
from bifl.data.datasets import Dataset, mapped
from bifl.engine import channel, checkpoint
from bifl.engine.client_side import Belongings, LocalSide, arrived, client_tools
from bifl.engine.client_store import LIMIT, ClientStore
from bifl.engine.scoring import Score
from bifl.engine.turns import Answer, Assignment, Turn
from bifl.errors import BiflError, Diverged, RunError
from bifl.exchanges.exchange import completing, take_part
from bifl.experiment.run import Run
from bifl.experiment.setup import device_of
from bifl.experiment.transfer import loads
from bifl.training.evaluation import chunks, evaluate
from bifl.training.samples import Samples


class Job(NamedTuple):
    """What a worker needs to know once."""

    run: Run
    parts: dict[int, np.ndarray[Any, Any]] | Sequence[np.ndarray[Any, Any]]  # images of the clients that this worker may run
    shards: dict[int, np.ndarray[Any, Any]]  # images that they hold out, of those that do
    chunks: list[int]  # parts of the test set that this worker evaluates
    public: Public
    checkpoint: Path | None  # where clients' state is kept
    trained: dict[int, int]  # those of its clients whose state is there already, and of which round
    keep_messages: bool = False  # whether the server wants to see the uploads
    identity: Identity | None = None  # what its clients sign with


class Worker:
    """Runs its clients one after the other."""

    def __init__(self, job: Job, data: Dataset) -> None:
        self.run, self.parts, self.checkpoint = job.run, job.parts, job.checkpoint
        self.shards, self._keep_messages, self.chunks = job.shards, job.keep_messages, job.chunks
        self.exchanges = {exchange.name: exchange for exchange in job.run.exchanges}
        self.completing = completing(job.run.exchanges)
        device = device_of(job.run.experiment)
        job.run.network.move(device)
        self.samples = Samples.of(data.images, data.labels, data).on(device)
        self.test = Samples.of(data.test_images, data.test_labels, data).on(device)
        self.public = job.public
        self._tools = client_tools(job.run, self.samples, job.parts)
        self._known: tuple[str, Public, codec.Context] | None = None  # the exchange, the public state and their context
        self.fresh, _ = job.run.network.initial()
        self.identity = job.identity
        self.notes: MutableMapping[int, MutableMapping[str, bytes]] = defaultdict(dict)  # clients' own, for the round under way
        self.clients = self._room()  # those that have something to remember
        for number, round in job.trained.items():
            if job.checkpoint is not None:
                keeps = job.run.algorithm.at(round).keeps
                self.clients[number] = checkpoint.load_client(job.checkpoint, number, round, self._fresh_client(number), keeps)

    def _fresh_client(self, number: int) -> Client:
        return Client(self.fresh, self.fresh, NOTHING, self.weight(number), number)

    def weight(self, number: int) -> int:
        """What a client says that it weighs: its images, or 1 where even their number is private."""
        return self.run.weighing.told(len(self.parts[number]))

    def _client(self, number: int) -> Client:
        """A client as it is remembered, or as it was before the first round."""
        return self.clients.get(number) or self._fresh_client(number)

    def _room(self) -> dict[int, Client]:
        """Memory, or a file if what clients have to remember might not fit."""
        vectors = len({"aux", "start", "memory"} & set(self.run.algorithm.keeps))
        much = vectors * len(self.parts) * self.fresh.nbytes > LIMIT
        return ClientStore(self.fresh, self.checkpoint) if much else {}

    def turn(self, name: str, assignment: Assignment) -> Turn:
        """A client's part in an exchange: what it says, as bytes."""
        exchange = self.exchanges[name]
        part = torch.from_numpy(self.parts[assignment.number])
        client = arrived(self.run, self._client(assignment.number), self.fresh, self.public)
        own = Belongings(assignment.letter, self.notes[assignment.number], self.identity)
        side = LocalSide(self._tools, part, self.public, client._replace(voted=assignment.voted), own)
        reply = take_part(exchange, side, self.public, uploads=assignment.uploads)
        context, loss = self._context(name), reply.loss
        if loss is not None and not np.isfinite(loss):
            raise Diverged(
                f"round {context.round}: the loss of client {assignment.number} is {loss}: the training diverged; lower lr"
            )
        if reply.client is not side.client:
            self._remember(reply.client, context.round)
        said = None if reply.message is None else codec.encode(reply.message, exchange.uploads_in(context))
        return Turn(assignment.number, said, loss, self.weight(assignment.number))

    def trained(self, number: int, voted: bool) -> Client:
        """A client as it would be after training once more; it is not remembered."""
        client = arrived(self.run, self._client(number), self.fresh, self.public)._replace(voted=voted)
        side = LocalSide(self._tools, torch.from_numpy(self.parts[number]), self.public, client, Belongings(b"", {}, None))
        return self.run.ballot.train(client, self.public, side.train)[0]

    def _remember(self, client: Client, round: int) -> None:
        """Keep what a client must know of a round."""
        keeps = self.run.algorithm.at(round).keeps
        if keeps:
            self.clients[client.number] = remembered(client, keeps, self._fresh_client(client.number))
        else:
            self.clients.pop(client.number, None)  # what another algorithm of a schedule kept
        if self.checkpoint is not None:
            checkpoint.save_client(self.checkpoint, client.number, round, client, keeps)

    def collect(self, name: str, assignments: list[Assignment]) -> Iterator[Answer | Accumulator]:
        """Clients' parts in an exchange, one after the other, and at last the sum of what they said."""
        exchange = self.exchanges[name]
        total, context = exchange.total(self.public), exchange.uploads_in(self._context(name))
        for assignment in assignments:
            answered, size, ideal = self.turn(name, assignment), None, None
            if answered.upload is not None:
                upload = codec.decode(answered.upload, context)  # what a server would read
                total.add(exchange.open(upload, self.public))
                size, ideal = len(answered.upload), codec.ideal_size(answered.upload, upload, context)
            kept = answered.upload if self._keep_messages else None
            yield Answer(assignment.number, size, ideal, answered.loss, answered.images, kept)
        yield total

    def _context(self, name: str) -> codec.Context:
        """One for all messages of an exchange: what is computed of it is kept."""
        if self._known is None or self._known[0] != name or self._known[1] is not self.public:
            self._known = (name, self.public, self.exchanges[name].context(self.public))
        return self._known[2]

    def hear(self, name: str, news: bytes | npt.NDArray[np.uint8]) -> None:
        """Absorb a broadcast."""
        exchange = self.exchanges[name]
        self.public = exchange.advance(self.public, codec.decode(bytes(news), self._context(name)))

    def score(self) -> list[Score]:
        """The global model on this worker's part of the test images, and on what its clients hold out."""
        network, task = self.run.network, self.run.task
        network.show(self.public.weights, self.public.real, self.run.algorithm.at(self.public.round).forward)
        tests = evaluate(network, task, self.test, np.arange(len(self.test.labels)), self.chunks)
        scores = [Score(None, *found) for found in tests]
        for number, shard in self.shards.items():
            found = evaluate(network, task, self.samples, shard, chunks(len(shard)))
            scores += [Score(number, *chunk) for chunk in found]
        return scores


def main() -> None:
    """Serve the server's requests, over the pipe whose number it gave us, until it hangs up."""
    with Connection(int(sys.argv[1])) as server:
        try:
            job, folder = loads(channel.receive(server))
            worker = Worker(job, mapped(folder))
            channel.send(server, None)  # ready
            while True:
                name, arguments = channel.receive(server)
                if name == "collect":
                    for found in worker.collect(*arguments):
                        channel.send(server, found)
                else:
                    channel.send(server, getattr(worker, name)(*arguments))
        except (EOFError, ConnectionError):
            return  # the server is gone
        except Exception as error:
            if not isinstance(error, BiflError):  # a mistake in an algorithm, most likely: its author wants to see where
                traceback.print_exc()
                error = RunError(f"a client's turn failed with {type(error).__name__}: {error}")
            with suppress(ConnectionError):
                channel.send(server, error)
