"""The ClientApp: a client's part in every exchange as answers to the server's messages.

from bifl.deploy.client_app import client_app
app = client_app(my_images)  # an app of your own: my_images(terms, experiment, number) → Images
"""

from __future__ import annotations

import itertools
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from bifl import __version__
from bifl.core.sides import Request
from bifl.deploy import progress, protocol
from bifl.deploy.client_state import FILES, Home, alone
from bifl.deploy.operator_choices import Operator, Source
from bifl.deploy.protocol import Envelope, Refusal
from bifl.engine.catch_up import digest
from bifl.engine.worker import Worker
from bifl.errors import BiflError, quoted

_STATE = "bifl-state"
_PARTITION = "partition-id"  # Flower's own word; in its simulation every node has one
Fields = dict[str, Any]


def client_app(source: Source | None = None) -> ClientApp:
    """A ClientApp that runs any algorithm.

    Args:
        source: where the client's images come from; none means what the node's `data` names, or the experiment's own dataset.
    """
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        return _answer(message, context, source)

    for register in (app.query("hello"), app.train(), app.query("hear")):
        register(answer)
    return app


def _answer(message: Message, context: Context, source: Source | None) -> Message:
    """Do what is asked, or say why not: the whole reason to the operator, a short one to the server. Nothing is raised."""
    state = str(context.node_config.get("state-dir", ""))
    told = Path(state) if state else None
    said: Fields = {protocol.VERSION: __version__}
    try:
        operator = operator_of(context, source)
        said |= {"number": operator.number}
        request = protocol.read_request(message)
        with _state(context, request.run) as folder, alone(folder):
            home = Home(folder, request.run, operator, lambda text: progress.tell(told, "notice", text=text))
            said |= _done(request, home, told)
    except Exception as error:
        said |= {protocol.FAILED: quoted(protocol.public_reason(error), protocol.LONGEST_REASON)}
        if not isinstance(error, BiflError):  # a mistake in an algorithm, most likely: the log says where
            traceback.print_exc()
        text = str(error) if isinstance(error, BiflError) else f"{type(error).__name__}: {error}"
        progress.tell(told, progress.PROBLEM, text=text)
    return Message(protocol.content(said), reply_to=message)


def _done(request: Envelope, home: Home, told: Path | None) -> Fields:
    """What comes of a request, after bringing the public state up to date."""
    if request.terms is not None:
        worker, _ = home.greet(request.terms)
        return _introduced(worker, home, told)
    if request.notice:
        progress.tell(told, "notice", text=f"the server says: {request.notice}")
    opened = home.open(request.round)
    if opened is None or request.update is None or not home.bring_up(*opened, request.update):
        return {"lost": True}
    worker, _ = opened
    if request.kind == protocol.EXCHANGE:
        return _reply(worker, home, request, told)
    if request.finished:
        progress.tell(told, "finished", rounds=worker.public.round)
    return {}


def _introduced(worker: Worker, home: Home, told: Path | None) -> Fields:
    images, held = len(worker.parts[home.number]), len(worker.shards[home.number])
    progress.tell(told, "joined", number=home.number, images=images, held=held, rounds=worker.run.experiment.rounds)
    return {
        "images": worker.weight(home.number),
        "model": worker.run.network.layout.fingerprint,
        "digest": digest(worker.public, worker.run.in_context),
    }


def _reply(worker: Worker, home: Home, request: Envelope, told: Path | None) -> Fields:
    """The client's part in an exchange; its operator hears of training, not of what follows it."""
    if request.exchange not in worker.exchanges:
        raise Refusal(f"the server asks for the exchange '{request.exchange}', which this run does not have")
    exchange = worker.exchanges[request.exchange]
    reply = worker.reply(exchange.name, Request(home.number, request.voted, request.uploads, request.private_reply))
    if not exchange.trains:
        return {} if reply.upload is None else {"upload": reply.upload}
    round = request.round + exchange.ahead
    home.tidy(round)
    size = len(reply.upload or b"")
    images = len(worker.parts[home.number])
    loss = {} if reply.loss is None else {"loss": reply.loss}  # not told where results of one client are not to be known
    progress.tell(told, "trained", round=round, images=images, bytes=size, **loss)
    return loss | ({} if reply.upload is None else {"upload": reply.upload})


def operator_of(context: Context, source: Source | None) -> Operator:
    """What the node was started with."""
    config = context.node_config
    if type(config.get(_PARTITION)) is not int:
        text = f"the node has no {_PARTITION}: give --node-config '{_PARTITION}=0', or use bifl client"
        raise Refusal(text, "it was started without a client's number")
    if config.get("peers") and not config.get("state-dir"):
        text = "a node with peers= needs a state-dir= that lasts, as what it has said in secure sums is kept there: use bifl client"
        raise Refusal(text, "it was started without a folder for what it must remember of secure sums")
    names = itertools.takewhile(lambda name: name in config, (f"allow-{number}" for number in itertools.count()))
    allowed = tuple(Path(str(config[name])) for name in names)
    least, colluders = config.get("least", 0), config.get("colluders", 0)
    return Operator(
        number=int(config[_PARTITION]),
        data=str(config.get("data", "")),
        allowed=allowed,
        source=source,
        key=str(config.get("key", "")),
        peers=str(config.get("peers", "")),
        least=least if isinstance(least, int) else 0,
        colluders=colluders if isinstance(colluders, int) else 0,
    )


@contextmanager
def _state(context: Context, run: str) -> Iterator[Path]:
    """The state directory; without one, a temporary one with what Flower keeps of a run for as long as the node lives."""
    if directory := str(context.node_config.get("state-dir", "")):
        yield Path(directory)
        return
    with tempfile.TemporaryDirectory(prefix="bifl-") as name:
        folder = Path(name)
        kept = context.state.get(_STATE)
        for path, data in kept.items() if isinstance(kept, ConfigRecord) else ():
            if path.startswith(f"{run}/") and FILES.fullmatch(path.removeprefix(f"{run}/")) and isinstance(data, bytes):
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(data)
        yield folder
        files = [path for path in (folder / run).rglob("*") if path.is_file()]
        context.state[_STATE] = ConfigRecord({str(path.relative_to(folder)): path.read_bytes() for path in files})


app = client_app()
