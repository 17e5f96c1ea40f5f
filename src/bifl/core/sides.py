"""What crosses in an exchange, and the two sides of it: a client at work, and the server at work (`bifl.exchanges`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt

from bifl.core.forward import PLAIN, Local
from bifl.core.message import Floats, Message
from bifl.core.state import Client, Server
from bifl.errors import RunError

PrivateReplies = Mapping[int, bytes]  # an answer for each client, by number
Signed = Callable[[int, bytes, bytes], bool]  # (client, data, signature) → whether that client has signed the data
NO_NOTES: Mapping[str, Any] = {}
NO_ROWS: Mapping[int, Mapping[str, Any]] = {}


class Abandoned(RunError):
    """An exchange cannot be completed, and nothing of it was counted.

    Until the broadcast that completes the round the round may be held again; after it the round ends without the exchange, as what
    clients were told is not told otherwise a second time.
    """

    def __init__(self, text: str, at_fault: Collection[int] = ()) -> None:
        super().__init__(text)
        self.at_fault = frozenset(at_fault)  # clients, as far as that can be known: the run goes on without them


class Request(NamedTuple):
    """What a client is asked: its part in an exchange."""

    number: int  # of the client
    voted: bool  # its last ballot is in the news
    uploads: bool  # what it says will be counted
    private_reply: bytes = b""  # what the last exchange answered this client alone


class Reply(NamedTuple):
    """What a client answers."""

    number: int
    weight: int  # what it says that it weighs
    loss: float | None = None  # of its training, if it trained and tells
    upload: bytes | None = None  # None from a client that uploads nothing; of a counted one only where messages are kept
    size: int | None = None  # bytes of an upload that was counted
    ideal: float | None = None  # the same, if the coder were ideal


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
    private_reply: bytes  # what the server answered this client alone in the last exchange; may be anything
    notes: MutableMapping[str, bytes]  # what the client keeps for the next exchanges, durable before its answer leaves
    identity: Identity | None  # None where there are no keys

    def begin_afresh(self) -> None:
        """Make `client` what it was before its first round, but for what exchanges keep in which nothing is uploaded."""

    def train(self, client: Client, local: Local = PLAIN) -> tuple[Client, float]:
        """Local training, to whose steps `local` adds: the client with new `aux` and `real`, and the mean loss."""

    def measure(self) -> Floats:
        """Moments of the inputs of every batch-norm in the global network, on some of the client's own data."""

    def moments(self, weights: Floats, real: Floats) -> Floats:
        """The same of any model, for the client itself."""

    def evaluate(self, weights: Floats, real: Floats) -> Sequence[Score]:
        """How well a model does on what the client holds out."""

    def samples(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """All that the client has, as it is: inputs, which are not normalised, and labels."""


class Score(NamedTuple):
    """A model on one chunk of the test samples, or of those that a client holds out."""

    chunk: int
    samples: int
    weight: int  # how many of what the task counts in them: usually samples
    sums: tuple[float, ...]  # as the task sums up
    loss: float  # summed
    client: int | None = None  # who holds them out
    model: str = ""  # the name of the exchange that it is of; empty for the global model


class ServerSide(NamedTuple):
    """The server at work in a round, as an exchange sees it: what it keeps, and what it knows of this round."""

    server: Server
    present: int = 0  # how many clients could have been drawn for this round; 0 where nobody knows
    signed: Signed | None = None  # knows whether a client has signed something; None where the server has no keys
    notes: Mapping[str, Any] = NO_NOTES  # what an exchange leaves for the next ones of the same round, by a name
    report: Mapping[str, float] = NO_NOTES  # numbers that exchanges have for the round's record, by name
    clients: Mapping[int, Mapping[str, Any]] = NO_ROWS  # the same of single clients

    def noting(self, name: str, note: Any) -> ServerSide:
        """The same with another note."""
        return self._replace(notes={**self.notes, name: note})

    def reporting(self, report: Mapping[str, float], clients: Mapping[int, Mapping[str, Any]] = NO_ROWS) -> ServerSide:
        """The same with more numbers for the round's record."""
        rows = {number: {**self.clients.get(number, {}), **row} for number, row in clients.items()}
        return self._replace(report={**self.report, **report}, clients={**self.clients, **rows})


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
