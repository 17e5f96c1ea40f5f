"""A client at work, as an exchange sees it (`core.sides.ClientSide`), the same in simulator, loop and deployment.

Then the worker: one thread of arithmetic that runs some of the clients one after the other and keeps their state. Between it and
the server go the wire's messages. Where workers run is not their affair (`bifl.engine.backends`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bifl import codec
from bifl.attacks import attack, liars
from bifl.attacks.attack import Attack
from bifl.core.forward import PLAIN, Local
from bifl.core.message import NOTHING, Floats
from bifl.core.randomness import stream
from bifl.core.sides import Accumulator, Evaluated, Identity, Reply, Request
from bifl.core.state import Client, Public
from bifl.data.datasets import Dataset
from bifl.data.inputs import Array
from bifl.engine import checkpoint
from bifl.engine.client_store import LIMIT, ClientStore
from bifl.errors import Diverged
from bifl.exchanges.exchange import Intake, completing, take_part
from bifl.exchanges.scoring import Score
from bifl.experiment.run import Run
from bifl.experiment.setup import device_of
from bifl.nn.batch import Samples
from bifl.training.evaluation import chunks, evaluate, image_moments
from bifl.training.local import train

Parts = Mapping[int, np.ndarray[Any, Any]] | Sequence[np.ndarray[Any, Any]]  # each client's samples

_NONE = np.zeros(0, np.int64)


class ClientTools(NamedTuple):
    """What clients work with."""

    run: Run
    samples: Samples
    parts: Parts  # that they train on
    shards: Parts = MappingProxyType({})  # that they hold out
    attack: Attack | None = None
    liars: frozenset[int] = frozenset()
    wrong: Mapping[int, Samples] = MappingProxyType({})  # what clients train on that lie about labels

    def samples_of(self, number: int) -> Samples:
        """What a client trains on."""
        return self.wrong.get(number, self.samples)

    def side(
        self, client: Client, fresh: Floats, public: Public, *, voted: bool, private_reply: bytes = b"",
        notes: MutableMapping[str, bytes] | None = None, identity: Identity | None = None,
    ) -> LocalSide:  # fmt: skip
        """A client as it is remembered, at work in the round under way; `fresh` is aux of clients before their first round."""
        ready = warm_client(self.run, client, fresh, public)._replace(voted=voted)
        return LocalSide(self, public, ready, private_reply, {} if notes is None else notes, identity)

    def moments_told(self, moments: Floats, public: Public, number: int) -> Floats:
        """What a client says of the statistics that it measured: liars may say something else."""
        if self.attack is None or number not in self.liars:
            return moments
        return self.attack.measured(moments, public, stream(public.seed, public.round, None, "attack measured"))


def client_tools(run: Run, samples: Samples, parts: Parts, shards: Parts = MappingProxyType({})) -> ClientTools:
    """What the clients with these parts of the samples work with; who lies is decided here, once."""
    tools, experiment = ClientTools(run, samples, parts, shards), run.experiment
    by = attack.make(experiment.attack.name, experiment.attack.parameters)
    if by is None:
        return tools
    owned = parts if isinstance(parts, Mapping) else range(len(parts))
    who = liars(experiment.seed, experiment.clients, by.share).intersection(owned)
    tools = tools._replace(attack=by, liars=who)
    if by.labels is None:
        return tools
    true = samples.labels.cpu().numpy()
    labels, classes = true.copy(), int(true.max()) + 1
    for number in who:
        labels[parts[number]] = by.labels(true[parts[number]], classes, stream(experiment.seed, 0, None, "attack labels"))
    return tools._replace(wrong=dict.fromkeys(who, samples._replace(labels=torch.from_numpy(labels).to(samples.labels.device))))


def warm_client(run: Run, client: Client, fresh: Floats, public: Public) -> Client:
    """The client as its turn comes: where a run has a warm start, one that never trained begins with the public weights.

    It never trained if its aux is still `fresh`: the network's own initialisation, all that a node of a deployment has.
    """
    if not run.warm or client.aux is not fresh:
        return client
    return client._replace(aux=public.weights, start=public.weights)


class LocalSide:
    """One client in the round under way."""

    def __init__(
        self, tools: ClientTools, public: Public, client: Client,
        private_reply: bytes, notes: MutableMapping[str, bytes], identity: Identity | None,
    ) -> None:  # fmt: skip
        self._tools, self._public, self.client = tools, public, client
        self.private_reply, self.notes, self.identity = private_reply, notes, identity

        shards, number = tools.shards, client.number
        self._held = _NONE if isinstance(shards, Mapping) and number not in shards else shards[number]

    @property
    def _part(self) -> Tensor:
        return torch.from_numpy(self._tools.parts[self.client.number])

    def begin_afresh(self) -> None:
        """Make the client what it was before its first round, but for what reaches no upload, such as a model of its own."""
        fresh, _ = self._tools.run.network.initial()
        private = {one.name for one in self._tools.run.exchanges if one.remembers and not one.uploads}
        states = {name: state for name, state in self.client.states.items() if name in private}
        client = Client(fresh, fresh, NOTHING, self.client.weight, self.client.number, states=states)
        self.client = warm_client(self._tools.run, client, fresh, self._public)

    def train(self, client: Client, local: Local = PLAIN) -> tuple[Client, float]:
        """Local training in the round under way."""
        run, round = self._tools.run, self._public.round + 1
        samples, forward = self._tools.samples_of(self.client.number), run.algorithm.at(round).forward
        task, plan = run.task, run.plan(round)
        return train(client, run.network, forward, samples, self._part, plan, task.loss, local, task.count)

    def measure(self) -> Floats:
        """Moments of the global network on some of the client's images."""
        public = self._public
        return self._tools.moments_told(self.moments(public.weights, public.real), public, self.client.number)

    def moments(self, weights: Floats, real: Floats) -> Floats:
        """Moments of any network on some of the client's images."""
        tools, run, shown = self._tools, self._tools.run, self._public._replace(weights=weights, real=real)
        forward, most = run.algorithm.at(shown.round).forward, 2 * run.experiment.batch
        return image_moments(run.network, shown, forward, tools.samples, self._part, self.client.number, most)

    def evaluate(self, weights: Floats, real: Floats) -> Sequence[Evaluated]:
        """A model on what the client holds out, in chunks."""
        tools, run, held = self._tools, self._tools.run, self._held
        run.network.show(weights, real, run.algorithm.at(max(self._public.round, 1)).forward)
        return evaluate(run.network, run.task, tools.samples, held, chunks(len(held)))

    def samples(self) -> tuple[Array, Array]:
        """All that the client has, as it is: what it trains on, and what it holds out."""
        whole = torch.cat([self._part, torch.from_numpy(self._held)])
        samples = self._tools.samples_of(self.client.number)
        return samples.inputs[whole].cpu().numpy(), samples.labels[whole].cpu().numpy()


