"""Writing files so that a reader sees the old one or the new one, never half of one, also after a power cut; unpacking."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bifl.errors import RunError


def write_atomic(path: Path, data: bytes | str, mode: int = 0o666) -> None:
    """Write to a temporary name beside `path`, then rename. What returns survives a power cut."""
    write_unlisted(path, data, mode)
    sync_folder(path.parent)


def write_unlisted(path: Path, data: bytes | str, mode: int = 0o666) -> None:
    """The same without the folder's entry: for many files in one folder, after which one `sync_folder` is enough."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    raw = data.encode() if isinstance(data, str) else data
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())  # before the rename: the new name must not outlive a power cut without its contents
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error  # nobody knows the temporary name
        raise


def append_line(path: Path, line: str) -> None:
    """Add a line to a file. What returns survives a power cut, if the file was there before."""
    with path.open("a") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn the operating system's refusals (disk full, no permission) into one sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write '{error.filename or folder}': {error.strerror or error}") from error


def parse_json(text: str | bytes) -> Any:
    """What a JSON text says; ValueError if it is none, or nested so deeply that Python's parser gives up."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def gunzip(packed: bytes, most: int) -> bytes:
    """The contents of a gzip file; ValueError if they are longer than `most` bytes, and what gzip raises if it is damaged."""
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise ValueError(f"it unpacks to more than {most:,} bytes")
    return raw


def write_secret(path: Path, data: bytes) -> Path:
    """Write a file that is readable by its owner only from the moment it exists."""
    write_atomic(path, data, 0o600)
    return path


def size(count: float) -> str:
    """Bytes for people, in three digits, in powers of ten as links are sold.

    >>> size(999), size(12_684), size(999_700), size(23_000_000)
    ('999 B', '12.7 kB', '1000 kB', '23.0 MB')
    """
    if count < 1000:
        return f"{count:.0f} B"
    power = next((power for power in (1, 2) if count < 1000 ** (power + 1)), 3)
    value = count / 1000**power
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {('kB', 'MB', 'GB')[power - 1]}"
