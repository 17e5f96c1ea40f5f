"""`secure_sum=true`: the server learns sums, and nothing of one client's ballot, real numbers or statistics (`bifl.secure`).

A round begins with two more exchanges: clients send signed keys, then shares of their secrets, sealed for each other. The ballot
and the statistics are then said under masks, and followed by two exchanges each: those who are left agree on who they are, and
reveal what takes the masks away. What the server makes of the sum is what it would make without.

What clients remember from round to round was made of the same in all of them, or all begin afresh. They agree on the public state,
but a server that lies could hold rounds of its own invention with some of them, until it knows what those will say, and read the
next sum as what the others say. So every client shows a digest of all that its memory was made of but its own data; in a round in
which two differ, because one was away or for whatever reason, everyone's memory is left out.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bifl import codec
from bifl.codec import Context, field_error
from bifl.codec.format import digest_of, state_digest
from bifl.core import UPDATE, Client, Message, Public, Vector
from bifl.core.algorithm import Algorithms
from bifl.core.sides import Abandoned, ClientReply, ClientSide, PrivateReplies, ServerSide
from bifl.core.sums import UploadList, Weighing
from bifl.errors import ConfigError, Refused
from bifl.exchanges.exchange import BYTE_ALPHABET, ByteExchange, Exchange, Summable, bytes_in, from_client, message_of
from bifl.secure import cards, threshold, unmasking
from bifl.secure.cards import SumTerms
from bifl.secure.integers import WIDEST
from bifl.secure.member import Member

INSTEAD = "biml, up_down, up_only, sign_majority, fedvote, fedpm, fedavg, full, float16 or murmur_dealt"
SUM_STATE = "sum_state"  # under which the server notes what it knows of the round so far


class CommonGround:
    """What all clients of a run agree on: which sums are made of whom, the settings, and the public state that they train with."""

    def __init__(self, sums: tuple[str, ...], voters: int, colluders: int, settings: str, weighing: Weighing) -> None:
        self._sums, self._voters, self._colluders, self._settings, self._weighing = sums, voters, colluders, settings, weighing
        self._last: tuple[Public, bytes] | None = None  # all steps of a round, and clients of a simulation, have the same

    def terms(self, public: Public, ahead: int) -> SumTerms:
        """Who may sum what in a round, bound to the settings and the model.

        If others trained another model, or otherwise, they could be made to say nothing, and the sum would be what one says.
        """
        if self._last is None or self._last[0] is not public:
            self._last = public, state_digest(public, (public.news,), self._settings)  # clients move their own weights by the news
        agreed, least = self._last[1], threshold(self._voters, self._colluders)
        return SumTerms(public.round + ahead, self._sums, self._voters, least, 2 + self._colluders, agreed, self._weighing)


@dataclass(frozen=True)
class SpeakersOf:
    """How clients speak in an exchange (`unmasking.Speakers`)."""

    exchange: Summable
    public: Public

    @cached_property
    def _form(self) -> Message:
        return self.exchange.form(self.public)

    def place(self, number: int) -> Hashable:
        """Which weights a client speaks of; None of all."""
        about = self.exchange.selects(self.public, number)
        return None if about is None else about.place

    def like(self, number: int) -> Message:
        """An upload of the form of its own."""
        form, about = self._form, self.exchange.selects(self.public, number)
        length = len(form.update.symbols) if about is None else about.length
        return form.with_update(symbols=np.zeros(length, form.update.symbols.dtype))


@dataclass(frozen=True)
class Step(ByteExchange):
    """What all exchanges of a secure sum have in common."""

    name: str
    ground: CommonGround
    ahead: int = 0  # 1 if it belongs to the round after the last complete one
    main: bool = False
    trains: bool = False
    computes: bool = False
    tells: bool = False
    quorum: int = 0  # nobody can join a round under way, so that waiting longer than the deadline is of no use

    def terms(self, public: Public) -> SumTerms:
        """Who may sum what."""
        return self.ground.terms(public, self.ahead)

    def member(self, side: ClientSide, public: Public) -> Member:
        """A client's part."""
        if side.identity is None:
            raise Refused("a secure sum needs keys to sign with, and this client has none: start it with --key and --peers")
        terms = self.terms(public)
        return Member(side.notes, side.identity, side.client.number, terms.weighing.counts(side.client.weight), terms)

    def longest(self, public: Public) -> int:
        """Bytes that an upload can have."""
        terms = self.terms(public)
        return terms.most * max(terms.dealt, cards.REVEALED) + terms.card

    def fault(self, upload: Message, public: Public, server: ServerSide) -> str | None:
        """Why an upload is not believed, by what is known of the round so far; None where nothing is found."""
        return None

    def open(self, upload: Message, public: Public, server: ServerSide | None = None) -> Message:
        """The upload, if it is bytes of this round and not too many. A worker believes its own clients."""
        if upload.round != public.round + self.ahead:
            raise field_error("round", f"is of round {upload.round}, this is round {public.round + self.ahead}")
        if upload.update.alphabet != BYTE_ALPHABET or len(upload.vectors) > 1 or len(upload.real) or len(upload.update.scales):
            raise field_error("alphabet", "is no message of a secure sum")
        if not 0 < len(upload.update.symbols) <= self.longest(public):
            raise field_error("symbols", f"is {len(upload.update.symbols)} bytes long, where {self.longest(public)} are the most")
        if server is not None and (problem := self.fault(upload, public, server)):
            raise Refused(problem)
        return upload

    def total(self, public: Public) -> UploadList:
        """What clients say."""
        return UploadList()


