"""Every message of a run as a file, for those who want to see the bytes: `bifl run --keep-messages`, then `bifl inspect`."""

from __future__ import annotations

from pathlib import Path

from bifl.files import write_atomic, writing

FOLDER = "messages"


class Mailbox:
    """The messages of a run: messages/round-00001/broadcast and messages/round-00001/upload-00000 …"""

    def __init__(self, run: Path) -> None:
        self._folder = run / FOLDER

    def path(self, round: int, sender: int | None) -> Path:
        """Where a message lies."""
        return self._folder / f"round-{round:05d}" / ("broadcast" if sender is None else f"upload-{sender:05d}")

    def keep(self, round: int, sender: int | None, data: bytes) -> None:
        """Write a message down."""
        path = self.path(round, sender)
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, data)
