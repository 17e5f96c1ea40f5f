"""A client's answers to the server's requests, and the run that it holds in memory from one request to the next.

As a ClientApp they are for nodes of plain Flower and for apps of your own; `bifl client` gives them itself (`flower/supernode.py`).

from bifl.deploy.client_app import client_app
app = client_app(my_images)  # an app of your own: my_images(terms, experiment, number) → Images
"""

from __future__ import annotations

import itertools
import logging
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from bifl import __version__
from bifl.core.sides import Request
from bifl.deploy import protocol
from bifl.deploy.client.client_state import FILES, ClientState, alone
from bifl.deploy.client.operator_choices import Operator, Source
from bifl.deploy.client.own_data import Images
from bifl.deploy.protocol import Envelope, Refusal, Terms
from bifl.engine.catch_up import digest
from bifl.engine.worker import Worker
from bifl.errors import BiflError, quoted
from bifl.files import size
from bifl.runs.events import LONGEST

__all__ = ["Images", "app", "client_app"]

NUMBER = "partition-id"  # Flower's own word; in its simulation every node has one
_STATE = "bifl-state"
Fields = dict[str, Any]
TellOperator = Callable[[str, bool], None]  # takes a sentence, and whether it tells of a problem; never raises: training goes on


def tell_log(text: str, problem: bool) -> None:
    """Tell the client's operator by Flower's log."""
    log = logging.getLogger("flwr")
    (log.error if problem else log.info)("%s", quoted(text, LONGEST))


class LivingClient:
    """Answers requests, one at a time. The run of the last one stays in memory, as its files say: data, network and state.

    Without a `source` a client's images are what the node's `data` names, or come from the experiment's own dataset.
    """

    def __init__(self, source: Source | None = None, tell: TellOperator = tell_log) -> None:
        self._source, self._tell = source, tell
        self.kept: ClientState | None = None  # the run of the last request

    def answer(self, message: Message, context: Context) -> Message:
        """Do what is asked, or say why not: the whole reason to the operator, a short one to the server. Nothing is raised."""
        answer: Fields = {protocol.VERSION: __version__}
        try:
            operator = operator_of(context.node_config, self._source)
            answer |= {"number": operator.number}
            request = protocol.read_request(message.metadata.message_type, protocol.fields_of(message))
            with _directory(context, request.run) as folder, alone(folder):
                answer |= self._carry_out(request, operator, folder)
        except Exception as error:
            answer |= {protocol.FAILED: quoted(protocol.public_reason(error), protocol.LONGEST_REASON)}
            if not isinstance(error, BiflError):  # a mistake in an algorithm, most likely: the log says where
                traceback.print_exc()
            text = str(error) if isinstance(error, BiflError) else f"{type(error).__name__}: {error}"
            self._tell(text, True)
        return Message(protocol.content(answer), reply_to=message)

    def _carry_out(self, request: Envelope, operator: Operator, folder: Path) -> Fields:
        """What comes of a request. If it fails, nothing stays in memory: the next one begins with what the disk holds."""
        kept, self.kept = self.kept, None
        state = ClientState(folder, request.run, operator, lambda text: self._tell(text, False), kept)
        answer = self._introduction(state, request.terms) if request.terms is not None else self._part(state, request)
        self.kept = None if request.finished else state.keep()
        return answer

    def _introduction(self, state: ClientState, terms: Terms) -> Fields:
        worker, number = state.greet(terms), state.number
        images, held = len(worker.tools.parts[number]), len(worker.tools.shards[number])
        besides = f", {held} held out to evaluate on" if held else ""
        run = f"a run of {worker.run.experiment.rounds} rounds as client {number}"
        self._tell(f"joined {run}: {images} images to train on{besides}", False)
        return {
            "images": worker.tools.weight(number),
            "model": worker.run.network.layout.fingerprint,
            "digest": digest(worker.public, worker.run.in_context),
        }

    def _part(self, state: ClientState, request: Envelope) -> Fields:
        """What the client answers, after bringing the public state up to date."""
        if request.notice:
            self._tell(f"the server says: {request.notice}", False)
        worker = state.open(request.round)
        if worker is None or request.update is None or not state.bring_up(worker, request.update):
            return {"lost": True}
        if request.kind == protocol.EXCHANGE:
            return self._reply(worker, state, request)
        if request.finished:
            rounds = worker.public.round
            self._tell(f"the run is finished after {rounds} rounds; waiting for the next one (Ctrl-C to stop)", False)
        return {}

    def _reply(self, worker: Worker, state: ClientState, request: Envelope) -> Fields:
        """The client's part in an exchange; its operator hears of training, not of what follows it."""
        if request.exchange not in worker.exchanges:
            raise Refusal(f"the server asks for the exchange '{request.exchange}', which this run does not have")
        exchange, number = worker.exchanges[request.exchange], state.number
        reply = worker.reply(exchange.name, Request(number, request.voted, request.uploads, request.private_reply))
        upload = {} if reply.upload is None else {"upload": reply.upload}
        if not exchange.trains:
            return upload
        round = request.round + exchange.ahead
        state.tidy(round)
        loss = {} if reply.loss is None else {"loss": reply.loss}  # not told where results of one client are not to be known
        result = "" if reply.loss is None else f" loss {reply.loss:.2f},"
        sent = f"{size(len(reply.upload))} up" if reply.upload else "no upload asked for"
        self._tell(f"round {round}: trained on {len(worker.tools.parts[number])} images,{result} {sent}", False)
        return loss | upload


