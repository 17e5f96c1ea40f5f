"""Clients at work, and the worker: one thread of arithmetic that runs some of them one after the other and keeps their state.

How a client works (`LocalSide`) is the same in simulator, loop and deployment. Between a worker and the server go the wire's
messages. Where workers run is not their affair (`bifl.engine.backends`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bifl import codec
from bifl.attacks import attack, liars
from bifl.core.forward import PLAIN, Forward, Latent, Local
from bifl.core.layout import Layout
from bifl.core.message import NOTHING, TERNARY, Floats
from bifl.core.randomness import stream
from bifl.core.sides import Accumulator, Identity, Reply, Request, Score
from bifl.core.state import Client, Public
from bifl.data.datasets import Dataset
from bifl.data.inputs import Array
from bifl.engine import checkpoint
from bifl.engine.client_store import LIMIT, ClientStore
from bifl.errors import Diverged
from bifl.exchanges.exchange import Intake, completing, take_part
from bifl.experiment.run import Run
from bifl.nn.batch import Samples
from bifl.nn.compute import device_of
from bifl.training.evaluation import chunks, evaluate, image_moments
from bifl.training.local import train

T = TypeVar("T")
Parts = Mapping[int, np.ndarray[Any, Any]] | Sequence[np.ndarray[Any, Any]]  # each client's samples

_NONE = np.zeros(0, np.int64)
_OWN_MOMENTS = 1024  # images on which batch-norm is measured in a client's own network


# ---- a client at work ----------------------------------------------------------------------------------------------------


class ClientTools:
    """What clients work with, and what they are before their first round. Who of them lies is decided here, once.

    Args:
        run: that they take part in.
        samples: of all of them.
        parts: which of these each client trains on,
        shards: and which it holds out, where it does.
        identity: what they sign with.
    """

    def __init__(
        self, run: Run, samples: Samples, parts: Parts, shards: Parts = MappingProxyType({}), identity: Identity | None = None
    ) -> None:
        self.run, self.samples, self.parts, self.shards, self.identity = run, samples, parts, shards, identity
        experiment = run.experiment
        self._attack = experiment.attack.made(attack)
        self._liars, self._lied = frozenset[int](), samples  # what liars train on
        if self._attack is None:
            return
        owned = parts if isinstance(parts, Mapping) else range(len(parts))
        self._liars = liars(experiment.seed, experiment.clients, self._attack.share).intersection(owned)
        if self._attack.labels is None:
            return
        true = samples.labels.cpu().numpy()
        labels, classes = true.copy(), int(true.max()) + 1
        for number in self._liars:
            dice = stream(experiment.seed, 0, None, "attack labels")
            labels[parts[number]] = self._attack.labels(true[parts[number]], classes, dice)
        self._lied = samples._replace(labels=torch.from_numpy(labels).to(samples.labels.device))

    def weight(self, number: int) -> int:
        """What a client says that it weighs: its images, or 1 where even their number is private."""
        return self.run.weighing.told(len(self.parts[number]))

    def first(self, number: int) -> Client:
        """A client before its first round."""
        fresh = self.run.fresh.weights
        return Client(fresh, fresh, NOTHING, self.weight(number), number)

    def samples_of(self, number: int) -> Samples:
        """What a client trains on."""
        return self._lied if number in self._liars else self.samples

    def warm(self, client: Client, public: Public) -> Client:
        """The client as its turn comes: where a run has a warm start, one that never trained begins with the public weights.

        It never trained if its aux is still the network's own initialisation: all that a node of a deployment has.
        """
        if not self.run.warm or client.aux is not self.run.fresh.weights:
            return client
        return client._replace(aux=public.weights, start=public.weights)

    def moments_told(self, moments: Floats, public: Public, number: int) -> Floats:
        """What a client says of the statistics that it measured: liars may say something else."""
        if self._attack is None or number not in self._liars:
            return moments
        return self._attack.measured(moments, public, stream(public.seed, public.round, None, "attack measured"))


class LocalSide:
    """A client as it is remembered, at work in the round under way, as an exchange sees it (`core.sides.ClientSide`)."""

    def __init__(
        self, tools: ClientTools, client: Client, public: Public, *, voted: bool, private_reply: bytes = b"",
        notes: MutableMapping[str, bytes] | None = None,
    ) -> None:  # fmt: skip
        self._tools, self._public, self.client = tools, public, tools.warm(client, public)._replace(voted=voted)
        self.notes: MutableMapping[str, bytes] = {} if notes is None else notes
        self.private_reply, self.identity = private_reply, tools.identity
        shards, number = tools.shards, client.number
        self._held = _NONE if isinstance(shards, Mapping) and number not in shards else shards[number]

    @property
    def _part(self) -> Tensor:
        return torch.from_numpy(self._tools.parts[self.client.number])

    def begin_afresh(self) -> None:
        """Make the client what it was before its first round, but for what reaches no upload, such as a model of its own."""
        private = {one.name for one in self._tools.run.exchanges if one.remembers and not one.uploads}
        states = {name: state for name, state in self.client.states.items() if name in private}
        first = self._tools.first(self.client.number)._replace(weight=self.client.weight, states=states)
        self.client = self._tools.warm(first, self._public)

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
        run = self._tools.run
        return self._measured(weights, real, run.algorithm.at(self._public.round).forward, 2 * run.experiment.batch)

    def own_network(self, client: Client) -> tuple[Floats, Floats]:
        """Weights and real parameters of the network that the client has in its hands after training.

        Batch-norm's statistics are measured in it: the running ones of a few steps are half those of the global network, which its
        own is far from by then.
        """
        layout, forward = self._public.layout, self._tools.run.algorithm.at(self._public.round + 1).forward
        weights = _trits(client, forward, layout) if forward.alphabet == TERNARY else client.aux
        if not layout.moments:
            return weights, client.real
        moments = self._measured(weights, client.real, forward, _OWN_MOMENTS)
        return weights, np.concatenate([client.real[: layout.trained], moments])

    def _measured(self, weights: Floats, real: Floats, forward: Forward, most: int) -> Floats:
        shown, tools = self._public._replace(weights=weights, real=real), self._tools
        return image_moments(tools.run.network, shown, forward, tools.samples, self._part, self.client.number, most)

    def evaluate(self, weights: Floats, real: Floats) -> Sequence[Score]:
        """A model on what the client holds out, in chunks."""
        tools, run, held = self._tools, self._tools.run, self._held
        run.network.show(weights, real, run.algorithm.at(max(self._public.round, 1)).forward)
        return evaluate(run.network, run.task, tools.samples, held, chunks(len(held)))

    def samples(self) -> tuple[Array, Array]:
        """All that the client has, as it is: what it trains on, and what it holds out."""
        whole = torch.cat([self._part, torch.from_numpy(self._held)])
        samples = self._tools.samples_of(self.client.number)
        return samples.inputs[whole].cpu().numpy(), samples.labels[whole].cpu().numpy()


@torch.no_grad()
def _trits(client: Client, forward: Forward, layout: Layout) -> Floats:
    """What a ternary network makes of its auxiliary weights while it trains."""
    aux, scales = torch.from_numpy(client.aux), torch.from_numpy(client.real[: len(layout.layers)].copy())
    flat = forward.weights(Latent(aux, aux, scales=scales, sizes=layout.sizes, fan_in=layout.fan_in, training=True))
    return np.sign(flat.numpy() * layout.per_weight(np.sign(scales.numpy()))).astype(np.float32)


# ---- the worker ----------------------------------------------------------------------------------------------------------


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
        self.run, self.public, self._checkpoint = job.run, job.public, job.checkpoint
        self._chunks, self._keep_messages = job.chunks, job.keep_messages
        self.exchanges = {exchange.name: exchange for exchange in job.run.asked}
        self.completing = completing(job.run.exchanges)
        device = device_of(job.run.experiment.device)
        job.run.network.move(device)
        self.tools = ClientTools(job.run, Samples.training(data).on(device), job.parts, job.shards, job.identity)
        self._tests = Samples.testing(data).on(device)
        self._shared: tuple[str, Public, codec.Context] | None = None  # the exchange, the public state and their context
        self.notes: MutableMapping[int, MutableMapping[str, bytes]] = defaultdict(dict)  # clients' own, for the round under way
        vectors, fresh = len({"aux", "start", "memory"} & set(self.run.algorithm.keeps)), job.run.fresh.weights
        much = vectors * len(job.parts) * fresh.nbytes > LIMIT  # what clients have to remember might not fit into memory
        # those that have something to remember
        self.clients: dict[int, Client] = ClientStore(fresh, job.checkpoint) if much else {}
        self.kept: dict[int, int] = {}  # client → the round of which it remembers something
        for number, round in job.trained.items():
            self.restore(number, round)

    def restore(self, number: int, round: int) -> None:
        """Let a client remember what its file tells of a round, if clients have files."""
        folder = self._checkpoint
        if folder is not None:
            keeps, first = self.run.algorithm.at(round).keeps, self.tools.first(number)
            self.clients[number] = checkpoint.load_client(folder, number, round, first, keeps, self.run.remembering)
            self.kept[number] = round

    def forget(self, number: int) -> None:
        """Let a client be as it was before its first round. What another algorithm of a schedule has written down stays."""
        self.clients.pop(number, None)
        self.kept.pop(number, None)

    def ask(self, calls: Mapping[int, Call[T]]) -> Iterator[T]:
        """As one of `Workers`: what comes of calls to this one."""
        for call in calls.values():
            yield from call(self)

    def _client(self, number: int) -> Client:
        """A client as it is remembered, or as it was before the first round."""
        return self.clients.get(number) or self.tools.first(number)

    def reply(self, name: str, request: Request) -> Reply:
        """A client's part in an exchange: what it says, as bytes."""
        exchange, number = self.exchanges[name], request.number
        side = LocalSide(
            self.tools, self._client(number), self.public,
            voted=request.voted, private_reply=request.private_reply, notes=self.notes[number],
        )  # fmt: skip
        reply = take_part(exchange, side, self.public, uploads=request.uploads, tells_results=self.run.tells_results)
        context, loss = self._context(name), reply.loss
        if loss is not None and not np.isfinite(loss):
            raise Diverged(f"round {context.round}: the loss of client {number} is {loss}: the training diverged; lower lr")
        if reply.client is not side.client:
            self._remember(reply.client, context.round)
        upload = None if reply.message is None else codec.encode(reply.message, exchange.uploads_in(context))
        return Reply(number, self.tools.weight(number), loss, upload)

    def _remember(self, client: Client, round: int) -> None:
        """Keep what a client must know of a round."""
        first, folder = self.tools.first(client.number), self._checkpoint
        kept = self.run.remembered(client, round, first)
        if kept is first:
            self.forget(client.number)  # what another algorithm of a schedule kept
            return
        self.clients[client.number], self.kept[client.number] = kept, round
        if folder is not None:
            checkpoint.save_client(folder, client.number, round, kept, self.run.algorithm.at(round).keeps)

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

    def hear(self, name: str, news: bytes | npt.NDArray[np.uint8]) -> tuple[()]:
        """Absorb a broadcast."""
        exchange = self.exchanges[name]
        self.public = exchange.advance(self.public, codec.decode(bytes(news), self._context(name)))
        return ()

    def score(self) -> list[Score]:
        """The global model on this worker's part of the test images."""
        return score_tests(self.run, self.public, self._tests, self._chunks)

    def own_network(self, number: int, voted: bool) -> tuple[Floats, Floats]:
        """Weights and real parameters of a client's network after training once more; nothing of it is remembered."""
        side = LocalSide(self.tools, self._client(number), self.public, voted=voted)
        client, _ = self.run.ballot.train(side.client, self.public, side.train)
        return side.own_network(client)


def score_tests(run: Run, public: Public, tests: Samples, wanted: Iterable[int]) -> list[Score]:
    """The global model on those chunks of the test samples that are wanted."""
    run.network.show(public.weights, public.real, run.algorithm.at(public.round).forward)
    return evaluate(run.network, run.task, tests, np.arange(len(tests.labels)), wanted)


Call = Callable[[Worker], Iterable[T]]  # what a worker is asked to do, which gives any number of results; it can be pickled


class Workers(Protocol):
    """The workers of a simulation, wherever they run: all that a backend makes of their jobs (`bifl.engine.backends`)."""

    def ask(self, calls: Mapping[int, Call[T]]) -> Iterator[T]:
        """What comes of calls to some workers, by the places of their jobs, at the same time; of each worker in its order."""


Backend = Callable[[Sequence[Job], Dataset], AbstractContextManager[Workers]]  # starts workers with these jobs
