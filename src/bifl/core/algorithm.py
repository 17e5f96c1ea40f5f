"""The idea of the project: an algorithm is a record of a few small pure functions.

What a client **uploads**, what the server **broadcasts**, what everyone **absorbs** (the public state) and what a client
**updates** in private. Where it runs (simulator, readable loop, deployment) makes no difference to it.

>>> import bifl.algorithms
>>> from bifl.core import register
>>> register.parameters("biml")
{'alpha': 1.25}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bifl.core import return_checks
from bifl.core.forward import Forward, binary
from bifl.core.message import Floats, Message, Selection
from bifl.core.randomness import random_signs
from bifl.core.spending import Spending, once_more
from bifl.core.state import Client, Public, Sent, Server
from bifl.core.sums import Tally, Total, UploadList
from bifl.errors import AlgorithmError, ConfigError
from bifl.registry import Registry

RobustSum = Callable[[Sequence[Message], Public, Floats], tuple[Tally, Floats]]  # the last: what the server thinks of its clients


def take_over(public: Public, news: Message) -> Public:
    """The usual `absorb`: the broadcast is the model."""
    return public._replace(weights=news.values(), real=news.real, scales=news.scales)


def as_it_is(upload: Message, public: Public) -> Message:
    """The usual `reads`: the symbols are the weights."""
    return upload


def all_weights(public: Public, sender: int | None) -> Selection | None:
    """The usual `selects`: a symbol for every weight, in order."""
    return None


_KEPT = ("aux", "start", "scales", "memory")


@dataclass(frozen=True)
class Algorithm:
    """A row of the paper's table.

    Attributes:
        upload: what a client says after training. It may return `Sent(message, memory)` to keep something in `client.memory`.
        broadcast: what the server says of the tally. It may return `Sent(message, memory)` to keep something in `server.memory`.
        update: the client's private reaction to the news; `public` has absorbed them already.
        absorb: everyone's public reaction to the news.
        reads: what an upload stands for, before it is added to the others: un-rotated, times its own scale, and so on.
        aggregate: uploads → tally, for sums that are no mean; None takes the exact mean, which needs one upload at a time.
        selects: (public, sender) → what the symbols of a message are about, for messages that do not say something of every weight;
            the sender is None for the broadcast. It may use the public seed, round, layout and streams, nothing else.
        forward: which weights the network computes with, given aux.
        central: one client holds all the data and nothing is sent (the paper's upper bounds).
        keeps: what `update` and `upload` read of a client's last round: this is remembered and nothing else, which is what many
            clients cost in memory. Of `aux`, `start`, `scales` and `memory`.
        validation: the share of the training images that the server holds out, before dealing, for its judge.
        robust: the sum that `robust=` chose (`bifl.robust`); it may read and write `server.trust`. Filled in.
        spending: what the sums tell of one client, where `privacy=` has it accounted (`bifl.privacy`): then a client tells
            nothing but its upload. Filled in.
        equal: whether every client counts once, however many images it has (`weigh=`). Filled in.
        name: what errors call it; filled in.
    """

    upload: Callable[[Client, Public], Message | Sent]
    broadcast: Callable[[Tally, Public, Server], Message | Sent]
    update: Callable[[Client, Public, Message], Client]
    absorb: Callable[[Public, Message], Public] = take_over
    reads: Callable[[Message, Public], Message] = as_it_is
    aggregate: Callable[[Sequence[Message], Public], Tally] | None = None
    selects: Callable[[Public, int | None], Selection | None] = all_weights
    forward: Forward = binary
    central: bool = False
    keeps: tuple[str, ...] = _KEPT
    validation: float = 0.0
    robust: RobustSum | None = None
    spending: Spending | None = None
    equal: bool = False
    name: str = "of this run"

    def __post_init__(self) -> None:
        if not isinstance(self.keeps, tuple) or not set(self.keeps) <= set(_KEPT):
            raise AlgorithmError(f"keeps is {self.keeps!r}; it must be a tuple of {', '.join(_KEPT)}: keeps=('aux',)")

    def at(self, round: int) -> Algorithm:
        """The algorithm of a round: the same in every round (see `Schedule`)."""
        return self

    def named(self, name: str) -> Algorithm:
        """The same with a name for errors."""
        return replace(self, name=name)


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
    def keeps(self) -> tuple[str, ...]:
        """What either of the two needs."""
        return tuple(dict.fromkeys((*self.first.keeps, *self.then.keeps)))

    @property
    def validation(self) -> float:
        """What the more demanding of the two needs."""
        return max(self.first.validation, self.then.validation)

    def at(self, round: int) -> Algorithm:
        """The algorithm of a round."""
        return self.first if round <= self.switch else self.then

    def named(self, name: str) -> Schedule:
        """The same with a name for errors."""
        return replace(self, first=self.first.named(name), then=self.then.named(name))


Algorithms = Algorithm | Schedule
register: Registry[Algorithms] = Registry("algorithm")


def weighing_equally(algorithms: Algorithms) -> Algorithms:
    """The same, with every client counting once in all its rounds."""
    if isinstance(algorithms, Schedule):
        return replace(algorithms, first=replace(algorithms.first, equal=True), then=replace(algorithms.then, equal=True))
    return replace(algorithms, equal=True)


def weight_of(algorithms: Algorithms, images: int) -> int:
    """What a client says that it weighs: its images, or 1 where `privacy=` has even their number private."""
    return images if algorithms.at(1).spending is None else 1


def counts_for(algorithm: Algorithm, weight: int) -> int:
    """What a client counts for that weighs so much."""
    return 1 if algorithm.equal else weight


def selection(algorithm: Algorithm, public: Public, sender: int | None) -> Selection | None:
    """What the symbols of a message of the round under way are about."""
    return algorithm.selects(public.bare(public.round), sender)


# ---- a client's turn --------------------------------------------------------------------------------------------------

Train = Callable[[Client], tuple[Client, float]]  # local training of aux and real, and its mean loss


def train_turn(algorithms: Algorithms, client: Client, public: Public, train: Train) -> tuple[Client, float]:
    """React to the news and train.

    Args:
        algorithms: the experiment's algorithm.
        client: private state; its `number` and `voted` are set for this round.
        public: public state; its `news`, the last round's broadcast, is None in the first round.
        train: local training.
    """
    if public.news is not None:
        algorithm = algorithms.at(public.news.round)
        counted = client._replace(weight=counts_for(algorithm, client.weight))
        updated = return_checks.client(algorithm.name, algorithm.update(counted, public, public.news), public)
        client = updated._replace(weight=client.weight)
    return train(client._replace(start=client.aux, real=public.real))


def upload_turn(algorithms: Algorithms, client: Client, public: Public) -> tuple[Client, Message]:
    """Say what came of the training."""
    algorithm = algorithms.at(public.round + 1)
    about = selection(algorithm, public, client.number)
    counted = client._replace(weight=counts_for(algorithm, client.weight))
    message, memory = return_checks.sent(algorithm.name, "upload", algorithm.upload(counted, public), public, about)
    upload = message._replace(round=public.round + 1, weight=client.weight, sender=client.number, about=about)
    return (client if memory is None else client._replace(memory=memory)), upload


def upload_form(algorithms: Algorithms, public: Public, moved: float = 1e-3) -> Message:
    """An upload of someone whose weights have `moved` by training, as far as its form goes: nothing need be ready for no change."""
    aux = public.weights + np.float32(moved) * random_signs(public.stream(None, "form"), public.layout.count)
    try:
        return upload_turn(algorithms, Client(aux, public.weights, public.real, 1), public)[1]
    except ArithmeticError as error:
        name = algorithms.at(public.round + 1).name
        raise AlgorithmError(f"algorithm '{name}': upload failed for weights that training moved by {moved:g}: {error}") from error


# ---- the server's turn ------------------------------------------------------------------------------------------------


def new_total(algorithm: Algorithm) -> Total | UploadList:
    """What a round's uploads are added to."""
    return Total() if algorithm.aggregate is None and algorithm.robust is None else UploadList()


def server_turn(algorithms: Algorithms, public: Public, total: Total | UploadList, server: Server) -> tuple[Server, Message]:
    """Make the next broadcast of a round's uploads; the server with what it keeps in memory."""
    algorithm = algorithms.at(public.round + 1)
    if isinstance(total, Total):
        tally = total.tally()
    elif algorithm.robust is not None:
        tally, trust = algorithm.robust(total.in_order(), public, server.trust)
        server = server._replace(trust=trust)
    elif algorithm.aggregate is not None:
        tally = return_checks.tally(algorithm.name, algorithm.aggregate(total.in_order(), public), public)
    else:
        raise TypeError("a list of uploads needs an algorithm that aggregates them")
    if algorithm.spending is not None:
        # who was drawn and did not answer may not have been the only one: then nobody hides among those who were not drawn
        among = max(server.there, tally.clients) if tally.clients == public.voters else tally.clients
        server = server._replace(summed=once_more(server.summed, tally.clients, among))
    about = selection(algorithm, public, None)
    message, memory = return_checks.sent(algorithm.name, "broadcast", algorithm.broadcast(tally, public, server), public, about)
    news = message._replace(round=public.round + 1, weight=1, sender=None, about=about)
    return (server if memory is None else server._replace(memory=memory)), news


def absorb(algorithms: Algorithms, public: Public, news: Message) -> Public:
    """The public state after a broadcast, absorbed by the algorithm that made it."""
    algorithm = algorithms.at(news.round)
    after = return_checks.public(algorithm.name, algorithm.absorb(public, news), public)
    return after._replace(round=news.round, news=news, before=public.news)
