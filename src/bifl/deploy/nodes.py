"""The clients of a deployment: Flower's nodes, asked over its grid, as a round sees them (`bifl.engine.round.Clients`).

A round ends when every client that is there has answered, or at its deadline if enough have. What cannot be counted is refused
before anything of it is added to what others have said.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.serverapp import Grid

from bifl.core.sides import Abandoned, Accumulator, Reply, Request, ServerSide, Signed
from bifl.core.state import Public
from bifl.core.sums import Weighing
from bifl.deploy import protocol
from bifl.deploy.members import Declared, Members, Numbers
from bifl.deploy.requests import Requests, Rules
from bifl.engine.catch_up import Journal, Step, digest
from bifl.engine.round import Attendance, Clients, Upkeep
from bifl.errors import BiflError, RunError, quoted
from bifl.exchanges.exchange import Exchange, Intake, Sender
from bifl.exchanges.scoring import LARGEST_LOSS, Score
from bifl.experiment.setup import Setup
from bifl.nn.batch import Samples
from bifl.runs.events import Tell
from bifl.training.evaluation import chunks, evaluate


class Register(NamedTuple):
    """What a server knows of its clients before they come, and keeps of them when it ends."""

    declared: Declared
    numbers: Numbers
    signed: Signed | None = None  # knows what they have signed


class Nodes(Clients):
    """Asks Flower's nodes.

    Args:
        grid: Flower's.
        setup: what is run, with the public state as it stands.
        exchanges: of a round.
        fresh: the public state before the first round.
        steps: the last broadcasts, if the run was continued.
        run: names the run, also after a restart of the server.
        terms: what a newcomer must know.
        rules: when a round ends.
        register: what is known of the clients.
        tell: takes a sentence for a person.
    """

    def __init__(
        self, grid: Grid, setup: Setup, fresh: Public, steps: tuple[Step, ...], run: str,
        terms: protocol.Terms, rules: Rules, register: Register, tell: Tell,
    ) -> None:  # fmt: skip
        self._setup, self._rules = setup, rules
        what, in_context = setup.run, setup.run.in_context
        self._journal = Journal(
            what.exchanges, fresh, setup.public, steps, in_context, what.clients_sleep, lambda public, _: digest(public, in_context)
        )
        self._members = Members(what.clients, setup.public.layout.fingerprint, *register[:2], rules.max_images, tell)
        self._members.alike = what.weighing is Weighing.UNTOLD
        self._requests = Requests(grid, run, self._journal, self._members, terms, rules, tell)
        self.signed = register.signed
        self._gathered = False  # whether those who are late have been waited for
        self._at_fault: frozenset[int] = frozenset()  # clients without whom the rounds are held from now on

    def finish(self) -> None:
        """Let everyone have the last word, if the rounds are done."""
        if self._journal.public.round == self._setup.run.experiment.rounds:
            last = {number: {"finished": True} for number in self._members.voting()}
            for _ in self._requests.ask_all(protocol.HEAR, last, 0):
                pass

    # ---- what a round asks -------------------------------------------------------------------------------------------

    def begin(self) -> Attendance:
        """Wait for the clients, before the first round; those that have declared too many images for the coming one are barred."""
        if not self._gathered:
            self._requests.gather(self._setup.run.clients)
            self._gathered = True
        self._members.judge()
        self._requests.notify()
        if len(self._members.barred) == self._setup.run.clients:
            raise RunError(f"every client has declared more images than --max-images {self._rules.max_images} lets it count for")
        able = len(self._requests.answering() - self._at_fault)  # as far as is known
        return Attendance(self._at_fault.union(self._members.barred), able)

    def leave_out(self, error: Abandoned, round: int, follows: str) -> None:
        """Tell that an exchange was abandoned; those by whose fault it was are left out from now on."""
        if not error.at_fault:
            self._requests.tell(f"{error}; {follows}")
        for number in sorted(error.at_fault - self._at_fault):
            self._requests.refuse(number, f"{error}; {follows}, and the run goes on without client {number}", round)
        self._at_fault |= error.at_fault

    def collect(
        self, exchange: Exchange, requests: list[Request], note: Callable[[Reply], None], server: ServerSide
    ) -> Accumulator:
        """Ask clients and add up what they say, each as soon as it is there; what cannot be counted is refused."""
        # a round needs enough ballots; what follows goes on with those who are there, unless the exchange needs more
        wanted = min(self._rules.least, sum(request.uploads for request in requests)) if exchange.main else 0
        begun = any(request.private_reply for request in requests)  # nobody can join such a round, so nobody is awaited
        least = 0 if begun else max(wanted, exchange.quorum)
        public, asked = self._journal.public, {request.number: request for request in requests}
        context = exchange.context(public)
        intake = Intake(exchange, public, context, server)
        tells_loss = exchange.trains and self._setup.run.tells_results
        fields = {number: protocol.request_fields(request) for number, request in asked.items()}
        for number, said in self._requests.ask_all(exchange.name, fields, least, context.round):
            problem = misfit_of_reply(said, asked[number].uploads, tells_loss)
            reply = Reply(number, self._members[number].images, said.get("loss"), said.get("upload"))
            if problem is None and reply.upload is not None:
                try:
                    size, ideal = intake.take(reply.upload, Sender(number, reply.weight))
                    reply = reply._replace(size=size, ideal=ideal)
                except Exception as error:  # whatever it is, this upload caused it, and the others need not suffer
                    problem = str(error) if isinstance(error, BiflError) else f"{type(error).__name__}: {quoted(str(error))}"
            if problem is None:
                note(reply)
            else:
                self._requests.refuse(number, problem, context.round)
        if intake.total.clients < wanted:
            raise Abandoned(f"round {context.round}: {intake.total.clients} of {wanted} ballots: nothing was counted")
        return intake.total

    def tell(self, exchange: Exchange, news: bytes, after: Public, hearers: Collection[int]) -> set[int]:
        """Keep a broadcast, to be sent with the next request; the clients that are there to get it."""
        self._journal.add(exchange.name, news, after)
        self._requests.told = set(self._members.voting()).intersection(hearers)
        return self._requests.told

    def score(self) -> list[Score]:
        """The global model on the server's test images, if it has any."""
        setup, run, public = self._setup, self._setup.run, self._journal.public
        if not len(setup.data.test_labels):
            return []
        run.network.show(public.weights, public.real, run.algorithm.at(public.round).forward)
        test = Samples.testing(setup.data)
        count = len(test.labels)
        return [Score(None, *chunk) for chunk in evaluate(run.network, run.task, test, np.arange(count), chunks(count))]

    def end(self) -> Upkeep:
        """What went wrong in the round."""
        return self._requests.upkeep()


def misfit_of_reply(said: Mapping[str, Any], uploads: bool, tells_loss: bool) -> str | None:
    """Why an answer in an exchange, which may come from anybody, cannot be counted; None if it can, as far as it is not yet opened.

    Args:
        said: the answer.
        uploads: whether an upload was asked for.
        tells_loss: whether clients train in this exchange, and say how that went.
    """
    loss, upload = said.get("loss"), said.get("upload")
    if not tells_loss:
        sensible = loss is None and (type(upload) is bytes) == uploads and (upload is not None) == uploads
        return None if sensible else "the answer lacks an upload, or has something else in it"
    if type(loss) is not float or (type(upload) is bytes) != uploads or (upload is not None) != uploads:
        return "the answer lacks a loss or an upload, or has one too many"
    if not 0 <= loss <= LARGEST_LOSS:
        return f"its training loss is {loss:g}, where {LARGEST_LOSS:g} is the most: if it is honest, its training diverged"
    return None
