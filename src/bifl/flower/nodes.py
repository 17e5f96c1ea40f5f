"""The clients of a deployment: Flower's nodes, asked over its grid, as a round sees them (`runtime.rounds.Clients`).

A node becomes a client by answering a greeting with its number. A round ends when every client that is there has answered, or at
its deadline if enough have. Whatever comes later, twice, damaged or out of turn is refused, counted and told.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from flwr.app import Message as Letter
from flwr.serverapp import Grid

from bifl import __version__, wire
from bifl.algorithm import Client, Message, Shared
from bifl.errors import RunError
from bifl.flower import checks, letters
from bifl.flower.progress import clean
from bifl.flower.public import BROADCAST, STATISTICS, Journal
from bifl.runtime.turns import Evaluation, Score, Task, Troubles, Turn
from bifl.runtime.world import World
from bifl.train import CHUNK, Samples, evaluate

POLL = 0.2  # seconds between two looks for answers
LOOK = 1.0  # seconds between two looks for nodes
_RAISED = (1, 2)  # Flower's codes for an app that cannot be loaded or raised; with the others the node may come back

Tell = Callable[[str], None]
Fields = dict[str, Any]


class Rules(NamedTuple):
    """When a round ends."""

    least: int  # ballots that it needs
    deadline: float  # seconds after which it goes on without the others


@dataclass
class Member:
    """A node that has introduced itself."""

    node: int
    number: int
    images: int
    digest: str  # of the public state as this client knows it


class Asked(NamedTuple):
    """A request on its way."""

    node: int
    kind: str
    round: int
    number: int  # −1 in a greeting
    until: float  # when Flower forgets it


class Nodes(AbstractContextManager["Nodes"]):
    """Runs clients' turns on Flower's nodes.

    Args:
        grid: Flower's.
        world: what is run, with the public state as it stands.
        fresh: the public state before the first round.
        run: names the run, also after a restart of the server.
        terms: what a newcomer must know.
        rules: when a round ends.
        tell: takes a sentence for a person.
    """

    def __init__(self, grid: Grid, world: World, fresh: Shared, run: str, terms: letters.Terms, rules: Rules, tell: Tell) -> None:
        self._grid, self._world, self._run, self._terms, self._rules, self._tell = grid, world, run, terms, rules, tell
        self._journal = Journal(world.experiment, world.algorithm, fresh, world.shared)
        self._members: dict[int, Member] = {}  # by number
        self._online: set[int] = set()  # nodes
        self._strangers: set[int] = set()  # nodes that may not take part
        self._asked: dict[str, Asked] = {}  # by Flower's id of the request
        self._gathered = False  # whether the first round has waited for those who are late
        self._looked = -math.inf
        self._refused = self._catch_up = 0
        self._missing: set[int] = set()
        self._told: set[int] = set()  # clients for which the last broadcast is counted
        self._lost: set[int] = set()  # clients that were without their folder in this exchange
        self._rejected: set[int] = set()  # clients whose last upload was refused
        self._failures: dict[int, str] = {}  # node → which client failed, and why
        self._reported: dict[int, str] = {}  # as they were when all of them were last told

    def __exit__(self, kind: object, *_: object) -> None:
        """Let everyone have the last word, if the rounds are done."""
        if kind is None and self._journal.shared.round == self._world.experiment.rounds:
            for _ in self._exchange(letters.HEAR, {number: {"finished": True} for number in self._present()}, 0):
                pass

    # ---- what a round asks -------------------------------------------------------------------------------------------

    def turns(self, tasks: list[Task]) -> Iterator[Turn]:
        """Let clients train; each turn as soon as it is there."""
        requests = {task.number: {"voted": task.voted, "uploads": task.uploads} for task in tasks}
        least = min(self._rules.least, sum(task.uploads for task in tasks))
        for number, said in self._exchange(letters.TURN, requests, least):
            loss, upload = said.get("loss"), said.get("upload")
            if not isinstance(loss, float) or not math.isfinite(loss) or (requests[number]["uploads"] != isinstance(upload, bytes)):
                self._refuse(number, "the answer lacks a loss or an upload, or has one too many")
            else:
                yield Turn(number, upload, loss, self._members[number].images)

    def opened(self, number: int, upload: bytes, context: wire.Context) -> Message | None:
        """What a client said; None, and a note, if that cannot be counted."""
        try:
            message = wire.decode(upload, context)
            like = self._like() if context.layout.count else None
            checks.fits(message, number, self._members[number].images, like)
        except wire.WireError as error:
            self._refuse(number, str(error))
            return None
        return message

    def hear(self, news: bytes, after: Shared) -> set[int]:
        """Keep a broadcast, to be sent with the next request; the clients that are there to get it."""
        self._journal.add(BROADCAST, news, after)
        self._told = set(self._present())
        return self._told

    def measure(self, clients: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """What clients say of batch-norm in the global network."""
        for number, said in self._exchange(letters.MEASURE, {number: {} for number in sorted(clients)}, 0):
            if isinstance(upload := said.get("upload"), bytes):
                yield number, upload
            else:
                self._refuse(number, "the answer lacks the statistics")

    def settle(self, news: bytes, after: Shared) -> None:
        """Keep the pooled statistics, to be sent with the next request."""
        self._journal.add(STATISTICS, news, after)

    def score(self) -> Evaluation:
        """The global model on the server's test images, if it has any, and on what the clients hold out."""
        world, shared = self._world, self._journal.shared
        scores = []
        if len(world.data.test_labels):
            world.network.show(shared.weights, shared.real, world.algorithm.at(shared.round).forward)
            test = Samples.of(world.data.test_images, world.data.test_labels, world.data)
            for chunk, start in enumerate(range(0, len(test.labels), CHUNK)):
                part = slice(start, start + CHUNK)
                scores.append(Score(None, chunk, len(test.labels[part]), *evaluate(world.network, test, part)))
        if self._terms.share:
            for number, said in self._exchange(letters.SCORE, {number: {} for number in self._present()}, 0):
                found = checks.scores(number, said)
                if found is None:
                    self._refuse(number, "its evaluation makes no sense")
                scores += found or []
        return Evaluation.of(scores)

    def troubles(self) -> Troubles:
        """What went wrong since the last call."""
        found = Troubles(self._refused, len(self._missing), self._catch_up)
        self._refused = self._catch_up = 0
        self._missing = set()
        return found

    # ---- asking ------------------------------------------------------------------------------------------------------

    def _exchange(self, kind: str, requests: Mapping[int, Fields], least: int) -> Iterator[tuple[int, Fields]]:
        """Ask clients and hand out their answers, until all who are there have answered, or time is up and `least` have.

        The first exchange also waits for those who are not there yet. An answer that the caller refuses does not count.
        """
        todo, accepted, failed, told = set(requests), 0, 0, False
        self._lost.clear()
        ends = time.monotonic() + self._rules.deadline
        self._tell_waiting(todo, least)
        while True:
            self._look()
            self._ask(kind, {number: requests[number] for number in todo})
            for number, said in self._answers(kind):
                if number not in todo:
                    self._refuse(number, f"{_what(kind)} came twice")
                    continue
                todo.discard(number)
                if said is None:
                    failed += 1
                    self._missing.add(number)
                    continue
                self._rejected.discard(number)
                yield number, said
                accepted += number not in self._rejected and requests[number].get("uploads", True)
            self._check_failures()
            late = time.monotonic() > ends
            awaited = todo if not self._gathered else todo.intersection(self._present()) | self._greeted(todo)
            if accepted >= least and (late or not awaited):
                break
            hopeless = failed == len(self._world.parts)  # every client of the run, so that nobody is left to wait for
            if hopeless or (late and failed and not todo.intersection(self._present())):
                raise RunError(f"round {self._journal.shared.round + 1}: too few ballots, {accepted} of {least}; see above why")
            if late and not told:
                self._tell(f"{accepted} of {least} ballots after {self._rules.deadline:g} s: waiting for more clients")
                told = True
            time.sleep(POLL)
        self._gathered = True
        if requests:
            self._close(kind, todo)

    def _close(self, kind: str, unanswered: set[int]) -> None:
        """Go on without those who have not answered."""
        for asked in self._asked.values():
            if asked.kind == kind and asked.number in unanswered:
                self._missing.add(asked.number)
                self._tell(f"{_what(kind)} of client {asked.number} did not come in time: left out")

    def _look(self) -> None:
        """See which nodes are there, and greet new ones."""
        if time.monotonic() < self._looked + LOOK:
            return
        self._looked = time.monotonic()
        self._online = set(self._grid.get_node_ids())
        self._asked = {name: asked for name, asked in self._asked.items() if not self._forgotten(asked)}
        self._strangers &= self._online  # one that left may come back as somebody else
        self._failures = {node: why for node, why in self._failures.items() if node in self._online}
        known = {member.node for member in self._members.values()} | self._strangers
        known |= {asked.node for asked in self._asked.values() if asked.kind == letters.HELLO}
        for node in self._online - known:
            self._greet(node)

    def _forgotten(self, asked: Asked) -> bool:
        """Whether no answer will come: too old, or a greeting to one that left and may be greeted again."""
        return self._looked > asked.until or (asked.kind == letters.HELLO and asked.node not in self._online)

    def _greet(self, node: int) -> None:
        self._send(node, letters.HELLO, -1, letters.terms_fields(self._terms))

    def _present(self) -> dict[int, Member]:
        return {number: member for number, member in sorted(self._members.items()) if member.node in self._online}

    def _greeted(self, numbers: set[int]) -> set[int]:
        """Clients that are waited for because somebody is just introducing himself."""
        greeting = any(asked.kind == letters.HELLO and asked.node in self._online for asked in self._asked.values())
        return numbers - set(self._members) if greeting else set()

    def _ask(self, kind: str, requests: Mapping[int, Fields]) -> None:
        """Send requests to those who are there and have none."""
        round = self._journal.shared.round
        under_way = {asked.number for asked in self._asked.values() if (asked.kind, asked.round) == (kind, round)}
        for number, member in self._present().items():
            if number in requests and number not in under_way:
                update = self._journal.update(member.digest)
                self._catch_up += self._journal.extra(update, number in self._told)
                self._send(member.node, kind, number, requests[number] | letters.update_fields(update))

    def _send(self, node: int, kind: str, number: int, fields: Fields) -> None:
        round = self._journal.shared.round
        ttl = 2 * self._rules.deadline  # so that a late answer is still heard, and refused; but no node works through old rounds
        content = letters.content(fields | {"run": self._run, "round": round, letters.VERSION: __version__})
        names = list(self._grid.push_messages([Letter(content, node, kind, ttl=ttl, group_id=str(round))]))
        if not names or not names[0]:
            raise RunError(f"Flower's SuperLink did not take {_what(kind)} for client {number}: see its log")
        self._asked[names[0]] = Asked(node, kind, round, number, time.monotonic() + ttl)

    def _answers(self, kind: str) -> Iterator[tuple[int, Fields | None]]:
        """What came since the last look: client and what it says, None if it failed. Greetings are dealt with on the way."""
        round = self._journal.shared.round
        for reply in self._grid.pull_messages(list(self._asked)) if self._asked else ():
            asked = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if asked is None:
                continue
            if reply.has_error():
                if self._failed(asked, reply) and (asked.kind, asked.round) == (kind, round):
                    yield asked.number, None
                continue
            said = letters.fields_of(reply) if letters.RECORD in reply.content else {}
            if letters.FAILED in said:
                self._gave_up(asked, said)
                if (asked.kind, asked.round) == (kind, round):
                    yield asked.number, None
            elif asked.kind == letters.HELLO:
                self._welcome(asked.node, said)
            elif (said.get("lost") or said.get("number") != asked.number) and asked.number not in self._lost:
                self._lost.add(asked.number)
                self._members.pop(asked.number, None)  # it has lost its folder, or is another client now: once in an exchange
                self._greet(asked.node)
            elif (asked.kind, asked.round) != (kind, round):
                self._refuse(asked.number, f"{_what(asked.kind)} of round {asked.round + 1} came late", round=asked.round + 1)
            elif asked.number in self._members:
                self._members[asked.number].digest = self._journal.digest
                yield asked.number, said

    def _failed(self, asked: Asked, reply: Letter) -> bool:
        """Tell why there is no answer; whether asking again is pointless."""
        reason = (reply.error.reason or "").partition("\n")[0]
        who = f"client {asked.number}" if asked.number >= 0 else f"node {asked.node}"
        self._tell(f"{_what(asked.kind)} of {who} failed: {reason}")
        hopeless = reply.error.code in _RAISED
        if hopeless:
            self._failures[asked.node] = f"{who}: {reason}"
        if hopeless and asked.kind == letters.HELLO:
            self._strangers.add(asked.node)
        if not hopeless:
            self._online.discard(asked.node)  # until it is seen again
        return hopeless

    def _gave_up(self, asked: Asked, said: Fields) -> None:
        """Tell what a client says of its own failure."""
        number = asked.number if asked.number >= 0 else said.get("number")
        known = type(number) is int and 0 <= number < len(self._world.parts)
        who = f"client {number}" if known else f"node {asked.node}"
        reason = clean(str(said[letters.FAILED]), letters.LONGEST_REASON)
        self._tell(f"{_what(asked.kind)} of {who} failed: {reason}")
        self._failures[asked.node] = f"{who}: {reason}"
        if asked.kind == letters.HELLO:
            self._strangers.add(asked.node)

    def _check_failures(self) -> None:
        """Where all who are there failed to become clients: say so at once, and end if there is nobody else to come.

        Raises:
            RunError: as many have failed as there are clients.
        """
        greeted = any(asked.kind == letters.HELLO and asked.node in self._online for asked in self._asked.values())
        if self._failures == self._reported or greeted or self._present():
            return
        self._reported = dict(self._failures)
        if not self._failures:
            return
        reasons = "; ".join(sorted(self._failures.values()))
        if len(self._failures) >= len(self._world.parts):
            raise RunError(f"all clients failed: {reasons}")
        self._tell(f"all clients that are there failed ({reasons}): start them again when they are mended, or start others")

    def _welcome(self, node: int, said: Fields) -> None:
        """Make a node that has introduced itself a client."""
        shared, clients = self._world.shared, len(self._world.parts)
        taken = {number for number, member in self._present().items() if member.node != node}
        problem = letters.other_version(said.get(letters.VERSION), "it", "the server")
        problem = problem or checks.misfit(said, taken, clients, shared.layout.fingerprint)
        if problem is not None:
            self._strangers.add(node)
            self._tell(f"node {node} refused: {problem}")
            return
        member = Member(node, said["number"], said["images"], said["digest"])
        self._members[member.number] = member
        self._failures.pop(node, None)
        self._tell(f"client {member.number} is there, with {member.images} images: {len(self._present())} of {clients}")

    def _like(self) -> Message:
        """An upload of this round, as far as its form goes: an algorithm's own `upload` tells."""
        shared = self._journal.shared
        someone = Client(shared.weights, shared.weights, shared.real, 1, 0)
        return self._world.algorithm.at(shared.round + 1).upload(someone, shared)

    def _refuse(self, number: int, reason: str, round: int | None = None) -> None:
        self._refused += 1
        self._rejected.add(number)
        self._tell(f"round {round or self._journal.shared.round + 1}: client {number} refused: {reason}")

    def _tell_waiting(self, todo: set[int], least: int) -> None:
        if not self._gathered:
            text = f"waiting for {len(todo)} clients, at least {least}"
            self._tell(f"{text}; after {self._rules.deadline:g} s without the others")


def _what(kind: str) -> str:
    names = {letters.HELLO: "the introduction", letters.TURN: "the ballot", letters.MEASURE: "the statistics"}
    return names.get(kind, "the evaluation" if kind == letters.SCORE else "the answer")
