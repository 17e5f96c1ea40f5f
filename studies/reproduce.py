"""`bifl reproduce`: says what will be run and how long it will take, runs it, and shows the tables beside the paper's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from bifl.core import Client
from bifl.errors import BiflError, ConfigError, RunError
from bifl.experiment.settings import REGISTRIES, Experiment
from bifl.experiment.setup import LastDataset, build
from bifl.nn.batch import Samples
from bifl.registry import nearest
from bifl.report import page
from bifl.runs.record import tested
from bifl.runs.results import KEPT
from bifl.show import terminal
from bifl.show.output import counted, say
from bifl.training.local import train
from studies import keeping, runner, theory
from studies.cells import QUICK, STUDIES, Cell
from studies.cells import cells as cells_of
from studies.runner import Running, Store, busy
from studies.study_tables import Shown

THEORY, ALL = "theory", "all"
OTHERS = {"femnist", "celeba"}  # what the paper ran on beside MNIST
_CASES, _QUICK_CASES = 3000, 300  # random quadratics
_TIMED = 256  # images to time the training with


class Request(NamedTuple):
    """What was asked for."""

    studies: list[str]
    datasets: list[str]
    places: list[tuple[str, str]]  # each study and what it is to run on: its own dataset where none was named
    path: str  # of the dataset's file or folder; "" where it is usually
    seeds: list[int]
    rounds: int | None
    store: Store
    out: Path
    quick: bool
    kept: bool


def request(names: list[str], settings: dict[str, str], folders: tuple[Path | None, Path], quick: bool, kept: bool) -> Request:
    """Check it. `folders` are for kept runs and results, and for work; --quick keeps its results within the second."""
    known = [*STUDIES, THEORY]
    for name in names:
        if name not in (*known, ALL):
            raise ConfigError(f"unknown study '{name}'{nearest(name, [*known, ALL])}")
    for key in settings:
        if key not in ("dataset", "dataset.path", "seeds", "rounds"):
            raise ConfigError(f"reproduce takes dataset=, dataset.path=, seeds= and rounds=, not '{key}'")
    if quick and "dataset" in settings:
        raise ConfigError(f"--quick means dataset={QUICK}: give one of the two")
    usual = Experiment()
    seeds = list(dict.fromkeys(usual.changed({"seed": seed}).seed for seed in settings.get("seeds", "0").split(",")))
    rounds = usual.changed({"rounds": settings["rounds"]}).rounds if "rounds" in settings else None
    results, work = folders
    out = results or (work / "quick" if quick else Path("results"))
    paper = [*(name for name, study in STUDIES.items() if study.of_paper), THEORY]
    studies = list(dict.fromkeys([*(paper if ALL in names else []), *(name for name in names if name != ALL)]))
    on_data = [name for name in studies if name != THEORY]
    named = [QUICK] if quick else settings["dataset"].split(",") if "dataset" in settings else []
    chosen = list(dict.fromkeys(map(REGISTRIES["dataset"].spelled, named)))
    places = [(study, dataset) for dataset in chosen for study in on_data] or [(name, STUDIES[name].dataset) for name in on_data]
    datasets = chosen or list(dict.fromkeys(dataset for _, dataset in places))
    path = settings.get("dataset.path", "")
    if path and len(datasets) > 1:
        raise ConfigError(f"dataset.path= is for one dataset, not for {', '.join(datasets)}")
    store = Store(out / "cells", work / ("quick" if quick else "") / "work")
    return Request(studies, datasets, places, path, seeds, rounds, store, out, quick, kept)


def reproduce(asked: Request, out: Console) -> None:
    """Do it; where some runs fail, what the others say is shown and written before that is told."""
    images = LastDataset()
    parts = _parts(asked, out, images)
    experiments = wanted(asked, parts)
    damaged = _damaged(asked.store, experiments)
    failures = damaged + (_run(asked, experiments, out, images) if experiments and not asked.kept else [])
    if experiments and asked.kept:
        _refuse_nothing_kept(asked.store.kept, damaged or _known(experiments, asked.store))
        say(out, _counted(experiments, asked.store))
    looked = [Shown.of(asked.store, part.study, part.dataset, asked.rounds, asked.seeds) for part in parts]
    found = [shown for shown in looked if shown.lines]
    for shown in found:
        out.print(shown.table())
        for remark in shown.remarks():
            say(out, remark)
        for path in shown.write(asked.out) if not damaged else []:  # rows would be missing from what may be better
            say(out, f"written: {path}")
    if found and not damaged:
        path = asked.out / "report.html"
        page.write([setting for shown in found for setting in shown.settings()], path)
        say(out, f"report: {path}")
    if experiments and not asked.quick and not OTHERS & {*asked.datasets}:
        say(out, "The paper's other datasets: dataset=femnist,celeba; where to get them: docs/data.md")
    if THEORY in asked.studies:
        _theory(asked, out)
    if failures:
        raise RunError("; ".join(failures))


def wanted(asked: Request, parts: list[Part]) -> list[Experiment]:
    """What to run, in this order: everything with the first seed before the second."""
    return [cell.experiment.changed({"seed": seed}) for seed in asked.seeds for part in parts for cell in part.cells]


def _run(asked: Request, experiments: list[Experiment], out: Console, images: LastDataset) -> list[str]:
    """Run what is not known yet; why some of it failed."""
    missing = asked.store.missing(experiments)
    jobs = runner.at_once(missing, images) if missing else 0
    say(out, _announced(asked.store, experiments, missing, jobs, images))
    if not missing:
        return []
    with _meter(out, asked.store, missing) as show:
        return runner.run(asked.store, missing, jobs, show)


class Part(NamedTuple):
    """A study on a dataset."""

    study: str
    dataset: str
    cells: list[Cell]


def _parts(asked: Request, out: Console, images: LastDataset) -> list[Part]:
    """The studies to run; datasets that are not here are named and passed over, unless there is no other."""
    parts = [Part(study, dataset, _cells(asked, study, dataset)) for study, dataset in asked.places]
    absent = list[str]()
    for dataset in asked.datasets if parts and not asked.kept else []:
        try:
            first = next(part for part in parts if part.dataset == dataset).cells[0].experiment
            build(first, data=images.of(first))
        except BiflError as error:
            absent.append(dataset)
            if len(absent) == len(asked.datasets) and THEORY not in asked.studies:
                raise
            say(out, f"{dataset} is left out: {error}")
    return [part for part in parts if part.dataset not in absent]


def _refuse_nothing_kept(folder: Path, known: Sequence[object]) -> None:
    """Say where kept runs were looked for, if there are none of those that were asked for."""
    if known:
        return
    found = sum(1 for _ in folder.glob(f"*{KEPT}"))
    there = f"{counted(found, 'kept run')}, none of these studies" if found else "no kept runs"
    raise RunError(
        f"'{folder.resolve()}' has {there}: those of the paper's studies are in results/cells of a clone of bifl; "
        "call it there, or say --out CLONE/results"
    )


def _cells(asked: Request, study: str, dataset: str) -> list[Cell]:
    """A study's cells, with the data where they were said to be."""
    found = cells_of(study, dataset, asked.rounds)
    changes = {"dataset.path": os.path.abspath(asked.path)} if asked.path else {}
    return [cell._replace(experiment=cell.experiment.changed(changes)) for cell in found]


