"""What a privacy mechanism is: how clients say their update so that the sum of all tells little of one, and what it tells.

`private` gives one to any algorithm whose clients upload their weights. Then
- all that a client uploads of its data is one bounded vector (`whole_update`), said as the mechanism says it; the real numbers of
  its message repeat the public ones, its weight is 1, and it tells no loss;
- the server reads the mean of what was said, noise and all, and makes of it what the algorithm would make of the mean;
- what the sums have told so far is accounted (`Spending`), by the number of clients that were in each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.core.algorithm import Algorithm, Algorithms, Schedule, all_weights, as_it_is
from bifl.core.layout import Layout
from bifl.core.message import Alphabet, Floats, Message, Selection, Symbols
from bifl.core.rules import floats
from bifl.core.spending import Spending, Summed
from bifl.core.state import Client, Public, Sent, Server
from bifl.core.sums import Tally
from bifl.errors import ConfigError
from bifl.privacy.accounting import ORDERS, Numbers, epsilon
from bifl.privacy.dice import Dice, Words
from bifl.privacy.whole_update import applied, numbers, vector
from bifl.registry import Registry

INSTEAD = "fedavg, full, fedavgm or fedadam"


class Crowd(NamedTuple):
    """Who may hide whom.

    Attributes:
        clients: of whom those of a round are drawn.
        hidden: whether nobody but the server knows who was drawn; in a secure sum all clients do.
        colluders: clients that may tell others, or the server, what they sent and whether they were drawn.
    """

    clients: int
    hidden: bool = False
    colluders: int = 0


def as_many(numbers: int) -> int:
    """The usual `length`: a symbol for every number."""
    return numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism:
    """A privacy mechanism.

    Attributes:
        clip: the largest length of a client's update; the mechanism may rely on it.
        delta: δ, for which ε is accounted.
        says: (update, public state, private random words) → symbols of an upload.
        alphabet: of these symbols.
        hears: (mean of the symbols' values, how many clients said them, public state, the server's random words) → mean update.
        divergences: (how many clients were summed, crowd, numbers in an update) → (`ORDERS`,) Rényi divergences of one round.
        length: numbers in an update → symbols in an upload.
        budget: the largest ε that a run may spend; 0 means any.
        unseen: whether the divergences hold only where nobody sees a single upload: a deployment then needs the secure sum.
    """

    clip: float
    delta: float
    says: Callable[[Floats, Public, Words], Symbols]
    alphabet: Alphabet
    hears: Callable[[Numbers, int, Public, Words], npt.NDArray[np.floating]]
    divergences: Callable[[int, Crowd, int], Numbers]
    length: Callable[[int], int] = as_many
    budget: float = 0.0
    unseen: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.clip < 64:  # what a secure sum holds
            raise ConfigError(f"privacy.clip must be a length greater than 0 and below 64, not {self.clip}")
        if not 0 < self.delta < 1:
            raise ConfigError(f"privacy.delta must be a probability, far below 1/clients, not {self.delta}")
        if not 0 <= self.budget < float("inf"):
            raise ConfigError(f"privacy.budget must be the largest ε that may be spent, or 0 for any, not {self.budget}")


privacy: Registry[Mechanism | None] = Registry("privacy")


@privacy
def none() -> None:
    """No differential privacy: no ε is claimed."""


def check_private(batchnorm: str, holdout: float, attack: str) -> None:
    """Refuse settings by which clients would tell what is not accounted.

    Raises:
        ConfigError: in one sentence that says what to change.
    """
    if batchnorm != "average":
        raise ConfigError(
            f"privacy= accounts for one upload a round, and batchnorm={batchnorm} has clients send statistics besides: set "
            "batchnorm=average, with which they are part of it"
        )
    if holdout:
        raise ConfigError(f"privacy= does not account for results on what clients hold out: set holdout=0, not {holdout:g}")
    if attack != "none":
        raise ConfigError("privacy= bounds what honest clients send, and attack= has some send anything: leave one of the two out")


def private(algorithms: Algorithms, how: Mechanism, crowd: Crowd, dice: Dice) -> Algorithm:
    """The algorithm, in which clients say their updates privately.

    Args:
        algorithms: what is made private.
        how: the mechanism.
        crowd: who may hide whom.
        dice: where private randomness comes from.

    Raises:
        ConfigError: its clients upload something else than their weights, or see the mechanism's limits.
    """
    name = "of several parts" if isinstance(algorithms, Schedule) else f"'{algorithms.name}'"
    if isinstance(algorithms, Schedule) or algorithms.central or not _plain(algorithms):
        raise ConfigError(f"privacy= needs clients that upload their weights, and those of algorithm {name} do not: take {INSTEAD}")
    if algorithms.robust is not None:
        raise ConfigError("privacy= accounts for a plain sum, which robust= replaces: choose one of the two")
    if how.delta >= 1 / crowd.clients:
        raise ConfigError(
            f"privacy.delta={how.delta:g} would allow one of clients={crowd.clients} to be told in full: it must be below "
            f"{1 / crowd.clients:g}"
        )
    return dataclasses.replace(
        algorithms,
        upload=partial(_upload, how=how, dice=dice),
        broadcast=partial(_broadcast, inner=algorithms, how=how, dice=dice),
        selects=partial(_selects, how=how),
        spending=Spending(partial(_spent, how=how, crowd=crowd), how.delta, how.budget),
        keeps=(),  # the same noise must not be told of two updates that differ by what a server made the client remember
    )


def _plain(algorithm: Algorithm) -> bool:
    """Whether an upload is the client's weights, and its sum their mean."""
    whole = algorithm.reads is as_it_is and algorithm.selects is all_weights and not algorithm.validation
    return algorithm.upload is floats and algorithm.aggregate is None and whole


def _upload(client: Client, public: Public, how: Mechanism, dice: Dice) -> Message:
    """The private update, and nothing else of the client: its real numbers are the public ones."""
    words = dice(public, client.number, client.secret)
    symbols = how.says(vector(client, public, how.clip), public, words)
    return Message(symbols, how.alphabet, public.real)


def _broadcast(tally: Tally, public: Public, server: Server, inner: Algorithm, how: Mechanism, dice: Dice) -> Message | Sent:
    """What the algorithm makes of the private mean."""
    by = how.hears(tally.mean, tally.clients, public, dice(public, None, b"")).astype(np.float32)
    weights, real = applied(by, public, how.clip)
    return inner.broadcast(Tally(tally.clients, tally.clients, 1, None, weights.astype(np.float64), real), public, server)


def _selects(public: Public, sender: int | None, how: Mechanism) -> Selection | None:
    """Uploads are about everything at once, the broadcast about the weights."""
    return None if sender is None else Selection(how.length(numbers(public.layout)), place=0)


def _spent(summed: Summed, layout: Layout, how: Mechanism, crowd: Crowd) -> float:
    """ε of all rounds so far."""
    size, total = numbers(layout), np.zeros(len(ORDERS))
    for clients, among, rounds in summed:
        total = total + rounds * how.divergences(clients, crowd._replace(clients=among), size)
    return epsilon(total, how.delta)