@dataclass(frozen=True)
class Keys(Step):
    """Clients send signed keys; each gets all of them."""

    def fault(self, upload: Message, public: Public, server: ServerSide) -> str | None:
        """A card must be signed by its client, and its keys must be some."""
        terms = self.terms(public)
        return unmasking.card_fault(upload.sender or 0, upload.weight, bytes_in(upload), terms, server.signed)

    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        """Make keys."""
        return _reply(self.member(side, public).keys(shown(side.client)), side.client)

    def answer(self, total: UploadList, public: Public, server: ServerSide) -> tuple[ServerSide, PrivateReplies]:
        """All keys to all."""
        weights = {upload.sender or 0: upload.weight for upload in total.uploads}
        state, private_replies = unmasking.roster(_said(total), weights, self.terms(public))
        return server.noting(SUM_STATE, state), private_replies


@dataclass(frozen=True)
class Deal(Step):
    """Clients seal shares of their secrets for each other; the server passes them on."""

    def fault(self, upload: Message, public: Public, server: ServerSide) -> str | None:
        """What is sealed cannot be checked; there must be as much of it as there are clients."""
        wanted, dealt = self.terms(public).dealt * (len(server.notes[SUM_STATE].roster) - 1), len(upload.update.symbols)
        return None if dealt == wanted else f"what it has dealt is {dealt} bytes long, not {wanted}"

    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        """Check everyone's keys, and deal shares."""
        return _reply(self.member(side, public).shares(side.private_reply), side.client)

    def answer(self, total: UploadList, public: Public, server: ServerSide) -> tuple[ServerSide, PrivateReplies]:
        """To each what is sealed for it."""
        state, private_replies = unmasking.pass_on(server.notes[SUM_STATE], _said(total), self.terms(public))
        return server.noting(SUM_STATE, state), private_replies


@dataclass(frozen=True, kw_only=True)
class SumStep(Step):
    """A step of one sum."""

    inner: Summable  # what is said under masks

    def speakers(self, public: Public) -> SpeakersOf:
        """How clients speak in it."""
        return SpeakersOf(self.inner, public)


