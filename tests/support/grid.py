"""A federation in this process: Flower's grid without its network. What the nodes run is the real ClientApp."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from bifl.deploy import protocol
from bifl.deploy.client_app import client_app

BALLOT, STATISTICS, EVALUATION = "ballot", "statistics", "evaluation"
Handler = Callable[[Message, Context], Message | None]  # None: no answer ever comes


def kind_of(message: Message) -> str:
    """The exchange that a message asks for, or what else it asks."""
    record = message.content.get(protocol.RECORD)  # other apps have none
    return str(record["exchange"] if isinstance(record, ConfigRecord) and "exchange" in record else message.metadata.message_type)


class Clock:
    """Time that passes only while the server sleeps: no deadline depends on how fast this machine is."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Node:
    """A SuperNode of its own: what it is configured with, and what it answers."""

    def __init__(self, number: int, state: Path | None = None, **config: Any) -> None:
        directory = {} if state is None else {"state-dir": str(state)}
        self.context = Context(1, 1, {"partition-id": number, **directory, **config}, RecordDict(), {})
        self.heard: list[str] = []  # what its operator reads
        self.problems: list[str] = []
        self.app: ClientApp | Handler = client_app(tell=self._hear)  # its process: what it holds in memory is this client's
        self.kinds: list[str] = []  # of the messages it got
        self.online = True

    def _hear(self, text: str, problem: bool) -> None:
        self.heard.append(text)
        if problem:
            self.problems.append(text)


class LocalGrid(Grid):
    """Delivers at once, and hands an answer out when it is pulled."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.nodes = nodes
        self.before_push: Callable[[Message], None] = lambda message: None
        self._answers: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def get_node_ids(self) -> Iterable[int]:
        return [number for number, node in self.nodes.items() if node.online]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        self.before_push(message)
        name = uuid.uuid4().hex
        message.metadata.__dict__["_message_id"] = name
        node = self.nodes[message.metadata.dst_node_id]
        node.kinds.append(kind_of(message))
        try:
            answer = node.app(message, node.context)
        except Exception as error:
            answer = Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
        if answer is not None:
            self._answers[name] = answer
        return name

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._answers.pop(name) for name in message_ids if name in self._answers]

    def deliver(self, answer: Message) -> None:
        """An answer that comes when nobody waits for it any more."""
        self._answers[answer.metadata.reply_to_message_id] = answer
