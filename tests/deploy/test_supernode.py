"""A node: what it asks of its server, which runs it answers, and that no message ends it. (Real ones: test_foreign_code.)"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity

from bifl.deploy.flower.bundle import ForeignBundleError, installed
from bifl.deploy.flower.supernode import Answer, Fleet, Node, refuse_foreign_run

FOREIGN = {"fab_id": "mallory/evil", "fab_hash": "0" * 64}


def a_run(**fields: Any) -> Run:
    ours = {
        "fab_id": installed().app,
        "fab_version": installed().version,
        "fab_hash": installed().digest,
        "primary_task_type": TaskType.SERVER_APP,
    }
    return replace(Run.create_empty(1), **ours | fields)


@pytest.mark.parametrize(
    "field", [{"fab_id": "bifl/evil"}, {"fab_version": "9"}, {"fab_hash": "0" * 64}, {"primary_task_type": TaskType.AGENT_APP}]
)
def test_a_run_of_anything_else_is_refused(field: dict[str, str]) -> None:
    refuse_foreign_run(a_run())
    with pytest.raises(ForeignBundleError):
        refuse_foreign_run(a_run(**field))


class Server:
    """What a node is connected to: it has messages of a run, keeps the replies, and counts what it is asked for."""

    def __init__(self, run: Run, messages: int = 1) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.runs_asked = self.parts_pulled = 0
        self.confirmed: list[str] = []
        self.heads: list[Message] = []
        self._run, self._contents, self._parts = run, dict[str, bytes](), dict[str, bytes]()
        self._waiting = [self._message(number) for number in range(messages)]

    def _message(self, number: int) -> tuple[Message, ObjectTree]:
        message = Message(RecordDict({"x": ConfigRecord({"y": number})}), dst_node_id=7, message_type="train")
        message.metadata.__dict__["_message_id"] = message.object_id
        self._contents |= {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        tree = get_object_tree(message)
        message.content = RecordDict()  # only the head comes with the list of parts
        return message, tree

    def fleet(self) -> Fleet:
        return Fleet(7, self._receive, self._send, self._tell_run, fetched, self._pull, self._push, self._confirm)

    def replies(self) -> list[Any]:
        """What the replies are: their numbers, or their errors."""
        whole = [inflate_object_from_contents(head.object_id, dict(self._parts)) for head in self.heads]
        return [reply.error if reply.has_error() else reply.content["x"]["y"] for reply in whole]  # type: ignore[attr-defined]

    def _receive(self) -> tuple[Message, ObjectTree] | None:
        return self._waiting.pop(0) if self._waiting else None

    def _send(self, head: Message, tree: ObjectTree, seconds: float) -> tuple[set[str], str]:
        self.heads.append(head)
        return set(get_all_nested_objects(head)), "session"

    def _tell_run(self, run_id: int) -> Run:
        self.runs_asked += 1
        return self._run

    def _pull(self, run_id: int, name: str) -> bytes:
        self.parts_pulled += 1
        return self._contents[name]

    def _push(self, run_id: int, session: str, name: str, data: bytes) -> None:
        self._parts[name] = data

    def _confirm(self, run_id: int, name: str) -> None:
        self.confirmed.append(name)


def fetched(fab_hash: str, run_id: int) -> None:
    raise AssertionError("a bundle was fetched from the server")


def twice(message: Message) -> Message:
    record = message.content["x"]
    assert isinstance(record, ConfigRecord)
    return Message(RecordDict({"x": ConfigRecord({"y": 2 * int(record["y"])})}), reply_to=message)  # type: ignore[arg-type]


def never(message: Message) -> Message:
    raise AssertionError("handed to the app")


def answered(server: Server, answer: Answer = twice) -> Server:
    node = Node(server.fleet(), answer)
    while node.look():
        pass
    return server


def test_a_foreign_run_is_answered_with_an_error_that_names_it_and_nothing_of_it_is_fetched() -> None:
    server = answered(Server(a_run(**FOREIGN), messages=2), never)
    for error in server.replies():
        assert error.code == ErrorCode.INVALID_FAB
        assert "refused to run the app bundle 'mallory/evil'" in error.reason
    assert len(server.heads) == 2
    assert server.parts_pulled == 0


def test_messages_of_ours_are_handed_to_the_installed_app() -> None:
    server = answered(Server(a_run(), messages=3))
    assert server.replies() == [0, 2, 4]
    assert [head.metadata.reply_to_message_id for head in server.heads] == server.confirmed
    assert server.runs_asked == 1


def test_a_message_that_cannot_be_read_ends_nothing() -> None:
    server = Server(a_run(), messages=3)
    damaged: dict[int, bytes] = {1: b"", 2: b"ConfigRecord 9\0x"}
    pull = server.fleet().pull
    count = iter(range(100))

    def spoiled(run_id: int, name: str) -> bytes:
        data = pull(run_id, name)
        return damaged.get(next(count) // 3, data)

    node = Node(server.fleet()._replace(pull=spoiled), twice)
    assert [node.look() for _ in range(4)] == [True, True, True, False]
    first, second, third = server.replies()
    assert first == 0
    assert {second.code, third.code} == {ErrorCode.CLIENT_APP_RAISED_EXCEPTION}


def ended(*_: Any) -> Any:
    raise RunNotRunningException


def broken(*_: Any) -> Any:
    raise OSError("no route")


@pytest.mark.parametrize("call", ["run", "pull", "confirm", "send", "push"])
@pytest.mark.parametrize("fault", [ended, broken])
def test_a_run_that_ends_or_a_call_that_fails_ends_nothing(call: str, fault: Callable[..., Any]) -> None:
    server = Server(a_run(), messages=2)
    calls: dict[str, Any] = {call: fault}
    node = Node(server.fleet()._replace(**calls), twice)
    assert [node.look() for _ in range(3)] == [True, True, False]


class _Enough(Exception):
    pass


def test_a_node_looks_again_soon_after_an_answer_and_rests_when_none_comes() -> None:
    server, pauses = Server(a_run(), messages=2), list[float]()
    receive = server.fleet().receive
    turns = chain([False, True, False, False, True], repeat(False))

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 15:
            raise _Enough

    node = Node(server.fleet()._replace(receive=lambda: receive() if next(turns) else None), twice, sleep)
    with pytest.raises(_Enough):
        node.stay()
    assert pauses[:4] == [3.0, 0.2, pytest.approx(0.3), pytest.approx(0.45)]
    assert sum(pauses[4:11]) == pytest.approx(6.43, abs=0.01)
    assert pauses[11:] == [3.0] * 4
