"""A client's answers to the server's requests, and the run that it holds in memory from one request to the next."""

from __future__ import annotations

import itertools
import logging
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from bifl import __version__
from bifl.core.sides import Request
from bifl.deploy import protocol
from bifl.deploy.client.client_state import ClientState, Kept, alone
from bifl.deploy.client.operator_choices import Operator, Source
from bifl.deploy.protocol import Envelope, Refusal
from bifl.engine.catch_up import digest
from bifl.engine.worker import Worker
from bifl.errors import BiflError, quoted
from bifl.files import size
from bifl.runs.events import LONGEST

NUMBER = "partition-id"  # Flower's own word; in its simulation every node has one
Config = Mapping[str, Any]
Fields = dict[str, Any]
TellOperator = Callable[[str, bool], None]  # takes a sentence, and whether it tells of a problem; never raises: training goes on
log = logging.getLogger("flwr")


def tell_log(text: str, problem: bool) -> None:
    """Tell the client's operator by Flower's log."""
    (log.error if problem else log.info)("%s", quoted(text, LONGEST))


@contextmanager
def temporary(run: str) -> Iterator[Path]:
    """A state directory that lasts for one request."""
    with tempfile.TemporaryDirectory(prefix="bifl-") as name:
        yield Path(name)


class LivingClient:
    """Answers requests, one at a time. The run of the last one stays in memory, as its files say: data, network and state."""

    def __init__(self, tell: TellOperator = tell_log) -> None:
        self._tell = tell  # tells the operator
        self.kept: Kept | None = None  # the run of the last request

    def answer(
        self, kind: str, fields: Mapping[str, Any], config: Config, source: Source | None = None,
        temporary_state: Callable[[str], AbstractContextManager[Path]] = temporary,
    ) -> Fields:  # fmt: skip
        """Do what is asked, or say why not: the whole reason to the operator, a short one to the server. Nothing is raised.

        The node was started with `config`; in an app of one's own `source` gives the client's images, and where there is no state
        directory `temporary_state` makes one for a run.
        """
        directory = Path(str(config["state-dir"])) if config.get("state-dir") else None
        answer: Fields = {protocol.VERSION: __version__}
        try:
            operator = operator_of(config, source)
            answer |= {"number": operator.number}
            request = protocol.read_request(kind, fields)
            with nullcontext(directory) if directory else temporary_state(request.run) as folder, alone(folder):
                answer |= self._carry_out(request, operator, folder)
        except Exception as error:
            answer |= {protocol.FAILED: quoted(protocol.public_reason(error), protocol.LONGEST_REASON)}
            if not isinstance(error, BiflError):  # a mistake in an algorithm, most likely: the log says where
                traceback.print_exc()
            text = str(error) if isinstance(error, BiflError) else f"{type(error).__name__}: {error}"
            self._tell(text, True)
        return answer

    def _carry_out(self, request: Envelope, operator: Operator, folder: Path) -> Fields:
        """What comes of a request. If it fails, nothing stays in memory: the next one begins with what the disk holds."""
        kept, self.kept = self.kept, None
        state = ClientState(folder, request.run, operator, lambda text: self._tell(text, False), kept)
        if request.terms is not None:
            answer = _introduction(state.greet(request.terms), state, self._tell)
        else:
            answer = _answer(request, state, self._tell)
        self.kept = None if request.finished else state.keep()
        return answer


def _introduction(worker: Worker, state: ClientState, tell: TellOperator) -> Fields:
    images, held = len(worker.tools.parts[state.number]), len(worker.tools.shards[state.number])
    besides = f", {held} held out to evaluate on" if held else ""
    run = f"a run of {worker.run.experiment.rounds} rounds as client {state.number}"
    tell(f"joined {run}: {images} images to train on{besides}", False)
    return {
        "images": worker.tools.weight(state.number),
        "model": worker.run.network.layout.fingerprint,
        "digest": digest(worker.public, worker.run.in_context),
    }


def _answer(request: Envelope, state: ClientState, tell: TellOperator) -> Fields:
    """What the client answers, after bringing the public state up to date."""
    if request.notice:
        tell(f"the server says: {request.notice}", False)
    worker = state.open(request.round)
    if worker is None or request.update is None or not state.bring_up(worker, request.update):
        return {"lost": True}
    if request.kind == protocol.EXCHANGE:
        return _reply(worker, state, request, tell)
    if request.finished:
        rounds = worker.public.round
        tell(f"the run is finished after {rounds} rounds; waiting for the next one (Ctrl-C to stop)", False)
    return {}


def _reply(worker: Worker, state: ClientState, request: Envelope, tell: TellOperator) -> Fields:
    """The client's part in an exchange; its operator hears of training, not of what follows it."""
    if request.exchange not in worker.exchanges:
        raise Refusal(f"the server asks for the exchange '{request.exchange}', which this run does not have")
    exchange = worker.exchanges[request.exchange]
    reply = worker.reply(exchange.name, Request(state.number, request.voted, request.uploads, request.private_reply))
    upload = {} if reply.upload is None else {"upload": reply.upload}
    if not exchange.trains:
        return upload
    round = request.round + exchange.ahead
    state.tidy(round)
    loss = {} if reply.loss is None else {"loss": reply.loss}  # not told where results of one client are not to be known
    result = "" if reply.loss is None else f" loss {reply.loss:.2f},"
    sent = f"{size(len(reply.upload))} up" if reply.upload else "no upload asked for"
    tell(f"round {round}: trained on {len(worker.tools.parts[state.number])} images,{result} {sent}", False)
    return loss | upload


def operator_of(config: Config, source: Source | None = None) -> Operator:
    """What the node was started with."""
    if type(config.get(NUMBER)) is not int:
        text = f"the node has no {NUMBER}: give --node-config '{NUMBER}=0', or use bifl client"
        raise Refusal(text, "it was started without a client's number")
    if config.get("peers") and not config.get("state-dir"):
        text = "a node with peers= needs a state-dir= that lasts, as what it has said in secure sums is kept there: use bifl client"
        raise Refusal(text, "it was started without a folder for what it must remember of secure sums")
    names = itertools.takewhile(lambda name: name in config, (f"allow-{number}" for number in itertools.count()))
    allowed = tuple(Path(str(config[name])) for name in names)
    least, colluders = config.get("least", 0), config.get("colluders", 0)
    return Operator(
        number=int(config[NUMBER]),
        data=str(config.get("data", "")),
        allowed=allowed,
        source=source,
        key=str(config.get("key", "")),
        peers=str(config.get("peers", "")),
        least=least if isinstance(least, int) else 0,
        colluders=colluders if isinstance(colluders, int) else 0,
    )
