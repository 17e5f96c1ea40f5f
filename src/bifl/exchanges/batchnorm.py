"""`batchnorm=recalibrate`: batch-norm's statistics for the network that was broadcast (paper §2).

The statistics of the clients' training describe their own networks, which are far from the sign of their mean. After every
broadcast the clients that voted therefore measure the inputs of every batch-norm in the *global* network, on 2·batch of their own
images, each layer normalised as in training: by what was just measured before it. They upload these moments; the server pools them
exactly and broadcasts the result. (Layers normalised by the last pooled statistics would need several passes for the same.) Ballots
then repeat the last statistics, at one bit each. Training does not depend on any of this: batch-norm trains on its own batches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from bifl.codec import Context, KnownReals, Precision
from bifl.core.exchange import ClientReply, ClientSide
from bifl.core.message import Floats, Message, reals_only
from bifl.core.state import Public, Server
from bifl.core.sums import Total, UploadList, mean


def last_statistics(real: Floats, public: Public) -> Floats:
    """A ballot's real numbers with the last statistics instead of those of training, which nobody needs before this exchange."""
    trained = public.layout.trained
    return np.concatenate([real[:trained], public.real[trained:]])


@dataclass(frozen=True)
class Statistics:
    """The exchange of batch-norm's statistics, after the ballot.

    Attributes:
        precision: of the numbers.
        in_context: whether messages are coded in what both ends know.
        bound: all uploads within bounds around each other; only the server calls it.
        equal: whether every client counts once.
    """

    precision: Precision
    in_context: bool
    bound: Callable[[Sequence[Message], Public], Sequence[Message]]
    equal: bool = False
    name: str = "statistics"
    trains: bool = False
    tells: bool = True
    quorum: int = 0

    def context(self, public: Public) -> Context:
        """The last statistics."""
        known = KnownReals(public.real[public.layout.trained :]) if self.in_context else None
        return Context(public.layout.statistics, public.round, self.precision, known)

    def uploads_in(self, context: Context) -> Context | None:
        """The same as broadcasts."""
        return context

    def plain(self, public: Public, round: int) -> Context:
        """The layout of the statistics."""
        return Context(public.layout.statistics, round)

    def listeners(self, voters: Collection[int], present: Collection[int]) -> Collection[int]:
        """Nobody."""
        return ()

    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        """Measure the global network."""
        client = side.client
        if not uploads:
            return ClientReply(None, client)
        message = reals_only(side.measure())._replace(sender=client.number, weight=client.weight, round=public.round)
        return ClientReply(message, client)

    def form(self, public: Public) -> Message:
        """Real numbers alone."""
        return reals_only(public.real[public.layout.trained :])

    def knowing(self, server: Server) -> Statistics:
        """The same: every upload is checked by itself."""
        return self

    def opened(self, upload: Message, public: Public) -> Message:
        """The upload, with what it counts for: it is bounded by the others, when they are all there."""
        return upload._replace(weight=1) if self.equal else upload

    def total(self, public: Public) -> UploadList:
        """All uploads: each is bounded by the others."""
        return UploadList()

    def answer(self, total: UploadList, public: Public, server: Server) -> tuple[Server, Message]:
        """The pooled statistics."""
        return server, reals_only(mean(self.bound(total.uploads, public)).real)._replace(round=public.round)

    def pooled(self, total: Total, public: Public, server: Server) -> tuple[Server, Message]:
        """The same of a sum alone."""
        return server, reals_only(total.tally().real)._replace(round=public.round)

    def advance(self, public: Public, news: Message) -> Public:
        """The public state with the new statistics."""
        return public._replace(real=np.concatenate([public.real[: public.layout.trained], news.real]))

    def repeat(self, public: Public) -> Message | None:
        """The statistics as they stand."""
        return reals_only(public.real[public.layout.trained :])._replace(round=public.round)