@dataclass(frozen=True, kw_only=True)
class Masked(SumStep):
    """An exchange under masks; each who took part learns who is in the sum."""

    def fault(self, upload: Message, public: Public, server: ServerSide) -> str | None:
        """A masked upload tells nothing but its form."""
        return unmasking.masked_fault(server.notes[SUM_STATE], upload.sender or 0, upload, self.speakers(public))

    def listeners(self, voters: Collection[int], present: Collection[int]) -> Collection[int]:
        """As without masks."""
        return self.inner.listeners(voters, present)

    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        """Say what would be said without masks, as the server would read it, and mask it. Nothing else leaves the client."""
        if self.main and not self.trains and public.round:  # a client's numbers stay as they are: two sums could be subtracted
            raise Refused(f"the server asks for a second sum in the exchange '{self.name}', which must be of one round")
        inner, before, agreed = self.inner, side.client, self.terms(public).agreed
        if not uploads:
            return ClientReply(None, self._continue(before, inner.say(side, public, uploads=False).client, agreed, uploads=False))
        member = self.member(side, public)
        if side.private_reply:
            member.partners(side.private_reply)  # refused, if at all, before it trains
        if self.trains and not member.alike(shown(before)):
            side.begin_afresh()
        before = side.client
        member.once(f"{self.name}, made of", _made_of(before, public.before, agreed))  # refused, if at all, whatever comes of it
        reply = inner.say(side, public, uploads=True)
        assert reply.message is not None  # there is one where uploads are asked for and no loss is told
        message, context = from_client(reply.message, inner, before, public), inner.context(public)
        upload = summand(inner, codec.decode(codec.encode(message, context), context), public)
        data = member.masked(upload, self.name, self.speakers(public).place)
        return _reply(data, self._continue(before, reply.client, agreed, uploads=True))

    def _continue(self, before: Client, after: Client, agreed: bytes, *, uploads: bool) -> Client:
        """The client after its turn; if it has trained, with its new history."""
        return continued(before, after, agreed, uploads=uploads) if self.trains else after

    def longest(self, public: Public) -> int:
        """Twice a number of the widest kind for every weight and number, which is more than any sum takes."""
        form = self.inner.form(public)
        vectors = sum(len(vector.symbols) + len(vector.scales) for vector in form.vectors.values())
        return 64 + 2 * WIDEST // 8 * (vectors + len(form.real) + public.layout.count)

    def answer(self, total: UploadList, public: Public, server: ServerSide) -> tuple[ServerSide, PrivateReplies]:
        """Who is in the sum, to those who are."""
        terms, speakers = self.terms(public), self.speakers(public)
        masked = {upload.sender or 0: upload for upload in total.uploads}
        state, private_replies = unmasking.survivors(server.notes[SUM_STATE], masked, speakers, terms)
        return server.noting(SUM_STATE, state), private_replies


@dataclass(frozen=True, kw_only=True)
class Agree(SumStep):
    """Clients sign who they were told is in the sum; each gets the others' signatures."""

    def fault(self, upload: Message, public: Public, server: ServerSide) -> str | None:
        """The list must be signed by its client."""
        text = unmasking.to_sign(server.notes[SUM_STATE], self.inner.name)
        good = server.signed is None or server.signed(upload.sender or 0, text, bytes_in(upload))
        return None if good else "it has not signed the list of those who are left"

    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        """Sign."""
        place = self.speakers(public).place
        return _reply(self.member(side, public).agree(self.inner.name, side.private_reply, place), side.client)

    def answer(self, total: UploadList, public: Public, server: ServerSide) -> tuple[ServerSide, PrivateReplies]:
        """All signatures to all."""
        terms, speakers = self.terms(public), self.speakers(public)
        return server, unmasking.signatures(server.notes[SUM_STATE], _said(total), terms, speakers)


@dataclass(frozen=True, kw_only=True)
class Reveal(SumStep):
    """Clients reveal what takes the masks away; the broadcast is that of the exchange without masks."""

    tells: bool = True
    completes: bool = False

    def fault(self, upload: Message, public: Public, server: ServerSide) -> str | None:
        """What is revealed must be what was committed to and dealt."""
        state, number, data = server.notes[SUM_STATE], upload.sender or 0, bytes_in(upload)
        return unmasking.revealed_fault(state, number, data, self.terms(public), self.inner.name)

    def context(self, public: Public) -> Context:
        """As without masks."""
        return self.inner.context(public)

    def plain(self, public: Public, round: int) -> Context:
        """As without masks."""
        return self.inner.plain(public, round)

    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        """Reveal."""
        place = self.speakers(public).place
        return _reply(self.member(side, public).reveal(self.inner.name, side.private_reply, place), side.client)

    def answer(self, total: UploadList, public: Public, server: ServerSide) -> tuple[ServerSide, Message | PrivateReplies]:
        """The sum without masks, and what the server makes of it."""
        terms, inner, state, count = self.terms(public), self.inner, server.notes[SUM_STATE], public.layout.count
        whole = unmasking.unmask(state, _said(total), self.speakers(public), terms, inner.name, count)
        if not inner.plausible(whole.tally(), public, max(upload.weight for upload in state.masked.values())):
            raise Abandoned(f"round {terms.round}: a secure sum holds numbers that no honest clients send: nothing was counted")
        return inner.answer(whole, public, server)

    def advance(self, public: Public, news: Message) -> Public:
        """As without masks."""
        return self.inner.advance(public, news)

    def repeat(self, public: Public) -> Message | None:
        """As without masks."""
        return self.inner.repeat(public)


def _said(total: UploadList) -> dict[int, bytes]:
    """What clients have said in a step, by their numbers."""
    return {upload.sender or 0: bytes_in(upload) for upload in total.uploads}


def _reply(data: bytes, client: Client) -> ClientReply:
    return ClientReply(message_of(data), client)


