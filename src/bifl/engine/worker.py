"""The worker: one thread of arithmetic that runs some of the clients one after the other and keeps their state.

Between it and the server go the wire's messages. Where workers run is not their affair (`bifl.engine.backends`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from bifl import codec
from bifl.core.message import NOTHING
from bifl.core.sides import Accumulator, Identity, Reply, Request, Score
from bifl.core.state import Client, Public
from bifl.data.datasets import Dataset
from bifl.engine import checkpoint
from bifl.engine.client_side import client_tools
from bifl.engine.client_store import LIMIT, ClientStore
from bifl.errors import Diverged
from bifl.exchanges.exchange import Intake, completing, take_part
from bifl.experiment.run import Run
from bifl.nn.batch import Samples
from bifl.nn.compute import device_of
from bifl.training.evaluation import evaluate

T_co = TypeVar("T_co", covariant=True)


class Call(Protocol[T_co]):
    """What a worker is asked to do, which gives any number of results."""

    def of(self, worker: Worker) -> Iterable[T_co]:
        """What comes of it."""


class Collect(NamedTuple):
    """Let clients take part in an exchange: their replies, and at last the sum of what they said."""

    exchange: str
    requests: list[Request]

    def of(self, worker: Worker) -> Iterable[Reply | Accumulator]:
        """As they come."""
        return worker.collect(self.exchange, self.requests)


class Hear(NamedTuple):
    """Absorb a broadcast: no results."""

    exchange: str
    news: npt.NDArray[np.uint8]  # its bytes: an array need not go through a pipe

    def of(self, worker: Worker) -> Iterable[None]:
        """Nothing."""
        worker.hear(self.exchange, self.news)
        return ()


class ScoreTests(NamedTuple):
    """Evaluate the global model on the worker's part of the test samples."""

    def of(self, worker: Worker) -> Iterable[Score]:
        """Chunk by chunk."""
        return worker.score()


class TrainOnce(NamedTuple):
    """Train a client once more, without remembering it."""

    number: int
    voted: bool

    def of(self, worker: Worker) -> Iterable[Client]:
        """The client afterwards."""
        return (worker.train(self.number, self.voted),)


class Workers(Protocol):
    """The workers of a simulation, wherever they run: all that a backend makes of their jobs (`bifl.engine.backends`)."""

    def ask(self, calls: Mapping[int, Call[T_co]]) -> Iterator[T_co]:
        """What comes of calls to some workers, by the places of their jobs, at the same time; in any order."""


class Job(NamedTuple):
    """What a worker needs to know once."""

    run: Run
    parts: dict[int, np.ndarray[Any, Any]] | Sequence[np.ndarray[Any, Any]]  # images of the clients that this worker may run
    shards: dict[int, np.ndarray[Any, Any]]  # images that those of them hold out that do
    chunks: list[int]  # parts of the test set that this worker evaluates
    public: Public
    checkpoint: Path | None  # where clients' state is kept
    trained: dict[int, int]  # those of its clients whose state is there already, and of which round
    keep_messages: bool = False  # whether the server wants to see the uploads
    identity: Identity | None = None  # what its clients sign with


Backend = Callable[[Sequence[Job], Dataset], AbstractContextManager[Workers]]  # starts workers with these jobs


