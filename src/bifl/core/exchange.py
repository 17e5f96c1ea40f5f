"""A round is a list of exchanges. In an exchange clients say something, the server adds it up and answers, everyone absorbs that.

The ballot is one exchange (`bifl.exchanges.ballot`), batch-norm's statistics are another (`bifl.exchanges.batchnorm`). No model,
update or statistic crosses between a client and the server in another way. Who carries a round out knows no exchange by name: it
asks clients to `say` something, adds up what the uploads are `opened` as, sends the `answer` to all, and all move on by `advance`.
Exactly one exchange of a round trains: the ballot. Others may come before it, among those who were drawn to vote, or after it,
among those whose ballots were counted. An answer is one message for all, or a letter for each (`Letters`): letters change nothing
public, and those who get one take part in the next exchange. The first broadcast from the ballot on completes the round.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from bifl.core.message import Floats, Message
from bifl.core.state import Client, Public, Server
from bifl.errors import Refused, RunError

if TYPE_CHECKING:
    from bifl.codec import Context


Letters = Mapping[int, bytes]  # an answer for each client, by number


class Abandoned(RunError):
    """An exchange cannot be completed, and nothing of it was counted.

    Until the broadcast that completes the round the round may be held again; after it the round ends without the exchange, as what
    clients were told is not told otherwise a second time.

    Attributes:
        at_fault: clients by whose fault it was, as far as that can be known: the run goes on without them.
    """

    def __init__(self, text: str, at_fault: Collection[int] = ()) -> None:
        super().__init__(text)
        self.at_fault = frozenset(at_fault)


class Identity(Protocol):
    """What a client signs with, and how it knows what other clients have signed."""

    least: int  # clients that a sum must be of for this one to sign it, whatever the experiment says

    def sign(self, number: int, data: bytes) -> bytes:
        """The signature of a client that works here."""

    def signed(self, number: int, data: bytes, signature: bytes) -> bool:
        """Whether a client has signed this."""


class ClientSide(Protocol):
    """A client at work, as an exchange sees it: what it remembers, and what it can do with its own data."""

    client: Client  # private state, as far as it is remembered
    letter: bytes  # what the server answered this client alone in the last exchange; may be anything
    notes: MutableMapping[str, bytes]  # what the client keeps for the next exchanges, durable before its answer leaves
    identity: Identity | None  # None where there are no keys

    def begin_afresh(self) -> None:
        """Make `client` what it was before its first round."""

    def train(self, client: Client) -> tuple[Client, float]:
        """Local training: the client with new `aux` and `real`, and the mean loss."""

    def measure(self) -> Floats:
        """Moments of the inputs of every batch-norm in the global network, on some of the client's own data."""


class ClientReply(NamedTuple):
    """What a client says in an exchange, and what it is like afterwards."""

    message: Message | None  # None where a client only listens and trains
    client: Client
    loss: float | None = None  # of its training, if it trained


class Accumulator(Protocol):
    """What the uploads of an exchange are added to, in any order; parts of it may be made in different processes."""

    @property
    def clients(self) -> int:
        """How many uploads were added."""

    def add(self, upload: Message) -> None:
        """Add one upload."""

    def merge(self, other: Any) -> None:
        """Add all that another accumulator of the same exchange holds."""


class Exchange(Protocol):
    """One kind of exchange."""

    @property
    def name(self) -> str:
        """A word, by which both ends and the files of a run know it."""

    @property
    def trains(self) -> bool:
        """Whether clients train in it."""

    @property
    def tells(self) -> bool:
        """Whether its answer is a broadcast; otherwise it is letters."""

    @property
    def quorum(self) -> int:
        """How many must answer, whatever the rules of a deployment say."""

    def context(self, public: Public) -> Context:
        """What both ends know of the next messages before they are sent."""

    def uploads_in(self, context: Context) -> Context | None:
        """The context that uploads are coded in; None where they are spelled out for any reader, and `opened` checks all of it."""

    def plain(self, public: Public, round: int) -> Context:
        """What a newcomer knows of the messages of a round: only how they are laid out."""

    def listeners(self, voters: Collection[int], present: Collection[int]) -> Collection[int]:
        """Clients that take part without uploading, given who uploads and who is there."""

    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        """A client's part."""

    def form(self, public: Public) -> Message:
        """An upload, as far as its form goes: alphabet, number of symbols and of scales."""

    def knowing(self, server: Server) -> Exchange:
        """The same for a server that checks uploads by what it knows of the round so far."""

    def opened(self, upload: Message, public: Public) -> Message:
        """What an upload counts as: within bounds, and in the form that is added up.

        Raises:
            BiflError: it cannot be counted.
        """

    def total(self, public: Public) -> Accumulator:
        """A sum of no uploads yet."""

    def answer(self, total: Any, public: Public, server: Server) -> tuple[Server, Message | Letters]:
        """The server's part: what it is like afterwards, and its broadcast or letters.

        Raises:
            Abandoned: too few have answered.
        """

    def advance(self, public: Public, news: Message) -> Public:
        """Everyone's part: the public state after the broadcast. It is changed nowhere else."""

    def repeat(self, public: Public) -> Message | None:
        """The broadcast that tells a newcomer what this exchange added to the public state; None before the first."""


def turn(exchange: Exchange, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
    """A client's part, with a message only where one is asked for.

    A server that lies may ask for anything. What is not to be counted is under no masks: it does not leave, whatever `say` returns.

    Raises:
        Refused: clients do not train in this exchange, so one that uploads nothing has no part in it.
    """
    if not uploads and not exchange.trains:
        raise Refused(f"the server asks for no upload in the exchange '{exchange.name}', in which clients do nothing else")
    reply = exchange.say(side, public, uploads=uploads)
    return reply if uploads else reply._replace(message=None)


def ballot_of(exchanges: Sequence[Exchange]) -> Exchange:
    """The exchange of a round that trains."""
    return next(exchange for exchange in exchanges if exchange.trains)


def completing(exchanges: Sequence[Exchange]) -> Exchange:
    """The exchange whose broadcast completes the round: the ballot itself, or the first after it that tells."""
    return next(exchange for exchange in exchanges[exchanges.index(ballot_of(exchanges)) :] if exchange.tells)
