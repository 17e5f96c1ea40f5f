"""The idea of the project: an algorithm is a record of a few small pure functions.

What a client **uploads**, what the server **broadcasts**, what everyone **absorbs** (the public state) and what a client
**updates** in private. The runtimes (simulator, readable loop, deployment) only ever call `client_turn` and `server_turn`.

>>> from bifl.algorithm import register
>>> register.parameters("biml")
{'alpha': 1.25}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bifl.errors import ConfigError
from bifl.layout import Layout
from bifl.message import BINARY, FLOAT32, NOTHING, TERNARY, Alphabet, Floats, Message, Votes
from bifl.nn.forward import Forward, binary
from bifl.registry import Registry
from bifl.tally import Tally, mean

__all__ = [
    "BINARY", "FLOAT32", "NOTHING", "TERNARY", "Algorithm", "Alphabet", "Client", "Message", "Schedule", "Shared", "Tally", "Votes",
    "absorb", "client_turn", "key", "mean", "register", "remembered", "server_turn", "take_over",
]  # fmt: skip


class Shared(NamedTuple):
    """Public state: folded from the broadcasts alone, so identical on the server and on every client.

    It is the evaluated model, the context for coding the next messages, and the catch-up message for a newcomer.
    """

    seed: int  # of the experiment: with round and sender it gives every client's key
    round: int  # how many broadcasts were absorbed
    layout: Layout
    weights: Floats  # (count,) the last broadcast, as weights: W̃, Sign(W̃) or W
    real: Floats  # (reals,) ϑ, batch-norm γ, β and moments
    scales: Floats = NOTHING  # the last broadcast's
    news: Message | None = None  # the last broadcast
    before: Message | None = None  # the one before it: both together tell the coder how weights change


class Client(NamedTuple):
    """Private state of one client."""

    aux: Floats  # (count,) auxiliary weights W̄
    start: Floats  # (count,) aux as this round's training began
    real: Floats  # (reals,)
    weight: int  # |D_i|
    key: int  # the only randomness: key(seed, round, client)
    voted: bool = True  # whether this client's ballot is in the tally that the news reports
    scales: Floats = NOTHING
    memory: Floats = NOTHING  # an algorithm's carry-over, such as error feedback


def remembered(client: Client, keeps: tuple[str, ...], fresh: Client) -> Client:
    """The client with everything but what is kept as it was before the first round."""
    return fresh._replace(**{field: getattr(client, field) for field in keeps})


Judge = Callable[[Floats, Floats], float]  # (weights, real) → accuracy on the images that the server holds


def take_over(shared: Shared, news: Message) -> Shared:
    """The usual `absorb`: the broadcast is the model."""
    return shared._replace(weights=news.values(), real=news.real, scales=news.scales)


@dataclass(frozen=True)
class Algorithm:
    """A row of the paper's table.

    Attributes:
        upload: what a client says after training.
        broadcast: what the server says of the tally. The judge scores weights on held-out data; None where the server has none.
        update: the client's private reaction to the news; `shared` has absorbed them already.
        absorb: everyone's public reaction to the news.
        aggregate: uploads → tally, streaming.
        forward: which weights the network computes with, given aux.
        central: one client holds all the data and nothing is sent (the paper's upper bounds).
        keeps: what `update` reads of a client's last round: the runtimes remember this and nothing else, which is what many clients
            cost in memory. Of `aux`, `start`, `scales` and `memory`.
        validation: the share of the training images that the server holds out, before dealing, for its judge.
    """

    upload: Callable[[Client, Shared], Message]
    broadcast: Callable[[Tally, Shared, Judge | None], Message]
    update: Callable[[Client, Shared, Message], Client]
    absorb: Callable[[Shared, Message], Shared] = take_over
    aggregate: Callable[[Iterable[Message], Shared], Tally] = mean
    forward: Forward = binary
    central: bool = False
    keeps: tuple[str, ...] = ("aux", "start", "scales", "memory")
    validation: float = 0.0

    def at(self, round: int) -> Algorithm:
        """The algorithm of a round: the same in every round (see `Schedule`)."""
        return self


@dataclass(frozen=True)
class Schedule:
    """`first` for the rounds up to `switch`, `then` afterwards; a broadcast is absorbed by the algorithm that made it."""

    first: Algorithm
    then: Algorithm
    switch: int

    def __post_init__(self) -> None:
        if self.first.forward.codes is not self.then.forward.codes:
            raise ConfigError("a schedule needs two algorithms that code the same layers")

    @property
    def validation(self) -> float:
        """What the more demanding of the two needs."""
        return max(self.first.validation, self.then.validation)

    def at(self, round: int) -> Algorithm:
        """The algorithm of a round."""
        return self.first if round <= self.switch else self.then


register: Registry[Algorithm | Schedule] = Registry("algorithm")


def key(seed: int, round: int, client: int) -> int:
    """The 64-bit number that all of a client's randomness in a round comes from."""
    return int(np.random.SeedSequence([seed, round, client]).generate_state(1, np.uint64)[0])


def absorb(algorithms: Algorithm | Schedule, shared: Shared, news: Message) -> Shared:
    """The public state after a broadcast, absorbed by the algorithm that made it."""
    after = algorithms.at(news.round).absorb(shared, news)
    return after._replace(round=news.round, news=news, before=shared.news)


Train = Callable[[Client], Client]


def client_turn(algorithms: Algorithm | Schedule, client: Client, shared: Shared, train: Train) -> tuple[Client, Message]:
    """One request, one reply: react to the news, train, say what came of it.

    Args:
        algorithms: the experiment's algorithm.
        client: private state; its `key` and `voted` are set for this round.
        shared: public state; its `news`, the last round's broadcast, is None in the first round.
        train: local training of aux and real.
    """
    if shared.news is not None:
        client = algorithms.at(shared.news.round).update(client, shared, shared.news)
    client = train(client._replace(start=client.aux, real=shared.real))
    upload = algorithms.at(shared.round + 1).upload(client, shared)
    return client, upload._replace(round=shared.round + 1, weight=client.weight)


def server_turn(
    algorithms: Algorithm | Schedule, shared: Shared, uploads: Iterable[Message], judge: Judge | None = None
) -> Message:
    """Fold a round's uploads into the next broadcast."""
    algorithm = algorithms.at(shared.round + 1)
    tally = algorithm.aggregate(uploads, shared)
    return algorithm.broadcast(tally, shared, judge)._replace(round=shared.round + 1)