def operator_of(config: Mapping[str, Any], source: Source | None = None) -> Operator:
    """What a node was started with."""
    if type(config.get(NUMBER)) is not int:
        text = f"the node has no {NUMBER}: give --node-config '{NUMBER}=0', or use bifl client"
        raise Refusal(text, "it was started without a client's number")
    if config.get("peers") and not config.get("state-dir"):
        text = "a node with peers= needs a state-dir= that lasts, as what it has said in secure sums is kept there: use bifl client"
        raise Refusal(text, "it was started without a folder for what it must remember of secure sums")
    names = itertools.takewhile(config.__contains__, (f"allow-{number}" for number in itertools.count()))
    data, key, peers = (str(config.get(name, "")) for name in ("data", "key", "peers"))
    least, colluders = (config.get(name, 0) for name in ("least", "colluders"))
    if type(least) is not int or type(colluders) is not int:
        text = f"least= and colluders= of a node are whole numbers, not {least!r:.40} and {colluders!r:.40}"
        raise Refusal(text, "it was started with other bounds than whole numbers")
    return Operator(config[NUMBER], data, tuple(Path(str(config[name])) for name in names), source, key, peers, least, colluders)


@contextmanager
def _directory(context: Context, run: str) -> Iterator[Path]:
    """The node's state directory, or a temporary one with what Flower keeps of a run for as long as the node lives."""
    if directory := context.node_config.get("state-dir"):
        yield Path(str(directory))
        return
    with tempfile.TemporaryDirectory(prefix="bifl-") as name:
        folder, kept = Path(name), context.state.get(_STATE)
        for path, data in kept.items() if isinstance(kept, ConfigRecord) else ():
            if path.startswith(f"{run}/") and FILES.fullmatch(path.removeprefix(f"{run}/")) and isinstance(data, bytes):
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(data)
        yield folder
        files = [path for path in (folder / run).rglob("*") if path.is_file()]
        context.state[_STATE] = ConfigRecord({str(path.relative_to(folder)): path.read_bytes() for path in files})


def client_app(source: Source | None = None, tell: TellOperator = tell_log) -> ClientApp:
    """A ClientApp that runs any algorithm. Where Flower keeps its process, it keeps the run of the last message in memory."""
    app, client = ClientApp(), LivingClient(source, tell)
    for register in (app.query("hello"), app.train(), app.query("hear")):
        register(client.answer)
    return app


app = client_app()
