"""Asking clients over Flower's grid, and collecting their answers.

Whatever comes too late, twice, damaged or out of turn is refused, counted and told. Any answer is read without an error, whatever
is in it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from bifl import __version__
from bifl.core.sums import LARGEST_WEIGHT
from bifl.deploy import protocol
from bifl.deploy.server.members import Members
from bifl.engine.catch_up import Journal
from bifl.engine.round import NobodyVotes, Upkeep
from bifl.errors import ConfigError, RunError, quoted
from bifl.experiment.settings import Experiment
from bifl.runs.events import ERROR, MISSING, REFUSED, Tell

POLL = 0.2  # seconds between two looks for answers
LOOK = 1.0  # seconds between two looks for nodes
RAISED = (1, 2)  # Flower's codes for an app that cannot be loaded or raised; with the others the node may come back
_TRIES = 3  # times in an exchange that a client may fail to answer and be asked again
_APART = 0.1  # seconds between two looks for single replies
_NETWORK = (OSError, httpx.HTTPError, RunError)  # the SuperLink's fault or the machine's, not a client's

Fields = dict[str, Any]


@dataclass(frozen=True)
class Rules:
    """When a round ends, and how much one client may count for."""

    min_clients: int = 0  # ballots that a round needs; 0: half of those who vote
    deadline: float = 600.0  # seconds after which it goes on without the others
    max_images: int = 0  # that one client may declare; 0: a limit relative to what the others declare (`members`)

    def __post_init__(self) -> None:
        if not 0 < self.deadline < math.inf:
            raise ConfigError(f"deadline must be a number of seconds greater than 0, not {self.deadline}")
        if not 0 <= self.max_images <= LARGEST_WEIGHT:
            words = f"max-images must be from 1 to {LARGEST_WEIGHT}, or 0 to go by what the others have"
            raise ConfigError(f"{words}, not {self.max_images}")

    def check(self, experiment: Experiment) -> None:
        """Refuse rounds that need more clients than an experiment has, or less than none, by a ConfigError."""
        if not 0 <= self.min_clients <= experiment.clients:
            words = f"min-clients must be from 1 to clients={experiment.clients}, or 0 for half of them"
            raise ConfigError(f"{words}, not {self.min_clients}")

    def least(self, experiment: Experiment) -> int:
        """The ballots that a round of an experiment needs."""
        return self.min_clients or -(-experiment.voters() // 2)


DEFAULTS = Rules()


# ---- over the grid ---------------------------------------------------------------------------------------------------


class Pending(NamedTuple):
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


class Transport:
    """Sends requests of a run and collects answers; Flower forgets a request after `ttl` seconds."""

    def __init__(self, grid: Grid, run: str, ttl: float, tell: Tell) -> None:
        self.grid, self._run, self._ttl, self._tell = grid, run, ttl, tell
        self.pending: dict[str, Pending] = {}  # by Flower's id of the request
        self._one_by_one = False
        self._next = 0.0  # when to look again for single replies

    def send(self, node: int, kind: str, round: int, number: int, fields: Mapping[str, Any], under_way: int) -> None:
        """Send a request."""
        request = dict(fields) | {"run": self._run, "round": round, protocol.VERSION: __version__}
        flowers_kind = kind
        if kind not in (protocol.HELLO, protocol.HEAR):
            request, flowers_kind = request | {"exchange": kind}, protocol.EXCHANGE
        message = Message(protocol.content(request), node, flowers_kind, ttl=self._ttl, group_id=str(round))
        names = list(self.grid.push_messages([message]))
        if not names or not names[0]:
            raise RunError(f"Flower's SuperLink did not take a message for client {number}: see its log")
        self.pending[names[0]] = Pending(node, kind, round, number, time.monotonic() + self._ttl, under_way)

    def answers(self) -> Iterator[tuple[Pending, Fields, Failure | None]]:
        """The answers that arrived since the last call: fields, none of which has been looked at, or a failure."""
        for name, message in self._pull():
            request = self.pending.pop(name, None)
            if request is not None:
                fields = {} if message is None else protocol.fields_of(message)
                yield request, fields, _failure(message, fields)

    def _pull(self) -> Iterator[tuple[str, Message | None]]:
        """Replies, each with the id of its request; None where one cannot be read.

        Flower takes all replies that are there at once, and loses all of them if one cannot be read. What was lost is asked for
        again, which gives the same answers. From then on each reply is taken by itself: that is more work for the SuperLink, but
        the next one that cannot be read costs nobody else anything.
        """
        groups = [list(self.pending)] if self.pending else []
        if self._one_by_one:
            if time.monotonic() < self._next:
                return
            self._next = time.monotonic() + _APART * len(self.pending)
            groups = [[name] for name in self.pending]
        for names in groups:
            try:
                replies = list(self.grid.pull_messages(names))
            except _NETWORK:
                raise
            except Exception as error:  # whatever it is, a client's bytes caused it
                if self._one_by_one:
                    yield names[0], None
                    continue
                self._one_by_one = True
                self.pending.clear()
                self._tell(f"a reply cannot be read ({type(error).__name__}): everyone who was asked is asked again")
                return
            for reply in replies:
                yield (names[0] if self._one_by_one else reply.metadata.reply_to_message_id), reply


def _failure(message: Message | None, fields: Fields) -> Failure | None:
    """What a reply says of an error, Flower's or the client's own, if it does."""
    if message is not None and message.has_error():
        code, reason = message.error.code, message.error.reason
        return Failure(code if type(code) is int else 0, quoted(reason or "no reason given"))
    return Failure(RAISED[-1], quoted(fields[protocol.FAILED])) if protocol.FAILED in fields else None


# ---- whom to ask, and how long to wait -------------------------------------------------------------------------------


class Requests:
    """Asks clients, round by round."""

    def __init__(
        self, transport: Transport, journal: Journal, members: Members, terms: protocol.Terms, deadline: float, tell: Tell
    ) -> None:
        self._transport, self._journal, self._members = transport, journal, members
        self._terms, self._deadline, self.tell = protocol.terms_fields(terms), deadline, tell
        self._looked = -math.inf
        self._refused = 0
        self._missing: set[int] = set()
        self._silent: set[int] = set()  # clients that let a deadline pass and were not heard of since: nobody waits for them
        self._lost: set[int] = set()  # clients that were without their folder in this exchange
        self._rejected: set[int] = set()  # clients whose last answer was refused
        self._notified: set[int] = set()  # clients that have been told why they may not take part
        self._failures: Counter[int] = Counter()  # of nodes in this exchange
        self._reported: dict[int, str] = {}  # nodes that could not join, as they were when all of them were last told

    def upkeep(self) -> Upkeep:
        """What went wrong since the last call."""
        upkeep = Upkeep(self._refused, len(self._missing))
        self._refused, self._missing = 0, set()
        return upkeep

    def answering(self) -> set[int]:
        """The clients that are there, may take part and did not let the last deadline pass."""
        return self._members.voting().keys() - self._silent

    def refuse(self, number: int, reason: str, round: int) -> None:
        """Do not count a client's answer."""
        self._refused += 1
        self._rejected.add(number)
        self.tell(f"round {round}: client {number} refused: {reason}", REFUSED, number)

    def gather(self, clients: int, least: int) -> None:
        """Wait until all clients have introduced themselves, or time is up and at `least` so many have."""
        self.tell(f"waiting for {clients} clients, at least {least}; after {self._deadline:g} s without the others")
        ends, warned = time.monotonic() + self._deadline, False
        while True:
            self._look()
            for _ in self._answers(protocol.HELLO):
                pass
            there, failed, late = len(self._members.present()), self._members.strangers, time.monotonic() > ends
            reasons = "; ".join(sorted(failed.values()))
            if there == clients or (late and there >= least):
                break
            if (late or len(failed) >= clients) and _hopeless(len(failed), clients, least):
                raise RunError(f"{f'{there} of {clients} clients are there, others' if there else 'all clients'} failed: {reasons}")
            if failed != self._reported and not there and not self._greeting():
                self._reported = dict(failed)
                if failed:
                    self.tell(
                        f"all clients that are there failed ({reasons}): start them again when they are mended, or start others"
                    )
            if late and not warned:
                self.tell(f"{there} clients after {self._deadline:g} s, and {least} are needed: waiting for more")
                warned = True
            time.sleep(POLL)

    def ask_all(self, kind: str, requests: Mapping[int, Fields], least: int, under_way: int) -> Iterator[tuple[int, Fields]]:
        """Ask clients and hand out their answers, until all who are there have answered, or time is up and `least` have.

        `kind` is the name of an exchange, or one of the protocol's; `under_way` the round that it is about. An answer that the
        caller refuses does not count. Raises `NobodyVotes` where what is needed could come only from clients that are barred by
        now.
        """
        todo, voters = set(requests), {number for number, fields in requests.items() if fields.get("uploads", True)}
        accepted, failed, warned = 0, set[int](), False
        self._lost.clear()
        self._failures.clear()
        ends = time.monotonic() + self._deadline
        while True:
            self._look()
            todo -= self._members.barred.keys()  # one that came after the round had begun
            able = voters - self._members.barred.keys()
            needed = min(least, len(able))
            if least and not able:
                raise NobodyVotes
            self._ask(kind, {number: requests[number] for number in todo}, under_way)
            for number, fields in self._answers(kind):
                if number not in todo:
                    why = "it may not take part" if number in self._members.barred else f"{_what(kind)} came twice"
                    self.refuse(number, why, under_way)
                    continue
                todo.discard(number)
                self._rejected.discard(number)
                if fields is not None:
                    yield number, fields
                if fields is None or number in self._rejected:
                    failed.add(number)
                else:
                    accepted += number in voters
            late = time.monotonic() > ends
            newcomers = todo - self._members.by_number.keys() if self._greeting() else set()
            awaited = todo.intersection(self._members.voting()) - self._silent | newcomers
            if accepted >= needed and (late or not awaited):
                break
            failed &= able
            if (late or failed == able) and _hopeless(len(failed), len(able), needed):
                raise RunError(f"round {self._round + 1}: too few ballots, {accepted} of {needed}; see above why")
            if late and not warned:
                self.tell(f"{accepted} of {needed} ballots after {self._deadline:g} s: waiting for more clients")
                warned = True
            if late and not awaited:  # those who failed may have been mended
                todo |= failed
                failed.clear()
                ends = time.monotonic() + self._deadline
            time.sleep(POLL)
        self._close(kind, todo)

    def _close(self, kind: str, unanswered: set[int]) -> None:
        """Go on without those who have not answered. They are asked again in the next exchange, but not waited for."""
        for request in self._transport.pending.values():
            if request.kind == kind and request.number in unanswered:
                self._missing.add(request.number)
                self._silent.add(request.number)
                self.tell(f"{_what(kind)} of client {request.number} did not come in time: left out", MISSING, request.number)

    @property
    def _round(self) -> int:
        """How many rounds are complete."""
        return self._journal.public.round

    def _look(self) -> None:
        """See which nodes are there, and greet new ones."""
        if time.monotonic() < self._looked + LOOK:
            return
        self._looked = time.monotonic()
        new = self._members.see(set(self._transport.grid.get_node_ids()))
        self._silent.intersection_update(self._members.present())  # one that went away and comes back is waited for
        for name, request in list(self._transport.pending.items()):
            gone = request.kind == protocol.HELLO and request.node not in self._members.online  # it may be greeted again
            if gone or self._looked > request.until:
                del self._transport.pending[name]
        for node in new - {request.node for request in self._transport.pending.values() if request.kind == protocol.HELLO}:
            self._greet(node)
        self.notify()

    def _greet(self, node: int) -> None:
        self._transport.send(node, protocol.HELLO, self._round, -1, self._terms, self._round)

    def notify(self) -> None:
        """Tell clients that may not take part why; their operators cannot see what is told here."""
        for number, member in self._members.present().items():
            if number in self._members.barred and number not in self._notified:
                self._notified.add(number)
                update = protocol.update_fields(self._journal.update(member.digest))
                notice = {"notice": self._members.barred[number]}
                self._transport.send(member.node, protocol.HEAR, self._round, number, notice | update, self._round)

    def _greeting(self) -> bool:
        """Whether somebody who is there has yet to answer a greeting."""
        pending = self._transport.pending.values()
        return any(request.kind == protocol.HELLO and request.node in self._members.online for request in pending)

    def _ask(self, kind: str, requests: Mapping[int, Fields], under_way: int) -> None:
        """Send requests to those who are there and have none."""
        now = (kind, self._round)
        waiting = {request.number for request in self._transport.pending.values() if (request.kind, request.round) == now}
        for number, member in self._members.voting().items():
            if number in requests and number not in waiting:
                update = self._journal.send(number, member.digest)
                fields = requests[number] | protocol.update_fields(update)
                self._transport.send(member.node, kind, self._round, number, fields, under_way)

    def _answers(self, kind: str) -> Iterator[tuple[int, Fields | None]]:
        """What came since the last look: client and its fields, None if it failed. Greetings are dealt with on the way."""
        now = (kind, self._round)
        for request, fields, failure in self._transport.answers():
            number, wanted = request.number, (request.kind, request.round) == now
            valid = type(fields.get("number")) is int and fields["number"] == number and not fields.get("lost")
            if failure is None or failure.code in RAISED:  # the client's own words, not Flower's
                self._silent.discard(number)
            if failure is not None:
                if self._failed(request, failure, fields.get("number")) and wanted and request.kind != protocol.HELLO:
                    self._missing.add(number)
                    yield number, None
            elif request.kind == protocol.HELLO:
                self._members.welcome(request.node, fields)
            elif request.kind == protocol.HEAR and not wanted:
                pass  # nobody waits for this
            elif not valid and number not in self._lost:
                self._lost.add(number)
                self._members.by_number.pop(number, None)  # without its folder, or another client now: once in an exchange
                self._greet(request.node)
            elif not wanted:
                self.refuse(number, f"{_what(request.kind)} of round {request.under_way} came late", request.under_way)
            elif not valid:
                self.refuse(number, "its answer makes no sense", request.under_way)
                yield number, None
            elif number in self._members.by_number:
                self._members.by_number[number].digest = self._journal.name
                yield number, fields

    def _failed(self, request: Pending, failure: Failure, claimed: object) -> bool:
        """Tell why there is no answer; whether asking again is pointless."""
        greeted = request.kind == protocol.HELLO
        number, who = self._members.who(request.node, claimed) if greeted else (request.number, f"client {request.number}")
        self.tell(f"{_what(request.kind)} of {who} failed: {failure.reason}", ERROR, number)
        self._failures[request.node] += 1
        hopeless = failure.code in RAISED or self._failures[request.node] >= _TRIES
        if not hopeless:
            self._members.online.discard(request.node)  # until it is seen again
        elif greeted:
            self._members.strangers[request.node] = f"{who}: {failure.reason}"
        return hopeless


def _hopeless(failed: int, asked: int, needed: int) -> bool:
    """Whether too many have failed for the others to be enough. One alone never ends a run, unless there is no other."""
    return failed > asked - needed and (failed > 1 or asked == 1)


def _what(kind: str) -> str:
    names = {protocol.HELLO: "the introduction", protocol.HEAR: "the answer"}
    return names.get(kind, f"the {kind}")
