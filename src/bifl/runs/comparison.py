"""Several algorithms on the same split: one run folder per algorithm and seed, one table, one picture."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from bifl.data.fingerprint import Loaded
from bifl.errors import ConfigError, RunError
from bifl.experiment.settings import Experiment
from bifl.files import write_atomic, writing
from bifl.registry import of_file, short
from bifl.runs.folder import RunFolder
from bifl.runs.record import Record, tested

ALGORITHMS = "fedavg,murmur,full,biml,up_down"
PLAN = "compare.toml"


class LabelledRun(NamedTuple):
    """One run of a comparison."""

    label: str  # the algorithm, with the parameters that were given
    run: RunFolder


class PlannedRun(NamedTuple):
    """One run of a comparison, before there is a folder."""

    name: str  # of its folder
    label: str
    experiment: Experiment


def planned(base: Experiment, algorithms: str, seeds: str) -> list[PlannedRun]:
    """The runs of a new comparison, in order.

    Args:
        base: everything but algorithm and seed.
        algorithms: comma-separated names, each with parameters after plus signs: `biml,up_down+beta=1`.
        seeds: comma-separated numbers.
    """
    labels = _listed("algorithms", algorithms)
    numbers = [base.changed({"seed": seed}).seed for seed in _listed("seeds", seeds)]
    rows = [_row(label, base.changed(_settings(label) | {"seed": seed})) for label in labels for seed in numbers]
    if len({row.name for row in rows}) < len(rows):
        raise ConfigError(f"algorithms={algorithms} has two of the same name: rename one")
    return rows


class Comparison:
    """The runs of a comparison, in order."""

    def __init__(self, path: Path, runs: list[LabelledRun]) -> None:
        self.path = path
        self.runs = runs

    @classmethod
    def start(cls, path: Path, rows: Sequence[PlannedRun]) -> Comparison:
        """Lay out the runs of a new comparison in its folder."""
        if (path / PLAN).exists():
            raise RunError(
                f"'{path}' holds a comparison already: continue it with bifl compare --resume {path}, or choose another --out"
            )
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            plan = [f"[[run]]\nlabel = {json.dumps(label)}\nfolder = {json.dumps(name)}\n" for name, label, _ in rows]
            write_atomic(path / PLAN, "\n".join(plan))
        return cls(path, [LabelledRun(label, RunFolder.start(path / name, experiment)) for name, label, experiment in rows])

    @classmethod
    def resume(cls, path: Path, changes: Mapping[str, str], trust: bool = False) -> Comparison:
        """Open an old comparison; runs that are complete stay as they are. `trust` as for a single run."""
        rows = _planned(path)
        return cls(path, [LabelledRun(label, RunFolder.resume(path / name, changes, trust)) for label, name in rows])

    def settle(self, loaded: Loaded) -> None:
        """Let all runs begin, or go on, on these data: one that was on others is refused before anything is written."""
        for one in self.runs:
            one.run.refuse_other_data(loaded)
        for one in self.runs:
            one.run.settle(loaded)

    def results(self) -> dict[str, list[list[Record]]]:
        """For each label, the records of each seed."""
        grouped: dict[str, list[list[Record]]] = {}
        for one in self.runs:
            if records := one.run.records():
                grouped.setdefault(one.label, []).append(records)
        return grouped


class Summary(NamedTuple):
    """A row of the table: means over seeds, and the deviation where there are several."""

    label: str
    accuracy: float
    deviation: float | None
    best: float
    up_bytes: float
    down_bytes: float
    up_bpp: float
    down_bpp: float
    seconds: float
    measure: str = "accuracy"  # what is called accuracy here: the task's first metric


def summarise(label: str, seeds: list[list[Record]]) -> Summary:
    """One algorithm's row: bytes and seconds of a whole run, bits per parameter of an average round."""
    final = [tested(records)[-1].score for records in seeds]
    return Summary(
        label=label,
        accuracy=mean(final),
        deviation=stdev(final) if len(final) > 1 else None,
        best=mean(max(r.score for r in tested(records)) for records in seeds),
        up_bytes=mean(sum(r.up_bytes for r in records) for records in seeds),
        down_bytes=mean(sum(r.down_bytes for r in records) for records in seeds),
        up_bpp=mean(mean(r.up_bpp for r in records) for records in seeds),
        down_bpp=mean(mean(r.down_bpp for r in records) for records in seeds),
        seconds=mean(sum(r.seconds for r in records) for records in seeds),
        measure=tested(seeds[0])[-1].measure,
    )


class Price(NamedTuple):
    """What an accuracy took, in bits per parameter of a client that takes part in every round: means over seeds."""

    rounds: float
    up: float
    both: float


def price(seeds: list[list[Record]], target: float) -> Price | None:
    """What it took until an accuracy in % was first seen in an evaluation; None if it was not with some seed."""
    found = [_until(records, target) for records in seeds]
    known = [records for records in found if records is not None]
    if len(known) < len(found):
        return None
    up = mean(sum(r.up_bpp for r in records) for records in known)
    return Price(mean(map(len, known)), up, up + mean(sum(r.down_bpp for r in records) for records in known))


def _until(records: list[Record], target: float) -> list[Record] | None:
    first = next((place for place, record in enumerate(records, start=1) if record.score >= target / 100), None)
    return None if first is None else records[:first]


def _planned(path: Path) -> list[tuple[str, str]]:
    """Label and folder of each run of a comparison."""
    try:
        rows = [(row["label"], row["folder"]) for row in tomllib.loads((path / PLAN).read_text())["run"]]
    except FileNotFoundError:
        raise RunError(f"'{path}' holds no comparison: there is no {PLAN} in it") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"'{path / PLAN}' cannot be read: {error}") from error
    for label, name in rows:
        if not isinstance(label, str) or not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name:
            raise RunError(f"'{path / PLAN}' names {name!r:.80}, which is none of the comparison's folders")
    return rows


def _listed(key: str, text: str) -> list[str]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items or len(set(items)) != len(items):
        raise ConfigError(f"{key} must be different values separated by commas, not '{text}'")
    return items


def _settings(label: str) -> dict[str, str]:
    name, *parameters = label.split("+")
    settings = {"algorithm": name}
    for parameter in parameters:
        key, equals, value = parameter.partition("=")
        if not equals:
            raise ConfigError(f"'{label}' must be an algorithm with +parameter=value after it, such as up_down+beta=1")
        settings[f"algorithm.{key}"] = value
    return settings


def _row(label: str, experiment: Experiment) -> PlannedRun:
    """A run by its label; one that names a file alone is called what is in it."""
    name, plus, parameters = label.partition("+")
    label = f"{short(experiment.algorithm.name)}{plus}{parameters}" if of_file(name) == name else label
    return PlannedRun(f"{short(label).replace('/', '-')}-s{experiment.seed}", label, experiment)
