"""A round is a list of exchanges. In an exchange clients say something, the server adds it up and answers, everyone absorbs that.

Nothing else crosses between a client and the server. Who carries a round out knows no exchange by name: it asks clients to `say`
something, adds up what the uploads are read as (`open`), sends the `answer` to all, and all move on by `advance`. One exchange is
what the round is held for (`main`): most often the ballot. Others may come before it, among those who were drawn to upload, or
after it, among those whose uploads were counted. An answer is one message for all, or a private reply to each (`PrivateReplies`):
it changes nothing public, and those who get one take part in the next exchange. The broadcast of the main exchange completes the
round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bifl import codec
from bifl.codec import Context, Precision, field_error
from bifl.core import NOTHING, UPDATE, Alphabet, Client, Floats, Layout, Message, Public, Selection, Tally, Total
from bifl.core.message import reals_only
from bifl.core.sides import Accumulator, ClientReply, ClientSide, PrivateReplies, ServerSide
from bifl.core.sums import Weighing
from bifl.errors import Refused, RunError
from bifl.registry import Registry

if TYPE_CHECKING:
    from bifl.core.algorithm import Algorithms
    from bifl.data.inputs import Form
    from bifl.exchanges.bounds import Bounds
    from bifl.privacy import Private
    from bifl.robust import RobustSum
    from bifl.tasks import Task

BYTE_ALPHABET = Alphabet("bytes", 256)


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """A run as an exchange sees it that becomes part of it (`bifl.experiment.run.Run`)."""

    algorithm: Algorithms
    weighing: Weighing  # what a client counts for
    robust: RobustSum | None
    privacy: Private | None
    task: Task
    form: Form  # of one input
    classes: int  # or outputs
    bounds: Bounds  # within which uploads count
    precision: Precision  # of real numbers
    in_context: bool  # whether messages are coded in what both ends know
    idle_trains: bool  # whether clients that do not upload train all the same
    recalibrates: bool  # whether batch-norm's statistics have an exchange of their own
    tells_results: bool  # whether each client may tell how it fares
    share: float  # of its samples that a client holds out
    positions: int = 1  # the most that the task may count in one sample


class Exchange(ABC):
    """One kind of exchange. A new one has a name, a layout of its numbers, and says what `say`, `open`, `answer`, `advance` do."""

    name: str  # by which both ends and the files of a run know it
    main: bool = False  # the round is held for it: enough uploads must come, and who sent one has voted
    trains: bool = False  # clients train in it: they tell their loss, and those who upload nothing may take part as well
    computes: bool = True  # networks compute with clients' inputs in it, none of which may be missing then
    uploads: bool = True  # clients upload something in it; otherwise there is no answer either
    remembers: bool = False  # clients keep something for its next round, in `Client.states` under its name
    quorum: int = 0  # how many must answer, whatever the rules of a deployment say

    @property
    def tells(self) -> bool:
        """Whether its answer is a broadcast; otherwise it is private replies, or there is none."""
        return self.uploads

    @property
    def ahead(self) -> int:
        """1 if its messages are of the round after the last complete one, as until the main exchange is over; 0 after that."""
        return int(self.main)

    @property
    def completes(self) -> bool:
        """Whether its broadcast completes the round."""
        return self.main and self.tells

    def layout(self, public: Public) -> Layout:
        """How the numbers of its messages are laid out; by default there are none."""
        return Layout((), (), (), ())

    def context(self, public: Public) -> Context:
        """What both ends know of the next messages before they are sent."""
        return self.plain(public, public.round + self.ahead)

    def uploads_in(self, context: Context) -> Context | None:
        """The context that uploads are coded in; None where they are spelled out for any reader, and `open` checks all of it."""
        return context

    def plain(self, public: Public, round: int) -> Context:
        """What a newcomer knows of the messages of a round: only how they are laid out."""
        return Context(self.layout(public), round)

    def listeners(self, voters: Collection[int], present: Collection[int]) -> Collection[int]:
        """Clients that take part without uploading, given who uploads and who is there."""
        return ()

    @abstractmethod
    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        """A client's part."""

    def form(self, public: Public) -> Message:
        """An upload, as far as its form goes: alphabet, number of symbols and of scales."""
        return reals_only(np.zeros(self.layout(public).reals, np.float32))

    def open(self, upload: Message, public: Public, server: ServerSide | None = None) -> Message:
        """What an upload counts as, within bounds, in the form that is added up; by default as it is. A client may say anything.

        `server` is what the server knows of the round so far; None where another adds up for it. A BiflError refuses the upload.
        """
        return upload

    def total(self, public: Public) -> Accumulator:
        """A sum of no uploads yet."""
        return Total()

    def answer(self, total: Any, public: Public, server: ServerSide) -> tuple[ServerSide, Message | PrivateReplies]:
        """The server's part: what it is like afterwards, and its broadcast or private replies; `Abandoned` if too few answered."""
        return server, {}

    def advance(self, public: Public, news: Message) -> Public:
        """Everyone's part: the public state after the broadcast. It is changed nowhere else. By default the round is the news'."""
        return public._replace(round=news.round)

    def repeat(self, public: Public) -> Message | None:
        """The broadcast that tells a newcomer what this exchange added to the public state; None before the first."""
        return None

    def own_model(self, client: Client, public: Public) -> tuple[Floats, Floats] | None:
        """Weights and real numbers of a model that a client keeps for itself, evaluated beside the shared one; None without."""
        return None


