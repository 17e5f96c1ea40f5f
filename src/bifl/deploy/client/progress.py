r"""What a client's processes tell its operator: JSON lines through a named pipe in the state directory, which `bifl client` reads.

Their output ends in a log. A pipe, unlike a file, also works when the disk is full. Without torch and Flower, as `bifl client`
stays all day.

>>> sentence({"event": "trained", "round": 3, "images": 400, "loss": 0.4142, "bytes": 5600})
'round 3: trained on 400 images, loss 0.41, 5.60 kB up'
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bifl.errors import quoted
from bifl.files import size

PIPE = "progress"  # in the state directory
PROBLEM = "problem"
LONGEST = 900  # characters of a text: a line stays below the 4,096 bytes that a pipe takes at once
_READ = 2**16
log = logging.getLogger("flwr")


def tell(state: Path | None, event: str, **facts: str | int | float) -> None:
    """Tell the operator, if `bifl client` listens, and Flower's log. Never raises: reporting must not stop the training."""
    facts = {name: quoted(fact, LONGEST) if isinstance(fact, str) else fact for name, fact in facts.items()}
    line = {"event": event} | facts
    (log.error if event == PROBLEM else log.info)(sentence(line))
    if state is None:
        return
    with contextlib.suppress(OSError):  # nobody listens, or does not read
        pipe = os.open(state / PIPE, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            if stat.S_ISFIFO(os.fstat(pipe).st_mode):
                os.write(pipe, json.dumps(line, ensure_ascii=False).encode() + b"\n")
        finally:
            os.close(pipe)


class Listener(contextlib.AbstractContextManager["Listener"]):
    """The reading end of the pipe, which it makes if there is none.

    Raises:
        OSError: the state directory is on a file system without pipes.
    """

    def __init__(self, state: Path) -> None:
        path = state / PIPE
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        self._pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        self._rest = b""
        if not stat.S_ISFIFO(os.fstat(self._pipe).st_mode):
            os.close(self._pipe)
            raise FileExistsError(f"'{path}' is not a pipe")

    def __exit__(self, *_: object) -> None:
        os.close(self._pipe)

    def heard(self) -> Iterator[tuple[str, bool]]:
        """What came since the last look: sentences, and whether each is a problem."""
        try:
            data = os.read(self._pipe, _READ)
        except BlockingIOError:  # somebody has it open and says nothing
            return
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-_READ:]
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):  # not of our making
                event = json.loads(line)
                yield quoted(sentence(event), LONGEST), event["event"] == PROBLEM


def sentence(event: Mapping[str, Any]) -> str:
    """An event in words.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    match event["event"]:
        case "joined":
            held = f", {event['held']:d} held out to evaluate on" if event["held"] else ""
            run = f"joined a run of {event['rounds']:d} rounds as client {event['number']:d}"
            return f"{run}: {event['images']:d} images to train on{held}"
        case "trained":
            sent = f"{size(event['bytes'])} up" if event["bytes"] else "no upload asked for"
            loss = f" loss {event['loss']:.2f}," if "loss" in event else ""
            return f"round {event['round']:d}: trained on {event['images']:d} images,{loss} {sent}"
        case "finished":
            return f"the run is finished after {event['rounds']:d} rounds; waiting for the next one (Ctrl-C to stop)"
        case "notice" | "problem":
            text: str = event["text"]
            return text
        case other:
            raise KeyError(other)
