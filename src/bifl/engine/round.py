"""A round from ballots to record, the same whoever trains: worker processes on this machine, or nodes of a federation.

First what a round asks of those who train (`Clients`), then the rounds themselves (`Rounds.hold_round`), and what they are made of;
at last the rounds of a run folder.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bifl import codec
from bifl.core.message import NOTHING, Floats, Message
from bifl.core.randomness import stream
from bifl.core.sides import Abandoned, Accumulator, PrivateReplies, Reply, Request, Score, ServerSide, Signed
from bifl.core.state import Judge, Public, Server
from bifl.core.sums import ExactSum, UploadList
from bifl.engine import checkpoint
from bifl.engine.catch_up import Journal
from bifl.engine.checkpoint import State
from bifl.errors import RunError
from bifl.exchanges.exchange import Exchange, completing, main_of, make_answer
from bifl.experiment.model import Model
from bifl.experiment.run import Run
from bifl.experiment.setup import Setup
from bifl.experiment.starting import refuse_nameless
from bifl.nn.batch import Samples
from bifl.robust import trust_of
from bifl.runs.folder import Mailbox, RunFolder, locked
from bifl.runs.record import Ending, Record, Traffic, flips, spread, sureness
from bifl.training.evaluation import NOT_EVALUATED, Results, evaluate_all

_ATTEMPTS = 5  # times in a row that a round is held and abandoned before the run ends


# ---- those who train, as a round sees them -------------------------------------------------------------------------------


class NobodyVotes(Exception):
    """None of those who were drawn to vote may: the draw must be repeated without them."""


class Attendance(NamedTuple):
    """Who can take part in a round that begins."""

    barred: Collection[int] = ()  # clients that may not
    able: int | None = None  # how many could be drawn: they may, and answer when they are asked; None for all


class Upkeep(NamedTuple):
    """What a complete round says of clients that were not as they should be."""

    refused: int = 0  # uploads that could not be counted
    missing: int = 0  # clients that were asked and did not answer


class Clients(ABC):
    """Workers of a simulation (`simulator`), or nodes of a federation: a new kind says how it collects, tells and scores.

    Attributes:
        journal: the last broadcasts, and who was sent what.
        signed: who has signed what, where the clients' keys are known.
    """

    journal: Journal
    signed: Signed | None = None

    def begin(self) -> Attendance:
        """A round begins."""
        return Attendance()

    @abstractmethod
    def collect(
        self, exchange: Exchange, requests: list[Request], note: Callable[[Reply], None], server: ServerSide
    ) -> Accumulator:
        """Let clients say something; the sum of it. Every reply that is counted is noted; not every request need be answered.

        Who adds up for a server that does not trust the clients checks what they say by what that server knows of the round.

        Raises:
            NobodyVotes: those who were to upload are barred by now.
        """

    @abstractmethod
    def tell(self, exchange: Exchange, news: bytes, after: Public, hearers: Collection[int]) -> Collection[int]:
        """Tell a broadcast, with which the public state is `after`; those of the hearers that are there."""

    @abstractmethod
    def score(self) -> list[Score]:
        """The global model on the server's own test samples, if there are any."""

    def leave_out(self, error: Abandoned, round: int, follows: str) -> None:
        """An exchange of the round under way was abandoned: go on without those by whose fault that was, by default nobody.

        `follows` says for a person what happens instead.
        """
        return

    def end(self) -> Upkeep:
        """A round ends, with what is to be told of it; by default nothing."""
        return Upkeep()


# ---- the rounds ----------------------------------------------------------------------------------------------------------


