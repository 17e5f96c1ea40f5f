"""A client's node: one process, which lives as long as `bifl client` does and holds the client's data and network in memory.

    python -P -m bifl.deploy.flower.supernode HOST:PORT AUTHORITY KEY CONFIG PIPE

Flower's own SuperNode opens a port, fetches, unpacks and imports the bundle of code that a run brings, and starts a process for
every message. This one speaks Flower's protocol for nodes and does nothing of that: no port, no process, no bundle. It answers
runs of the installed app only, by the installed code.
"""

from __future__ import annotations

import functools
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from logging import ERROR, INFO
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore import log
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supernode.fleet_http_connection import http_request_response

from bifl.deploy.flower import bundle
from bifl.deploy.flower.programs import ADMITTED, ended_by_signals, tell_pipe
from bifl.errors import BiflError
from bifl.secure.identities import read_private_key

_IDLE = 3.0  # seconds between two looks for a message
_SOON = [0.2 * 1.5**look for look in range(7)]  # the same after an answer, 6.4 in all: the exchanges of a round follow each other

Received = tuple[Message, ObjectTree]


class Fleet(NamedTuple):
    """What a node can ask of its server: Flower's calls, in Flower's order."""

    node: int
    receive: Callable[[], Received | None]
    send: Callable[[Message, ObjectTree, float], tuple[set[str], str]]
    run: Callable[[int], Run]
    bundle: Callable[[str, int], Any]  # never called
    pull: Callable[[int, str], bytes]
    push: Callable[[int, str, str, bytes], None]
    confirm: Callable[[int, str], None]


Answer = Callable[[Message], Message]


class Node:
    """Answers the server's messages, one after the other; `answer` gets messages of the installed app and nothing else."""

    def __init__(self, fleet: Fleet, answer: Answer, sleep: Callable[[float], None] = time.sleep) -> None:
        self._fleet, self._answer, self._sleep = fleet, answer, sleep
        self._ours: int | None = None  # the last run that was found to be of the installed app

    def stay(self) -> None:
        """Answer until the process ends; look soon again after an answer, and rest when none comes."""
        pauses: Iterator[float] = iter(())
        while True:
            if self.look():
                pauses = iter(_SOON)
            self._sleep(next(pauses, _IDLE))

    def look(self) -> bool:
        """Answer a message, if there is one."""
        try:
            received = self._fleet.receive()
            if received is None:
                return False
            began = time.monotonic()
            reply = self._reply(*received)
            self._send(reply, time.monotonic() - began)
        except RunNotRunningException:
            log(INFO, "the run has ended: its message is not answered")
        return True

    def _reply(self, message: Message, tree: ObjectTree) -> Message:
        """The reply to a message, of which only the head is there; of a run that is not ours the rest is not even fetched."""
        run = message.metadata.run_id
        try:
            if run != self._ours:
                refuse_foreign_run(self._fleet.run(run))
                self._ours = run
            whole = pull_and_inflate_object_from_tree(
                tree, lambda name: self._fleet.pull(run, name), lambda name: self._fleet.confirm(run, name), return_type=Message
            )
            whole.metadata.__dict__["_message_id"] = tree.object_id
            return self._answer(whole)
        except bundle.ForeignBundleError as error:
            log(ERROR, "%s", error)
            return Message(Error(ErrorCode.INVALID_FAB, str(error)), reply_to=message)
        except Exception as error:  # whatever it is, this message caused it
            traceback.print_exc()
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, type(error).__name__), reply_to=message)

    def _send(self, reply: Message, seconds: float) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        run = reply.metadata.run_id
        try:
            with no_object_id_recompute():
                wanted, session = self._fleet.send(reply, get_object_tree(reply), seconds)
                parts = get_all_nested_objects(reply)
                push_objects(parts, lambda name, data: self._fleet.push(run, session, name, data), object_ids_to_push=wanted)
        except Exception as error:  # the server will ask again
            log(ERROR, "the reply could not be sent: %s", error)


def refuse_foreign_run(run: Run) -> None:
    """Raise `ForeignBundleError` unless a run is of the installed bundle, with its ServerApp on the server."""
    kind = "" if run.primary_task_type == TaskType.SERVER_APP else f" as {run.primary_task_type}"
    bundle.refuse_foreign(bundle.Bundle(run.fab_id + kind, run.fab_version, run.fab_hash))


@contextmanager
def fleet(address: str, authority: Path, key: Path) -> Iterator[Fleet]:
    """A connection to the server at an address, known by its authority's certificate, as the client with this key."""
    private = read_private_key(key)
    keys = (private, private.public_key())
    with http_request_response(address, False, authority.read_bytes(), keys) as calls:
        yield Fleet(*calls)


def answers(config: dict[str, Any], tell: Callable[[str, bool], None]) -> Answer:
    """A client with this configuration, which comes to life when it is first asked: until then it needs no PyTorch."""
    context = Context(0, 0, config, RecordDict(), {})

    @functools.cache
    def living() -> Any:
        from bifl.deploy.client_app import LivingClient

        return LivingClient(tell=tell)

    return lambda message: living().answer(message, context)


def main() -> None:
    """Be a client's node until a signal comes; the server is told, so that the client can come back at once."""
    address, authority, key, config, pipe = sys.argv[1:]
    try:
        with suppress(KeyboardInterrupt), ended_by_signals(), fleet(address, Path(authority), Path(key)) as server:
            log(INFO, "%s %d", ADMITTED, server.node)
            tell, chosen = tell_pipe(int(pipe)), json.loads(config)
            tell(f"client {chosen['partition-id']} is connected to {address}", False)
            Node(server, answers(chosen, tell)).stay()
    except BiflError as error:
        sys.exit(f"bifl: {error}")


if __name__ == "__main__":
    main()
