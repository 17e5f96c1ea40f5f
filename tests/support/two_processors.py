"""A federation of two processes that may compute as on different processors (see `processors`): what `test_processors` runs.

python -m tests.support.two_processors PROCESSOR FOLDER EXPERIMENT…  # the server: starts its clients on that processor, prints JSON
python -m tests.support.two_processors FD                              # its clients

The server's process runs what a ServerApp runs, the other the ClientApp of every client. Between them go the fields of Flower's
messages, as over a network. Both note what every message that they read meant to them.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from bifl import codec
from bifl.deploy import protocol
from bifl.deploy.client.client_state import ClientState
from bifl.deploy.client_app import client_app, operator_of
from bifl.deploy.protocol import named_files
from bifl.deploy.server import requests
from bifl.deploy.server.requests import DEFAULTS
from bifl.deploy.server_app import federate
from bifl.engine.catch_up import digest
from bifl.experiment.settings import Experiment, of_words
from tests.processors import environment
from tests.support.grid import Clock, LocalGrid, Node

Notes = dict[str, str]  # digest of a message's bytes → digest of what was read


def note_meanings() -> Notes:
    """Note what every message read from now on means."""
    notes: Notes = {}
    decode = codec.decode

    def noted(data: bytes, *given: Any, **more: Any) -> Any:
        message = decode(data, *given, **more)
        meaning = hashlib.sha256(repr((message.update.alphabet, message.sender, message.weight, message.round)).encode())
        for part, dtype in ((message.update.symbols, "<f4" if message.update.alphabet.size == 0 else "<i8"), (message.real, "<f4")):
            meaning.update(np.ascontiguousarray(part, dtype).tobytes())
        notes[hashlib.sha256(data).hexdigest()] = meaning.hexdigest()
        return message

    codec.decode = noted
    return notes


def capability() -> str:
    """The processor that PyTorch believes it has."""
    return str(torch.backends.cpu.get_cpu_capability())


# ---- the server's process ----------------------------------------------------------------------------------------------


class Patience(Clock):
    """Answers are there at once: a server that sleeps past its deadline waits for ever."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        super().sleep(seconds)
        if self.now > 2 * DEFAULTS.deadline:
            raise TimeoutError("the clients' answers do not count")


def serve(processor: str, folder: Path, experiments: list[str]) -> dict[str, Any]:
    """Run experiments with clients on that processor."""
    ours, theirs = Pipe()
    command = [sys.executable, "-m", "tests.support.two_processors", str(theirs.fileno())]
    process = subprocess.Popen(command, env=environment(processor), pass_fds=[theirs.fileno()])
    theirs.close()
    notes = note_meanings()
    clock = Patience()
    setattr(requests, "time", clock)  # noqa: B010
    requests.LOOK = 0.0
    try:
        rounds = {
            words: _rounds(ours, folder / str(number), of_words(shlex.split(words))) for number, words in enumerate(experiments)
        }
        ours.send(None)
        return {"server": {"processor": capability(), "read": notes}, "clients": ours.recv(), "rounds": rounds}
    finally:
        ours.close()
        process.wait()


def _rounds(clients: Connection, folder: Path, experiment: Experiment) -> list[dict[str, Any]]:
    """The record of every round, with the digest of the public state after it and the digests that clients answered with in it."""
    digests: list[str] = []

    def ask(message: Message, context: Context) -> Message:
        clients.send((dict(context.node_config), message.metadata.message_type, protocol.fields_of(message)))
        fields, state = clients.recv()
        digests.append(state)
        return Message(protocol.content(fields), reply_to=message)

    members = {1 + number: Node(number, folder / f"state-{number}") for number in range(experiment.clients)}
    for node in members.values():
        node.app = ask
        node.context.node_config.update({f"allow-{place}": str(file) for place, file in enumerate(named_files(experiment))})
    found = []
    deployment = federate(LocalGrid(members), experiment)
    for record in deployment:
        found.append(
            json.loads(record.to_json()) | {"after": digest(deployment.public, deployment.run.in_context), "in": digests.copy()}
        )
        digests.clear()
    found[-1]["heard"] = digests.copy()  # the last word
    return found


# ---- the clients' process ----------------------------------------------------------------------------------------------


def answer_all(server: Connection) -> None:
    """Answer the server's messages until it says that there are no more, then tell what was read."""
    notes, app = note_meanings(), client_app()
    LocalGrid({})  # gives this process an identity, without which Flower makes no messages
    while (asked := server.recv()) is not None:
        server.send(_answer(app, *asked))
    server.send({"processor": capability(), "read": notes})


def _answer(app: ClientApp, config: dict[str, Any], kind: str, fields: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The answer of one client, and the digest of the public state as this client now knows it."""
    message = Message(protocol.content(fields), 1, kind)
    context = Node(config["partition-id"], Path(config["state-dir"])).context
    context.node_config.update(config)
    said = protocol.fields_of(app(message, context))
    assert protocol.FAILED not in said, said
    state = ClientState(Path(config["state-dir"]), fields["run"], operator_of(context.node_config), lambda text: None)
    worker = state.open(fields["round"])
    assert worker is not None
    if "upload" in said:  # what it means to its sender
        codec.decode(said["upload"], worker.exchanges[fields["exchange"]].context(worker.public))
    return said, digest(worker.public, worker.run.in_context)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        answer_all(Connection(int(sys.argv[1])))
    else:
        print(json.dumps(serve(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])))