def _counted(experiments: list[Experiment], store: Store) -> str:
    wanted = _with_kept_seeds(experiments, store)
    known = len(_known(experiments, store))
    return f"{counted(len(wanted), 'run')}, {known} of them kept in '{store.kept}'; nothing is run"


def _known(experiments: list[Experiment], store: Store) -> list[Experiment]:
    return [one for one in _with_kept_seeds(experiments, store) if store.known(one)]


def _damaged(store: Store, experiments: list[Experiment]) -> list[str]:
    return [damage for one in _with_kept_seeds(experiments, store) if (damage := store.damage(one))]


def _with_kept_seeds(experiments: list[Experiment], store: Store) -> list[Experiment]:
    """Everything that the tables show, each once."""
    every = [one.changed({"seed": seed}) for one in experiments for seed in (one.seed, *store.seeds(one))]
    return list({keeping.name(one): one for one in every}.values())


def _announced(store: Store, experiments: list[Experiment], missing: list[Experiment], jobs: int, images: LastDataset) -> str:
    wanted = len({keeping.name(one) for one in experiments})
    if not missing:
        return f"{counted(wanted, 'run')}, all known already"
    left = {keeping.name(one): max(0, one.rounds - len(store.done(one))) for one in missing}
    examples = {one.dataset.name: one for one in missing}
    cost = {name: _seconds_per_image(one, images) * len(images.of(one).labels) for name, one in examples.items()}
    seconds = sum(cost[one.dataset.name] * left[keeping.name(one)] for one in missing) / jobs
    anew = sum(bool(store.known(one)) and not store.done(one) for one in missing)
    return (
        f"{counted(wanted, 'run')}, {wanted - len(missing)} known already; {len(missing)} to run, "
        f"{counted(sum(left.values()), 'round')}: "
        f"about {duration(seconds)} with {jobs} at a time"
        + (f". {anew} of them, kept with fewer rounds and without a checkpoint here, will start anew" if anew else "")
    )


