"""Asking clients and collecting their answers, over Flower's grid.

Whatever comes too late, twice, damaged or out of turn is refused, counted and told.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from flwr.serverapp import Grid

from bifl.deploy import protocol
from bifl.deploy.members import Members
from bifl.deploy.transport import RAISED, Asked, Failure, Fields, Post
from bifl.engine.catch_up import Journal
from bifl.engine.round import NobodyVotes, Upkeep
from bifl.errors import RunError
from bifl.runs.events import ERROR, MISSING, REFUSED, Tell

POLL = 0.2  # seconds between two looks for answers
LOOK = 1.0  # seconds between two looks for nodes
_TRIES = 3  # times in an exchange that a client may fail to answer and be asked again


class Rules(NamedTuple):
    """When a round ends, and how much one client may count for."""

    least: int  # ballots that a round needs
    deadline: float  # seconds after which it goes on without the others
    max_images: int = 0  # that one client may declare; 0: see `members`


class Requests:
    """Asks clients, round by round.

    Args:
        grid: Flower's.
        run: names the run, also after a restart of the server.
        journal: what clients know of the public state.
        members: who takes part.
        terms: what a newcomer must know.
        rules: when a round ends.
        tell: takes a sentence for a person.

    Attributes:
        tell: takes a sentence for a person.
        told: clients for which the last broadcast is counted.
    """

    def __init__(
        self, grid: Grid, run: str, journal: Journal, members: Members, terms: protocol.Terms, rules: Rules, tell: Tell
    ) -> None:
        self._journal, self._members, self._terms, self._rules, self.tell = journal, members, terms, rules, tell
        # twice the deadline, so that a late answer is still heard, and refused; but no node works through old rounds
        self._post = Post(grid, run, 2 * rules.deadline, tell)
        self._looked = -math.inf
        self._refused = self._catch_up = 0
        self._missing: set[int] = set()
        self._silent: set[int] = set()  # clients that let a deadline pass and were not heard of since: nobody waits for them
        self.told: set[int] = set()
        self._lost: set[int] = set()  # clients that were without their folder in this exchange
        self._rejected: set[int] = set()  # clients whose last answer was refused
        self._notified: set[int] = set()  # clients that have been told why they may not take part
        self._failures: Counter[int] = Counter()  # of nodes in this exchange
        self._reasons: dict[int, str] = {}  # node → which client could not join, and why
        self._reported: dict[int, str] = {}  # as they were when all of them were last told

    def upkeep(self) -> Upkeep:
        """What went wrong since the last call, and the last broadcasts."""
        upkeep = Upkeep(self._journal.steps, self._refused, len(self._missing), self._catch_up)
        self._refused = self._catch_up = 0
        self._missing = set()
        return upkeep

    def answering(self) -> set[int]:
        """The clients that are there, may take part and did not let the last deadline pass."""
        return self._members.voting().keys() - self._silent

    def refuse(self, number: int, reason: str, round: int) -> None:
        """Do not count a client's answer."""
        self._refused += 1
        self._rejected.add(number)
        self.tell(f"round {round}: client {number} refused: {reason}", REFUSED, number)

    def gather(self, clients: int) -> None:
        """Wait until all clients have introduced themselves, or time is up and enough have.

        Raises:
            RunError: too many cannot take part.
        """
        least, deadline = self._rules.least, self._rules.deadline
        self.tell(f"waiting for {clients} clients, at least {least}; after {deadline:g} s without the others")
        ends, told = time.monotonic() + deadline, False
        while True:
            self._look()
            for _ in self._answers(protocol.HELLO):
                pass
            self._report_failures(clients)
            there, failed, late = len(self._members.present()), self._members.failed(), time.monotonic() > ends
            if there == clients or (late and there >= least):
                break
            if (late or failed >= clients) and _hopeless(failed, clients, least):
                raise RunError(f"{there} of {clients} clients are there, and {failed} could not join: see above why")
            if late and not told:
                self.tell(f"{there} clients after {deadline:g} s, and {least} are needed: waiting for more")
                told = True
            time.sleep(POLL)

    def ask_all(
        self, kind: str, requests: Mapping[int, Fields], least: int, under_way: int | None = None
    ) -> Iterator[tuple[int, Fields]]:
        """Ask clients and hand out their answers, until all who are there have answered, or time is up and `least` have.

        `kind` is the name of an exchange, or one of the protocol's; `under_way` the round that it is about, unless complete.
        An answer that the caller refuses does not count.

        Raises:
            NobodyVotes: the answers that are needed could come only from clients that are barred by now.
            RunError: too many have failed.
        """
        todo, voters = set(requests), {number for number, fields in requests.items() if fields.get("uploads", True)}
        accepted, failed, told = 0, set[int](), False
        self._lost.clear()
        self._failures.clear()
        ends = time.monotonic() + self._rules.deadline
        while True:
            self._look()
            todo -= self._members.barred.keys()  # one that came after the round had begun
            able = voters - self._members.barred.keys()
            needed = min(least, len(able))
            if least and not able:
                raise NobodyVotes
            self._ask(kind, {number: requests[number] for number in todo}, under_way)
            for number, said in self._answers(kind):
                if number not in todo:
                    why = "it may not take part" if number in self._members.barred else f"{_what(kind)} came twice"
                    self.refuse(number, why, self._journal.public.round if under_way is None else under_way)
                    continue
                todo.discard(number)
                self._rejected.discard(number)
                if said is not None:
                    yield number, said
                if said is None or number in self._rejected:
                    failed.add(number)
                else:
                    accepted += number in voters
            late = time.monotonic() > ends
            awaited = todo.intersection(self._members.voting()) - self._silent | self._greeted(todo)
            if accepted >= needed and (late or not awaited):
                break
            failed &= able
            if (late or failed == able) and _hopeless(len(failed), len(able), needed):
                raise RunError(f"round {self._journal.public.round + 1}: too few ballots, {accepted} of {needed}; see above why")
            if late and not told:
                self.tell(f"{accepted} of {needed} ballots after {self._rules.deadline:g} s: waiting for more clients")
                told = True
            if late and not awaited:  # those who failed may have been mended
                todo |= failed
                failed.clear()
                ends = time.monotonic() + self._rules.deadline
            time.sleep(POLL)
        self._close(kind, todo)

    def _close(self, kind: str, unanswered: set[int]) -> None:
        """Go on without those who have not answered. They are asked again in the next exchange, but not waited for."""
        for asked in self._post.asked.values():
            if asked.kind == kind and asked.number in unanswered:
                self._missing.add(asked.number)
                self._silent.add(asked.number)
                self.tell(f"{_what(kind)} of client {asked.number} did not come in time: left out", MISSING, asked.number)

    def _look(self) -> None:
        """See which nodes are there, and greet new ones."""
        if time.monotonic() < self._looked + LOOK:
            return
        self._looked = time.monotonic()
        new = self._members.see(self._post.nodes())
        self._silent.intersection_update(self._members.present())  # one that went away and comes back is waited for
        self._post.forget(self._forgotten)
        for node in new - {asked.node for asked in self._post.asked.values() if asked.kind == protocol.HELLO}:
            self._greet(node)
        self.notify()

    def _forgotten(self, asked: Asked) -> bool:
        """Whether no answer will come: too old, or a greeting to one that left and may be greeted again."""
        return self._looked > asked.until or (asked.kind == protocol.HELLO and not self._members.online(asked.node))

    def _greet(self, node: int) -> None:
        self._post.send(node, protocol.HELLO, self._journal.public.round, -1, protocol.terms_fields(self._terms))

    def notify(self) -> None:
        """Tell clients that may not take part why; their operators cannot see what is told here."""
        for number, member in self._members.present().items():
            if number in self._members.barred and number not in self._notified:
                self._notified.add(number)
                update = protocol.update_fields(self._journal.update(member.digest))
                notice = {"notice": self._members.barred[number]}
                self._post.send(member.node, protocol.HEAR, self._journal.public.round, number, notice | update)

    def _greeted(self, numbers: set[int]) -> set[int]:
        """Clients that are waited for because somebody is just introducing himself."""
        return {number for number in numbers if number not in self._members} if self._greeting() else set()

    def _greeting(self) -> bool:
        """Whether somebody who is there has yet to answer a greeting."""
        return any(asked.kind == protocol.HELLO and self._members.online(asked.node) for asked in self._post.asked.values())

    def _ask(self, kind: str, requests: Mapping[int, Fields], under_way: int | None) -> None:
        """Send requests to those who are there and have none."""
        round = self._journal.public.round
        waiting = {asked.number for asked in self._post.asked.values() if (asked.kind, asked.round) == (kind, round)}
        for number, member in self._members.voting().items():
            if number in requests and number not in waiting:
                update = self._journal.update(member.digest)
                self._catch_up += self._journal.extra(update, number in self.told)
                self._post.send(member.node, kind, round, number, requests[number] | protocol.update_fields(update), under_way)

    def _answers(self, kind: str) -> Iterator[tuple[int, Fields | None]]:
        """What came since the last look: client and what it says, None if it failed. Greetings are dealt with on the way."""
        round = self._journal.public.round
        for asked, said, failure in self._post.replies():
            wanted = (asked.kind, asked.round) == (kind, round)
            if failure is None or failure.code in RAISED:  # the client's own words, not Flower's
                self._silent.discard(asked.number)
            if failure is not None:
                if self._failed(asked, failure, said.get("number")) and wanted and asked.kind != protocol.HELLO:
                    self._missing.add(asked.number)
                    yield asked.number, None
            elif asked.kind == protocol.HELLO:
                self._members.welcome(asked.node, said)
            elif asked.kind == protocol.HEAR and not wanted:
                pass  # nobody waits for this
            elif not _valid(asked, said) and asked.number not in self._lost:
                self._lost.add(asked.number)
                self._members.forget(asked.number)  # it has lost its folder, or is another client now: once in an exchange
                self._greet(asked.node)
            elif not wanted:
                self.refuse(asked.number, f"{_what(asked.kind)} of round {asked.under_way} came late", asked.under_way)
            elif not _valid(asked, said):
                self.refuse(asked.number, "its answer makes no sense", asked.under_way)
                yield asked.number, None
            elif asked.number in self._members:
                self._members[asked.number].digest = self._journal.name
                yield asked.number, said

    def _failed(self, asked: Asked, failure: Failure, claimed: object) -> bool:
        """Tell why there is no answer; whether asking again is pointless."""
        number = asked.number if asked.number >= 0 else self._members.number(asked.node, claimed)
        who = f"node {asked.node}" if number is None else f"client {number}"
        self.tell(f"{_what(asked.kind)} of {who} failed: {failure.reason}", ERROR, number)
        self._failures[asked.node] += 1
        hopeless = failure.code in RAISED or self._failures[asked.node] >= _TRIES
        if hopeless and asked.kind == protocol.HELLO:
            self._reasons[asked.node] = f"{who}: {failure.reason}"
            self._members.leave_out(asked.node)
        if not hopeless:
            self._members.lose(asked.node)
        return hopeless

    def _report_failures(self, clients: int) -> None:
        """Where nobody who is there could join: say so at once, and end if there is nobody else to come.

        Raises:
            RunError: as many have failed as there are clients.
        """
        self._reasons = {node: why for node, why in self._reasons.items() if self._members.online(node)}
        if self._reasons == self._reported or self._greeting() or self._members.present():
            return
        self._reported = dict(self._reasons)
        reasons = "; ".join(sorted(self._reasons.values()))
        if len(self._reasons) >= clients:
            raise RunError(f"all clients failed: {reasons}")
        if reasons:
            self.tell(f"all clients that are there failed ({reasons}): start them again when they are mended, or start others")


def _valid(asked: Asked, said: Fields) -> bool:
    """Whether a client answers as the one it was asked as."""
    number = said.get("number")
    return type(number) is int and number == asked.number and not said.get("lost")


def _hopeless(failed: int, asked: int, needed: int) -> bool:
    """Whether too many have failed for the others to be enough. One alone never ends a run, unless there is no other."""
    return failed > asked - needed and (failed > 1 or asked == 1)


def _what(kind: str) -> str:
    names = {protocol.HELLO: "the introduction", protocol.HEAR: "the answer"}
    return names.get(kind, f"the {kind}")
