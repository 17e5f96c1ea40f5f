r"""What happens in a run besides its rounds, as JSON lines: `events.jsonl` in the run's folder.

Each line is an object with `time`, `kind`, `text` and, where one is concerned, `client`. Programs go by the kind; the text is for
people. Texts quote what clients say, so they never hold a character that a log or a terminal would act on.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from bifl.errors import quoted
from bifl.files import writing

EVENTS = "events.jsonl"
NOTE, JOINED, REFUSED, MISSING, ERROR = "note", "joined", "refused", "missing", "error"  # ERROR: of a client
FINISHED, FAILED = "finished", "failed"  # the run: the last event of a server
LONGEST = 2000  # characters of a text
log = logging.getLogger("flwr")


class Tell(Protocol):
    """A function that reports a sentence to the operator."""

    def __call__(self, text: str, kind: str = NOTE, client: int | None = None) -> None:
        """Tell it, and which client it concerns."""


class Event(NamedTuple):
    """One line of the file."""

    kind: str
    text: str
    client: int | None = None


def say(text: str, kind: str = NOTE, client: int | None = None) -> None:
    """Tell by Flower's log alone: for an app without a run folder."""
    log.info("%s", quoted(text, LONGEST))


def writer(folder: Path) -> Tell:
    """Tell by Flower's log and by the events of a run's folder."""

    def tell(text: str, kind: str = NOTE, client: int | None = None) -> None:
        say(text)
        about = {} if client is None else {"client": client}
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "kind": kind, **about, "text": quoted(text, LONGEST)}
        with writing(folder), (folder / EVENTS).open("a") as lines:
            lines.write(json.dumps(line) + "\n")

    return tell


class Reader:
    """Reads the events of a run's folder as they are written."""

    def __init__(self, folder: Path) -> None:
        self._path, self._read = folder / EVENTS, 0

    def skip(self) -> Reader:
        """Skip the events that are already in the file."""
        self._read = self._path.stat().st_size if self._path.exists() else 0
        return self

    def new(self) -> Iterator[Event]:
        """Complete lines that were not read yet; one that a kill cut short is passed over."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read += len(line)
                if (event := _event(line)) is not None:
                    yield event


def read(folder: Path) -> list[Event]:
    """All events of a run's folder."""
    return list(Reader(folder).new())


def _event(line: bytes) -> Event | None:
    try:
        event: Any = json.loads(line)
        return Event(str(event["kind"]), quoted(str(event["text"]), LONGEST), event.get("client"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
