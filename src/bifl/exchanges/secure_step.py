"""What all exchanges of a secure sum have in common (`bifl.exchanges.secure_sum`), and what clients remember of earlier ones.

What clients of a secure sum remember from round to round was made of the same in all of them, or all begin afresh.

They agree on the public state, but a server that lies could hold rounds of its own invention with some of them, until it knows what
those will say, and read the next sum as what the others say. So every client shows a digest of all that its memory was made of but
its own data; in a round in which two differ, because one was away or for whatever reason, everyone's memory is left out.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from bifl.codec import Context, field_error
from bifl.codec.state_digest import state_digest
from bifl.core.message import Message
from bifl.core.sides import ClientReply, ClientSide, ServerSide
from bifl.core.state import Client, Public
from bifl.core.sums import Weighing
from bifl.errors import Refused
from bifl.exchanges.exchange import BYTES, Exchange, message_of
from bifl.secure import cards, threshold
from bifl.secure.cards import SumTerms
from bifl.secure.member import Member
from bifl.secure.unmasking import RawUploads, SumState

SUM_STATE = "sum_state"  # under which the server notes what it knows of the round so far


def sum_state_of(server: ServerSide | None) -> SumState | None:
    """What the server knows of the round so far; None where nothing is known."""
    return None if server is None else server.notes.get(SUM_STATE)


_hashed: list[tuple[str, Public, bytes]] = []  # the last common ground: clients of a simulation, and steps, have the same


def _common_ground(settings: str, public: Public) -> bytes:
    """A digest of the settings and of all that clients train with but their data."""
    if not _hashed or _hashed[0][0] != settings or _hashed[0][1] is not public:
        by = (public.news,)  # clients move their own weights by it
        _hashed[:] = [(settings, public, state_digest(public, by, settings))]
    return _hashed[0][2]


@dataclass(frozen=True)
class Step(Exchange):
    """What all exchanges of a secure sum have in common.

    Attributes:
        name: of the exchange.
        sums: names of the round's sums.
        voters: n, how many clients are drawn to take part in a round.
        colluders: how many of them may be in league with the server.
        settings: of the experiment, as all must have them.
        weighing: what a client counts for.
        ahead: 1 if it belongs to the round after the last complete one.
    """

    name: str
    sums: tuple[str, ...]
    voters: int
    colluders: int
    settings: str
    weighing: Weighing
    ahead: int = 0
    main: bool = False
    trains: bool = False
    computes: bool = False
    tells: bool = False
    quorum: int = 0  # nobody can join a round under way, so that waiting longer than the deadline is of no use

    def sum_terms(self, public: Public) -> SumTerms:
        """Who may sum what, bound to the settings and the model.

        If others trained another model, or otherwise, they could be made to say nothing, and the sum would be what one says.
        """
        least, common = threshold(self.voters, self.colluders), _common_ground(self.settings, public)
        return SumTerms(public.round + self.ahead, self.sums, self.voters, least, 2 + self.colluders, common, self.weighing)

    def fault(self, number: int, upload: Message, public: Public, server: ServerSide | None) -> str | None:
        """Why an upload is not believed, by what is known of the round so far; None where nothing is found."""
        return None

    def member(self, side: ClientSide, public: Public) -> Member:
        """A client's part."""
        if side.identity is None:
            raise Refused("a secure sum needs keys to sign with, and this client has none: start it with --key and --peers")
        sum_terms = self.sum_terms(public)
        return Member(side.notes, side.identity, side.client.number, sum_terms.weighing.counts(side.client.weight), sum_terms)

    def uploads_in(self, context: Context) -> Context | None:
        """Bytes for any reader."""
        return None

    def reply(self, data: bytes, side: ClientSide) -> ClientReply:
        """Bytes as a message."""
        return ClientReply(message_of(data), side.client)

    def form(self, public: Public) -> Message:
        """Bytes."""
        return message_of(b"")

    def longest(self, public: Public) -> int:
        """Bytes that an upload can have."""
        return self.voters * max(cards.dealt_size(len(self.sums)), cards.REVEALED) + cards.said_size(len(self.sums))

    def open(self, upload: Message, public: Public, server: ServerSide | None = None) -> Message:
        """The upload, if it is bytes of this round and not too many."""
        if upload.round != public.round + self.ahead:
            raise field_error("round", f"is of round {upload.round}, this is round {public.round + self.ahead}")
        if upload.update.alphabet != BYTES or len(upload.vectors) > 1 or len(upload.real) or len(upload.update.scales):
            raise field_error("alphabet", "is no message of a secure sum")
        if not 0 < len(upload.update.symbols) <= self.longest(public):
            raise field_error("symbols", f"is {len(upload.update.symbols)} bytes long, where {self.longest(public)} are the most")
        if problem := self.fault(upload.sender or 0, upload, public, server):
            raise Refused(problem)
        return upload

    def total(self, public: Public) -> RawUploads:
        """What clients say."""
        return RawUploads()


# ---- histories ------------------------------------------------------------------------------------------------------------

HISTORY = "secure_sum"  # under which a client keeps it


def shown(client: Client) -> bytes:
    """A digest of all that a client brings to a round but its own data: who has voted in the last one, the server says too."""
    return hashlib.sha256(b"bifl history 1 " + bytes([client.voted]) + client.states.get(HISTORY, b"")).digest()


def continued(before: Client, after: Client, agreed: bytes, *, uploads: bool) -> Client:
    """A client that has trained, with its new history.

    Args:
        before: as its turn began.
        after: as it is now.
        agreed: a digest of the public state that it has trained with, the last broadcast, and the settings.
        uploads: whether it has uploaded too, which an algorithm may remember.
    """
    history = hashlib.sha256(shown(before) + agreed + bytes([uploads])).digest()
    return after._replace(states={**after.states, HISTORY: history})