class Rounds:
    """An experiment under way: an iterable of records.

    Args:
        setup: what to run, with everything loaded, and the public state before the first round.
        call_clients: calls those who train, given these rounds; they stay until the last round, or `close`.
        folder: where a checkpoint is written after every round, and taken from if there is one; None keeps nothing.
        mailbox: keeps a copy of every message, if given.
        note_clients: called with a round's number and what is known of each client, before the round is complete.

    Attributes:
        state: the run after the last complete round.
        keeps_messages: whether uploads are wanted as bytes.
    """

    def __init__(
        self, setup: Setup, call_clients: CallClients, folder: Path | None = None, mailbox: Mailbox | None = None,
        note_clients: NoteClients | None = None,
    ) -> None:  # fmt: skip
        self.experiment, self.setup, self.run = setup.run.experiment, setup, setup.run
        self._main, self._completing = main_of(self.run.exchanges), completing(self.run.exchanges)
        self.state = State(setup.public)
        self._call_clients, self._mailbox, self._note_clients = call_clients, mailbox, note_clients
        self.folder, self.keeps_messages = folder, mailbox is not None
        self._clients: Clients | None = None  # while they are there
        if folder is not None and (state := checkpoint.load_server(folder, setup.public, self._completing)):
            self.state = state
            _refuse_uncounted(self.run, state.public, state.server, folder)
        else:
            refuse_nameless(self.experiment.start)
        self.state = self.state._replace(ending=self._ending(self.public, self.state.server))

    @property
    def public(self) -> Public:
        """The public state after the last complete round."""
        return self.state.public

    @property
    def last(self) -> Record | None:
        """The record of the last complete round, if any."""
        return self.state.record

    def model(self) -> Model:
        """The global model as it stands."""
        return Model.of(self.run, self.setup.data, self.public, self.run.algorithm.at(max(self.public.round, 1)).forward)

    def __iter__(self) -> Iterator[Record]:
        """The rounds that are left. A loop that was left goes on where it was: the clients wait until `close`."""
        abandoned: list[Abandoned] = []
        while self.state.ending is None:
            try:
                record = self.hold_round(self._called())
            except NobodyVotes:
                continue
            except Abandoned as error:
                abandoned.append(error)
                if len(abandoned) == _ATTEMPTS:
                    if self.public.round and all(isinstance(each, Overspent) for each in abandoned):
                        # those who are there cannot afford another round: what was learnt is the run's model
                        self.state = self.state._replace(ending=Ending.BUDGET)
                        continue
                    self._end(error)
                    raise
                round = self.public.round + 1
                self._called().leave_out(error, round, f"round {round} is held again")
                continue
            except BaseException as error:
                self._end(error)
                raise
            abandoned = []
            yield record
        with closing(self):
            self._conclude()

    def _ending(self, public: Public, server: Server) -> Ending | None:
        """Why no round follows this state, if none does."""
        if public.round >= self.experiment.rounds:
            return Ending.ROUNDS
        return None if self.run.affords_a_round(public, server) else Ending.BUDGET

    def _conclude(self) -> None:
        """Evaluate the last round and say why the run ends, if nobody knew when it was held that no other would follow.

        Where clients hold samples out they are not asked once more.
        """
        last, evaluation = self.state.record, self.run.evaluation
        if last is None:
            return
        record = last._replace(ending=_early(self.state.ending))
        if self._main.trains and not last.evaluated and (evaluation is None or not evaluation.share):
            record = record._replace(**_evaluated(Results.of(self._called().score(), self.run.task)))
        if record != last:
            self._keep(self.state._replace(record=record))

    def _called(self) -> Clients:
        """Those who train: they are called when the first round needs them, and stay."""
        if self._clients is None:
            if self.public.round and self.folder is None:
                raise RunError("the clients of this run are gone and it has no folder: begin again, or give simulate a folder")
            self._context = self._call_clients(self)
            self._clients = self._context.__enter__()
        return self._clients

    def close(self) -> None:
        """End the clients. Without a folder what they remember is gone; with one the run can go on."""
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        if self._clients is not None:
            self._clients = None
            self._context.__exit__(None if error is None else type(error), error, None)

    def hold_round(self, clients: Clients) -> Record:
        """Hold one more round with these clients."""
        began, round = time.perf_counter(), self.public.round + 1
        barred, able = clients.begin()
        present = self.run.clients if able is None else able
        server = ServerSide(self.state.server._replace(judge=judge(self.setup, round)), present, clients.signed)
        taking_part: Collection[int] = self._drawn(round, barred)
        next_round = self._requests(self._main, self._drawn(round + 1, barred), barred)
        hearers = [request.number for request in next_round]  # the others are told when they wake up

        public, private_replies, outcomes = self.public, None, list[Outcome]()
        for exchange in self.run.exchanges:
            requests = self._requests(exchange, taking_part, barred, private_replies)
            outcome = self._hold_exchange(exchange, clients, requests, public, server, hearers)
            public, server, private_replies = outcome.public, outcome.server, outcome.private_replies
            if exchange.uploads:
                taking_part = outcome.counted
            outcomes.append(outcome)

        ending = self._ending(public, server.server)
        evaluates = self._main.trains and (round % self.experiment.evaluate_every == 0 or ending is not None)
        results = self._evaluate(clients, barred, server) if evaluates else NOT_EVALUATED
        main = next(outcome for outcome in outcomes if outcome.exchange is self._main)
        record = self._record(outcomes, main, results, clients.end(), clients.journal.settle())
        record = record._replace(seconds=float(f"{time.perf_counter() - began:.3f}"))
        trained = {number for outcome in outcomes if outcome.exchange.trains for number in outcome.replies}
        reported = {number: {**results.clients.get(number, {}), **row} for number, row in server.clients.items()}
        trust = NOTHING if self.run.robust is None else trust_of(server.server)
        if self._note_clients is not None:
            self._note_clients(round, _client_rows(main.replies, results.clients | reported, trust))
        record = record._replace(ending=_early(ending))
        state = State(
            public, record, {**self.state.trained, **dict.fromkeys(trained, round)}, main.counted,
            server.server._replace(judge=None), clients.journal.steps, ending,
        )  # fmt: skip
        self._keep(state)
        return record

    def _keep(self, state: State) -> None:
        """Go on from a state; in a folder it is written down first."""
        if self.folder is not None:
            checkpoint.save_server(self.folder, state, self._completing)
        self.state = state

    def _hold_exchange(
        self, exchange: Exchange, clients: Clients, requests: list[Request], public: Public, server: ServerSide,
        hearers: Collection[int],
    ) -> Outcome:  # fmt: skip
        """Carry one exchange out.

        Raises:
            Abandoned: it cannot be completed, and nothing of the round was told: the round can be held again.
        """
        context, complete = exchange.context(public), public.round > self.public.round
        replies: dict[int, Reply] = {}

        def note(reply: Reply) -> None:
            replies[reply.number] = reply._replace(upload=None)
            if reply.upload is not None:
                self._copy(exchange.name, f"{reply.number:05d}", reply.upload)

        silent = Outcome(exchange, public, server, replies)
        # what was public must do; nobody is asked what follows
        nothing = silent._replace(private_replies={})
        try:
            total = clients.collect(exchange, requests, note, server)
            if not exchange.uploads:
                return silent
            if not total.clients:
                if complete:
                    return nothing  # everyone went away
                raise Abandoned(f"round {context.round}: nobody has answered in '{exchange.name}': nothing was counted")
            server, answer = make_answer(exchange, total, public, server)
        except Abandoned as error:
            if not complete:
                raise
            clients.leave_out(error, public.round, f"round {public.round} ends without this exchange")
            return nothing
        if not isinstance(answer, Message):
            return silent._replace(server=server, private_replies=answer)
        _refuse_to_overspend(self.run, self.public, server.server)
        data = codec.encode(answer, context)
        self._copy(exchange.name, None, data)
        news = codec.decode(data, context)  # what the clients will read
        after = exchange.advance(public, news)
        receivers = clients.tell(exchange, data, after, hearers)
        return Outcome(exchange, after, server, replies, news, data, codec.ideal_size(data, answer, context), receivers)

    def _evaluate(self, clients: Clients, barred: Collection[int], server: ServerSide) -> Results:
        """The global model on the server's test samples, and on what clients hold out, if they tell."""
        scores, exchange = clients.score(), self.run.evaluation
        if exchange is not None and exchange.share:
            asked = [number for number in range(self.run.clients) if number not in barred]
            requests = [Request(number, number in self.state.counted, uploads=True) for number in asked]
            total = clients.collect(exchange, requests, lambda reply: None, server)
            assert isinstance(total, UploadList)  # as `Evaluation.total` has it
            scores = scores + exchange.scores(total)
        return Results.of(scores, self.run.task)

    def _drawn(self, round: int, barred: Collection[int]) -> list[int]:
        return sampled(self.setup.draw, self.run.clients, self.run.fresh.voters, round, barred)

    def _requests(
        self, exchange: Exchange, taking_part: Collection[int], barred: Collection[int],
        private_replies: PrivateReplies | None = None,
    ) -> list[Request]:  # fmt: skip
        """What an exchange asks of whom: of those who upload, or got a private reply if there were any, and of those who listen."""
        everyone = range(self.run.clients)
        present: Collection[int] = set(everyone).difference(barred) if barred else everyone
        there = set(taking_part) if private_replies is None else set(taking_part).intersection(private_replies)
        uploaders: Collection[int] = there if exchange.uploads else ()
        asked = sorted({*uploaders, *exchange.listeners(there, present)})
        replies = private_replies or {}
        return [Request(number, number in self.state.counted, number in uploaders, replies.get(number, b"")) for number in asked]

    def _record(self, outcomes: list[Outcome], main: Outcome, results: Results, upkeep: Upkeep, missed_bytes: int) -> Record:
        """What the round achieved."""
        before, after, server = self.public, outcomes[-1].public, outcomes[-1].server
        complete = next(outcome for outcome in outcomes if outcome.exchange is self._completing)
        flipped, by_layer = flips(before, after)
        uploads, receivers = len(main.counted), len(complete.receivers)
        traffic = Traffic(uploads, main.up_bytes, receivers, len(complete.data), main.up_ideal, complete.ideal)
        for other in outcomes:
            up, down = 0 if other is main else other.up_bytes, 0 if other is complete else len(other.data)
            traffic = traffic.plus(up, down)
        private_replies = sum(len(data) for outcome in outcomes for data in (outcome.private_replies or {}).values())
        traffic = traffic._replace(catch_up=missed_bytes, private_replies=private_replies)
        if self.run.algorithm.central:  # nothing leaves the one machine
            traffic = Traffic(uploads, 0, receivers, 0)
        private = self.run.privacy
        return Record(
            round=before.round + 1,
            **_evaluated(results),
            train_loss=main.loss,
            flips=flipped,
            layer_flips=by_layer,
            sureness=None if complete.news is None else sureness(complete.news),
            seconds=0.0,
            **traffic.fields(before.layout.parameters),
            **spread([row[next(iter(results.metrics))] for row in results.clients.values()]),
            refused=upkeep.refused,
            missing=upkeep.missing,
            report=dict(server.report) or None,
            epsilon=None if private is None else private.epsilon(private.summed(server.server), before.layout),
            delta=None if private is None else private.how.delta,
            validated=None if self.setup.data.validation is None else len(self.setup.data.validation),
        )

    def _copy(self, exchange: str, sender: str | None, data: bytes) -> None:
        if self._mailbox is not None:
            self._mailbox.keep(codec.read_header(data).round, exchange, sender, data)


