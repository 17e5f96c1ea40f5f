"""Finding runs: what a person points at, as a list of results."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from bifl import cells
from bifl.errors import RunError
from bifl.experiment import Experiment
from bifl.runtime.folder import CONFIG, read_records
from bifl.runtime.record import Record

DEPTH = 3  # runs/, a comparison in it, a run in that: no deeper, so that a slip of the path does not search a whole disk


class Result(NamedTuple):
    """What is known of one run."""

    name: str
    experiment: Experiment
    records: list[Record]


def read(path: Path) -> list[Result]:
    """The runs in a run folder, a comparison, a kept cell, or a folder of such; those without a complete round are passed over.

    Raises:
        RunError: there is none, or what there is cannot be read.
    """
    if not path.exists():
        raise RunError(f"'{path}' does not exist: give run folders, comparisons, or folders of such")
    if results := [result for result in _found(path, DEPTH) if result.records]:
        return results
    raise RunError(f"'{path}' holds no run with a complete round")


def read_all(paths: Iterable[Path]) -> list[Result]:
    """The runs in several places, each once however often it was pointed at."""
    found: dict[str, Result] = {}
    for path in paths:
        for result in read(path):
            found.setdefault(result.name, result)
    return list(found.values())


def _found(path: Path, depth: int) -> Iterable[Result]:
    if path.name.endswith(cells.SUFFIX):
        yield Result(str(path.resolve()), *cells.read(path))
    elif (path / CONFIG).is_file():
        yield Result(str(path.resolve()), Experiment.from_toml(path / CONFIG), read_records(path))
    elif depth and path.is_dir():
        for child in sorted(path.iterdir()):
            yield from _found(child, depth - 1)
