"""`secure_sum=true`: the server learns sums, and nothing of one client's ballot, real numbers or statistics (`bifl.secure`).

A round begins with two more exchanges: clients send signed keys, then shares of their secrets, sealed for each other. The ballot
and the statistics are then said under masks, and followed by two exchanges each: those who are left agree on who they are, and
reveal what takes the masks away. What the server makes of the sum is what it would make without.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bifl import codec
from bifl.codec import Context
from bifl.codec.state_digest import digest_of
from bifl.core.message import Message
from bifl.core.sides import Abandoned, ClientReply, ClientSide, PrivateReplies, ServerSide
from bifl.core.state import Client, Public
from bifl.core.sums import Weighing
from bifl.errors import Refused
from bifl.exchanges.exchange import Exchange, Summable, bytes_in, from_client
from bifl.exchanges.secure_step import SUM_STATE, Step, continued, shown, sum_state_of
from bifl.exchanges.summable import summand
from bifl.secure import cards, threshold, unmasking
from bifl.secure.integers import WIDEST, Sum, fields, packed, summands
from bifl.secure.unmasking import RawUploads


@dataclass(frozen=True)
class Keys(Step):
    """Clients send signed keys; each gets all of them."""

    def fault(self, number: int, upload: Message, public: Public, server: ServerSide | None) -> str | None:
        """A card must be signed by its client, and its keys must be some."""
        return unmasking.card_fault(
            number, upload.weight, bytes_in(upload), self.sum_terms(public), None if server is None else server.signed
        )

    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        """Make keys."""
        return self.reply(self.member(side, public).keys(shown(side.client)), side)

    def answer(self, total: RawUploads, public: Public, server: ServerSide) -> tuple[ServerSide, PrivateReplies]:
        """All keys to all."""
        size = cards.said_size(len(self.sums))
        total.uploads = {number: data for number, data in total.uploads.items() if len(data) == size}
        sum_state, private_replies = unmasking.roster(total, self.sum_terms(public))
        return server.noting(SUM_STATE, sum_state), private_replies


@dataclass(frozen=True)
class Deal(Step):
    """Clients seal shares of their secrets for each other; the server passes them on."""

    def fault(self, number: int, upload: Message, public: Public, server: ServerSide | None) -> str | None:
        """What is sealed cannot be checked; there must be as much of it as there are clients."""
        sum_state = sum_state_of(server)
        if sum_state is None:
            return None
        wanted = cards.dealt_size(len(self.sums)) * (len(sum_state.roster) - 1)
        dealt = len(upload.update.symbols)
        return None if dealt == wanted else f"what it has dealt is {dealt} bytes long, not {wanted}"

    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        """Check everyone's keys, and deal shares."""
        return self.reply(self.member(side, public).shares(side.private_reply), side)

    def answer(self, total: RawUploads, public: Public, server: ServerSide) -> tuple[ServerSide, PrivateReplies]:
        """To each what is sealed for it."""
        sum_state, private_replies = unmasking.passed_on(server.notes[SUM_STATE], total.uploads, self.sum_terms(public))
        return server.noting(SUM_STATE, sum_state), private_replies


@dataclass(frozen=True, kw_only=True)
class Masked(Step):
    """An exchange under masks; each who took part learns who is in the sum."""

    inner: Summable

    def fault(self, number: int, upload: Message, public: Public, server: ServerSide | None) -> str | None:
        """A masked upload tells nothing but its form."""
        sum_state = sum_state_of(server)
        if sum_state is None:
            return None
        like, place = self.inner.like(public), self.inner.place(public)
        return unmasking.masked_fault(sum_state, number, bytes_in(upload), like, place)

    def listeners(self, voters: Collection[int], present: Collection[int]) -> Collection[int]:
        """As without masks."""
        return self.inner.listeners(voters, present)

    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        """Say what would be said without masks, as the server would read it, and mask it. Nothing else leaves the client."""
        if self.main and not self.trains and public.round:  # a client's numbers stay as they are: two sums could be subtracted
            raise Refused(f"the server asks for a second sum in the exchange '{self.name}', which must be of one round")
        inner, agreed = self.inner, self.sum_terms(public).agreed
        if not uploads:
            return ClientReply(None, self._told(side.client, inner.say(side, public, uploads=False).client, agreed, uploads=False))
        member = self.member(side, public)
        if side.private_reply:
            member.partners(side.private_reply)  # refused, if at all, before it trains
        if self.trains and not member.alike(shown(side.client)):
            side.begin_afresh()
        place, name = self.inner.place(public), self.name
        times, own, total = member.units(place)
        made_of = _made_of(side.client, public.before, agreed)
        member.once(f"{name}, made of", made_of)  # refused, if at all, whatever comes of it
        said = inner.say(side, public, uploads=True)
        known = inner.context(public)
        assert said.message is not None  # there is one where uploads are asked for and no loss is told
        message = from_client(said.message, inner, side.client, public)
        upload = summand(inner, codec.decode(codec.encode(message, known), known), public)
        form = fields(upload, own, total)
        parts = summands(upload, times, form)
        member.mask(parts, Sum(name, form), place)
        data = packed((*parts[0], *parts[1]), (*form.symbols, *form.numbers))
        member.once(name, data)
        return self.reply(data, side)._replace(client=self._told(side.client, said.client, agreed, uploads=True))

    def _told(self, before: Client, after: Client, agreed: bytes, *, uploads: bool) -> Client:
        """The client after its turn; if it has trained, with its new history."""
        return continued(before, after, agreed, uploads=uploads) if self.trains else after

    def longest(self, public: Public) -> int:
        """Twice a number of the widest kind for every weight and number, which is more than any sum takes."""
        form = self.inner.form(public)
        vectors = sum(len(vector.symbols) + len(vector.scales) for vector in form.vectors.values())
        return 64 + 2 * WIDEST // 8 * (vectors + len(form.real) + public.layout.count)

    def answer(self, total: RawUploads, public: Public, server: ServerSide) -> tuple[ServerSide, PrivateReplies]:
        """Who is in the sum, to those who are."""
        like, place = self.inner.like(public), self.inner.place(public)
        sum_state, private_replies = unmasking.survivors(server.notes[SUM_STATE], total, like, self.sum_terms(public), place)
        return server.noting(SUM_STATE, sum_state), private_replies


