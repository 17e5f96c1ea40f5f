"""Finished runs, read again: all of their rounds as one table, and what the seeds of one experiment amount to.

Means that tables show are exact before they are rounded once: a sum's order decides no digit.

>>> from bifl.experiment.settings import Experiment
>>> from bifl.runs.record import Record
>>> rounds = [Record(number, score, 0.1, 0.1, 2, 100, 200, 100, 0.5, 1.5, 0.1, 1.0) for number, score in ((1, 0.9), (2, 0.96))]
>>> runs = [Result(f"s{seed}", Experiment(algorithm="biml", seed=seed), rounds) for seed in (0, 1)]
>>> print(frame(runs)[["run", "seed", "algorithm", "round", "score", "up_bytes"]].tail(2).to_string(index=False))
run  seed algorithm  round  score  up_bytes
 s1     1      biml      1   0.90       100
 s1     1      biml      2   0.96       100
>>> Series("biml", runs).until(95)
Sent(rounds=2.0, up_bytes=200.0, down_bytes=400.0, up_bpp=1.0, down_bpp=3.0)
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from math import isfinite, isnan, nan
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from bifl.data import fingerprint
from bifl.errors import BiflError, ConfigError, RunError
from bifl.experiment import config_file
from bifl.experiment.declarations import NO_NUMBERS
from bifl.files import gunzip, parse_json
from bifl.runs.folder import CONFIG, UNVERSIONED, Result, read_run
from bifl.runs.record import Record, tested

if TYPE_CHECKING:
    from pandas import DataFrame

KEPT = ".jsonl.gz"  # the end of the name of a kept run: its configuration and its rounds in one file
LARGEST = 2**26  # bytes of such a file, unpacked: of 100,000 rounds
MOST_LETTERS = 40  # of a version
_DAMAGE = (
    OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, ConfigError,
)  # fmt: skip
DEPTH = 3  # runs/, a comparison in it, a run in that: no deeper, so that a slip of the path does not search a whole disk
LAST = 10  # rounds that the final accuracy is a mean of: single rounds swing
TARGETS = (95, 97, 98)  # % of accuracy, whose price tables tell
_ALWAYS = ("algorithm", "seed")  # columns even where all runs have the same

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
Values = npt.NDArray[Any]


class ReadRuns(NamedTuple):
    """What there is, and why some of it could not be read."""

    results: list[Result]
    unreadable: list[str]


def read(paths: Iterable[Path]) -> ReadRuns:
    """The runs in run folders, comparisons, kept runs, or folders of such, each once; those without a round are passed over."""
    results: dict[str, Result] = {}
    unreadable = list[str]()
    for path in paths:
        if not path.exists():
            raise RunError(f"'{path}' does not exist: give run folders, comparisons, or folders of such")
        here, problems = list[Result](), list[str]()
        for place in _places(path, DEPTH, problems):
            try:
                here.append(read_kept(place) if place.is_file() else read_run(place))
            except BiflError as error:
                problems.append(str(error))
        here = [result for result in here if result.records]
        if not here:
            raise RunError("; ".join(problems) or f"'{path}' holds no run with a complete round")
        results |= {result.name: result for result in here}
        unreadable += problems
    return ReadRuns(list(results.values()), list(dict.fromkeys(unreadable)))


def _places(path: Path, depth: int, problems: list[str]) -> Iterator[Path]:
    """Runs in and below a path."""
    try:
        is_run = path.name.endswith(KEPT) or (path / CONFIG).is_file()
        children = sorted(path.iterdir()) if depth and not is_run and path.is_dir() else []
    except OSError as error:
        problems.append(f"cannot read '{path}': {error.strerror}")
        return
    if is_run:
        yield path
    for child in children:
        yield from _places(child, depth - 1, problems)


def read_kept(file: Path) -> Result:
    """Read a run that the studies keep (`studies/keeping.py`); Python files that its configuration names are not run."""
    try:
        first, *lines = gunzip(file.read_bytes(), LARGEST).decode().splitlines()
        facts = parse_json(first)
        version = facts.get("version", UNVERSIONED)
        if not isinstance(version, str) or len(version) > MOST_LETTERS:
            raise ValueError(f"version is {version!r:.40}")
        data = fingerprint.from_facts(facts["data"]) if "data" in facts else None
        records = [Record.from_json(line) for line in lines]
        return Result(str(file.resolve()), config_file.parse(facts["config"]), records, version, data)
    except _DAMAGE as error:
        raise RunError(f"'{file}' is not a kept run ({error}): restore it, or delete it and it will be run again") from error


def grouped(things: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Things by their keys, in the order in which they come."""
    groups: dict[K, list[T]] = {}
    for thing in things:
        groups.setdefault(key(thing), []).append(thing)
    return groups


