"""Finding runs: what a person points at, as a list of results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bifl import __version__
from bifl.data.fingerprint import Loaded
from bifl.errors import BiflError, RunError
from bifl.experiment import config_file
from bifl.experiment.settings import Experiment
from bifl.runs import kept
from bifl.runs.folder import CONFIG, read_data, read_records, version_of
from bifl.runs.record import Record

DEPTH = 3  # runs/, a comparison in it, a run in that: no deeper, so that a slip of the path does not search a whole disk


class Result(NamedTuple):
    """What is known of one run."""

    name: str
    experiment: Experiment
    records: list[Record]
    version: str = __version__  # of the bifl that ran it
    data: Loaded | None = None  # that it ran on; earlier versions did not tell


class Found(NamedTuple):
    """What there is, and why some of it could not be read."""

    results: list[Result]
    unreadable: list[str]


def read(paths: Iterable[Path]) -> Found:
    """The runs in run folders, comparisons, kept runs, or folders of such, each once; those without a round are passed over.

    Raises:
        RunError: there is none that can be read in one of the places.
    """
    known: dict[str, Result] = {}
    unreadable = list[str]()
    for path in paths:
        if not path.exists():
            raise RunError(f"'{path}' does not exist: give run folders, comparisons, or folders of such")
        here, problems = list[Result](), list[str]()
        for place in _places(path, DEPTH, problems):
            try:
                here.append(_result(place))
            except BiflError as error:
                problems.append(str(error))
        here = [result for result in here if result.records]
        if not here:
            raise RunError("; ".join(problems) or f"'{path}' holds no run with a complete round")
        known |= {result.name: result for result in here}
        unreadable += problems
    return Found(list(known.values()), list(dict.fromkeys(unreadable)))


def _places(path: Path, depth: int, problems: list[str]) -> Iterator[Path]:
    """Runs in and below a path."""
    try:
        is_run = path.name.endswith(kept.SUFFIX) or (path / CONFIG).is_file()
        children = sorted(path.iterdir()) if depth and not is_run and path.is_dir() else []
    except OSError as error:
        problems.append(f"cannot read '{path}': {error.strerror}")
        return
    if is_run:
        yield path
    for child in children:
        yield from _places(child, depth - 1, problems)


def _result(path: Path) -> Result:
    name = str(path.resolve())
    if path.is_file():
        return Result(name, *kept.read(path))
    return Result(name, config_file.read_to_show(path / CONFIG), read_records(path), version_of(path), read_data(path))
