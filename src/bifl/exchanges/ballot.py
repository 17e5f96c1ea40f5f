"""The ballot: clients train and upload what came of it, the server broadcasts what it makes of the sum.

What is uploaded and broadcast is the algorithm's choice (`bifl.core.algorithm`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import numpy as np

from bifl.codec import Context, Precision
from bifl.core import return_checks
from bifl.core.algorithm import (
    Algorithms,
    absorb,
    counts_for,
    new_total,
    selection,
    server_turn,
    train_turn,
    upload_form,
    upload_turn,
)
from bifl.core.exchange import ClientReply, ClientSide
from bifl.core.message import Floats, Message, Selection
from bifl.core.state import Client, Public, Server
from bifl.core.sums import Total, UploadList
from bifl.privacy.dice import round_secret


def all_of_it(real: Floats, public: Public) -> Floats:
    """The usual `says`: ballots carry all real numbers, statistics of training too."""
    return real


@dataclass(frozen=True)
class Ballot:
    """The exchange in which clients train, and which completes the round.

    Attributes:
        algorithm: of the experiment.
        precision: of the real numbers.
        in_context: whether messages are coded in what both ends know.
        idle_trains: whether clients that do not upload train all the same.
        bound: an upload whose real numbers are within bounds; only the server calls it.
        says: the real numbers that a ballot carries, given those after training.
        tells_loss: whether clients tell their training loss.
    """

    algorithm: Algorithms
    precision: Precision
    in_context: bool
    idle_trains: bool
    bound: Callable[[Message, Public], Message]
    says: Callable[[Floats, Public], Floats] = all_of_it
    tells_loss: bool = True
    name: str = "ballot"
    trains: bool = True
    tells: bool = True
    quorum: int = 0

    def context(self, public: Public) -> Context:
        """The public state, as far as it is made use of."""
        return Context(
            public.layout,
            public.round + 1,
            self.precision,
            public if self.in_context else None,
            self._selects(public, public.round),
        )

    def uploads_in(self, context: Context) -> Context | None:
        """The same as broadcasts."""
        return context

    def plain(self, public: Public, round: int) -> Context:
        """The layout, and what the messages of that round are about."""
        return Context(public.layout, round, selects=self._selects(public, round - 1))

    def _selects(self, public: Public, complete: int) -> Callable[[int | None], Selection | None]:
        return partial(selection, self.algorithm.at(complete + 1), public.bare(complete))

    def listeners(self, voters: Collection[int], present: Collection[int]) -> Collection[int]:
        """The others, where they train without uploading and something of that is remembered."""
        return set(present).difference(voters) if self.idle_trains else set()

    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        """React to the last news, train, and upload what came of it."""
        client, loss = train_turn(self.algorithm, side.client, public, side.train)
        client = client._replace(real=self.says(client.real, public))
        if not self.tells_loss:  # even that there is none would tell something
            client = client if _finite(loss, client) else self._untrained(side.client, public)
            return self._say_silently(side, client, public, uploads=uploads)
        if not uploads or not np.isfinite(loss):
            return ClientReply(None, client, loss)
        client, upload = upload_turn(self.algorithm, client, public)
        return ClientReply(upload, client, loss)

    def _untrained(self, client: Client, public: Public) -> Client:
        """The client as it would be after a training that changes nothing."""
        client, _ = train_turn(self.algorithm, client, public, lambda ready: (ready, 0.0))
        return client._replace(real=self.says(client.real, public))

    def _say_silently(self, side: ClientSide, client: Client, public: Public, *, uploads: bool) -> ClientReply:
        """Upload what came of the training, and say nothing else of it."""
        if not uploads:
            return ClientReply(None, client)
        if self.algorithm.at(public.round + 1).spending is not None:
            client = client._replace(secret=round_secret(side.notes, public))
        told, upload = upload_turn(self.algorithm, client, public)
        return ClientReply(upload, told._replace(secret=b""))

    def form(self, public: Public) -> Message:
        """An algorithm's own `upload` tells, of a client that has trained a little."""
        return upload_form(self.algorithm, public)

    def knowing(self, server: Server) -> Ballot:
        """The same: every upload is checked by itself."""
        return self

    def opened(self, upload: Message, public: Public) -> Message:
        """The upload within bounds, read as the algorithm reads it, with what it counts for."""
        algorithm = self.algorithm.at(public.round + 1)
        counted = self.bound(upload, public)._replace(weight=counts_for(algorithm, upload.weight))
        return return_checks.opened(algorithm.name, algorithm.reads(counted, public), public)

    def total(self, public: Public) -> Total | UploadList:
        """Exact sums, or a list for an algorithm that must see all uploads together."""
        return new_total(self.algorithm.at(public.round + 1))

    def answer(self, total: Total | UploadList, public: Public, server: Server) -> tuple[Server, Message]:
        """The algorithm's broadcast."""
        server, news = server_turn(self.algorithm, public, total, server)
        return server, news._replace(real=self.says(news.real, public))

    def advance(self, public: Public, news: Message) -> Public:
        """The broadcast is absorbed, and one more round is complete."""
        return absorb(self.algorithm, public, news)

    def repeat(self, public: Public) -> Message | None:
        """The last broadcast."""
        return public.news


def _finite(loss: float, client: Client) -> bool:
    """Whether a training went well."""
    return bool(np.isfinite(loss) and np.isfinite(client.aux).all() and np.isfinite(client.real).all())
