"""`batchnorm=recalibrate`: batch-norm's statistics for the network that was broadcast (paper §2).

The statistics of the clients' training describe their own networks, which are far from the sign of their mean. After every
broadcast the clients that voted therefore measure the inputs of every batch-norm in the *global* network, on 2·batch of their own
images, each layer normalised by what was just measured before it. They upload these moments; the server pools them exactly and
broadcasts the result. Ballots then repeat the last statistics, at one bit each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bifl.codec import Context
from bifl.core import NOTHING, Layout, Message, Public, Tally, Total, mean
from bifl.core.message import reals_only
from bifl.core.sides import ClientReply, ClientSide, ServerSide
from bifl.core.sums import UploadList
from bifl.exchanges.exchange import Summable, Surroundings, exchange


@dataclass(frozen=True, eq=False)
class Statistics(Summable):
    """The exchange of batch-norm's statistics, after the ballot."""

    run: Surroundings
    name: str = "statistics"

    def layout(self, public: Public) -> Layout:
        """That of the statistics."""
        return public.layout.statistics

    def context(self, public: Public) -> Context:
        """The last statistics."""
        layout, last = self.layout(public), public.real[public.layout.trained :]
        known = Public(public.seed, public.round, layout, NOTHING, last) if self.run.in_context else None
        return Context(layout, public.round, self.run.precision, known)

    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        """Measure the global network."""
        return ClientReply(reals_only(side.measure()) if uploads else None, side.client)

    def open(self, upload: Message, public: Public, server: ServerSide | None = None) -> Message:
        """The upload, with what it counts for: it is bounded by the others, when they are all there."""
        return upload._replace(weight=self.run.weighing.counts(upload.weight))

    def total(self, public: Public) -> UploadList:
        """All uploads: each is bounded by the others."""
        return UploadList()

    def answer(self, total: UploadList | Total, public: Public, server: ServerSide) -> tuple[ServerSide, Message]:
        """The pooled statistics; of a sum alone, in which nobody sees the others', as they are."""
        tally = total.tally() if isinstance(total, Total) else mean(self.run.bounds.statistics(total.uploads, public))
        return server, reals_only(tally.real)

    def bounded(self, upload: Message, public: Public) -> Message:
        """Within what is known before anyone speaks: all that can be done where nobody sees the others'."""
        return self.run.bounds.measured(upload, public)

    def plausible(self, tally: Tally, public: Public, largest: int) -> bool:
        """Whether statistics can be pooled of bounded ones."""
        return self.run.bounds.plausible_statistics(tally.real, public)

    def advance(self, public: Public, news: Message) -> Public:
        """The public state with the new statistics."""
        return public._replace(real=np.concatenate([public.real[: public.layout.trained], news.real]))

    def repeat(self, public: Public) -> Message | None:
        """The statistics as they stand."""
        return reals_only(public.real[public.layout.trained :])._replace(round=public.round)


@exchange
def statistics(run: Surroundings) -> Statistics:
    """Batch-norm's statistics, measured in the network that was broadcast: follows the ballot with batchnorm=recalibrate."""
    return Statistics(run)
