"""Which exchanges can be counted by a server that sees sums alone: what of an upload is added up, and what is refused."""

from __future__ import annotations

from collections import Counter

import numpy as np

from bifl.core.algorithm import Algorithms
from bifl.core.message import UPDATE, Message, Vector
from bifl.core.state import Public
from bifl.errors import ConfigError
from bifl.exchanges.exchange import Summable

INSTEAD = "biml, up_down, up_only, sign_majority, fedvote, fedpm, fedavg, full, float16 or murmur_dealt"


class Unsummable(ConfigError):
    """An upload that cannot be added to others unread."""


def summand(exchange: Summable, upload: Message, public: Public) -> Message:
    """What of an upload is added up: its own symbols, and real numbers within bounds.

    Raises:
        Unsummable: what is made of it cannot be added up.
    """
    opened = exchange.bounded(upload, public)
    about = None if upload.sender is None else exchange.selects(public, upload.sender)
    values, said = opened.update.values(), upload.update.values()
    where = slice(None) if about is None else slice(about.place, (about.place or 0) + about.length)
    outside = np.delete(values, np.arange(len(values))[where])
    same = np.array_equal(values[where], said) and not outside.any() and np.array_equal(opened.update.scales, upload.update.scales)
    plain = all(_as_they_are(upload.vectors[name], opened.vectors[name]) for name in upload.vectors if name != UPDATE)
    if not same or not plain or (about is not None and about.place is None):
        raise Unsummable("its uploads are read with their sender's own scales, rotation or choice of weights")
    return upload._replace(real=opened.real)


def _as_they_are(said: Vector, opened: Vector) -> bool:
    """Whether a further vector is about all weights, and read as what it says of them."""
    same = np.array_equal(opened.values(), said.values()) and np.array_equal(opened.scales, said.scales)
    return same and said.about is None


def check_groups(exchange: Summable, name: str, public: Public, clients: int, together: int) -> None:
    """Refuse an algorithm that deals the weights to groups of clients too small to hide in.

    Args:
        exchange: the ballot.
        name: of the algorithm.
        public: the public state before the first round.
        clients: how many there are, of whom `public.voters` are drawn in a round.
        together: that must speak of the same weights.

    Raises:
        ConfigError: in one sentence.
    """
    place = exchange.place(public)
    if place(0) is None:
        return
    smallest = min(Counter(map(place, range(clients))).values()) * public.voters // clients
    if smallest < together:
        raise ConfigError(
            f"algorithm '{name}' deals the weights to groups of {smallest} clients here, and a secure sum with "
            f"colluders={together - 2} is of {together} or more: raise algorithm.together, or lower colluders"
        )


def check_summable(exchange: Summable, algorithms: Algorithms, public: Public) -> None:
    """Refuse an algorithm whose uploads cannot be added up unread, in any of its rounds.

    Raises:
        ConfigError: in one sentence.
    """
    for round in algorithms.begins:
        before = public._replace(round=round)
        algorithm = algorithms.at(round + 1)
        refusal = f"algorithm '{algorithm.name}' cannot be used with secure_sum=true"
        if algorithm.central or algorithm.aggregate is not None:
            what = "it has one client only" if algorithm.central else "its `aggregate` must see single uploads"
            raise ConfigError(f"{refusal}: {what}: take {INSTEAD}")
        if algorithm.mirrors and public.voters < public.clients:
            raise ConfigError(
                f"{refusal} and participation below 1: clients that missed a round begin afresh there, and its server keeps the "
                f"mean of what all of them remember: set participation=1, or take {INSTEAD}"
            )
        form = exchange.form(before)
        trained = (form.real * np.float32(0.75)).astype(np.float32)  # all factors are 1 at first, and would not show
        try:
            summand(exchange, form._replace(real=trained, sender=0, weight=1, round=round + 1), before)
        except Unsummable as error:
            raise ConfigError(f"{refusal}: {error}, and cannot be added up unread: take {INSTEAD}") from error