@dataclass(frozen=True, kw_only=True)
class Agree(Step):
    """Clients sign who they were told is in the sum; each gets the others' signatures."""

    sum: str
    inner: Summable

    def fault(self, number: int, upload: Message, public: Public, server: ServerSide | None) -> str | None:
        """The list must be signed by its client."""
        sum_state = sum_state_of(server)
        if server is None or sum_state is None or server.signed is None:
            return None
        signed = server.signed(number, unmasking.to_sign(sum_state, self.sum), bytes_in(upload))
        return None if signed else "it has not signed the list of those who are left"

    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        """Sign."""
        return self.reply(self.member(side, public).agree(self.sum, side.private_reply, self.inner.place(public)), side)

    def answer(self, total: RawUploads, public: Public, server: ServerSide) -> tuple[ServerSide, PrivateReplies]:
        """All signatures to all."""
        return server, unmasking.signatures(
            server.notes[SUM_STATE], total.uploads, self.sum_terms(public), self.inner.place(public)
        )


@dataclass(frozen=True, kw_only=True)
class Reveal(Step):
    """Clients reveal what takes the masks away; the broadcast is that of the exchange without masks."""

    sum: str
    inner: Summable
    tells: bool = True
    completes: bool = False

    def fault(self, number: int, upload: Message, public: Public, server: ServerSide | None) -> str | None:
        """What is revealed must be what was committed to and dealt."""
        sum_state = sum_state_of(server)
        if sum_state is None:
            return None
        return unmasking.revealed_fault(sum_state, number, bytes_in(upload), self.sum_terms(public), self.sum)

    def context(self, public: Public) -> Context:
        """As without masks."""
        return self.inner.context(public)

    def plain(self, public: Public, round: int) -> Context:
        """As without masks."""
        return self.inner.plain(public, round)

    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        """Reveal."""
        return self.reply(self.member(side, public).reveal(self.sum, side.private_reply, self.inner.place(public)), side)

    def answer(self, total: RawUploads, public: Public, server: ServerSide) -> tuple[ServerSide, Message]:
        """The sum without masks, and what the server makes of it."""
        sum_terms, inner, sum_state = self.sum_terms(public), self.inner, server.notes[SUM_STATE]
        like, place = inner.like(public), inner.place(public)
        found = unmasking.unmasked(sum_state, total.uploads, like, sum_terms, self.sum, place, public.layout.count)
        if not inner.plausible(found.tally(), public, max(sum_state.masked.weights.values())):
            raise Abandoned(f"round {sum_terms.round}: a secure sum holds numbers that no honest clients send: nothing was counted")
        return inner.answer_sum(found, public, server)

    def advance(self, public: Public, news: Message) -> Public:
        """As without masks."""
        return self.inner.advance(public, news)

    def repeat(self, public: Public) -> Message | None:
        """As without masks."""
        return self.inner.repeat(public)


def _made_of(client: Client, before: Message | None, agreed: bytes) -> bytes:
    """A digest of all that a client's upload is made of but its images: what a server may choose, and what the client remembers.

    Args:
        client: as it remembers.
        before: the broadcast before the last.
        agreed: a digest of the public state and the last broadcast.
    """
    vectors = [client.aux, client.start, client.memory, client.scales]
    vectors += [] if before is None else [before.update.symbols, before.real, before.update.scales]
    alphabet = "" if before is None else repr(before.update.alphabet)
    others = b"" if before is None or len(before.vectors) == 1 else codec.encode(before)
    return digest_of([agreed, *(vector.tobytes() for vector in vectors), bytes([client.voted]), alphabet.encode(), others])


def secured(parts: Sequence[Summable], voters: int, colluders: int, settings: str, weighing: Weighing) -> tuple[Exchange, ...]:
    """The exchanges of a round whose ballot, and what follows it, are said under masks; all must agree on the settings."""
    sums = tuple(part.name for part in parts)
    first = (sums, voters, colluders, settings, weighing, 1)
    steps: list[Exchange] = [Keys("keys", *first, quorum=threshold(voters, colluders)), Deal("shares", *first)]
    for part in parts:
        common = (sums, voters, colluders, settings, weighing, part.ahead)
        steps += [
            Masked(part.name, *common, main=part.main, trains=part.trains, computes=part.computes, inner=part),
            Agree(f"{part.name}_agree", *common, sum=part.name, inner=part),
            Reveal(f"{part.name}_reveal", *common, sum=part.name, inner=part, completes=part.completes),
        ]
    return tuple(steps)
