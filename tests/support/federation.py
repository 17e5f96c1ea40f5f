"""A federation in this process: the real server and clients, honest or not, without a network (`tests.support.grid`)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message

from bifl import codec
from bifl.core import BINARY, Vector
from bifl.core import Message as Said
from bifl.data.arrays import from_npz
from bifl.data.datasets import dataset
from bifl.data.inputs import Dataset
from bifl.deploy import protocol
from bifl.deploy.client_app import app
from bifl.deploy.server.nodes import run_rounds
from bifl.deploy.server.requests import Rules
from bifl.engine.round import run_folder
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from bifl.runs.events import EVENTS
from bifl.runs.folder import RunFolder
from bifl.runs.record import Record
from tests.support.commands import rounds
from tests.support.grid import BALLOT, Handler, LocalGrid, Node, kind_of
from tests.support.workers import call_clients

QUICK: dict[str, Any] = {"algorithm": "biml", "clients": 3, "rounds": 3, "workers": 1, "dataset": "mnist5k"}


def quick(small: Path, **settings: Any) -> Experiment:
    """An experiment with those digits, by a name: a server may not tell clients which files to read."""

    def few_digits() -> Dataset:
        return from_npz(small)

    dataset(few_digits)
    return Experiment(**QUICK | {"dataset": "few_digits", "batch": 32} | settings)


def named(sentence: str) -> list[str]:
    """The names in `one, another or a third`."""
    return sentence.replace(" or ", ", ").split(", ")


def neighbours(folder: Path, count: int = 3) -> LocalGrid:
    return LocalGrid({100 + number: Node(number, folder / f"state-{number}") for number in range(count)})


def deploy(
    grid: LocalGrid, folder: Path, experiment: Experiment, least: int = 0, deadline: float = 60, most: int = 0,
    keys: Path | None = None,
) -> list[Record]:  # fmt: skip
    run = RunFolder.start(folder, experiment)
    run.keep_messages = True
    return list(run_rounds(grid, run, Rules(least, deadline, most), keys=keys))


def simulated(folder: Path, experiment: Experiment) -> Path:
    """Run it into a folder; where it wants several workers, side by side in this process."""
    run = RunFolder.start(folder, experiment)
    run.keep_messages = True
    assert list(run_folder(run, build(experiment), call_clients))
    return folder


def same(one: Path, other: Path) -> None:
    """Every message, the records but for seconds, and the model."""
    for path in sorted((one / "messages").rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (other / path.relative_to(one)).read_bytes(), path.relative_to(one)
    assert rounds(one) == rounds(other)
    assert (one / "model").read_bytes() == (other / "model").read_bytes()


def told(folder: Path, kind: str | None = None) -> str:
    """The texts of a run's events, one a line."""
    return "\n".join(event["text"] for event in read_events(folder) if kind in (None, event["kind"]))


def read_events(folder: Path) -> list[dict[str, Any]]:
    """All events of a run's folder."""
    file = folder / EVENTS
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def spoiled(spoil: Callable[[bytes], Any], kind: str = BALLOT) -> Handler:
    """A client whose uploads are spoiled."""

    def answer(message: Message, context: Context) -> Message:
        reply = app(message, context)
        record = reply.content[protocol.RECORD]
        if kind_of(message) == kind and isinstance(record, ConfigRecord):
            record["upload"] = spoil(record["upload"])  # type: ignore[arg-type]
        return reply

    return answer


def flipped(data: bytes) -> bytes:
    return data[:100] + bytes([data[100] ^ 1]) + data[101:]


def otherwise(**changes: Any) -> Callable[[bytes], bytes]:
    """The right checksum, but something else in the message."""

    def spoil(data: bytes) -> bytes:
        header = codec.read_header(data)
        symbols, real = np.zeros(header.symbols, np.uint8), np.zeros(header.reals, np.float32)
        message = Said.of(symbols, BINARY, real, sender=header.sender, weight=header.weight, round=header.round)
        of_vector = {name: value for name, value in changes.items() if name in Vector._fields}
        of_message = {name: value for name, value in changes.items() if name not in of_vector}
        plain = bytearray(codec.encode(message._replace(**of_message).with_update(**of_vector)))
        plain[28:36] = changes.get("model", header.model)
        plain[-4:] = zlib.crc32(plain[:-4]).to_bytes(4, "little")
        return bytes(plain)

    return spoil
