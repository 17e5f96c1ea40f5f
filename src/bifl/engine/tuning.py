"""Settings chosen on a grid, by what runs with them reach on validation samples: `bifl tune`, `bifl.tune`.

Every run has a folder that is called by its settings: the same call goes on where it stopped, that of a larger grid runs what is
new. The best point is an optimum only inside the grid: at an edge the next value may be better, and nobody knows.

>>> extension(Experiment(), {"lr": ["0.01", "0.03", "0.1"]}, {"lr": "0.1"})
{'lr': '0.33'}
>>> extension(Experiment(), {"local_epochs": ["1", "2", "4"]}, {"local_epochs": "1"})  # fewer there are not
{}
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from bifl import __version__
from bifl.engine.round import run_folder
from bifl.engine.simulator import simulated_clients
from bifl.errors import BiflError, ConfigError, Diverged, RunError
from bifl.experiment import config_file
from bifl.experiment.declarations import MAY_CHANGE, text_of
from bifl.experiment.settings import Experiment, checksum, pairs
from bifl.experiment.setup import LastDataset, build
from bifl.files import parse_json, write_atomic, writing
from bifl.runs.differences import score
from bifl.runs.folder import CONFIG, Result, RunFolder, folder_name, read_records
from bifl.runs.record import Record

VALIDATION = 0.1  # of the training samples, where nobody says another share
TRIED = "tried.json"
_KINDS = ("runs", "failed")  # of what it lists
NOT_TUNED = ("dataset", "partition", "validation", "seed", "rounds", "evaluate_every", "lr_steps", "device", "workers")
"""Settings of which a grid makes no sense: others than the data would be compared, or nothing at all."""
_SHORTER = range(5)  # how often a step beyond an edge is made shorter until it is allowed

Point = Mapping[str, str]  # settings by key
Watch = Callable[[RunFolder, Record], None]


class Trial(NamedTuple):
    """A point of the grid, with a run for every seed."""

    point: Point
    results: list[Result]
    why_not: str = ""  # a run has no end: its training diverged
    diverged: Experiment | None = None  # that run

    @property
    def scores(self) -> list[float]:
        """What the runs end with, seed by seed: see `bifl.runs.differences.score`."""
        return [score(result) for result in self.results]

    @property
    def mean(self) -> float:
        """Over seeds; NaN where a training diverged."""
        return math.nan if self.why_not else fmean(self.scores)


class Edge(NamedTuple):
    """A best value with nothing tried beyond it.

    Attributes:
        at: the words whose own best point it is of, such as optimizer=sgd; none of the best of all.
        key: whose value it is.
        value: the largest or the smallest that was tried.
        beyond: a value to try next.
    """

    at: Point
    key: str
    value: str
    beyond: str


class Tuning(NamedTuple):
    """What was tried.

    Attributes:
        experiment: what all runs have in common.
        grid: values by key.
        trials: in the order of the grid.
    """

    experiment: Experiment
    grid: Mapping[str, Sequence[str]]
    trials: list[Trial]

    @property
    def best(self) -> Trial:
        """The point with the best mean score over seeds.

        Raises:
            RunError: nothing is known of any.
        """
        found = self.best_with({})
        if found is None:
            raise RunError(f"no point of the grid can be scored: {self.trials[0].why_not or 'no round was evaluated'}")
        return found

    def best_with(self, words: Point) -> Trial | None:
        """The best of those points that have these values; None where nothing is known of any."""
        known = [trial for trial in self.trials if math.isfinite(trial.mean) and words.items() <= trial.point.items()]
        return max(known, key=lambda trial: trial.mean, default=None)

    @property
    def beyond(self) -> dict[str, str]:
        """By key: a value to try next, where the best point lies at an edge. Empty where it is an optimum of what was tried."""
        return extension(self.experiment, self.grid, self.best.point)

    @property
    def edges(self) -> list[Edge]:
        """Those of the best point, and those of the best point of every word: it may have lost for want of another value."""
        words = [{key: value} for key, values in self.grid.items() if not _numeric(values) for value in values]
        found: dict[tuple[str, ...], Edge] = {}
        for at in [{}, *words]:
            if best := self.best_with(at):
                for key, value in extension(self.experiment, self.grid, best.point).items():
                    found.setdefault((key, *best.point.values()), Edge(at, key, best.point[key], value))
        return list(found.values())

    @property
    def optimum(self) -> Experiment | None:
        """What all runs have in common, with the best point's settings, to be tested (`validation=0`); None at an edge."""
        return None if self.edges else self.experiment.changed({**self.best.point, "validation": 0.0})

    def facts(self) -> dict[str, Any]:
        """What was tried, for a file: every run by its folder's name, with all of its settings."""
        runs = [
            {
                "run": Path(result.name).name, "point": dict(trial.point), "seed": result.experiment.seed,
                "validation_score": score(result), "measure": result.records[-1].measure, "rounds": len(result.records),
                "version": result.version, "settings": result.experiment.flat(),
            }
            for trial in self.trials for result in trial.results
        ]  # fmt: skip
        failed = [
            {
                "run": _name(one), "point": dict(trial.point), "seed": one.seed, "why_not": trial.why_not,
                "version": __version__, "settings": one.flat(),
            }
            for trial in self.trials if (one := trial.diverged)
        ]  # fmt: skip
        return {"version": __version__, "grid": self.grid, "runs": runs, "failed": failed}


