"""`secure_sum=true`: the server learns sums, and nothing of one client's ballot, real numbers or statistics (`bifl.secure`).

A round begins with two more exchanges: clients send signed keys, then shares of their secrets, sealed for each other. The ballot
and the statistics are then said under masks, and followed by two exchanges each: those who are left agree on who they are, and
reveal what takes the masks away. What the server makes of the sum is what it would make without.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from bifl import codec
from bifl.codec import Context, WireError
from bifl.core.exchange import Abandoned, Exchange, Letters, Seat, Spoken
from bifl.core.layout import Layout
from bifl.core.message import NOTHING, Alphabet, Message
from bifl.core.state import Public, Server
from bifl.errors import Refused
from bifl.exchanges.summed import Summed
from bifl.secure import cards, threshold, unmasking
from bifl.secure.integers import WIDEST, fields, packed, summands
from bifl.secure.masks import Sum
from bifl.secure.member import Circle, Member
from bifl.secure.unmasking import Said

BYTES = Alphabet("bytes", 256)
_NO_MODEL = Layout((), (), (), ())


@dataclass(frozen=True)
class Step:
    """What all exchanges of a secure sum have in common.

    Attributes:
        name: of the exchange.
        sums: names of the round's sums.
        voters: n, how many clients are drawn to take part in a round.
        colluders: how many of them may be in league with the server.
        ahead: 1 if it belongs to the round after the last complete one.
    """

    name: str
    sums: tuple[str, ...]
    voters: int
    colluders: int
    ahead: int
    trains: bool = False
    tells: bool = False

    @property
    def quorum(self) -> int:
        """k."""
        return threshold(self.voters, self.colluders)

    def circle(self, public: Public) -> Circle:
        """Who may sum what."""
        return Circle(public.round + self.ahead, self.sums, self.voters, self.quorum, 2 + self.colluders)

    def member(self, seat: Seat, public: Public) -> Member:
        """A client's part."""
        if seat.identity is None:
            raise Refused("a secure sum needs keys to sign with, and this client has none: start it with --key and --peers")
        return Member(seat.notes, seat.identity, seat.client.number, seat.client.weight, self.circle(public))

    def context(self, public: Public) -> Context:
        """Nothing: there is no broadcast."""
        return Context(_NO_MODEL, public.round + self.ahead)

    def uploads_in(self, context: Context) -> Context | None:
        """Bytes for any reader."""
        return None

    def plain(self, public: Public, round: int) -> Context:
        """Nothing."""
        return Context(_NO_MODEL, round)

    def listeners(self, voters: Collection[int], present: Collection[int]) -> Collection[int]:
        """Nobody."""
        return ()

    def spoken(self, data: bytes, seat: Seat, public: Public) -> Spoken:
        """Bytes as a message."""
        client = seat.client
        message = Message(np.frombuffer(data, np.uint8), BYTES, NOTHING, NOTHING, client.number, client.weight)
        return Spoken(message._replace(round=public.round + self.ahead), client)

    def form(self, public: Public) -> Message:
        """Bytes."""
        return Message(np.zeros(0, np.uint8), BYTES, NOTHING)

    def longest(self, public: Public) -> int:
        """Bytes that an upload can have."""
        return self.voters * max(self.circle(public).sealed, cards.REVEALED) + cards.said_size(len(self.sums))

    def opened(self, upload: Message, public: Public) -> Message:
        """The upload, if it is bytes of this round and not too many."""
        if upload.round != public.round + self.ahead:
            raise WireError(12, f"is of round {upload.round}, this is round {public.round + self.ahead}")
        if upload.alphabet != BYTES or len(upload.real) or len(upload.scales):
            raise WireError(6, "is no message of a secure sum")
        if not 0 < len(upload.symbols) <= self.longest(public):
            raise WireError(24, f"is {len(upload.symbols)} bytes long, where {self.longest(public)} are the most")
        return upload

    def total(self, public: Public) -> Said:
        """What clients say."""
        return Said()

    def advance(self, public: Public, news: Message) -> Public:
        """Nothing changes."""
        return public

    def repeat(self, public: Public) -> Message | None:
        """Nothing."""
        return None


@dataclass(frozen=True)
class Keys(Step):
    """Clients send signed keys; each gets all of them."""

    def say(self, seat: Seat, public: Public, *, uploads: bool) -> Spoken:
        """Make keys."""
        return self.spoken(self.member(seat, public).keys(), seat, public)

    def answer(self, total: Said, public: Public, server: Server) -> tuple[Server, Letters]:
        """All keys to all."""
        size = cards.said_size(len(self.sums))
        total.uploads = {number: data for number, data in total.uploads.items() if len(data) == size}
        talk, letters = unmasking.roster(total, self.circle(public))
        return server._replace(talk=talk), letters


@dataclass(frozen=True)
class Deal(Step):
    """Clients seal shares of their secrets for each other; the server passes them on."""

    def say(self, seat: Seat, public: Public, *, uploads: bool) -> Spoken:
        """Check everyone's keys, and deal shares."""
        return self.spoken(self.member(seat, public).shares(seat.letter), seat, public)

    def answer(self, total: Said, public: Public, server: Server) -> tuple[Server, Letters]:
        """To each what is sealed for it."""
        talk, letters = unmasking.passed_on(server.talk, total.uploads, self.circle(public))
        return server._replace(talk=talk), letters


