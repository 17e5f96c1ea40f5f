"""Those who train, as a round sees them, and what it notes of their replies."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from bifl.core.exact_sum import ExactSum
from bifl.core.sides import Abandoned, Accumulator, Reply, Request, ServerSide
from bifl.core.state import Public
from bifl.engine.catch_up import Step
from bifl.exchanges.exchange import Exchange
from bifl.exchanges.scoring import Score


class NobodyVotes(Exception):
    """None of those who were drawn to vote may: the draw must be repeated without them."""


class Troubles(NamedTuple):
    """What a round's record says of clients that were not as they should be."""

    refused: int = 0  # uploads that could not be counted
    missing: int = 0  # clients that were asked and did not answer
    catch_up_bytes: int = 0  # to those who had missed broadcasts


class Clients(Protocol):
    """Those who train, as a round sees them: worker processes on this machine (`pool`), or nodes of a federation."""

    def barred(self) -> Collection[int]:
        """A round begins: the clients that may not take part in it."""

    def there(self) -> int:
        """How many clients could be drawn: they may take part, and answer when they are asked."""

    def collect(
        self, exchange: Exchange, requests: list[Request], note: Callable[[Reply], None], server: ServerSide
    ) -> Accumulator:
        """Let clients say something; the sum of it. Every reply that is counted is noted; not every request need be answered.

        Who adds up for a server that does not trust the clients checks what they say by what that server knows of the round.

        Raises:
            NobodyVotes: those who were to upload are barred by now.
        """

    def hold_again(self, error: Abandoned) -> None:
        """A round was abandoned, and is held again without those by whose fault it was."""

    def do_without(self, error: Abandoned) -> None:
        """An exchange was abandoned after the broadcast that completes the round: the round ends without it."""

    def tell(self, exchange: Exchange, news: bytes, after: Public, hearers: Collection[int]) -> Collection[int]:
        """Tell a broadcast, with which the public state is `after`; those of the hearers that are there."""

    def score(self) -> list[Score]:
        """The global model on the server's own test samples, if there are any."""

    def troubles(self) -> Troubles:
        """What went wrong since the last round."""

    def steps(self) -> tuple[Step, ...]:
        """The last broadcasts, by which clients that missed some are brought up to date."""


class Replies:
    """What an exchange's replies cost, who sent them, and how their training went: noted while they come.

    Args:
        keep: takes a copy of an upload, by its sender.
    """

    def __init__(self, keep: Callable[[str, bytes], None]) -> None:
        self._keep = keep
        self.bytes = 0
        self._losses = ExactSum()
        self.by_client: dict[int, Reply] = {}  # without uploads
        self._senders: set[int] = set()
        self._ideals: list[float | None] = []  # bytes of each upload, if the coder were ideal

    @property
    def ideal(self) -> float | None:
        """Their sum, in whatever order they came."""
        sizes = [size for size in self._ideals if size is not None]
        return math.fsum(sizes) if len(sizes) == len(self._ideals) else None

    @property
    def loss(self) -> float:
        """Their mean training loss; NaN where nobody told."""
        return float(self._losses.mean()) if self._losses.weight else math.nan

    @property
    def counted(self) -> frozenset[int]:
        """The clients whose uploads were counted."""
        return frozenset(self._senders)

    def note(self, reply: Reply) -> None:
        """One more."""
        self.by_client[reply.number] = reply._replace(upload=None)
        if reply.loss is not None:
            self._losses.add(reply.loss, reply.weight)
        if reply.size is not None:
            self._senders.add(reply.number)
            self.bytes += reply.size
            self._ideals.append(reply.ideal)
        if reply.upload is not None:
            self._keep(f"{reply.number:05d}", reply.upload)
