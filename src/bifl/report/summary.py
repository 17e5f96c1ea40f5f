"""What runs amount to: grouped by setting, one row per experiment, means and deviations over its seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any, NamedTuple

from bifl.experiment.declarations import NO_NUMBERS, Choice, Unloaded
from bifl.experiment.settings import REGISTRIES, SETTINGS, Experiment, but_for, identity
from bifl.registry import short, without_folder
from bifl.report import paper_values
from bifl.runs.folder import Result
from bifl.runs.results import Series, Spread, grouped
from bifl.show.output import counted

_HEADING = ("dataset", "partition", "model", "validation")
_UNLABELLED = {*_HEADING, *NO_NUMBERS, "seed", "algorithm"}
_RANKS = list(dict.fromkeys(cell.algorithm for cell in paper_values.CELLS))


class Setting(NamedTuple):
    """The experiments on one split of one dataset with one network."""

    title: str
    about: str
    series: list[Series]


def printed(series: Series) -> Spread | None:
    """The paper's accuracy for an experiment."""
    return paper_values.value(series.experiment)


def megabytes(series: Series) -> tuple[float, float]:
    """What all clients together send and receive in an average round."""
    return series.average("up_bytes") / 1e6, series.average("down_bytes") / 1e6


def idealised(series: Series) -> tuple[float, float] | None:
    """The same by the paper's account."""
    if not series.sends or series.experiment.idle != "train":  # those who sleep receive nothing
        return None
    first = series.runs[0][0]
    if not first.clients or not first.up_bpp:  # in a file that somebody edited
        return None
    parameters = round(8 * first.up_bytes / first.clients / first.up_bpp)
    return paper_values.megabytes(series.experiment.algorithm.name, parameters, first.clients, series.experiment.clients)


def settings(results: Iterable[Result]) -> list[Setting]:
    """Group runs for people: by setting, then by everything but the seed, the paper's rows first."""
    groups = grouped(_repetitions(results), lambda runs: _heading(runs[0].experiment))
    settings = [_setting(group) for group in groups.values()]
    return [one._replace(title=title) for one, title in zip(settings, _distinct_titles(settings), strict=True)]


def _heading(experiment: Experiment) -> str:
    same = identity(experiment)
    return repr([getattr(same, name) for name in _HEADING]) + _own_file(experiment)


def _distinct_titles(settings: list[Setting]) -> list[str]:
    """Titles of which none is there twice: with the network, then with the files of all, where these tell them apart."""
    experiments = [one.series[0].experiment for one in settings]
    titles = [one.title for one in settings]
    titles = _told_apart(titles, [_chosen_of("model", one.model) for one in experiments])
    titles = _told_apart(titles, [_files(one) for one in experiments])
    return _numbered(titles)


def _told_apart(titles: list[str], texts: list[str]) -> list[str]:
    """Titles with their texts, where the same title has several."""
    pairs = list(zip(titles, texts, strict=True))
    counts = Counter(title for title, _ in set(pairs))
    return [f"{title} · {text}" if counts[title] > 1 and text else title for title, text in pairs]


def _numbered(texts: list[str]) -> list[str]:
    """Texts with a number after those that were there before."""
    counts = [texts[: place + 1].count(text) for place, text in enumerate(texts)]
    return [text if count == 1 else f"{text} ({count})" for text, count in zip(texts, counts, strict=True)]


def _files(experiment: Experiment) -> str:
    """The files that an experiment's choices come from, without their folders."""
    named = [without_folder(choice.name) for choice in (experiment.dataset, experiment.partition, experiment.model)]
    return ", ".join(name for name in named if ":" in name)


def described(choice: Choice) -> str:
    """A choice with its parameters; where files lie is nobody's concern."""
    parameters = [f"{key}={without_path(value)}" for key, value in choice.parameters.items() if key != "path"]
    return ", ".join([short(choice.name), *parameters])


def _chosen_of(kind: str, choice: Choice) -> str:
    """A choice with those of its parameters that are not the usual ones."""
    usual = _usual(kind, choice)
    return described(Choice(choice.name, {key: value for key, value in choice.parameters.items() if value != usual.get(key)}))


def _usual(kind: str, choice: Choice) -> dict[str, Any]:
    """The parameters of a choice that nobody changed; of one that was not loaded they are not known."""
    return {} if isinstance(choice, Unloaded) else REGISTRIES[kind].parameters(choice.name)