CallClients = Callable[[Rounds], AbstractContextManager[Clients]]
NoteClients = Callable[[int, list[dict[str, Any]]], None]


# ---- what a round consists of --------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What came of an exchange."""

    exchange: Exchange
    public: Public
    server: ServerSide
    replies: dict[int, Reply]  # by client, in whatever order they came; without uploads
    news: Message | None = None  # None without a broadcast
    data: bytes = b""  # the same as bytes
    ideal: float | None = None  # their number, if the coder were ideal
    receivers: Collection[int] = ()  # who hears it
    private_replies: PrivateReplies | None = None  # what each is told instead

    @property
    def counted(self) -> frozenset[int]:
        """The clients whose uploads were counted."""
        return frozenset(number for number, reply in self.replies.items() if reply.size is not None)

    @property
    def up_bytes(self) -> int:
        """Of all uploads that were counted."""
        return sum(reply.size or 0 for reply in self.replies.values())

    @property
    def up_ideal(self) -> float | None:
        """The same, if the coder were ideal."""
        sizes = [reply.ideal for reply in self.replies.values() if reply.size is not None]
        known = [size for size in sizes if size is not None]
        return math.fsum(known) if len(known) == len(sizes) else None

    @property
    def loss(self) -> float:
        """The clients' mean training loss; NaN where nobody told."""
        losses = ExactSum()
        for reply in self.replies.values():
            if reply.loss is not None:
                losses.add(reply.loss, reply.weight)
        return float(losses.mean()) if losses.weight else math.nan


