"""The ClientApp: a client's answers, for nodes of plain Flower and for apps of your own. (`bifl client` needs none: `supernode`.)

from bifl.deploy.client_app import client_app
app = client_app(my_images)  # an app of your own: my_images(terms, experiment, number) → Images
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from bifl.deploy import protocol
from bifl.deploy.client.client_state import FILES
from bifl.deploy.client.living_client import LivingClient, TellOperator, tell_log, temporary
from bifl.deploy.client.operator_choices import Source
from bifl.deploy.client.own_data import Images

__all__ = ["Images", "app", "client_app"]

_STATE = "bifl-state"


def client_app(source: Source | None = None, tell: TellOperator = tell_log) -> ClientApp:
    """A ClientApp that runs any algorithm. Where Flower keeps its process, it keeps the run of the last message in memory.

    Without a `source` a client's images are what the node's `data` names, or come from the experiment's own dataset.
    """
    app, client = ClientApp(), LivingClient(tell)

    def answer(message: Message, context: Context) -> Message:
        kind, fields, state = message.metadata.message_type, protocol.fields_of(message), partial(_kept_by_flower, context)
        return Message(protocol.content(client.answer(kind, fields, context.node_config, source, state)), reply_to=message)

    for register in (app.query("hello"), app.train(), app.query("hear")):
        register(answer)
    return app


@contextmanager
def _kept_by_flower(context: Context, run: str) -> Iterator[Path]:
    """A temporary state directory, with what Flower keeps of a run for as long as the node lives."""
    with temporary(run) as folder:
        kept = context.state.get(_STATE)
        for path, data in kept.items() if isinstance(kept, ConfigRecord) else ():
            if path.startswith(f"{run}/") and FILES.fullmatch(path.removeprefix(f"{run}/")) and isinstance(data, bytes):
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(data)
        yield folder
        files = [path for path in (folder / run).rglob("*") if path.is_file()]
        context.state[_STATE] = ConfigRecord({str(path.relative_to(folder)): path.read_bytes() for path in files})


app = client_app()