exchange: Registry[Exchange] = Registry("exchange")  # of functions that take Surroundings, and parameters with defaults


class Summable(Exchange):
    """An exchange whose uploads a server can count that sees their sum alone (`secure_sum`): it answers a `Total` too."""

    def selects(self, public: Public, number: int) -> Selection | None:
        """What a client's update is about; None for all there is, in order."""
        return None

    def bounded(self, upload: Message, public: Public) -> Message:
        """A client's upload within bounds, as the client itself bounds it; by default read as the server would read it."""
        return self.open(upload, public)

    @abstractmethod
    def plausible(self, tally: Tally, public: Public, largest: int) -> bool:
        """Whether what was counted can be a mean of such uploads, given the largest weight of a client."""


class ByteExchange(Exchange):
    """An exchange whose uploads are bytes for any reader, of which `open` checks all."""

    def uploads_in(self, context: Context) -> None:
        """No context."""
        return

    def form(self, public: Public) -> Message:
        """Bytes."""
        return message_of(b"")


def message_of(data: bytes) -> Message:
    """Bytes as a message, for any reader."""
    return Message.of(np.frombuffer(data, np.uint8), BYTE_ALPHABET, NOTHING)


def bytes_in(upload: Message) -> bytes:
    """The bytes of a message of bytes."""
    return upload.update.symbols.astype(np.uint8).tobytes()


def take_part(which: Exchange, side: ClientSide, public: Public, *, uploads: bool, tells_results: bool) -> ClientReply:
    """A client's part, with a message only where one is asked for, and a loss only where it may be told (`tells_results`).

    A server that lies may ask for anything. What is not to be counted is under no masks: it does not leave, whatever `say` returns.
    """
    if not uploads and not which.trains:
        raise Refused(f"the server asks for no upload in the exchange '{which.name}', in which clients do nothing else")
    reply = which.say(side, public, uploads=uploads)
    message = None if reply.message is None or not uploads else from_client(reply.message, which, side.client, public)
    return reply._replace(message=message, loss=reply.loss if tells_results else None)


def from_client(message: Message, which: Exchange, client: Client, public: Public) -> Message:
    """What an exchange says, with round, sender and weight filled in."""
    return message._replace(round=public.round + which.ahead, sender=client.number, weight=client.weight)


