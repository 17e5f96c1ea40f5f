r"""What happens in a run besides its rounds, as JSON lines: `events.jsonl` in the run's folder.

Each line is an object with `time`, `kind`, `text` and, where one is concerned, `client`. Programs go by the kind; the text is for
people. Texts quote what clients say, so they never hold a character that a log or a terminal would act on.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

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
