"""A server that lies to single clients of a secure sum, which it has begun honestly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from bifl import __version__, codec
from bifl.core.message import FLOAT32
from bifl.core.message import Message as Said
from bifl.core.state import Public
from bifl.deploy import protocol
from bifl.deploy.server.nodes import run_name
from bifl.engine.catch_up import MODEL, Update, digest, restored
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from tests.secure.test_secure_runs import nodes
from tests.support.federation import deploy
from tests.support.grid import LocalGrid, kind_of


class _Stopped(BaseException):
    """The honest part of a run is over."""


def stopped_at(grid: LocalGrid, folder: Path, experiment: Experiment, step: str, keys: Path) -> None:
    """Deploy a run until a step of its first round is asked for."""

    def stop(message: Message) -> None:
        if kind_of(message) == step:
            raise _Stopped

    grid.before_push = stop
    with pytest.raises(_Stopped):
        deploy(grid, folder, experiment, keys=keys)
    grid.before_push = lambda message: None


class Liar:
    """A server that has begun a run, and then asks clients for what it likes."""

    def __init__(self, folder: Path, experiment: Experiment, keys: Path, step: str = "keys") -> None:
        self.grid, self.folder, self.experiment = nodes(folder, keys), folder, experiment
        stopped_at(self.grid, folder / "run", experiment, step, keys)
        self.setup, self.run = build(experiment), run_name(folder / "run")
        terms = json.loads((folder / "state-0" / self.run / "terms.json").read_text())
        self._greeting = {"version": __version__, "round": 0} | {name: terms[name] for name in protocol.Terms._fields}
        self.exchanges = self.setup.run.exchanges

    def told(self, change: Callable[[Public], Public] = lambda public: public) -> Update:
        """What makes a client take up any model, before the first round."""
        public = change(self.setup.public)
        model = Said.of(public.weights, FLOAT32, public.real, public.scales, round=0)
        whole = {MODEL: codec.encode(model, codec.Context(public.layout, 0))}
        return Update(digest(restored(whole, self.exchanges, public), self.setup.run.in_context), (), whole)

    def ask(self, kind: str, update: Update | None = None, **fields: Any) -> dict[str, Any]:
        """What client 0 says."""
        update = update or Update(digest(self.setup.public, self.setup.run.in_context))
        said = {"version": __version__, "run": self.run, "round": 0} | protocol.update_fields(update) | fields
        return self._sent(kind, said)

    def _sent(self, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        message = Message(protocol.content(fields), dst_node_id=100, message_type=kind)
        (name,) = self.grid.push_messages([message])
        (answer,) = self.grid.pull_messages([name])
        return protocol.fields_of(answer)

    def greet(self, run: str = "") -> dict[str, Any]:
        """The greeting of this run, or of another with the same settings."""
        return self._sent(protocol.HELLO, self._greeting | {"run": run or self.run})

    def exchange(self, name: str, update: Update | None = None, **fields: Any) -> dict[str, Any]:
        """What it says in an exchange."""
        return self.ask(protocol.EXCHANGE, update, **{"exchange": name, "voted": False, "uploads": False} | fields)
