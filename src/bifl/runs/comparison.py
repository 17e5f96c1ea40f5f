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
from bifl.files import write_atomic, writing
from bifl.registry import of_file, short
from bifl.runs.folder import Result, RunFolder
from bifl.runs.results import Series, grouped

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
    """The runs of a new comparison, in order: `algorithms` as in biml,up_down+beta=1, `seeds` as in 0,1, all else as in `base`."""
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

    def series(self) -> list[Series]:
        """What there is of each label, with its seeds."""
        known = [(label, Result(run.path.name, run.experiment, records)) for label, run in self.runs if (records := run.records())]
        return [Series(label, [result for _, result in runs]) for label, runs in grouped(known, lambda one: one[0]).items()]


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