def _early(ending: Ending | None) -> Ending | None:
    """What a record says of a run's ending: nothing where it has had all of its rounds."""
    return None if ending is Ending.ROUNDS else ending


def _evaluated(results: Results) -> dict[str, Any]:
    """A record's fields about the evaluation of the global model."""
    return {"accuracy": results.metrics.get("accuracy", math.nan), "loss": results.loss, "metrics": results.metrics or None}


def _client_rows(replies: dict[int, Reply], results: Mapping[int, dict[str, Any]], trust: Floats) -> list[dict[str, Any]]:
    """A round client by client: what it trained on, uploaded, how the model does on what it holds out, and its credit."""
    rows = []
    for number in sorted({*replies, *results}):
        row: dict[str, Any] = {"client": number}
        if number in replies:
            reply = replies[number]
            row |= {"images": reply.weight, "train_loss": reply.loss, "up_bytes": reply.size}
        if trust.ndim == 1 and number < len(trust):
            row["trust"] = round(float(trust[number]), 4)
        rows.append(row | results.get(number, {}))
    return rows


def sampled(seed: int, clients: int, voters: int, round: int, barred: Collection[int] = ()) -> list[int]:
    """The clients that upload in a round: so many of them at random, as far as there are so many that are not barred."""
    order = stream(seed, round, None, "voters").permutation(clients)
    allowed = (number for number in order.tolist() if number not in barred) if barred else order[:voters].tolist()
    return sorted(islice(allowed, voters))