class Worker:
    """Runs its clients one after the other. Where there is one worker, it is all `Workers`."""

    def __init__(self, job: Job, data: Dataset) -> None:
        self.run, self.parts, self.checkpoint = job.run, job.parts, job.checkpoint
        self.shards, self._keep_messages, self.chunks = job.shards, job.keep_messages, job.chunks
        self.exchanges = {exchange.name: exchange for exchange in job.run.asked}
        self.completing = completing(job.run.exchanges)
        device = device_of(job.run.experiment.device)
        job.run.network.move(device)
        self.samples = Samples.training(data).on(device)
        self.test = Samples.testing(data).on(device)
        self.public = job.public
        self._tools = client_tools(job.run, self.samples, job.parts, job.shards)
        self._shared: tuple[str, Public, codec.Context] | None = None  # the exchange, the public state and their context
        self.fresh, _ = job.run.network.initial()
        self.identity = job.identity
        self.notes: MutableMapping[int, MutableMapping[str, bytes]] = defaultdict(dict)  # clients' own, for the round under way
        vectors = len({"aux", "start", "memory"} & set(self.run.algorithm.keeps))
        much = vectors * len(self.parts) * self.fresh.nbytes > LIMIT  # what clients have to remember might not fit into memory
        # those that have something to remember
        self.clients: dict[int, Client] = ClientStore(self.fresh, self.checkpoint) if much else {}
        self.kept: dict[int, int] = {}  # client → the round of which it remembers something
        for number, round in job.trained.items():
            self.restore(number, round)

    def restore(self, number: int, round: int) -> None:
        """Let a client remember what its file tells of a round, if clients have files."""
        if self.checkpoint is not None:
            keeps, fresh = self.run.algorithm.at(round).keeps, self._fresh_client(number)
            self.clients[number] = checkpoint.load_client(self.checkpoint, number, round, fresh, keeps, self.run.remembering)
            self.kept[number] = round

    def forget(self, number: int) -> None:
        """Let a client be as it was before its first round. What another algorithm of a schedule has written down stays."""
        self.clients.pop(number, None)
        self.kept.pop(number, None)

    def ask(self, calls: Mapping[int, Call[T_co]]) -> Iterator[T_co]:
        """As one of `Workers`: what comes of calls to this one."""
        for call in calls.values():
            yield from call.of(self)

    def _fresh_client(self, number: int) -> Client:
        return Client(self.fresh, self.fresh, NOTHING, self.weight(number), number)

    def weight(self, number: int) -> int:
        """What a client says that it weighs: its images, or 1 where even their number is private."""
        return self.run.weighing.told(len(self.parts[number]))

    def _client(self, number: int) -> Client:
        """A client as it is remembered, or as it was before the first round."""
        return self.clients.get(number) or self._fresh_client(number)

    def reply(self, name: str, request: Request) -> Reply:
        """A client's part in an exchange: what it says, as bytes."""
        exchange, number = self.exchanges[name], request.number
        side = self._tools.side(
            self._client(number), self.fresh, self.public,
            voted=request.voted, private_reply=request.private_reply, notes=self.notes[number], identity=self.identity,
        )  # fmt: skip
        reply = take_part(exchange, side, self.public, uploads=request.uploads, tells_results=self.run.tells_results)
        context, loss = self._context(name), reply.loss
        if loss is not None and not np.isfinite(loss):
            raise Diverged(f"round {context.round}: the loss of client {number} is {loss}: the training diverged; lower lr")
        if reply.client is not side.client:
            self._remember(reply.client, context.round)
        upload = None if reply.message is None else codec.encode(reply.message, exchange.uploads_in(context))
        return Reply(number, self.weight(number), loss, upload)

    def train(self, number: int, voted: bool) -> Client:
        """A client as it would be after training once more; it is not remembered."""
        side = self._tools.side(self._client(number), self.fresh, self.public, voted=voted)
        return self.run.ballot.train(side.client, self.public, side.train)[0]

    def _remember(self, client: Client, round: int) -> None:
        """Keep what a client must know of a round."""
        fresh = self._fresh_client(client.number)
        kept = self.run.remembered(client, round, fresh)
        if kept is fresh:
            self.forget(client.number)  # what another algorithm of a schedule kept
            return
        self.clients[client.number], self.kept[client.number] = kept, round
        if self.checkpoint is not None:
            checkpoint.save_client(self.checkpoint, client.number, round, kept, self.run.algorithm.at(round).keeps)

    def collect(self, name: str, requests: list[Request]) -> Iterator[Reply | Accumulator]:
        """Clients' parts in an exchange, one after the other, and at last the sum of what they said."""
        intake = Intake(self.exchanges[name], self.public, self._context(name))
        for request in requests:
            reply = self.reply(name, request)
            if reply.upload is not None:
                size, ideal = intake.take(reply.upload)
                reply = reply._replace(size=size, ideal=ideal, upload=reply.upload if self._keep_messages else None)
            yield reply
        yield intake.total

    def _context(self, name: str) -> codec.Context:
        """One for all messages of an exchange: what is computed of it is kept."""
        if self._shared is None or self._shared[0] != name or self._shared[1] is not self.public:
            self._shared = (name, self.public, self.exchanges[name].context(self.public))
        return self._shared[2]

    def hear(self, name: str, news: bytes | npt.NDArray[np.uint8]) -> None:
        """Absorb a broadcast."""
        exchange = self.exchanges[name]
        self.public = exchange.advance(self.public, codec.decode(bytes(news), self._context(name)))

    def score(self) -> list[Score]:
        """The global model on this worker's part of the test images."""
        network, task = self.run.network, self.run.task
        network.show(self.public.weights, self.public.real, self.run.algorithm.at(self.public.round).forward)
        return evaluate(network, task, self.test, np.arange(len(self.test.labels)), self.chunks)
