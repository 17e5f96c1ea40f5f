"""A round is a list of exchanges. In an exchange clients say something, the server adds it up and answers, everyone absorbs that.

The ballot is one exchange (`ballot`), batch-norm's statistics are another (`batchnorm`). No model, update or statistic crosses
between a client and the server in another way. Who carries a round out knows no exchange by name: it asks clients to `say`
something, adds up what the uploads are read as (`open`), sends the `answer` to all, and all move on by `advance`. One exchange is
what the round is held for (`main`): most often the ballot. Others may come before it, among those who were drawn to upload, or
after it, among those whose uploads were counted. An answer is one message for all, or a private reply to each (`PrivateReplies`):
it changes nothing public, and those who get one take part in the next exchange. The broadcast of the main exchange completes the
round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bifl.codec import Context, Precision
from bifl.core.layout import Layout
from bifl.core.message import NOTHING, Alphabet, Floats, Message, Selection, reals_only
from bifl.core.sides import Accumulator, ClientReply, ClientSide, PrivateReplies, ServerSide
from bifl.core.state import Client, Public
from bifl.core.sums import Tally, Total, Weighing
from bifl.errors import Refused, RunError
from bifl.registry import Registry

if TYPE_CHECKING:
    from bifl.core.algorithm import Algorithms
    from bifl.data.inputs import Form
    from bifl.exchanges.bounds import Bounds
    from bifl.privacy import Private
    from bifl.robust import RobustSum
    from bifl.tasks import Task

BYTES = Alphabet("bytes", 256)


class Surroundings(NamedTuple):
    """What a run gives an exchange that becomes part of it."""

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
    """One kind of exchange. A new one has a name, a layout of its numbers, and says what `say`, `open`, `answer` and `advance` do.

    Attributes:
        name: a word, by which both ends and the files of a run know it.
        main: whether the round is held for it: enough uploads must come, and who sent one has voted.
        trains: whether clients train in it: they tell their loss, and those who upload nothing may take part as well.
        computes: whether networks compute with clients' inputs in it, none of which may be missing then.
        uploads: whether clients upload anything in it; otherwise there is no answer either.
        tells: whether its answer is a broadcast; otherwise it is private replies, or there is none.
        remembers: whether clients keep something for its next round, in `Client.states` under its name.
        quorum: how many must answer, whatever the rules of a deployment say.
        ahead: 1 if its messages are of the round after the last complete one, 0 if they are of that.
    """

    name: Any  # str; any, so that frozen records may have it
    main: Any = False
    trains: Any = False
    computes: Any = True
    uploads: Any = True
    remembers: Any = False
    quorum: Any = 0

    @property
    def tells(self) -> Any:
        """Where nobody uploads anything there is no answer."""
        return self.uploads

    @property
    def ahead(self) -> Any:
        """Until the main exchange is over the round is under way."""
        return int(self.main)

    @property
    def completes(self) -> Any:
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
        """What an upload counts as: within bounds, and in the form that is added up. A client may say anything: think of bounds.

        By default it counts as it is.

        Args:
            upload: as it was sent.
            public: the public state.
            server: what the server knows of the round so far; None where another adds up for it.

        Raises:
            BiflError: it cannot be counted.
        """
        return upload

    def total(self, public: Public) -> Accumulator:
        """A sum of no uploads yet."""
        return Total()

    def answer(self, total: Any, public: Public, server: ServerSide) -> tuple[ServerSide, Message | PrivateReplies]:
        """The server's part: what it is like afterwards, and its broadcast or private replies; by default none.

        Raises:
            Abandoned: too few have answered.
        """
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
    """An exchange whose uploads a server can count that sees their sum alone (`secure_sum`)."""

    def selects(self, public: Public, number: int) -> Selection | None:
        """What a client's update is about; None for all there is, in order."""
        return None

    @abstractmethod
    def bounded(self, upload: Message, public: Public) -> Message:
        """A client's upload within bounds, as the client itself bounds it, and read as the server would read it."""

    @abstractmethod
    def plausible(self, tally: Tally, public: Public, largest: int) -> bool:
        """Whether what was counted can be a mean of such uploads, given the largest weight of a client."""

    @abstractmethod
    def answer_sum(self, total: Total, public: Public, server: ServerSide) -> tuple[ServerSide, Message]:
        """What the server makes of a sum alone."""

    def place(self, public: Public) -> Callable[[int], Hashable]:
        """Client → where it speaks; None where all speak of all."""

        def where(number: int) -> Hashable:
            about = self.selects(public, number)
            return None if about is None else about.place

        return where

    def like(self, public: Public) -> Callable[[int], Message]:
        """Client → an upload of the form of its own."""
        form = self.form(public)

        def of(number: int) -> Message:
            about = self.selects(public, number)
            length = len(form.update.symbols) if about is None else about.length
            return form.with_update(symbols=np.zeros(length, form.update.symbols.dtype))

        return of


def take_part(which: Exchange, side: ClientSide, public: Public, *, uploads: bool, tells_loss: bool) -> ClientReply:
    """A client's part, with a message only where one is asked for, and a loss only where losses are told (`tells_loss`).

    A server that lies may ask for anything. What is not to be counted is under no masks: it does not leave, whatever `say` returns.

    Raises:
        Refused: clients do not train in this exchange, so one that uploads nothing has no part in it.
    """
    if not uploads and not which.trains:
        raise Refused(f"the server asks for no upload in the exchange '{which.name}', in which clients do nothing else")
    reply = which.say(side, public, uploads=uploads)
    message = None if reply.message is None or not uploads else from_client(reply.message, which, side.client, public)
    return reply._replace(message=message, loss=reply.loss if tells_loss else None)


def from_client(message: Message, which: Exchange, client: Client, public: Public) -> Message:
    """What an exchange says, with round, sender and weight filled in."""
    return message._replace(round=public.round + which.ahead, sender=client.number, weight=client.weight)


def answered(which: Exchange, total: Any, public: Public, server: ServerSide) -> tuple[ServerSide, Message | PrivateReplies]:
    """The server's part: what it is like afterwards, and its broadcast, with round and sender filled in, or private replies.

    Raises:
        Abandoned: too few have answered.
        RunError: the round would never be complete.
    """
    server, news = which.answer(total, public, server)
    if isinstance(news, Message):
        return server, news._replace(round=public.round + which.ahead, weight=1, sender=None)
    if which.completes:
        raise RunError(f"exchange '{which.name}' completes the round: its answer must be a message for all, not letters")
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


def message_of(data: bytes) -> Message:
    """Bytes as a message, for any reader."""
    return Message.of(np.frombuffer(data, np.uint8), BYTES, NOTHING)


def bytes_in(upload: Message) -> bytes:
    """The bytes of a message of bytes."""
    return upload.update.symbols.astype(np.uint8).tobytes()
