"""The clients of a deployment, Flower's nodes, as a round sees them (`bifl.engine.round.Clients`), and a folder's rounds with them.

A round ends when every client that is there has answered, or at its deadline if enough have. What cannot be counted is refused
before anything of it is added to what others have said.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from flwr.serverapp import Grid

from bifl.core.sides import Abandoned, Accumulator, Reply, Request, Score, ServerSide, Signed
from bifl.core.state import Public
from bifl.core.sums import Weighing
from bifl.data.fingerprint import loaded
from bifl.deploy import protocol
from bifl.deploy.server.members import Declared, Members
from bifl.deploy.server.requests import DEFAULTS, Requests, Rules, Transport
from bifl.engine.catch_up import Journal, digest
from bifl.engine.round import Attendance, Clients, Rounds, Upkeep, run_folder
from bifl.engine.worker import score_tests
from bifl.errors import BiflError, Refused, RunError
from bifl.exchanges.exchange import Exchange, Intake, Sender
from bifl.exchanges.scoring import LARGEST_LOSS
from bifl.experiment.setup import Setup, serve
from bifl.files import write_atomic, writing
from bifl.nn.batch import Samples
from bifl.runs.events import FAILED, FINISHED, Tell, writer
from bifl.runs.folder import RunFolder, ended_early
from bifl.runs.record import Record
from bifl.secure.identities import ServerKeys
from bifl.training.evaluation import chunks

RUN = "run"  # in the run's folder: its name, by which clients know it


class Deployment(NamedTuple):
    """What a deployment needs besides the experiment."""

    grid: Grid
    rules: Rules
    run: str  # its name, also after a restart of the server
    tell: Tell
    folder: Path | None = None  # where it is written down how many samples clients have declared
    numbers: Callable[[], Mapping[int, int]] | None = None  # which client each node is; None believes the nodes
    signed: Signed | None = None  # knows what clients have signed


@contextmanager
def call_nodes(deployment: Deployment, rounds: Rounds) -> Iterator[Nodes]:
    """Flower's nodes, for `Rounds`; they hear that the run is over, if it is."""
    deployment.rules.check(rounds.run.experiment)
    nodes = Nodes(deployment, rounds)
    yield nodes
    if rounds.state.ending is not None:
        nodes.finish()


def run_name(folder: Path) -> str:
    """The name by which clients know the run in a folder: made once."""
    path = folder / RUN
    if not path.is_file():
        with writing(folder):
            write_atomic(path, secrets.token_hex(8))
    return path.read_text()


def run_rounds(
    grid: Grid, run: RunFolder, rules: Rules = DEFAULTS, setup: Setup | None = None, keys: Path | None = None,
    numbers: Callable[[], Mapping[int, int]] | None = None, tell: Tell | None = None,
) -> Iterator[Record]:  # fmt: skip
    """The rounds of a folder that are not there yet, each written down; what happens besides is told, by default to its events.

    By the clients' public `keys` what they sign is checked; without them that is left to the clients. `numbers` are which client
    each node is; without them the nodes are believed.
    """
    tell = tell or writer(run.path)
    name = run_name(run.path)
    signed = ServerKeys(keys, name).signed if keys is not None and run.experiment.secure_sum else None
    deployment = Deployment(grid, rules, name, tell, run.path, numbers, signed)
    try:
        setup = setup or serve(run.experiment)
        run.settle(loaded(setup.data))
        yield from run_folder(run, setup, partial(call_nodes, deployment))
    except BiflError as error:
        tell(str(error), FAILED)
        raise
    tell(ended_early(run.experiment, run.records()) or "the run is complete", FINISHED)