class Call(NamedTuple):
    """What a worker is asked to do: a method, which gives any number of results."""

    method: str
    arguments: tuple[Any, ...] = ()


class Workers(Protocol):
    """The workers of a simulation, wherever they run: all that a backend makes of their jobs (`bifl.engine.backends`)."""

    def ask(self, calls: Mapping[int, Call]) -> Iterator[Any]:
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


class Worker:
    """Runs its clients one after the other. Where there is one worker, it is all `Workers`."""

    def __init__(self, job: Job, data: Dataset) -> None:
        self.run, self.parts, self.checkpoint = job.run, job.parts, job.checkpoint
        self.shards, self._keep_messages, self.chunks = job.shards, job.keep_messages, job.chunks
        self.exchanges = {exchange.name: exchange for exchange in job.run.asked}
        self.completing = completing(job.run.exchanges)
        device = device_of(job.run.experiment)
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

    def ask(self, calls: Mapping[int, Call]) -> Iterator[Any]:
        """As one of `Workers`: what comes of calls to this one."""
        for call in calls.values():
            yield from self.do(call)

    def do(self, call: Call) -> Iterable[Any]:
        """What comes of a call."""
        results: Iterable[Any] | None = getattr(self, call.method)(*call.arguments)
        return () if results is None else results

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
        reply = take_part(exchange, side, self.public, uploads=request.uploads, tells_loss=self.run.tells_results)
        context, loss = self._context(name), reply.loss
        if loss is not None and not np.isfinite(loss):
            raise Diverged(f"round {context.round}: the loss of client {number} is {loss}: the training diverged; lower lr")
        if reply.client is not side.client:
            self._remember(reply.client, context.round)
        upload = None if reply.message is None else codec.encode(reply.message, exchange.uploads_in(context))
        return Reply(number, self.weight(number), loss, upload)

    def train(self, number: int, voted: bool) -> tuple[Client]:
        """One result: a client as it would be after training once more; it is not remembered."""
        side = self._tools.side(self._client(number), self.fresh, self.public, voted=voted)
        return (self.run.ballot.train(side.client, self.public, side.train)[0],)

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
        tests = evaluate(network, task, self.test, np.arange(len(self.test.labels)), self.chunks)
        return [Score(None, *chunk) for chunk in tests]
