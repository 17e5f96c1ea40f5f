"""A federation whose server looks at every upload, and has clients of its own to learn from: what `class_inference.py` attacks.

The round is the loop's (`bifl.engine.loop`): the same exchanges, uploads encoded and decoded. Shadow clients hold the attacker's
images. They hear what all hear, train and upload like the others, and are not counted: the federation goes on as if they were not
there. So the attacker knows, in every round and from the same public state, what uploads of clients with known classes look like.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bifl import codec
from bifl.core.layout import Layout
from bifl.core.message import NOTHING, Message
from bifl.core.sides import ServerSide
from bifl.core.state import Client, Public, Server
from bifl.data.inputs import Index
from bifl.data.partitions import dealer, split
from bifl.engine.worker import ClientTools, LocalSide
from bifl.exchanges.exchange import make_answer, take_part
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import Setup, build
from bifl.nn.batch import Samples

Numbers = npt.NDArray[np.float64]


class View(NamedTuple):
    """What the server sees of some clients in one round, as it decoded it, and what it wants to know."""

    images: Numbers  # (clients, classes) how many of each class a client has
    weights: Numbers  # (clients, count) change of the weights that each upload stands for
    real: Numbers  # (clients, trained) change of ϑ, γ, β and layers kept real
    moments: Numbers  # (clients, moments) E[x] and E[x²] of every batch-norm's input; (clients, 0) if none are sent

    def summed(self, groups: Sequence[Index]) -> View:
        """What it sees of groups of clients of equal size, if it sees nothing but the sum of each group."""
        return View(*(np.stack([part[group].mean(0) for group in groups]) for part in self))


class Scene(NamedTuple):
    """One round that the attacker looks at."""

    round: int
    layout: Layout
    targets: View
    shadows: View


def halves(setup: Setup, clients: int, deals: int) -> tuple[list[Index], list[Index]]:
    """Images of the clients, one half of the training images dealt out, and of shadow clients, the rest dealt several times."""
    experiment, labels = setup.run.experiment, setup.data.labels
    order = np.random.default_rng([experiment.seed, 1]).permutation(len(labels))
    own, other = np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])
    deal = dealer(experiment.partition.name, experiment.partition.parameters)
    targets = [own[part] for part in split(deal, labels[own], clients, experiment.seed)]
    shadows = [
        other[part] for again in range(deals) for part in split(deal, labels[other], clients, 1000 * (experiment.seed + 1) + again)
    ]
    return targets, shadows


def watch(experiment: Experiment, rounds: Collection[int], deals: int) -> Iterator[Scene]:
    """The rounds that were asked for, as a curious server sees them.

    Args:
        experiment: all of its clients take part in every round.
        rounds: which to look at; the federation goes on to the last of them.
        deals: how often the attacker's images are dealt to as many shadow clients as there are clients.
    """
    setup = build(experiment)
    targets, shadows = halves(setup, experiment.clients, deals)
    parts, public, server = [*targets, *shadows], setup.public, ServerSide(Server())
    samples = Samples.of(setup.data.inputs, setup.data.labels, setup.data)
    tools = ClientTools(setup.run, samples, parts)
    clients = [Client(public.weights, public.weights, public.real, len(part), number) for number, part in enumerate(parts)]
    for round in range(1, max(rounds) + 1):
        remember = setup.run.algorithm.at(round).keeps
        present = len(parts) if remember or round in rounds else len(targets)
        before, seen = public, dict[str, list[Message]]()
        for exchange in setup.run.exchanges:
            total, known = exchange.total(public), exchange.context(public)
            for number in range(present):
                side = LocalSide(tools, clients[number], public, voted=round > 1)
                reply = take_part(exchange, side, public, uploads=True, tells_results=True)
                clients[number] = reply.client
                assert reply.message is not None, "all upload"
                upload = exchange.open(codec.decode(codec.encode(reply.message, known), known), public)
                seen.setdefault(exchange.name, []).append(upload)
                if number < len(targets):
                    total.add(upload)
            server, news = make_answer(exchange, total, public, server)
            assert isinstance(news, Message), "there is no secure sum here"
            public = exchange.advance(public, codec.decode(codec.encode(news, known), known))
        if round in rounds:
            view = _view(setup, parts, before, seen)
            cut = len(targets)
            yield Scene(round, public.layout, View(*(part[:cut] for part in view)), View(*(part[cut:] for part in view)))


def _view(setup: Setup, parts: Sequence[Index], before: Public, seen: dict[str, list[Message]]) -> View:
    labels, trained = setup.data.labels, before.layout.trained
    images = [np.bincount(labels[part], minlength=setup.data.classes) for part in parts]
    forward = setup.run.algorithm.at(before.round + 1).forward
    ballots = seen["ballot"]
    known = before.weights if forward.name == "real" else np.sign(before.weights)
    weights = [ballot.update.values() - known for ballot in ballots]
    real = [ballot.real[:trained] - before.real[:trained] for ballot in ballots]
    moments = [message.real for message in seen.get("statistics", [])] or [NOTHING] * len(parts)
    return View(*(np.stack(part).astype(np.float64) for part in (images, weights, real, moments)))
