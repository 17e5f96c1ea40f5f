"""Writing files so that a reader sees the old one or the new one, never half of one; and what damaged ones raise."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bifl.errors import RunError

DAMAGED_NPZ = (
    OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error, NotImplementedError,
)  # fmt: skip
"""What numpy.load and its zip file raise, depending on where the damage is."""


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write to a temporary name beside `path`, then rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    raw = data.encode() if isinstance(data, str) else data
    try:
        with temporary.open("wb") as file:
            file.write(raw)
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error  # nobody knows the temporary name
        raise


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn the operating system's refusals (disk full, no permission) into one sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write '{error.filename or folder}': {error.strerror or error}") from error
