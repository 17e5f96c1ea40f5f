"""Notes in a client's state directory: what it has said in secure sums, what private noise it has drawn.

With them a client says nothing twice and otherwise. So they outlast everything else in a run's folder, are read and written by one
process at a time, and where one is damaged the client goes no further in that run.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path

from bifl.deploy.protocol import Refusal
from bifl.files import write_secret, writing

NOTE = "note-"


class FileNotes(MutableMapping[str, bytes]):
    """What a client keeps for the next exchanges of a round: a file each, which only its owner can read, with its checksum."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> bytes:
        path = self._folder / f"{NOTE}{name}"
        try:
            checksum, _, data = path.read_bytes().partition(b"\n")
        except FileNotFoundError as error:
            raise KeyError(name) from error
        except OSError as error:
            raise Refusal(f"cannot read '{path}': {error.strerror}", "cannot read what it has said in this run") from error
        if checksum != _checksum(data):  # without it the client might say again, and otherwise, what it has said
            raise Refusal(
                f"'{path}', which tells what this client has said in this run, is damaged: it takes part in this run no more",
                "what it has said in this run is damaged: it takes part no more",
            )
        return data

    def __setitem__(self, name: str, data: bytes) -> None:
        with writing(self._folder):
            write_secret(self._folder / f"{NOTE}{name}", _checksum(data) + b"\n" + data)

    def __delitem__(self, name: str) -> None:
        (self._folder / f"{NOTE}{name}").unlink()

    def __iter__(self) -> Iterator[str]:
        return (path.name.removeprefix(NOTE) for path in self._folder.glob(f"{NOTE}*"))

    def __len__(self) -> int:
        return len(list(iter(self)))


def noted(state: Path) -> set[str]:
    """The names of the folders in a state directory that hold notes."""
    return {path.parent.name for path in state.glob(f"*/{NOTE}*")}


@contextmanager
def alone(state: Path) -> Iterator[None]:
    """Wait until no other process answers for this client; the lock ends with its holder, however it ends."""
    if not state.is_dir():  # before the first greeting: there are no notes yet
        yield
        return
    descriptor = os.open(state, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
