"""The clients of a deployment: Flower's nodes, asked over its grid, as a round sees them (`runtime.rounds.Clients`).

A round ends when every client that is there has answered, or at its deadline if enough have. What cannot be counted is refused
before anything of it is added to what others have said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
from flwr.serverapp import Grid

from bifl import wire
from bifl.algorithm import BINARY, NOTHING, Client, Message, Shared, mean
from bifl.errors import BiflError, RunError
from bifl.flower import checks, letters
from bifl.flower.declared import Declared
from bifl.flower.events import Tell, quoted
from bifl.flower.exchanges import Exchanges, Rules
from bifl.flower.members import Members
from bifl.flower.numbers import Numbers
from bifl.flower.post import Fields
from bifl.flower.public import BROADCAST, STATISTICS, Journal
from bifl.runtime.turns import Evaluation, Score, Task, Troubles, Turn
from bifl.runtime.world import World
from bifl.train import CHUNK, Samples, evaluate

_STATISTICS = Message(np.zeros(0, np.uint8), BINARY, NOTHING)  # the form of what clients say of batch-norm


class Register(NamedTuple):
    """What a server knows of its clients before they come, and keeps of them when it ends."""

    declared: Declared
    numbers: Numbers


class Nodes(AbstractContextManager["Nodes"]):
    """Runs clients' turns on Flower's nodes.

    Args:
        grid: Flower's.
        world: what is run, with the public state as it stands.
        fresh: the public state before the first round.
        run: names the run, also after a restart of the server.
        terms: what a newcomer must know.
        rules: when a round ends.
        register: what is known of the clients.
        tell: takes a sentence for a person.
    """

    def __init__(
        self, grid: Grid, world: World, fresh: Shared, run: str, terms: letters.Terms, rules: Rules, register: Register, tell: Tell
    ) -> None:
        self._world, self._share, self._rules = world, terms.share, rules
        self._journal = Journal(world.experiment, world.algorithm, fresh, world.shared)
        self._members = Members(len(world.parts), world.shared.layout.fingerprint, *register, rules.max_images, tell)
        self._exchanges = Exchanges(grid, run, self._journal, self._members, terms, rules, tell)
        self._gathered = False  # whether those who are late have been waited for

    def __exit__(self, kind: object, *_: object) -> None:
        """Let everyone have the last word, if the rounds are done."""
        if kind is None and self._journal.shared.round == self._world.experiment.rounds:
            last = {number: {"finished": True} for number in self._members.voting()}
            for _ in self._exchanges.exchange(letters.HEAR, last, 0):
                pass

    # ---- what a round asks -------------------------------------------------------------------------------------------

    def barred(self) -> frozenset[int]:
        """Wait for the clients, before the first round; then those that have declared too many images for the coming round."""
        if not self._gathered:
            self._exchanges.gather(len(self._world.parts))
            self._gathered = True
        self._members.judge()
        self._exchanges.notify()
        if len(self._members.barred) == len(self._world.parts):
            raise RunError(f"every client has declared more images than --max-images {self._rules.max_images} lets it count for")
        return frozenset(self._members.barred)

    def turns(self, tasks: list[Task]) -> Iterator[Turn]:
        """Let clients train; each turn as soon as it is there."""
        requests: dict[int, Fields] = {task.number: {"voted": task.voted, "uploads": task.uploads} for task in tasks}
        least = min(self._rules.least, sum(task.uploads for task in tasks))
        for number, said in self._exchanges.exchange(letters.TURN, requests, least):
            problem = checks.turn(said, requests[number]["uploads"])
            if problem is not None:
                self._exchanges.refuse(number, problem, self._journal.shared.round + 1)
            else:
                yield Turn(number, said.get("upload"), said["loss"], self._members[number].images)

    def opened(self, number: int, upload: bytes, context: wire.Context) -> Message | None:
        """What a client said; None, and a note, if that cannot be counted."""
        shared, ballot = self._journal.shared, context.layout.count > 0
        try:
            message = wire.decode(upload, context)
            checks.fits(message, number, self._members[number].images, self._like() if ballot else _STATISTICS)
            checks.trial(message, self._world.algorithm.at(shared.round + 1).aggregate if ballot else mean, shared)
        except Exception as error:  # whatever it is, this upload caused it, and the others need not suffer
            reason = str(error) if isinstance(error, BiflError) else f"{type(error).__name__}: {quoted(str(error))}"
            self._exchanges.refuse(number, reason, context.round)
            return None
        return message

    def hear(self, news: bytes, after: Shared) -> set[int]:
        """Keep a broadcast, to be sent with the next request; the clients that are there to get it."""
        self._journal.add(BROADCAST, news, after)
        self._exchanges.told = set(self._members.voting())
        return self._exchanges.told

    def measure(self, clients: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """What clients say of batch-norm in the global network."""
        for number, said in self._exchanges.exchange(letters.MEASURE, {number: {} for number in sorted(clients)}, 0):
            if type(upload := said.get("upload")) is bytes:
                yield number, upload
            else:
                self._exchanges.refuse(number, "the answer lacks the statistics", self._journal.shared.round)

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
        if self._share:
            for number, said in self._exchanges.exchange(letters.SCORE, {number: {} for number in self._members.voting()}, 0):
                found = checks.scores(number, said, checks.held_out(self._members[number].images, self._share))
                if found is None:
                    self._exchanges.refuse(number, "its evaluation makes no sense", shared.round)
                scores += found or []
        return Evaluation.of(scores)

    def troubles(self) -> Troubles:
        """What went wrong since the last call."""
        return self._exchanges.troubles()

    def _like(self) -> Message:
        """An upload of this round, as far as its form goes: an algorithm's own `upload` tells."""
        shared = self._journal.shared
        someone = Client(shared.weights, shared.weights, shared.real, 1, 0)
        return self._world.algorithm.at(shared.round + 1).upload(someone, shared)
