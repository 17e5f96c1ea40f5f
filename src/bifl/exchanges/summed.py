"""An exchange as a secure sum sees it: what of its uploads is added up, and what the server makes of the sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bifl.core.algorithm import Algorithms, Schedule, selection
from bifl.core.message import Message, Selection
from bifl.core.state import Public, Server
from bifl.core.sums import Tally, Total
from bifl.errors import ConfigError

INSTEAD = "biml, up_down, up_only, sign_majority, fedvote, fedpm, fedavg, full, float16 or murmur_dealt"


@dataclass(frozen=True)
class Summed:
    """An exchange whose uploads are added up under masks.

    Attributes:
        inner: the exchange as it is without masks.
        algorithm: of the experiment; None where uploads are no algorithm's.
        alone: an upload within bounds, as its owner bounds it.
        plausible: whether what was counted can be a mean of such uploads, given the largest weight.
        answer: what the server makes of a total.
        ahead: 1 if the exchange belongs to the round after the last complete one.
    """

    inner: Any
    algorithm: Algorithms | None
    alone: Callable[[Message, Public], Message]
    plausible: Callable[[Tally, Public, int], bool]
    answer: Callable[[Total, Public, Server], tuple[Server, Message]]
    ahead: int

    def selects(self, public: Public, number: int) -> Selection | None:
        """What a client's symbols are about."""
        return None if self.algorithm is None else selection(self.algorithm.at(public.round + 1), public, number)

    def place(self, public: Public) -> Callable[[int], Hashable]:
        """Client → where it speaks; None where all speak of all."""

        def where(number: int) -> Hashable:
            about = self.selects(public, number)
            return None if about is None else about.place

        return where

    def like(self, public: Public) -> Callable[[int], Message]:
        """Client → an upload of the form of its own."""
        form = self.inner.form(public)

        def of(number: int) -> Message:
            about = self.selects(public, number)
            length = len(form.symbols) if about is None else about.length
            return form._replace(symbols=np.zeros(length, form.symbols.dtype))  # type: ignore[no-any-return]

        return of

    def summand(self, upload: Message, public: Public) -> Message:
        """What of an upload is added up: its own symbols, and numbers within bounds.

        Raises:
            ConfigError: the algorithm makes of it what cannot be added up.
        """
        opened = self.alone(upload, public)
        about = None if upload.sender is None else self.selects(public, upload.sender)
        if about is not None and about.place is None:
            raise self.unfit(public)
        values = opened.values()
        where = slice(None) if about is None else slice(about.place, (about.place or 0) + about.length)
        outside = np.delete(values, np.arange(len(values))[where])
        if not np.array_equal(values[where], upload.values()) or outside.any() or not np.array_equal(opened.scales, upload.scales):
            raise self.unfit(public)
        return upload._replace(real=opened.real)

    def unfit(self, public: Public) -> ConfigError:
        """Why an algorithm cannot be summed."""
        name = "" if self.algorithm is None else self.algorithm.at(public.round + 1).name
        return ConfigError(
            f"algorithm '{name}' cannot be used with secure_sum=true: it reads each upload with its sender's own scales, rotation "
            f"or choice of weights, so uploads cannot be added up unread: take {INSTEAD}"
        )


def check_groups(summed: Summed, public: Public, clients: int, together: int) -> None:
    """Refuse an algorithm that deals the weights to groups of clients too small to hide in.

    Args:
        summed: the exchange.
        public: the public state before the first round.
        clients: how many there are, of whom `public.voters` are drawn in a round.
        together: that must speak of the same weights.

    Raises:
        ConfigError: in one sentence.
    """
    place = summed.place(public)
    if place(0) is None:
        return
    smallest = min(Counter(map(place, range(clients))).values()) * public.voters // clients
    if smallest < together:
        name = "" if summed.algorithm is None else summed.algorithm.at(1).name
        raise ConfigError(
            f"algorithm '{name}' deals the weights to groups of {smallest} clients here, and a secure sum with "
            f"colluders={together - 2} is of {together} or more: raise algorithm.together, or lower colluders"
        )


def check_summable(summed: Summed, public: Public) -> None:
    """Refuse an algorithm whose uploads cannot be added up unread, in any of its rounds.

    Raises:
        ConfigError: in one sentence.
    """
    algorithms = summed.algorithm
    assert algorithms is not None
    for round in (0, algorithms.switch) if isinstance(algorithms, Schedule) else (0,):
        before = public._replace(round=round)
        algorithm = algorithms.at(round + 1)
        if algorithm.central or algorithm.aggregate is not None:
            what = "it has one client only" if algorithm.central else "its `aggregate` must see single uploads"
            raise ConfigError(f"algorithm '{algorithm.name}' cannot be used with secure_sum=true: {what}: take {INSTEAD}")
        form = summed.inner.form(before)
        trained = (form.real * np.float32(0.75)).astype(np.float32)  # all factors are 1 at first, and would not show
        summed.summand(form._replace(real=trained, sender=0, weight=1, round=round + 1), before)
