"""Every message of a run as a file, for those who want to see the bytes: `bifl run --keep-messages`, then `bifl inspect`."""

from __future__ import annotations

from pathlib import Path

from bifl.files import write_unlisted, writing

FOLDER = "messages"
_UPLOADS, _BROADCASTS = {"ballot": "upload"}, {"ballot": "broadcast"}  # files of other exchanges are called like them


class Mailbox:
    """The messages of a run: messages/round-00001/broadcast and messages/round-00001/upload-00000 …

    With `batchnorm=recalibrate` also the exchange that follows: …/statistics-00000 and …/statistics.
    """

    def __init__(self, run: Path) -> None:
        self._folder = run / FOLDER

    def broadcast(self, round: int, exchange: str) -> Path:
        """Where an exchange's broadcast lies."""
        return self._folder / f"round-{round:05d}" / _BROADCASTS.get(exchange, exchange)

    def keep(self, round: int, exchange: str, sender: str | None, data: bytes) -> None:
        """Write a message down; the sender is None for the server."""
        path = self.broadcast(round, exchange)
        if sender is not None:
            path = path.with_name(f"{_UPLOADS.get(exchange, exchange)}-{sender}")
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_unlisted(path, data)