def _own_file(experiment: Experiment) -> str:
    """The name of a file of a user's own arrays. Other datasets are the same wherever they lie."""
    theirs = experiment.dataset.name == "npz" or ":" in experiment.dataset.name
    return PurePath(str(experiment.dataset.parameters.get("path", ""))).name if theirs else ""


def _repetitions(results: Iterable[Result]) -> list[list[Result]]:
    """Runs that differ in the seed alone, on the same data, together; of two with the same seed the longer."""
    repetitions = []
    for same in grouped(results, lambda run: but_for(run.experiment, "seed") + _own_file(run.experiment)).values():
        for runs in _by_data(same):
            seeds = grouped(sorted(runs, key=lambda run: run.experiment.seed), lambda run: run.experiment.seed)
            repetitions.append([max(some, key=lambda run: len(run.records)) for some in seeds.values()])
    return repetitions


def _by_data(runs: list[Result]) -> Iterable[list[Result]]:
    """Runs on the same data together. Those of earlier versions do not tell theirs: they go with the first that does."""
    first_known = next((run.data for run in runs if run.data), None)
    return grouped(runs, lambda run: run.data or first_known).values()


def _setting(group: list[list[Result]]) -> Setting:
    experiments = [repetitions[0].experiment for repetitions in group]
    first = experiments[0]
    labels = _numbered([_label(runs[0].experiment, experiments) for runs in group])
    series = [Series(label, runs) for label, runs in zip(labels, group, strict=True)]
    title = f"{_own_file(first) or _chosen_of('dataset', first.dataset)} · {described(first.partition)}"
    title += f" · evaluated on validation={first.validation:g}, not on test samples" if first.validation else ""
    return Setting(title, about(experiments), sorted(series, key=_place))


def about(experiments: list[Experiment]) -> str:
    """What experiments have in common, beside dataset and split."""
    first, varying = experiments[0], _varying(experiments)
    clients = [] if "clients" in varying else [counted(first.clients, "client")]
    names = [name for name in SETTINGS if name not in {*_UNLABELLED, *varying, "clients"} and _chosen(first, name)]
    return ", ".join([*clients, short(first.model.name), *(f"{name}={_text(first, name)}" for name in names)])


def _varying(experiments: list[Experiment]) -> list[str]:
    names = [name for name in SETTINGS if name not in _UNLABELLED]
    return [name for name in names if len({getattr(one, name) for one in experiments}) > 1]


def _place(series: Series) -> tuple[Any, ...]:
    """The paper's rows first, numbers by size."""
    experiment = series.experiment
    name = experiment.algorithm.name
    rank = _RANKS.index(name) if name in _RANKS else len(_RANKS)
    parameters = tuple(experiment.algorithm.parameters.values())
    return rank, name, parameters, experiment.clients, experiment.participation, series.label


def _label(experiment: Experiment, others: list[Experiment]) -> str:
    """The algorithm, and what sets this experiment apart from the others and from the defaults."""
    algorithm = experiment.algorithm
    usual = _usual("algorithm", algorithm)
    kin = [one.algorithm.parameters for one in others if one.algorithm.name == algorithm.name]
    parameters = [
        f"{key}={_number(value)}"
        for key, value in algorithm.parameters.items()
        if value != usual.get(key) or any(one.get(key) != value for one in kin)
    ]
    settings = [f"{name}={_text(experiment, name)}" for name in _varying(others) if name == "clients" or _chosen(experiment, name)]
    namesakes = {one.algorithm.name for one in others if short(one.algorithm.name) == short(algorithm.name)}
    name = short(algorithm.name) if len(namesakes) == 1 else without_folder(algorithm.name)
    return " ".join([name, *parameters, *settings])


def _chosen(experiment: Experiment, name: str) -> bool:
    return bool(getattr(experiment, name) != getattr(Experiment(), name))


def _text(experiment: Experiment, name: str) -> str:
    value: Any = getattr(experiment, name)
    if isinstance(value, Choice):
        return _chosen_of(name, value)
    return ",".join(map(_number, value)) if isinstance(value, tuple) else _number(value)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(without_path(value))


def without_path(value: Any) -> Any:
    """A setting's value; of a file, such as the model to start with, the name without the folders of the machine it lies on."""
    return PurePath(value).name if isinstance(value, str) and PurePath(value).is_absolute() else value