def read_runs(*folders: str | Path) -> DataFrame:
    """The runs in run folders, comparisons, kept runs, or folders of such, as one table: see `frame`.

    A run that cannot be read is left out, with a warning. Python files that a run names are not run.
    """
    runs = read(map(Path, folders))
    for problem in runs.unreadable:
        warnings.warn(f"left out: {problem}", stacklevel=2)
    return frame(runs.results)


def frame(results: Sequence[Result]) -> DataFrame:
    """A row for every round of every run.

    Columns are the `run` (its folder or file), the settings in which these runs differ, always `algorithm` and `seed`, then the
    `round`, whether it was `evaluated`, its `score` (the task's first metric) and the numbers of `Record.numbers`. What was
    measured on validation samples is in columns of its own, `validation_score` and so on, with NaN in those of test samples.
    """
    from pandas import DataFrame  # takes half a second to import: only where a table is made

    settings = [result.experiment.flat() for result in results]
    names = [name for name in dict.fromkeys(name for one in settings for name in one) if name not in NO_NUMBERS]
    differ = [name for name in names if name in _ALWAYS or len({repr(one.get(name)) for one in settings}) > 1]
    rows = [
        {"run": result.name, **{name: one.get(name) for name in differ}}
        | {"round": record.round, "evaluated": record.evaluated, **_scored(record), **record.numbers()}
        for result, one in zip(results, settings, strict=True)
        for record in result.records
    ]
    return DataFrame(rows)


def _scored(record: Record) -> dict[str, float]:
    """The score, which is of test samples alone; one of validation samples has a name of its own."""
    return {"score": record.score} if record.validated is None else {"score": nan, "validation_score": record.score}


class Spread(NamedTuple):
    """A mean, and the standard deviation where there are several seeds."""

    mean: float
    std: float | None = None

    def __str__(self) -> str:
        """In two digits; a dash where nothing was measured."""
        if isnan(self.mean):
            return "–"
        return f"{self.mean:.2f}" if self.std is None else f"{self.mean:.2f} ± {self.std:.2f}"


class Sent(NamedTuple):
    """What some rounds took: bytes of all clients, and bits per parameter of a client that takes part in every round."""

    rounds: float
    up_bytes: float
    down_bytes: float
    up_bpp: float
    down_bpp: float


class Curve(NamedTuple):
    """Means over seeds in %, in the rounds that every seed evaluated; the deviation where there are several seeds."""

    x: Values
    mean: Values
    std: Values | None


