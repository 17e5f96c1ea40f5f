"""How a SuperNode takes a message: as in Flower, but it never fetches a bundle, and refuses runs of any other than its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from logging import ERROR
from typing import Any

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.supercore import log
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.run import Run

from bifl.deploy import bundle

_SOON = [0.2 * 1.5**look for look in range(7)]  # seconds between two looks: 6.4 in all


def pull_own_only(node: Any, real: Callable[..., int | None]) -> Callable[..., int | None]:
    """A replacement of Flower's `_pull_and_store_message`, which is `real`, in its module `node`.

    A message of a run that is not ours is answered with an error that names the bundle, and not handed to any app.
    """

    def pull(
        *, state: Any, object_store: Any, receive: Callable[[], Any], get_run: Callable[[int], Run], **others: Any
    ) -> int | None:
        received: list[Message] = []

        def remember() -> Any:
            got = receive()
            received.extend(got[:1] if got else [])
            return got

        def check(run_id: int) -> Run:
            run = get_run(run_id)
            refuse_foreign_run(run)
            return run

        own = others | {"get_fab": lambda fab_hash, run_id: Fab(bundle.own().digest, bundle.content(), {})}
        try:
            return real(state=state, object_store=object_store, receive=remember, get_run=check, **own)
        except bundle.ForeignBundleError as error:
            log(ERROR, "%s", error)
            (message,) = received
            node._insert_message(Message(Error(ErrorCode.INVALID_FAB, str(error)), reply_to=message), state, object_store)
            return int(message.metadata.run_id)

    return pull


def pull_eagerly(real: Callable[..., int | None]) -> Callable[..., int | None]:
    """The same, but that it looks for the next message soon after one was answered.

    Flower looks every three seconds. The exchanges of a round follow each other, and in each one the slowest client is waited for.
    """
    answered = False

    def pull(**arguments: Any) -> int | None:
        nonlocal answered
        for pause in _SOON if answered else ():
            if (found := real(**arguments)) is not None:
                return found
            time.sleep(pause)
        found = real(**arguments)
        answered = found is not None
        return found

    return pull


def refuse_foreign_run(run: Run) -> None:
    """Raise `ForeignBundleError` unless a run is of the installed bundle, with its ServerApp on the server."""
    kind = "" if run.primary_task_type == TaskType.SERVER_APP else f" as {run.primary_task_type}"
    bundle.refuse_foreign(bundle.Bundle(run.fab_id + kind, run.fab_version, run.fab_hash))
