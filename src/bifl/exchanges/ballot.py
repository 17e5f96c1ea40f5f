"""The ballot: clients train and upload what came of it, the server broadcasts what the algorithm makes of the sum."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import numpy as np

from bifl.codec import Context
from bifl.core.algorithm import Algorithm, absorb_news, checks, local_of, read_upload, selections, update_client
from bifl.core.forward import Local
from bifl.core.layout import Layout
from bifl.core.message import UPDATE, Floats, Message, Selection, Selections
from bifl.core.randomness import random_signs
from bifl.core.sides import ClientReply, ClientSide, ServerSide
from bifl.core.state import Client, Public
from bifl.core.sums import Tally, Total, UploadList
from bifl.errors import AlgorithmError
from bifl.exchanges.exchange import Summable, Surroundings, exchange
from bifl.privacy.dice import round_secret

Train = Callable[[Client, Local], tuple[Client, float]]  # local training of aux and real, and its mean loss


@dataclass(frozen=True, eq=False)
class Ballot(Summable):
    """The exchange in which clients train, and which completes the round."""

    run: Surroundings
    name: str = "ballot"
    main: bool = True
    trains: bool = True

    def layout(self, public: Public) -> Layout:
        """The model's."""
        return public.layout

    def context(self, public: Public) -> Context:
        """The public state, as far as it is made use of."""
        known = public if self.run.in_context else None
        selects = partial(self._selects, public.bare(public.round))
        changes = self.run.precision.upload_change and public.layout.kept  # of layers kept real: told from the public ones
        start = public.real[: public.layout.trained][public.layout.of_kept] if changes else None
        return Context(public.layout, public.round + 1, self.run.precision, known, selects, start)

    def plain(self, public: Public, round: int) -> Context:
        """The layout, and what the messages of that round are about."""
        return Context(public.layout, round, selects=partial(self._selects, public.bare(round - 1)))

    def selects(self, public: Public, number: int) -> Selection | None:
        """What a client's update is about."""
        return self._selects(public.bare(public.round), number)[UPDATE]

    def _selects(self, bare: Public, sender: int | None) -> Selections:
        """What the vectors of a message are about, given what everyone knows from the start."""
        if self.run.privacy is not None and sender is not None:
            return {UPDATE: self.run.privacy.selects(bare.layout)}
        return selections(self.run.algorithm.at(bare.round + 1), bare, sender)

    def form(self, public: Public) -> Message:
        """An algorithm's own `upload` tells, of a client that has trained a little."""
        return self.moved_form(public, 1e-3)

    def moved_form(self, public: Public, moved: float) -> Message:
        """An upload of a client all of whose weights have moved so far, as far as its form goes."""
        algorithm = self.run.algorithm.at(public.round + 1)
        form = upload_form(algorithm, public, moved)
        return form if self.run.privacy is None else self.run.privacy.form(form, public)

    # ---- the clients' part -------------------------------------------------------------------------------------------

    def listeners(self, voters: Collection[int], present: Collection[int]) -> Collection[int]:
        """The others, where they train without uploading and something of that is remembered."""
        return set(present).difference(voters) if self.run.idle_trains else set()

    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        """React to the last news, train, and upload what came of it."""
        client, loss = self._trained(side.client, public, side.train)
        if not self.run.tells_results and not all(np.isfinite(numbers).all() for numbers in (loss, client.aux, client.real)):
            client, _ = self._trained(side.client, public, lambda client, local: (client, 0.0))  # a failure would tell something
        told_loss = loss if self.run.tells_results else None
        if not uploads or (told_loss is not None and not np.isfinite(told_loss)):
            return ClientReply(None, client, told_loss)
        counted = client._replace(weight=self.run.weighing.counts(client.weight))
        if self.run.privacy is None:
            counted, upload = make_upload(self.run.algorithm.at(public.round + 1), counted, public)
        else:
            upload = self.run.privacy.upload(counted, public, round_secret(side.notes, public))
        return ClientReply(upload, counted._replace(weight=client.weight), told_loss)

    def train(self, client: Client, public: Public, train: Train) -> tuple[Client, float]:
        """React to the news, the last round's broadcast, which there is none of in the first round, and train."""
        if public.news is not None:
            algorithm = self.run.algorithm.at(public.news.round)
            counted = client._replace(weight=self.run.weighing.counts(client.weight))
            client = update_client(algorithm, counted, public, public.news)._replace(weight=client.weight)
        client = client._replace(start=client.aux, real=public.real)
        return train(client, local_of(self.run.algorithm.at(public.round + 1), client, public))

    def _trained(self, client: Client, public: Public, train: Train) -> tuple[Client, float]:
        """The client after training, with the real numbers that it sends."""
        client, loss = self.train(client, public, train)
        return client._replace(real=self._sent_reals(client.real, public)), loss

    def _sent_reals(self, real: Floats, public: Public) -> Floats:
        """The real numbers that a message carries, given those after training."""
        trained = public.layout.trained
        # nobody needs the statistics of training where an exchange of their own follows; but a judge scores the broadcast before
        repeats = self.run.recalibrates and not self.run.algorithm.validation
        return np.concatenate([real[:trained], public.real[trained:]]) if repeats else real

    # ---- the server's part -------------------------------------------------------------------------------------------

    def open(self, upload: Message, public: Public, server: ServerSide | None = None) -> Message:
        """The upload within bounds, read as the algorithm reads it, with what it counts for."""
        algorithm = self.run.algorithm.at(public.round + 1)
        counted = self.run.bounds.ballot(upload, public)._replace(weight=self.run.weighing.counts(upload.weight))
        return read_upload(algorithm, counted, public)

    def total(self, public: Public) -> Total | UploadList:
        """Exact sums, or a list for a sum that must see all uploads together."""
        alone = self.run.algorithm.at(public.round + 1).aggregate is None and self.run.robust is None
        return Total() if alone else UploadList()

    def answer(self, total: Total | UploadList, public: Public, server: ServerSide) -> tuple[ServerSide, Message]:
        """The algorithm's broadcast."""
        algorithm = self.run.algorithm.at(public.round + 1)
        server, tally = self._tally(total, public, server)
        if self.run.privacy is not None:
            server = server._replace(server=self.run.privacy.account(server.server, tally.clients, public.voters, server.present))
            tally = self.run.privacy.hear(tally, public)
        abouts = selections(algorithm, public, None)
        broadcast = algorithm.broadcast(tally, public, server.server)
        message, memory = checks(algorithm, "broadcast").message(broadcast, public, abouts)
        if memory is not None:
            server = server._replace(server=server.server._replace(memory=memory))
        real = self._sent_reals(message.real, public)
        return server, message._replace(real=real, round=public.round + 1, weight=1, sender=None)

    def _tally(self, total: Total | UploadList, public: Public, server: ServerSide) -> tuple[ServerSide, Tally]:
        """What was counted, by whichever sum the run has."""
        if isinstance(total, Total):
            return server, total.tally()
        if self.run.robust is not None:
            kept, tally = self.run.robust(total.in_order(), public, server.server)
            return server._replace(server=kept), tally
        algorithm = self.run.algorithm.at(public.round + 1)
        assert algorithm.aggregate is not None  # or `total` would have made an exact sum
        return server, checks(algorithm, "aggregate").tally(algorithm.aggregate(total.in_order(), public), public)

    def plausible(self, tally: Tally, public: Public, largest: int) -> bool:
        """Whether real numbers and scales can be means of honest ones."""
        real = self.run.bounds.plausible_ballot(tally.real, public, largest)
        return real and self.run.bounds.plausible_scales(tally, public, largest, partial(self.moved_form, public))

    def advance(self, public: Public, news: Message) -> Public:
        """The broadcast is absorbed, by the algorithm that made it, and one more round is complete."""
        after = absorb_news(self.run.algorithm.at(news.round), public, news)
        return after._replace(round=news.round, news=news, before=public.news)

    def repeat(self, public: Public) -> Message | None:
        """The last broadcast."""
        return public.news