def secure_exchanges(
    parts: Sequence[Summable], voters: int, colluders: int, settings: str, weighing: Weighing
) -> tuple[Exchange, ...]:
    """The exchanges of a round whose ballot, and what follows it, are said under masks; all must agree on the settings."""
    ground = CommonGround(tuple(part.name for part in parts), voters, colluders, settings, weighing)
    steps: list[Exchange] = [Keys("keys", ground, 1, quorum=threshold(voters, colluders)), Deal("shares", ground, 1)]
    for part in parts:
        steps += [
            Masked(part.name, ground, part.ahead, part.main, part.trains, part.computes, inner=part),
            Agree(f"{part.name}_agree", ground, part.ahead, inner=part),
            Reveal(f"{part.name}_reveal", ground, part.ahead, inner=part, completes=part.completes),
        ]
    return tuple(steps)


# ---- histories ------------------------------------------------------------------------------------------------------------

HISTORY = "secure_sum"  # under which a client keeps it


def shown(client: Client) -> bytes:
    """A digest of all that a client brings to a round but its own data: who has voted in the last one, the server says too."""
    return hashlib.sha256(b"bifl history 1 " + bytes([client.voted]) + client.states.get(HISTORY, b"")).digest()


def continued(before: Client, after: Client, agreed: bytes, *, uploads: bool) -> Client:
    """A client that has trained, with its new history, given a digest of the public state, the last broadcast and the settings.

    Whether it has uploaded too, an algorithm may remember.
    """
    history = hashlib.sha256(shown(before) + agreed + bytes([uploads])).digest()
    return after._replace(states={**after.states, HISTORY: history})


def _made_of(client: Client, before: Message | None, agreed: bytes) -> bytes:
    """A digest of all that a client's upload is made of but its images: what a server may choose, and what the client remembers.

    `before` is the broadcast before the last, `agreed` a digest of the public state and the last broadcast.
    """
    vectors = [client.aux, client.start, client.memory, client.scales]
    vectors += [] if before is None else [before.update.symbols, before.real, before.update.scales]
    alphabet = "" if before is None else repr(before.update.alphabet)
    others = b"" if before is None or len(before.vectors) == 1 else codec.encode(before)
    return digest_of([agreed, *(vector.tobytes() for vector in vectors), bytes([client.voted]), alphabet.encode(), others])


# ---- what can be summed: what of an upload is added up, and what is refused ------------------------------------------------


class Unsummable(ConfigError):
    """An upload that cannot be added to others unread."""


def summand(exchange: Summable, upload: Message, public: Public) -> Message:
    """What of an upload is added up, if it can be: its own symbols, and real numbers within bounds."""
    opened = exchange.bounded(upload, public)
    about = None if upload.sender is None else exchange.selects(public, upload.sender)
    values, scales = opened.update.values(), opened.update.scales
    where = slice(None) if about is None else slice(about.place, (about.place or 0) + about.length)
    outside = np.delete(values, np.arange(len(values))[where])
    same = np.array_equal(values[where], upload.update.values()) and np.array_equal(scales, upload.update.scales)
    same = same and not outside.any()
    plain = all(_as_they_are(upload.vectors[name], opened.vectors[name]) for name in upload.vectors if name != UPDATE)
    if not same or not plain or (about is not None and about.place is None):
        raise Unsummable("its uploads are read with their sender's own scales, rotation or choice of weights")
    return upload._replace(real=opened.real)


def _as_they_are(vector: Vector, opened: Vector) -> bool:
    """Whether a further vector is about all weights, and read as what it says of them."""
    same = np.array_equal(opened.values(), vector.values()) and np.array_equal(opened.scales, vector.scales)
    return same and vector.about is None


def check_groups(exchange: Summable, name: str, public: Public, together: int) -> None:
    """Refuse an algorithm that deals the weights to groups of fewer clients than must speak `together` to hide each other."""
    place = SpeakersOf(exchange, public).place
    if place(0) is None:
        return
    smallest = min(Counter(map(place, range(public.clients))).values()) * public.voters // public.clients
    if smallest < together:
        raise ConfigError(
            f"algorithm '{name}' deals the weights to groups of {smallest} clients here, and a secure sum with "
            f"colluders={together - 2} is of {together} or more: raise algorithm.together, or lower colluders"
        )


def check_summable(exchange: Summable, algorithms: Algorithms, public: Public) -> None:
    """Refuse an algorithm whose uploads cannot be added up unread, in any of its rounds."""
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