class Series:
    """One experiment, run with one or more seeds. Numbers are of the seeds that got furthest.

    Attributes:
        experiment: of the first seed.
        furthest: the seeds that got furthest: a run that is still going on would distort every mean.
        runs: their records.
        rounds: how many rounds the numbers are of.
        planned: how many rounds it was meant to have.
        measure: what is called accuracy here: the task's first metric; it says so where that is of validation samples.
        full_measure: the same with the samples in any case: "test accuracy", "validation accuracy".
        sends: whether anything is sent: not so when one machine trains alone.
        settled: whether there are rounds enough for a mean of the last ones to say where it ends.
    """

    def __init__(self, label: str, results: list[Result]) -> None:
        self.label, self.results, self.experiment = label, results, results[0].experiment
        self.rounds = max(len(result.records) for result in results)
        self.furthest = [result for result in results if len(result.records) == self.rounds]
        self.runs = [result.records for result in self.furthest]
        self.planned = max(result.experiment.rounds for result in results)
        self.measure = tested(self.runs[0])[-1].named
        self.full_measure = self.measure if self.experiment.validation else f"test {self.measure}"
        self.sends = bool(self.runs[0][0].up_bytes)
        self.settled = self.rounds >= LAST

    def column(self, name: str) -> Values:
        """(seeds, rounds) of a number of their records."""
        return np.array([[getattr(record, name) for record in records] for records in self.runs])

    @property
    def averaged(self) -> int | None:
        """How many of the last rounds were evaluated; None where all rounds were."""
        evaluated = self.column("evaluated")
        return None if evaluated.all() else int(evaluated[:, -LAST:].sum(1).min())

    def final(self) -> Spread:
        """Accuracy in %, mean of those of the last rounds that were evaluated."""
        last = zip(self.column("score")[:, -LAST:], self.column("evaluated")[:, -LAST:], strict=True)
        return _spread(mean(scores[evaluated].tolist()) if evaluated.any() else nan for scores, evaluated in last)

    def last(self) -> Spread:
        """Accuracy in % of the last round that was evaluated."""
        return _spread(tested(records)[-1].score for records in self.runs)

    def best(self) -> Spread:
        """Accuracy in % of the best round, which flatters whatever swings."""
        return _spread(max(scores[np.isfinite(scores)], default=nan) for scores in self.column("score"))

    def average(self, name: str) -> float:
        """The mean of a number over rounds and seeds."""
        return float(mean(self.column(name).ravel().tolist()))

    def total(self, name: str) -> float:
        """The sum of a number over all rounds, mean over seeds."""
        return float(self.column(name).sum(1).mean())

    def up_per_client(self) -> float:
        """Bytes that a client uploads in an average round."""
        return float((self.column("up_bytes") / self.column("clients")).mean())

    def down_per_client(self) -> float:
        """Bytes that a client which takes part in every round receives in an average one."""
        if not self.sends:
            return 0.0
        # down_bpp is per parameter, and no record says how many those are: what uploads take in bytes and per parameter tells
        parameters = 8 * self.up_per_client() / self.average("up_bpp")
        return parameters * self.average("down_bpp") / 8

    def until(self, target: float) -> Sent | None:
        """What it took until an accuracy in % was first seen in an evaluation: means over seeds, None if a seed never did."""
        reached = self.column("score") >= target / 100
        if not reached.any(1).all():
            return None
        rounds = reached.argmax(1) + 1
        before = np.arange(self.rounds) < rounds[:, None]
        return Sent(float(rounds.mean()), *(float((self.column(name) * before).sum(1).mean()) for name in Sent._fields[1:]))

    def curve(self, *sent: str) -> Curve:
        """Accuracy along the rounds, or along the sum of these numbers until then."""
        known = np.flatnonzero(self.column("evaluated").all(0))
        known = known if len(known) else np.arange(self.rounds)
        along = sum(np.cumsum(self.column(name), axis=1).mean(0) for name in sent) if sent else np.arange(1, self.rounds + 1)
        scores = 100 * self.column("score")[:, known]
        return Curve(np.asarray(along)[known], scores.mean(0), scores.std(0, ddof=1) if len(scores) > 1 else None)


def _spread(shares: Iterable[float]) -> Spread:
    """In %."""
    values = [100 * float(share) for share in shares]
    if not all(map(isfinite, values)):  # rounds that nobody evaluated
        return Spread(nan)
    return Spread(mean(values), stdev(values) if len(values) > 1 else None)
