"""The ClientApp: a client's turn, measurement and evaluation as answers to the server's messages.

from bifl.flower.client import client_app
app = client_app(my_images)  # an app of your own: my_images(terms, experiment, number) → Images
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from bifl.errors import ConfigError
from bifl.flower import letters
from bifl.flower.home import Home, Source, local_images
from bifl.flower.public import digest
from bifl.runtime.turns import Task
from bifl.runtime.worker import Worker

_STATE = "bifl-state"
_PARTITION = "partition-id"  # Flower's own word; in its simulation every node has one
Fields = dict[str, Any]


def client_app(source: Source | None = None) -> ClientApp:
    """A ClientApp that runs any algorithm.

    Args:
        source: where the client's images come from; none means what the node's `data` names, or the experiment's own dataset.
    """
    app = ClientApp()

    def doing(deed: Deed) -> Callable[[Message, Context], Message]:
        return lambda message, context: _answer(message, context, source, deed)

    app.query("hello")(doing(_introduce))
    app.train()(doing(_turn))
    app.query("measure")(doing(_measure))
    app.evaluate()(doing(_score))
    app.query("hear")(doing(_listen))
    return app


Deed = Callable[[Worker, Home, Fields], Fields]


def _answer(message: Message, context: Context, source: Source | None, deed: Deed) -> Message:
    """Do what is asked, after bringing the public state up to date; or say that this cannot be done from here."""
    asked = letters.fields_of(message)
    with _home(context, asked["run"]) as home:
        if message.metadata.message_type == letters.HELLO:
            home.settle_in(letters.read_terms(asked), source or local_images(str(context.node_config.get("data", ""))))
        opened = home.open(asked["round"])
        said: Fields = {"number": home.number}
        if opened is None:
            return Message(letters.content(said | {"lost": True}), reply_to=message)
        worker, fresh = opened
        if deed is not _introduce and not home.bring_up(worker, fresh, letters.read_update(asked)):
            return Message(letters.content(said | {"lost": True}), reply_to=message)
        return Message(letters.content(said | deed(worker, home, asked)), reply_to=message)


def _introduce(worker: Worker, home: Home, asked: Fields) -> Fields:
    return {
        "images": len(worker.parts[home.number]),
        "model": worker.network.layout.fingerprint,
        "digest": digest(worker.shared, worker.experiment),
    }


def _listen(worker: Worker, home: Home, asked: Fields) -> Fields:
    return {}  # the public state is up to date by now


def _turn(worker: Worker, home: Home, asked: Fields) -> Fields:
    turn = worker.turn(Task(home.number, asked["voted"], asked["uploads"]))
    home.tidy(asked["round"] + 1)
    return {"loss": turn.loss} | ({} if turn.upload is None else {"upload": turn.upload})


def _measure(worker: Worker, home: Home, asked: Fields) -> Fields:
    ((_, upload),) = worker.measure([home.number])
    return {"upload": upload}


def _score(worker: Worker, home: Home, asked: Fields) -> Fields:
    scores = worker.score()
    return {
        "held": [score.images for score in scores],
        "correct": [score.correct for score in scores],
        "losses": [score.loss for score in scores],
    }


@contextmanager
def _home(context: Context, run: str) -> Iterator[Home]:
    """The client's folder for a run; without a state-dir one that Flower keeps in memory, for as long as the node lives."""
    if _PARTITION not in context.node_config:
        raise ConfigError(f"the node has no {_PARTITION}: give --node-config '{_PARTITION}=0', or use bifl client")
    number = int(context.node_config[_PARTITION])
    if directory := str(context.node_config.get("state-dir", "")):
        yield Home(Path(directory) / run, number)
        return
    with tempfile.TemporaryDirectory(prefix="bifl-") as name:
        folder = Path(name)
        kept = context.state.get(_STATE)
        for path, data in kept.items() if isinstance(kept, ConfigRecord) else ():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(cast(bytes, data))
        yield Home(folder / run, number)
        files = [path for path in folder.rglob("*") if path.is_file()]
        context.state[_STATE] = ConfigRecord({str(path.relative_to(folder)): path.read_bytes() for path in files})


app = client_app()