def judge(setup: Setup, round: int) -> Judge | None:
    """The task's first metric on the images that the server holds, if it holds any. Never the test images."""
    if not len(setup.held):
        return None
    run = setup.run
    samples = Samples.testing(setup.data.tested_on(setup.held)).on(run.network.device)
    forward = run.algorithm.at(round).forward

    def score(weights: Floats, real: Floats) -> float:
        run.network.show(weights, real, forward)
        metrics, _ = evaluate_all(run.network, run.task, samples)
        return next(iter(metrics.values()))

    return score


class Overspent(Abandoned):
    """Nobody was told of a sum, because it costs more than was left: clients were missing."""


def _refuse_to_overspend(run: Run, public: Public, server: Server) -> None:
    """Tell nobody of a sum that costs more than was left."""
    if run.privacy is not None and (spent := run.privacy.over(run.privacy.summed(server), public.layout)):
        raise Overspent(
            f"round {public.round + 1}: not all clients are there, so its sum would cost more, ε = {spent:.3g} in all, than "
            f"privacy.budget={run.privacy.how.budget:g} allows: nobody is told of it"
        )


def _refuse_uncounted(run: Run, public: Public, server: Server, folder: Path) -> None:
    """Refuse a checkpoint that does not tell what its rounds have cost: the run would begin to count anew."""
    if run.privacy is not None and (counted := sum(rounds for *_, rounds in run.privacy.summed(server))) != public.round:
        raise RunError(f"{folder} tells what {counted} of {public.round} rounds have cost: ε cannot be continued from it")


# ---- the rounds of a run folder --------------------------------------------------------------------------------------------


def run_folder(folder: RunFolder, setup: Setup, call_clients: CallClients) -> Iterator[Record]:
    """Run the rounds that a folder does not hold yet, then save the model; each is written down before it is handed out.

    Killed at any moment, it can be run again.
    """
    with (
        locked(folder.path),
        closing(Rounds(setup, call_clients, folder.checkpoint, folder.mailbox(), folder.append_clients)) as rounds,
    ):
        folder.prepare(rounds.last)
        for record in rounds:
            folder.append(record)
            yield record
        folder.mend_records(rounds.last)
        if setup.run.trains:
            rounds.model().save(folder.model)
