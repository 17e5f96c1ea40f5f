"""Those who train, as a round sees them: worker processes on this machine (`pool`), or nodes of a federation."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from bifl.core.sides import Abandoned, Accumulator, ServerSide
from bifl.core.state import Public
from bifl.engine.catch_up import Step
from bifl.engine.scoring import Evaluation
from bifl.engine.turns import Answer, Assignment, Troubles
from bifl.exchanges.exchange import Exchange


class Clients(Protocol):
    """Those who train, as a round sees them."""

    def barred(self) -> Collection[int]:
        """A round begins: the clients that may not take part in it."""

    def there(self) -> int:
        """How many clients could be drawn: they may take part, and answer when they are asked."""

    def collect(
        self, exchange: Exchange, assignments: list[Assignment], note: Callable[[Answer], None], server: ServerSide
    ) -> Accumulator:
        """Let clients say something; the sum of it. Every answer that is counted is noted; not every assignment need be done.

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

    def score(self) -> Evaluation:
        """Evaluate the global model."""

    def troubles(self) -> Troubles:
        """What went wrong since the last round."""

    def steps(self) -> tuple[Step, ...]:
        """The last broadcasts, by which clients that missed some are brought up to date."""
