"""What runs amount to: grouped by setting, one row per experiment, means and deviations over its seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from statistics import mean, stdev
from typing import Any, NamedTuple

from bifl import paper
from bifl.experiment import Choice, Experiment
from bifl.registry import short
from bifl.report.collect import Result
from bifl.runtime.record import Record

LAST = 10  # rounds that the final accuracy is a mean of: single rounds swing
TARGETS = (90, 95, 97)  # %
_NO_NUMBERS = {"seed": 0, "workers": 0, "device": "auto"}  # runs that differ in these only are repetitions
_HEADING = ("dataset", "partition", "model")
_UNLABELLED = {*_HEADING, *_NO_NUMBERS, "algorithm", "rounds"}
_RANKS = list(dict.fromkeys(cell.row.algorithm for cell in paper.CELLS))


class Spread(NamedTuple):
    """A mean, and the standard deviation where there are several seeds."""

    mean: float
    std: float | None


class Reach(NamedTuple):
    """What all clients together had sent and received when an accuracy was first reached, in MB."""

    up: float
    down: float


class Series(NamedTuple):
    """One experiment, run with one or more seeds."""

    label: str
    results: list[Result]

    @property
    def experiment(self) -> Experiment:
        """Of the first seed."""
        return self.results[0].experiment

    @property
    def runs(self) -> list[list[Record]]:
        """The records of those seeds that got furthest: a run that is still going on would distort every mean."""
        longest = max(len(result.records) for result in self.results)
        return [result.records for result in self.results if len(result.records) == longest]

    @property
    def rounds(self) -> int:
        """How many rounds the numbers are of."""
        return len(self.runs[0])

    @property
    def printed(self) -> paper.Value | None:
        """The paper's accuracy for it."""
        return paper.value(self.experiment)

    def final(self) -> Spread:
        """Accuracy in %, mean of the last rounds."""
        return self._spread(lambda records: mean(r.accuracy for r in records[-LAST:]))

    def best(self) -> Spread:
        """Accuracy in % of the best round, which flatters whatever swings."""
        return self._spread(lambda records: max(r.accuracy for r in records))

    def average(self, field: str) -> float:
        """The mean over rounds and seeds of a number that records hold."""
        return float(mean(mean(getattr(r, field) for r in records) for records in self.runs))

    def up_per_client(self) -> float:
        """Bytes that a client uploads in an average round."""
        return mean(mean(r.up_bytes / r.clients for r in records) for records in self.runs)

    def reach(self, target: float) -> Reach | None:
        """What it took to reach an accuracy in %; None if a seed did not."""
        reached = [_reached(records, target) for records in self.runs]
        known = [reach for reach in reached if reach is not None]
        if len(known) < len(reached):
            return None
        return Reach(mean(reach.up for reach in known), mean(reach.down for reach in known))

    def _spread(self, number: Callable[[list[Record]], float]) -> Spread:
        values = [100 * number(records) for records in self.runs]
        return Spread(mean(values), stdev(values) if len(values) > 1 else None)


class Setting(NamedTuple):
    """The experiments on one split of one dataset with one network."""

    title: str
    about: str
    series: list[Series]


def settings(results: Iterable[Result]) -> list[Setting]:
    """Group runs for people: by setting, then by everything but the seed, the paper's rows first."""
    groups: dict[str, list[list[Result]]] = {}
    for repetitions in _repetitions(results):
        heading = repr([getattr(repetitions[0].experiment, name) for name in _HEADING])
        groups.setdefault(heading, []).append(repetitions)
    return [_setting(group) for group in groups.values()]


def ordering(series: list[Series]) -> str | None:
    """Whether the paper's order of algorithms holds among these, in a sentence; None where there are not two to compare."""
    finals = {one.label: one.final().mean for one in series}
    tiers = [present for tier in paper.ORDER if (present := [name for name in tier if name in finals])]
    if len(tiers) < 2:
        return None
    order = " > ".join(", ".join(tier) for tier in tiers)
    wrong = [
        f"{worse} ({finals[worse]:.2f}) is above {better} ({finals[better]:.2f})"
        for place, tier in enumerate(tiers)
        for better in tier
        for worse in (name for below in tiers[place + 1 :] for name in below)
        if finals[worse] > finals[better]
    ]
    return f"The paper’s order, {order}, " + ("does not hold here: " + "; ".join(wrong) if wrong else "holds here") + "."


def described(choice: Choice) -> str:
    """A choice with its parameters; where files lie is nobody's concern."""
    parameters = [f"{key}={value}" for key, value in choice.parameters.items() if key != "path"]
    return ", ".join([short(choice.name), *parameters])


def _repetitions(results: Iterable[Result]) -> list[list[Result]]:
    """Runs that differ in the seed alone, together; of two with the same seed the longer."""
    seeds: dict[str, dict[int, Result]] = {}
    for result in results:
        same = seeds.setdefault(result.experiment.changed(_NO_NUMBERS).to_toml(), {})
        other = same.get(result.experiment.seed)
        if other is None or len(other.records) < len(result.records):
            same[result.experiment.seed] = result
    return [[group[seed] for seed in sorted(group)] for group in seeds.values()]


def _setting(group: list[list[Result]]) -> Setting:
    experiments = [repetitions[0].experiment for repetitions in group]
    first = experiments[0]
    names = [item.name for item in fields(Experiment) if item.name not in _UNLABELLED]
    varying = [name for name in names if len({getattr(one, name) for one in experiments}) > 1]
    labels = [_label(one, varying) for one in experiments]
    labels = [
        label if labels.count(label) == 1 else f"{label} rounds={one.rounds}"
        for label, one in zip(labels, experiments, strict=True)
    ]
    common = [
        f"{name}={_text(first, name)}" for name in names if name not in varying and name != "clients" and _chosen(first, name)
    ]
    clients = [] if "clients" in varying else [f"{first.clients} clients"]
    about = ", ".join([*clients, short(first.model.name), *common])
    title = f"{described(first.dataset)} · {described(first.partition)}"
    series = [Series(label, runs) for label, runs in zip(labels, group, strict=True)]
    return Setting(title, about, sorted(series, key=lambda one: (_rank(one.experiment), one.label)))


def _rank(experiment: Experiment) -> int:
    name = experiment.algorithm.name
    return _RANKS.index(name) if name in _RANKS else len(_RANKS)


def _label(experiment: Experiment, varying: list[str]) -> str:
    """The algorithm, and what sets this experiment apart from the others and from the defaults."""
    algorithm = experiment.algorithm
    usual = Experiment(algorithm=algorithm.name).algorithm.parameters
    parameters = [f"{key}={_number(value)}" for key, value in algorithm.parameters.items() if value != usual[key]]
    others = [f"{name}={_text(experiment, name)}" for name in varying if name == "clients" or _chosen(experiment, name)]
    return " ".join([short(algorithm.name), *parameters, *others])


def _chosen(experiment: Experiment, name: str) -> bool:
    return bool(getattr(experiment, name) != getattr(Experiment(), name))


def _text(experiment: Experiment, name: str) -> str:
    value: Any = getattr(experiment, name)
    return ",".join(map(_number, value)) if isinstance(value, tuple) else _number(value)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _reached(records: list[Record], target: float) -> Reach | None:
    up = down = 0
    for record in records:
        up, down = up + record.up_bytes, down + record.down_bytes
        if record.accuracy >= target / 100:
            return Reach(up / 1e6, down / 1e6)
    return None
