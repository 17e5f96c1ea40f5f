"""Archives for tests, and programs that deliver them: what npm, apt-get and dpkg-deb are to the code that fetches data."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest


def packed(path: Path, files: dict[str, bytes]) -> Path:
    """A .tgz with the files in this order."""
    with tarfile.open(path, "w:gz") as archive:
        for name, raw in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(raw)
            archive.addfile(entry, io.BytesIO(raw))
    return path


def program(folder: Path, name: str, script: str) -> None:
    """A program of this name in a folder."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def npm(folder: Path, monkeypatch: pytest.MonkeyPatch, package: str, files: dict[str, bytes]) -> None:
    """An npm that has one package, with the files in this order; it is the first on the PATH."""
    archive = packed(folder / "made.tgz", {f"package/{name}": raw for name, raw in files.items()})
    program(folder / "bin", "npm", f'[ "$1 $2" = "pack {package}" ] && cp {archive} .')
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")


def debian(folder: Path, monkeypatch: pytest.MonkeyPatch, package: str, files: dict[str, bytes]) -> None:
    """An apt-get that has one package, with the files in this order, and a dpkg-deb that unpacks it."""
    archive = packed(folder / "made.deb", {f"./{name}": raw for name, raw in files.items()})
    program(folder / "bin", "apt-get", f'[ "$1 $2" = "download {package}" ] && cp {archive} .')
    program(folder / "bin", "dpkg-deb", '[ "$1" = "--fsys-tarfile" ] && gzip -dc "$2"')
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")
