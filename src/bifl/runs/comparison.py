"""Several algorithms on the same split: one run folder per algorithm and seed, one table, one picture."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bifl.data.fingerprint import Loaded
from bifl.errors import ConfigError, RunError
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import LastDataset
from bifl.files import write_atomic, writing
from bifl.registry import of_file, short
from bifl.runs.folder import CONFIG, Result, RunFolder
from bifl.runs.results import Series

ALGORITHMS = "fedavg,murmur,full,biml,up_down"
PLAN = "compare.toml"


class PlannedRun(NamedTuple):
    """One run of a comparison, before there is a folder."""

    name: str  # of its folder
    label: str  # the algorithm, with the parameters that were given
    experiment: Experiment


def planned(base: Experiment, algorithms: str, seeds: str) -> list[PlannedRun]:
    """The runs of a new comparison, in order: `algorithms` as in biml,up_down+beta=1, `seeds` as in 0,1, all else as in `base`."""
    labels = _listed("algorithms", algorithms)
    numbers = [base.changed({"seed": seed}).seed for seed in _listed("seeds", seeds)]
    rows = [_row(label, base.changed(_settings(label) | {"seed": seed})) for label in labels for seed in numbers]
    if len({row.name for row in rows}) < len(rows):
        raise ConfigError(f"algorithms={algorithms} has two of the same name: rename one")
    return rows


class Comparison(NamedTuple):
    """The runs of a comparison, in order, each with its label."""

    path: Path
    runs: list[tuple[str, RunFolder]]

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
        return cls(path, [(label, RunFolder.start(path / name, experiment)) for name, label, experiment in rows])

    @classmethod
    def resume(cls, path: Path, changes: Mapping[str, str], trust: bool = False) -> Comparison:
        """Open an old comparison; runs that are complete stay as they are. `trust` as for a single run."""
        return cls(path, [(label, RunFolder.resume(path / name, changes, trust)) for label, name in _read_plan(path)])

    def settle(self, data: LastDataset) -> Loaded:
        """Let all runs begin, or go on; where one has other data than the rest, or than before, nothing is written."""
        facts, *others = {data.loaded(run.experiment) for _, run in self.runs}
        if others:
            raise RunError(f"the runs in '{self.path}' have different data, by their {CONFIG}: they cannot be compared")
        for _, run in self.runs:
            run.refuse_other_data(facts)
        for _, run in self.runs:
            run.settle(facts)
        return facts

    def series(self) -> list[Series]:
        """What there is of each label, with its seeds."""
        seeds: dict[str, list[Result]] = {}
        for label, run in self.runs:
            if records := run.records():
                seeds.setdefault(label, []).append(Result(run.path.name, run.experiment, records))
        return [Series(label, results) for label, results in seeds.items()]


def _read_plan(path: Path) -> list[tuple[str, str]]:
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