def tune(
    experiment: Experiment, grid: Mapping[str, Iterable[Any]], seeds: Iterable[int] = (0,), folder: str | Path = "runs/tune",
    watch: Watch = lambda run, record: None,
) -> Tuning:  # fmt: skip
    """Run every point of a grid with every seed, and compare them on validation samples.

    Args:
        experiment: what all runs have in common. Without `validation` a tenth of the training samples is held back: never is
            anything chosen by test samples.
        grid: the values to try, by key: `{"lr": [0.01, 0.03, 0.1], "algorithm.group": [32, 64, 128]}`.
        seeds: the runs of a point, whose mean counts.
        folder: where runs are kept, and `tried.json`, which tells what was tried.
        watch: is told of every round.

    Raises:
        ConfigError: the grid, or a point of it, cannot be run.
    """
    base, path, data = validating(experiment), Path(folder), LastDataset()
    points, numbers = points_of(grid), list(seeds)
    if not numbers or len(set(numbers)) < len(numbers):
        raise ConfigError(f"seeds must be one or more that differ, not '{','.join(map(str, numbers))}'")
    rows = [[base.changed({**point, "seed": seed}) for seed in numbers] for point in points]
    _refuse_alike(points, [first for first, *_ in rows])
    _refuse_folder(path)
    for first, *_ in rows:
        if first.exchange.name != "ballot":
            raise ConfigError(
                f"exchange must be ballot where settings are chosen, not '{first.exchange.name}', in which nobody trains"
            )
        build(first, data=data.of(first))  # what cannot be run is refused before anything is written
    values = {key: list(dict.fromkeys(point[key] for point in points)) for key in grid}
    trials: list[Trial] = []
    for point, row in zip(points, rows, strict=True):
        trials.append(_tried(point, row, path, data, watch))
        _note(path, Tuning(base, values, trials).facts())
    return Tuning(base, values, trials)


def _tried(point: Point, row: Sequence[Experiment], path: Path, data: LastDataset, watch: Watch) -> Trial:
    """A point with its runs, as far as none of them diverged."""
    results = list[Result]()
    for one in row:
        try:
            results.append(_run(path / _name(one), one, data, watch))
        except Diverged as error:
            return Trial(point, results, str(error), one)
    return Trial(point, results)


def _refuse_alike(points: Sequence[Point], firsts: Sequence[Experiment]) -> None:
    """Refuse a grid with two points that are the same run."""
    before: dict[str, Point] = {}
    for point, first in zip(points, firsts, strict=True):
        same = before.setdefault(_name(first), point)
        if differ := [key for key in point if point[key] != same[key]]:
            one, other = (" ".join(f"{key}={each[key]}" for key in differ) for each in (same, point))
            raise ConfigError(f"{' and '.join(differ)} must have values that differ: {one} and {other} are the same run")


# ---- what is remembered -------------------------------------------------------------------------------------------------


def _refuse_folder(path: Path) -> None:
    """Refuse a folder that is a run's own, or whose list of what was tried cannot be read."""
    if (path / CONFIG).is_file():
        raise RunError(f"'{path}' is the folder of a single run: choose another, in which every run of the grid has one of its own")
    _remembered(path)


def _remembered(path: Path) -> dict[str, list[dict[str, Any]]]:
    """What a folder's list holds of earlier calls: runs, and those that failed."""
    try:
        facts = parse_json((path / TRIED).read_text())
        kept = {kind: [dict(one) for one in facts[kind]] for kind in _KINDS}
        if all(isinstance(one["run"], str) for several in kept.values() for one in several):
            return kept
    except (FileNotFoundError, NotADirectoryError):
        return {kind: [] for kind in _KINDS}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass
    raise RunError(f"'{path / TRIED}' is no list of what was tried: move it elsewhere, and it is written anew")


def _note(path: Path, facts: Mapping[str, Any]) -> None:
    """Write down what was tried, with what earlier calls tried; of the same run what is known now."""
    before, now = _remembered(path), {one["run"] for kind in _KINDS for one in facts[kind]}
    kept = {kind: [one for one in before[kind] if one["run"] not in now] for kind in _KINDS}
    text = json.dumps({**facts, **{kind: kept[kind] + facts[kind] for kind in _KINDS}}, ensure_ascii=False, indent=1)
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        write_atomic(path / TRIED, text + "\n")


