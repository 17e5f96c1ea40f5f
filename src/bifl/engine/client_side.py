"""A client at work, as an exchange sees it (`core.sides.ClientSide`), the same in simulator, loop and deployment."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bifl.attacks import attack, liars
from bifl.attacks.attack import Attack
from bifl.core.forward import PLAIN, Local
from bifl.core.message import NOTHING, Floats
from bifl.core.randomness import stream
from bifl.core.sides import Identity, Score
from bifl.core.state import Client, Public
from bifl.data.inputs import Array
from bifl.experiment.run import Run
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