@exchange
def ballot(run: Surroundings) -> Ballot:
    """Training: clients upload what came of it, the server broadcasts what `algorithm` makes of the sum."""
    return Ballot(run)


def make_upload(algorithm: Algorithm, client: Client, public: Public) -> tuple[Client, Message]:
    """The upload of a client that has trained, and the client with what it keeps in memory; its weight is what it counts for."""
    abouts = selections(algorithm, public, client.number)
    message, memory = checks(algorithm, "upload").message(algorithm.upload(client, public), public, abouts)
    upload = message._replace(round=public.round + 1, weight=client.weight, sender=client.number)
    return (client if memory is None else client._replace(memory=memory)), upload


def upload_form(algorithm: Algorithm, public: Public, moved: float = 1e-3) -> Message:
    """An upload of someone whose weights have `moved` by training, as far as its form goes: nothing need be ready for no change."""
    aux = public.weights + np.float32(moved) * random_signs(public.stream(None, "form"), public.layout.count)
    try:
        return make_upload(algorithm, Client(aux, public.weights, public.real, 1, steps=1, rate=1.0), public)[1]
    except ArithmeticError as error:
        why = f"upload failed for weights that training moved by {moved:g}: {error}"
        raise AlgorithmError(f"algorithm '{algorithm.name}': {why}") from error