# ---- grids and runs -----------------------------------------------------------------------------------------------------


def validating(experiment: Experiment) -> Experiment:
    """The experiment with validation samples."""
    return experiment if experiment.validation else experiment.changed({"validation": VALIDATION})


def points_of(grid: Mapping[str, Iterable[Any]]) -> list[dict[str, str]]:
    """All points, the last key's values changing fastest."""
    values = {key: _texts(key, several) for key, several in grid.items()}
    for key, several in values.items():
        if key.partition(".")[0] in NOT_TUNED:
            raise ConfigError(f"'{key}' cannot be tuned: give it one value")
        if not several or len(set(several)) < len(several):
            raise ConfigError(f"{key} must have values that differ, separated by commas, not '{','.join(several)}'")
    if all(len(several) < 2 for several in values.values()):
        raise ConfigError("a grid needs a key with several values, such as lr=0.01,0.03,0.1")
    return [dict(zip(values, point, strict=True)) for point in product(*values.values())]


def _texts(key: str, several: Any) -> list[str]:
    """A key's values as the command line has them; the letters of a text are none, nor is a mapping."""
    if isinstance(several, str | Mapping) or not isinstance(several, Iterable):
        raise ConfigError(f"{key} must have a list of values, such as [1, 2, 4], not {several!r:.40}")
    values = list(several)
    for value in values:
        if isinstance(value, Mapping):
            raise ConfigError(
                f"{key} must have words or numbers as values, and its parameters are keys of the grid, not {value!r:.40}"
            )
    return [text_of(value) if isinstance(value, tuple) else str(value) for value in values]


def _name(experiment: Experiment) -> str:
    """Of a run's folder: the same for the same settings, but for the number of rounds."""
    return f"{folder_name(experiment)}-{checksum(experiment)}"


def _run(path: Path, experiment: Experiment, data: LastDataset, watch: Watch) -> Result:
    """The rounds of a run that are wanted; those that its folder lacks are run."""
    run, loaded = _opened(path, experiment), data.loaded(experiment)
    run.settle(loaded)
    if run.ending() is None or not run.model.is_file():
        for record in run_folder(run, build(run.experiment, data=data.of(experiment)), simulated_clients):
            watch(run, record)
    return Result(str(path), experiment, run.records()[: experiment.rounds], data=loaded)


def _opened(path: Path, experiment: Experiment) -> RunFolder:
    """A run's folder: a new one, or that of before, if it is of this run."""
    if not (path / CONFIG).is_file():
        return RunFolder.start(path, experiment)
    before = config_file.read_to_show(path / CONFIG)
    one, other = ({k: v for k, v in pairs(each.words()).items() if k not in MAY_CHANGE} for each in (before, experiment))
    if one != other:
        raise RunError(f"'{path}' is a run with other settings, or with its data elsewhere: delete it, or choose another folder")
    rounds = max(experiment.rounds, len(read_records(path)))
    changes = {} if before.rounds == rounds else {"rounds": str(rounds)}
    return RunFolder.resume(path, changes, trust=True)  # it names the files that this call names


# ---- edges --------------------------------------------------------------------------------------------------------------


def extension(experiment: Experiment, grid: Mapping[str, Sequence[str]], best: Point) -> dict[str, str]:
    """By key: the value to try next, where the best one of several numbers is the largest or the smallest; words have no edge.

    A value beyond which the key allows none is no edge.
    """
    found: dict[str, str] = {}
    for key, texts in grid.items():
        if not _numeric(texts):
            continue
        ordered = sorted(texts, key=float)
        if len(ordered) > 1 and best[key] in (ordered[0], ordered[-1]):
            end = ordered[-2:] if best[key] == ordered[-1] else ordered[1::-1]
            beyond = _next(experiment.changed(best), key, *end)
            found |= {key: beyond} if beyond else {}
    return found


def _numeric(texts: Iterable[str]) -> bool:
    """Whether these are numbers, which have an order."""
    try:
        return all(math.isfinite(float(text)) for text in texts)
    except ValueError:
        return False


def _next(experiment: Experiment, key: str, inner: str, last: str) -> str | None:
    """A value as far beyond the last as that is from the one before it, by their ratio if both are positive, if it is allowed."""
    near, far, whole = float(inner), float(last), type(experiment.flat().get(key)) is int
    for shorter in _SHORTER:
        part = 1 / 2**shorter
        value = far * (far / near) ** part if min(near, far) > 0 else far + (far - near) * part
        for text in [str(round(value))] if whole else [f"{value:.2g}", f"{value:.6g}"]:  # short, if that is beyond
            if (float(text) - far) * (far - near) > 0 and _takes(experiment, key, text):
                return text
    return None


def _takes(experiment: Experiment, key: str, text: str) -> bool:
    """Whether a value is allowed."""
    try:
        experiment.changed({key: text})
    except BiflError:
        return False
    return True