def duration(seconds: float) -> str:
    """For people.

    >>> duration(40), duration(500), duration(9000)
    ('1 min', '9 min', '2 h 30 min')
    """
    minutes = -(-int(seconds) // 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _seconds_per_image(experiment: Experiment, images: LastDataset) -> float:
    """Of a round, measured on this machine: training, and a quarter more for everything else."""
    setup = build(experiment, data=images.of(experiment))
    samples = Samples.training(setup.data)
    client = Client(setup.public.weights, setup.public.weights, setup.public.real, _TIMED)
    index = torch.arange(min(_TIMED, len(setup.data.labels)))
    for _ in range(2):  # the first time compiles
        began = time.perf_counter()
        train(client, setup.run.network, setup.run.algorithm.at(1).forward, samples, index, setup.run.plan(1))
    return 1.25 * (time.perf_counter() - began) / len(index)


@contextmanager
def _meter(out: Console, store: Store, missing: list[Experiment]) -> Iterator[Callable[[list[Running]], None]]:
    """Progress over all runs; without a terminal a line per run."""
    counts = {keeping.name(one): len(store.done(one)) for one in missing}
    bar = terminal.bar(out)
    task = bar.add_task("starting", total=sum(one.rounds for one in missing), completed=sum(counts.values()))
    before: dict[str, Experiment] = {}

    def show(running: list[Running]) -> None:
        now = {keeping.name(one.experiment): one.experiment for one in running}
        for name, experiment in (before | now).items():
            counts[name] = len(store.done(experiment))
        for name in before.keys() - now.keys():
            records = store.known(before[name])
            if len(records) >= before[name].rounds:
                last = tested(records)[-1]
                say(out, f"{name}: {last.score:.2%} after round {last.round}")
            elif counts[name] < before[name].rounds and not busy(store.folder(before[name])):  # otherwise another command runs it
                say(out, f"{name}: failed")
        before.clear()
        before.update(now)
        description = f"{len(now)} of {len(missing)} runs under way" if now else "waiting for another command"
        bar.update(task, completed=sum(counts.values()), description=description)

    with bar:
        yield show


def theory_seed(asked: Request) -> int:
    """Of the random quadratics: other seeds of the other studies leave their page alone."""
    return asked.seeds[0] if asked.studies == [THEORY] else 0


def _theory(asked: Request, out: Console) -> None:
    if asked.kept:
        say(out, "theory is not kept but computed, in less than a minute: bifl reproduce theory")
        return
    cases = _QUICK_CASES if asked.quick else _CASES
    seed = theory_seed(asked)
    about = f"{cases:,} random quadratics × {theory.STARTS} starting points, seed {seed}"
    say(out, f"theory: {about}, and three pictures: less than a minute")
    asked.out.mkdir(parents=True, exist_ok=True)
    findings = theory.check(cases, seed)
    out.print(theory.table(findings))
    out.print(theory.statement_table(findings))
    out.print(theory.misprint_table())
    pictures = theory.draw(asked.out, seed=seed)
    command = " ".join(["bifl reproduce theory", *(["--quick"] if asked.quick else []), *([f"seeds={seed}"] if seed else [])])
    for path in [*pictures, theory.write(findings, f"`{command}`: {about}.", pictures, asked.out)]:
        say(out, f"written: {path}")