@dataclass(frozen=True, kw_only=True)
class Masked(Step):
    """An exchange under masks; each who took part learns who is in the sum."""

    summed: Summed

    def listeners(self, voters: Collection[int], present: Collection[int]) -> Collection[int]:
        """As without masks."""
        found: Collection[int] = self.summed.inner.listeners(voters, present)
        return found

    def say(self, seat: Seat, public: Public, *, uploads: bool) -> Spoken:
        """Say what would be said without masks, as the server would read it, and mask it."""
        inner = self.summed.inner
        if not uploads:
            spoken: Spoken = inner.say(seat, public, uploads=False)
            return spoken
        member = self.member(seat, public)
        if seat.letter:
            member.partners(seat.letter)  # refused, if at all, before it trains
        place, name = self.summed.place(public), self.name
        times, own, total = member.units(place)
        said = inner.say(seat, public, uploads=True)
        if said.message is None:
            return said  # type: ignore[no-any-return]
        known = inner.context(public)
        upload = self.summed.summand(codec.decode(codec.encode(said.message, known), known), public)
        form = fields(upload, own, total)
        parts = summands(upload, times, form)
        member.mask(parts, Sum(name, form), place)
        data = packed((*parts[0], *parts[1]), (*form.symbols, *form.numbers))
        member.once(name, data)
        return self.spoken(data, seat, public)._replace(client=said.client, loss=said.loss)

    def longest(self, public: Public) -> int:
        """Twice a number of the widest kind for every weight and number, which is more than any sum takes."""
        form = self.summed.inner.form(public)
        return 64 + 2 * WIDEST // 8 * (len(form.symbols) + len(form.real) + len(form.scales) + public.layout.count)

    def answer(self, total: Said, public: Public, server: Server) -> tuple[Server, Letters]:
        """Who is in the sum, to those who are."""
        like, place = self.summed.like(public), self.summed.place(public)
        talk, letters = unmasking.survivors(server.talk, total, like, self.circle(public), place)
        return server._replace(talk=talk), letters


@dataclass(frozen=True, kw_only=True)
class Agree(Step):
    """Clients sign who they were told is in the sum; each gets the others' signatures."""

    sum: str
    summed: Summed

    def say(self, seat: Seat, public: Public, *, uploads: bool) -> Spoken:
        """Sign."""
        return self.spoken(self.member(seat, public).agree(self.sum, seat.letter, self.summed.place(public)), seat, public)

    def answer(self, total: Said, public: Public, server: Server) -> tuple[Server, Letters]:
        """All signatures to all."""
        return server, unmasking.agreement(server.talk, total.uploads, self.circle(public))


@dataclass(frozen=True, kw_only=True)
class Reveal(Step):
    """Clients reveal what takes the masks away; the broadcast is that of the exchange without masks."""

    sum: str
    summed: Summed
    tells: bool = True

    def context(self, public: Public) -> Context:
        """As without masks."""
        found: Context = self.summed.inner.context(public)
        return found

    def plain(self, public: Public, round: int) -> Context:
        """As without masks."""
        found: Context = self.summed.inner.plain(public, round)
        return found

    def say(self, seat: Seat, public: Public, *, uploads: bool) -> Spoken:
        """Reveal."""
        return self.spoken(self.member(seat, public).reveal(self.sum, seat.letter), seat, public)

    def answer(self, total: Said, public: Public, server: Server) -> tuple[Server, Message]:
        """The sum without masks, and what the server makes of it."""
        circle, summed, talk = self.circle(public), self.summed, server.talk
        like, place = summed.like(public), summed.place(public)
        found = unmasking.unmasked(talk, total.uploads, like, circle, self.sum, place, public.layout.count)
        if not summed.plausible(found.tally().real, public, max(card.weight for card in talk.roster)):
            raise Abandoned(f"round {circle.round}: a secure sum holds numbers that no honest clients send: nothing was counted")
        return summed.answer(found, public, server)

    def advance(self, public: Public, news: Message) -> Public:
        """As without masks."""
        found: Public = self.summed.inner.advance(public, news)
        return found

    def repeat(self, public: Public) -> Message | None:
        """As without masks."""
        found: Message | None = self.summed.inner.repeat(public)
        return found


def secured(parts: dict[str, Summed], voters: int, colluders: int) -> tuple[Exchange, ...]:
    """The exchanges of a round whose ballot, and what follows it, are said under masks."""
    sums = tuple(parts)
    steps: list[Exchange] = [Keys("keys", sums, voters, colluders, 1), Deal("shares", sums, voters, colluders, 1)]
    for name, summed in parts.items():
        common = (sums, voters, colluders, summed.ahead)
        steps += [
            Masked(name, *common, trains=summed.inner.trains, summed=summed),
            Agree(f"{name}_agree", *common, sum=name, summed=summed),
            Reveal(f"{name}_reveal", *common, sum=name, summed=summed),
        ]
    return tuple(steps)
