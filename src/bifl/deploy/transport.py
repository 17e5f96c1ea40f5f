"""Requests to nodes over Flower's grid, and what comes back: any reply is read without an error, whatever is in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import httpx
from flwr.app import Message as Letter
from flwr.serverapp import Grid

from bifl import __version__
from bifl.deploy import protocol
from bifl.errors import RunError, quoted
from bifl.runs.events import Tell

RAISED = (1, 2)  # Flower's codes for an app that cannot be loaded or raised; with the others the node may come back
_APART = 0.1  # seconds between two looks for single replies
_NETWORK = (OSError, httpx.HTTPError)  # the SuperLink's fault or the machine's, not a client's

Fields = dict[str, Any]


class Asked(NamedTuple):
    """A request on its way."""

    node: int
    kind: str  # the name of an exchange, or one of the protocol's
    round: int  # of the public state: how many are complete
    number: int  # −1 in a greeting
    until: float  # when Flower forgets it
    under_way: int  # the round that the answer will be about: of a ballot the next one


class Failure(NamedTuple):
    """Why there is no answer."""

    code: int  # Flower's
    reason: str  # harmless to show


class Reply(NamedTuple):
    """What came back: fields, none of which has been looked at, or a failure."""

    asked: Asked
    said: Fields
    failure: Failure | None = None


class Post:
    """Sends requests and collects replies.

    Args:
        grid: Flower's.
        run: names the run.
        ttl: seconds after which Flower forgets a request.
        tell: takes a sentence for a person.
    """

    def __init__(self, grid: Grid, run: str, ttl: float, tell: Tell) -> None:
        self._grid, self._run, self._ttl, self._tell = grid, run, ttl, tell
        self.asked: dict[str, Asked] = {}  # by Flower's id of the request
        self._one_by_one = False
        self._next = 0.0  # when to look again for single replies

    def nodes(self) -> set[int]:
        """The connected nodes."""
        return set(self._grid.get_node_ids())

    def send(self, node: int, kind: str, round: int, number: int, fields: Mapping[str, Any], under_way: int | None = None) -> None:
        """Send a request; the answer is about the round that is complete, unless another is under way."""
        said = dict(fields) | {"run": self._run, "round": round, protocol.VERSION: __version__}
        if kind not in (protocol.HELLO, protocol.HEAR):
            said, kind = said | {"exchange": kind}, protocol.EXCHANGE
        content = protocol.content(said)
        names = list(self._grid.push_messages([Letter(content, node, kind, ttl=self._ttl, group_id=str(round))]))
        if not names or not names[0]:
            raise RunError(f"Flower's SuperLink did not take a message for client {number}: see its log")
        about, until = round if under_way is None else under_way, time.monotonic() + self._ttl
        self.asked[names[0]] = Asked(node, said.get("exchange", kind), round, number, until, about)

    def forget(self, hopeless: Callable[[Asked], bool]) -> None:
        """Stop waiting for some replies."""
        self.asked = {name: asked for name, asked in self.asked.items() if not hopeless(asked)}

    def replies(self) -> Iterator[Reply]:
        """The replies that arrived since the last call."""
        for name, letter in self._pulled():
            asked = self.asked.pop(name, None)
            if asked is not None:
                said = {} if letter is None else protocol.fields_of(letter)
                yield Reply(asked, said, _failure(letter) or _own_failure(said))

    def _pulled(self) -> Iterable[tuple[str, Letter | None]]:
        """Replies, each with the id of its request; None where one cannot be read.

        Flower takes all replies that are there at once, and loses all of them if one cannot be read. What was lost is asked for
        again, which gives the same answers. From then on each reply is taken by itself: that is more work for the SuperLink, but
        the next one that cannot be read costs nobody else anything.
        """
        if not self.asked:
            return []
        if self._one_by_one:
            return self._single()
        try:
            return [(letter.metadata.reply_to_message_id, letter) for letter in self._grid.pull_messages(list(self.asked))]
        except Exception as error:  # whatever it is, a client's bytes caused it
            if isinstance(error, _NETWORK):
                raise
            self._one_by_one = True
            self.asked.clear()
            self._tell(f"a reply cannot be read ({type(error).__name__}): everyone who was asked is asked again")
            return []

    def _single(self) -> Iterator[tuple[str, Letter | None]]:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _APART * len(self.asked)
        for name in list(self.asked):
            try:
                found = list(self._grid.pull_messages([name]))
            except Exception as error:
                if isinstance(error, _NETWORK):
                    raise
                yield name, None
            else:
                yield from ((name, letter) for letter in found[:1])


def _failure(letter: Letter | None) -> Failure | None:
    """What a reply says of an error, if it does."""
    if letter is None or not letter.has_error():
        return None
    code, reason = letter.error.code, letter.error.reason
    return Failure(code if type(code) is int else 0, quoted(reason or "no reason given"))


def _own_failure(said: Fields) -> Failure | None:
    """What a client says of its own failure, if it does."""
    return Failure(RAISED[-1], quoted(said[protocol.FAILED])) if protocol.FAILED in said else None