class Nodes(Clients):
    """Asks Flower's nodes."""

    def __init__(self, deployment: Deployment, rounds: Rounds) -> None:
        setup, (grid, rules, name, tell, folder, numbers, self.signed) = rounds.setup, deployment
        run = setup.run
        self._setup, self._max_images, self._least = setup, rules.max_images, rules.least(run.experiment)
        self.journal = Journal(run, rounds.public, rounds.state.steps, lambda public, _: digest(public, run.in_context))
        alike = run.weighing is Weighing.UNTOLD
        model = setup.public.layout.fingerprint
        self._members = Members(run.clients, model, Declared(folder), numbers, rules.max_images, alike, tell)
        # twice the deadline, so that a late answer is still heard, and refused; but no node works through old rounds
        transport = Transport(grid, name, 2 * rules.deadline, tell)
        self._requests = Requests(transport, self.journal, self._members, protocol.terms_of(setup), rules.deadline, tell)
        self._gathered = False  # whether those who are late have been waited for
        self._at_fault: frozenset[int] = frozenset()  # clients without whom the rounds are held from now on

    def finish(self) -> None:
        """Tell everyone the last broadcast, and that the run is over."""
        last = {number: {"finished": True} for number in self._members.voting()}
        for _ in self._requests.ask_all(protocol.HEAR, last, 0, self.journal.public.round):
            pass

    def begin(self) -> Attendance:
        """Wait for the clients, before the first round; those that have declared too many images for the coming one are barred."""
        if not self._gathered:
            self._requests.gather(self._setup.run.clients, self._least)
            self._gathered = True
        self._members.judge()
        self._requests.notify()
        if len(self._members.barred) == self._setup.run.clients:
            raise RunError(f"every client has declared more images than --max-images {self._max_images} lets it count for")
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
        wanted = min(self._least, sum(request.uploads for request in requests)) if exchange.main else 0
        begun = any(request.private_reply for request in requests)  # nobody can join such a round, so nobody is awaited
        least = 0 if begun else max(wanted, exchange.quorum)
        public, asked = self.journal.public, {request.number: request for request in requests}
        context = exchange.context(public)
        intake = Intake(exchange, public, context, server)
        tells_loss = exchange.trains and self._setup.run.tells_results
        all_fields = {number: protocol.request_fields(request) for number, request in asked.items()}
        for number, fields in self._requests.ask_all(exchange.name, all_fields, least, context.round):
            reply = Reply(number, self._members.by_number[number].images, fields.get("loss"), fields.get("upload"))
            try:
                _refuse_misfit(reply, asked[number].uploads, tells_loss)
                if reply.upload is not None:
                    size, ideal = intake.take(reply.upload, Sender(number, reply.weight))
                    reply = reply._replace(size=size, ideal=ideal)
            except Exception as error:  # whatever it is, this answer caused it, and the others need not suffer
                kind = "" if isinstance(error, BiflError) else f"{type(error).__name__}: "
                self._requests.refuse(number, kind + str(error), context.round)
            else:
                note(reply)
        if intake.total.clients < wanted:
            raise Abandoned(f"round {context.round}: {intake.total.clients} of {wanted} ballots: nothing was counted")
        return intake.total

    def tell(self, exchange: Exchange, news: bytes, after: Public, hearers: Collection[int]) -> set[int]:
        """Keep a broadcast, to be sent with the next request; the clients that are there to get it."""
        there = set(self._members.voting()).intersection(hearers)
        self.journal.add(exchange.name, news, after, there)
        return there

    def score(self) -> list[Score]:
        """The global model on the server's test samples, if it has any."""
        data = self._setup.data
        return score_tests(self._setup.run, self.journal.public, Samples.testing(data), chunks(len(data.test_labels)))

    def end(self) -> Upkeep:
        """What went wrong in the round."""
        return self._requests.upkeep()


def _refuse_misfit(reply: Reply, uploads: bool, tells_loss: bool) -> None:
    """Refuse an answer in an exchange that cannot be counted, as far as it is not yet opened: it may hold anything.

    `tells_loss` says whether clients train in this exchange and say how that went.
    """
    kinds = (float if tells_loss else type(None), bytes if uploads else type(None))
    if (type(reply.loss), type(reply.upload)) != kinds:
        raise Refused("the answer lacks a loss or an upload, or has one too many")
    if reply.loss is not None and not 0 <= reply.loss <= LARGEST_LOSS:
        raise Refused(
            f"its training loss is {reply.loss:g}, where {LARGEST_LOSS:g} is the most: if it is honest, its training diverged"
        )
