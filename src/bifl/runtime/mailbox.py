"""Every message of a run as a file, for those who want to see the bytes: `bifl run --keep-messages`, then `bifl inspect`."""

from __future__ import annotations

from pathlib import Path

from bifl.files import write_unlisted, writing

FOLDER = "messages"
BROADCAST, STATISTICS = "broadcast", "statistics"


class Mailbox:
    """The messages of a run: messages/round-00001/broadcast and messages/round-00001/upload-00000 …

    With `batchnorm=recalibrate` also the exchange that follows: …/statistics-00000 and …/statistics.
    """

    def __init__(self, run: Path) -> None:
        self._folder = run / FOLDER

    def path(self, round: int, name: str) -> Path:
        """Where a message lies."""
        return self._folder / f"round-{round:05d}" / name

    def keep(self, round: int, name: str, data: bytes) -> None:
        """Write a message down."""
        path = self.path(round, name)
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_unlisted(path, data)