def make_answer(which: Exchange, total: Any, public: Public, server: ServerSide) -> tuple[ServerSide, Message | PrivateReplies]:
    """The server's part: what it is like afterwards, and its broadcast, with round and sender filled in, or private replies."""
    server, news = which.answer(total, public, server)
    if isinstance(news, Message):
        return server, news._replace(round=public.round + which.ahead, weight=1, sender=None)
    if which.completes:
        raise RunError(f"exchange '{which.name}' completes the round: its answer must be a message for all, not private replies")
    return server, news


def last_telling(exchanges: Sequence[Exchange]) -> Exchange:
    """The exchange whose broadcast is a round's last: it leads to the state that the next round begins with."""
    return next(one for one in reversed(exchanges) if one.tells)


def main_of(exchanges: Sequence[Exchange]) -> Exchange:
    """The exchange that a round is held for."""
    return next(one for one in exchanges if one.main)


def completing(exchanges: Sequence[Exchange]) -> Exchange:
    """The exchange whose broadcast completes the round: the main one itself, or the end of its secure sum."""
    return next(one for one in exchanges if one.completes)


# ---- how an upload is taken in -------------------------------------------------------------------------------------------


class Sender(NamedTuple):
    """Whom an upload should be from."""

    number: int
    weight: int  # as it has declared


class Intake:
    """Takes in the uploads of one exchange, for whoever adds up: decoded, checked, opened and counted, as a whole or not at all.

    The readable loop, a worker and the server of a deployment do the same. A server that did not make the uploads itself says whom
    each one should be from, and then nothing is believed that can be checked. `total` is the sum of all that was taken in.
    """

    def __init__(self, exchange: Exchange, public: Public, context: Context, server: ServerSide | None = None) -> None:
        self._exchange, self._public, self._server = exchange, public, server
        self._context = exchange.uploads_in(context)
        self.total = exchange.total(public)

    def take(self, data: bytes, sender: Sender | None = None) -> tuple[int, float | None]:
        """Count an upload of a sender, None for one that was made here: its bytes, and how many there were if the coder were ideal.

        After any exception nothing of it was counted.
        """
        upload = codec.decode(data, self._context)
        if sender is not None:
            _refuse_misfit(upload, sender, self._form)
        opened = self._exchange.open(upload, self._public, self._server)
        if sender is not None:
            self._try(opened)
        self.total.add(opened)
        return len(data), codec.ideal_size(data, upload, self._context)

    @cached_property
    def _form(self) -> Message:
        return self._exchange.form(self._public)

    def _try(self, opened: Message) -> None:
        """Count an upload alone first, so that nothing in it can spoil what the others have said."""
        alone = self._exchange.total(self._public)
        alone.add(opened)
        if isinstance(alone, Total):  # what is made of several uploads may need several
            alone.tally()
        vectors = opened.vectors.values()
        codec.refuse_infinite(opened.real, *(numbers for vector in vectors for numbers in (vector.values(), vector.scales)))


def _refuse_misfit(upload: Message, sender: Sender, form: Message) -> None:
    """Refuse what can be read and yet cannot be counted, as what cannot be read."""
    if upload.sender != sender.number:
        raise field_error("sender", f"is from client {upload.sender}, not from {sender.number}")
    if upload.weight != sender.weight:
        raise field_error("weight", f"weighs {upload.weight} images, the client has {sender.weight}")
    codec.refuse_infinite(*codec.free_numbers(upload))
    if upload.vectors.keys() != form.vectors.keys():
        names, wanted = (", ".join(sorted(vectors)) for vectors in (upload.vectors, form.vectors))
        raise field_error("further", f"holds the vectors {names}, this algorithm's uploads hold {wanted}")
    for name, vector in upload.vectors.items():
        which, fitting = "" if name == UPDATE else f"in the vector '{name}': ", form.vectors[name]
        if vector.alphabet != fitting.alphabet:
            spelled = f"is spelled in {vector.alphabet.name}, this algorithm's uploads in {fitting.alphabet.name}"
            raise field_error("alphabet", which + spelled)
        if len(vector.scales) != len(fitting.scales):
            counted = f"has {len(vector.scales)} scales, this algorithm's uploads have {len(fitting.scales)}"
            raise field_error("scales", which + counted)
