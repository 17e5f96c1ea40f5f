"""What the commands of `bifl.cli` do. Heavy imports stand in the functions: --help must not wait for torch."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bifl.errors import ConfigError, printable

if TYPE_CHECKING:
    from bifl.experiment import Experiment
    from bifl.runtime.folder import RunFolder
    from bifl.screen import Meter


def run(options: argparse.Namespace) -> int:
    """Train one model, or continue."""
    from bifl.experiment import Experiment, pairs, preset_of
    from bifl.registry import short
    from bifl.runtime.folder import RunFolder, claim
    from bifl.runtime.world import build
    from bifl.screen import Meter, console, run_table

    track = _track(options)
    if options.resume:
        run = RunFolder.resume(options.resume, pairs(options.settings), options.trust)
    else:
        preset, overrides = preset_of(options.settings)
        experiment = Experiment.of(preset, overrides)
        build(experiment)  # refuses what cannot be run, before anything is written
        setting = preset or _setting(experiment)
        name = f"{setting}-{short(experiment.algorithm.name)}-s{experiment.seed}"
        run = RunFolder.start(options.out or claim(Path("runs"), name), experiment)
    run.keep_messages = options.keep_messages
    out = console()
    with Meter(out, run.experiment.rounds).running() as meter:
        try:
            _go(run, meter, short(run.experiment.algorithm.name), track)
        except KeyboardInterrupt:
            return _stopped(run, f"bifl run --resume {shlex.quote(str(run.path))}", track)
    out.print(run_table(run.records(), run.path / "model"))
    return 0


def compare(options: argparse.Namespace) -> int:
    """Train with several algorithms on the same split: table and picture."""
    from bifl.compare import ALGORITHMS, Comparison, summarise
    from bifl.experiment import Experiment, pairs, preset_of
    from bifl.plot import draw
    from bifl.runtime.folder import claim
    from bifl.runtime.world import build
    from bifl.screen import Meter, comparison_table, console

    track = _track(options)
    if options.resume:
        comparison = Comparison.resume(options.resume, pairs(options.settings), options.trust)
    else:
        preset, overrides = preset_of(options.settings)
        settings = pairs(overrides)
        for single, several in (("algorithm", "algorithms"), ("seed", "seeds")):
            if single in settings:
                raise ConfigError(f"a comparison takes {several}=…, separated by commas, instead of {single}=")
        algorithms, seeds = settings.pop("algorithms", ALGORITHMS), settings.pop("seeds", "0")
        base = Experiment.of(preset).changed(settings)
        build(base)
        path = options.out or claim(Path("runs"), f"compare-{preset or base.dataset.name}")
        comparison = Comparison.start(path, base, algorithms, seeds)
    out = console()
    with Meter(out, sum(cell.run.experiment.rounds for cell in comparison.cells)).running() as meter:
        for cell in comparison.cells:
            try:
                _go(cell.run, meter, cell.run.path.name, track)
            except KeyboardInterrupt:
                return _stopped(cell.run, f"bifl compare --resume {shlex.quote(str(comparison.path))}", track)
    results = comparison.results()
    rounds = max(len(records) for seeds in results.values() for records in seeds)
    out.print(comparison_table([summarise(*item) for item in results.items()], rounds, max(map(len, results.values()))))
    draw({"": results}, comparison.path / "compare.png", _title(comparison.cells[0].run.experiment))
    out.print(f"picture: {comparison.path / 'compare.png'}", soft_wrap=True)
    return 0


def _go(run: RunFolder, meter: Meter, label: str, track: str | None) -> None:
    from bifl.track import followed

    meter.begin(label, run.records())
    for record in followed(run, track):
        meter.show(record, run.experiment.rounds)


def _track(options: argparse.Namespace) -> str | None:
    """Take track= out of the settings: it decides no numbers, so it is none of the experiment's."""
    from bifl.track import checked

    kinds = [word.removeprefix("track=") for word in options.settings if word.startswith("track=")]
    options.settings = [word for word in options.settings if not word.startswith("track=")]
    if len(kinds) > 1:
        raise ConfigError("key 'track' is given twice")
    return checked(kinds[0]) if kinds else None


def _stopped(run: RunFolder, command: str, track: str | None) -> int:
    command += " --trust" if run.experiment.python_files() else ""
    command += f" track={track}" if track else ""
    print(f"bifl: stopped after round {len(run.records())} of {run.experiment.rounds}; continue with: {command}", file=sys.stderr)
    return 130


def _setting(experiment: Experiment) -> str:
    from bifl.registry import short

    return f"{short(experiment.dataset.name)}-{short(experiment.partition.name)}"


def _title(experiment: Experiment) -> str:
    parameters = "".join(f", {key}={value}" for key, value in experiment.partition.parameters.items())
    return f"{experiment.dataset.name}, {experiment.partition.name}{parameters}, {experiment.clients} clients"


def evaluate(options: argparse.Namespace) -> int:
    """Accuracy and size of a trained model."""
    from bifl.data.datasets import dataset
    from bifl.experiment import Experiment, pairs
    from bifl.model import Model
    from bifl.registry import without_folder
    from bifl.screen import console, size

    model = Model.read(options.model, options.trust)
    choice = Experiment(dataset={"name": options.data, **pairs(options.settings)}).dataset
    accuracy, loss = model.score(dataset.make(choice.name, choice.parameters))
    weights, reals = len(model.message.symbols), len(model.message.real)
    out = console()
    out.print(
        f"{options.model}: {without_folder(model.network.name)}, {model.forward.name} weights, "
        f"trained for {model.message.round} rounds",
        soft_wrap=True,
    )
    out.print(f"accuracy {accuracy:.2%}, loss {loss:.4f} on {options.data}'s test images")
    out.print(
        f"size {size(options.model.stat().st_size)}: {weights:,} {model.message.alphabet.name} weights and {reals:,} real numbers"
    )
    return 0


def inspect(options: argparse.Namespace) -> int:
    """Explain a message or a model file."""
    from bifl.explain import explain
    from bifl.screen import console, explanation_tables

    out = console()
    for table in explanation_tables(explain(options.file, options.trust), options.file.name):
        out.print(table)
    return 0


def data(options: argparse.Namespace) -> int:
    """Who holds what: table and picture."""
    from bifl.census import count, draw, facts, table
    from bifl.experiment import Experiment, preset_of
    from bifl.screen import console

    preset, overrides = preset_of(options.settings)
    experiment = Experiment.of(preset, overrides)
    census = count(experiment)
    out = console()
    out.print(facts(census), soft_wrap=True)
    out.print(table(census))
    path = options.out or Path(f"data-{preset or _setting(experiment)}.png")
    draw(census, path, _title(experiment))
    out.print(f"picture: {path}", soft_wrap=True)
    return 0


def summary(options: argparse.Namespace) -> int:
    """A network layer by layer."""
    from bifl.experiment import Experiment, pairs
    from bifl.runtime.world import make_network
    from bifl.screen import console
    from bifl.summary import summarise, table, verdict

    settings = pairs(options.settings)
    classes = settings.pop("classes", "10")
    if not classes.isdecimal() or not int(classes):
        raise ConfigError(f"classes must be a whole number, 1 or more, not '{classes}'")
    experiment = Experiment().changed(settings | {"model": options.model})
    forward = experiment.build().at(1).forward
    layers = summarise(make_network(experiment, int(classes)), forward)
    out = console()
    out.print(table(f"{options.model}, {classes} classes, {forward.name} forward", layers))
    out.print(verdict(layers), soft_wrap=True)
    return 0


def report(options: argparse.Namespace) -> int:
    """Finished runs as one HTML file."""
    from bifl.report.collect import read
    from bifl.report.page import write
    from bifl.report.summary import settings
    from bifl.screen import console, size

    found = read(options.runs)
    for problem in found.unreadable:
        print(f"bifl: left out: {printable(problem)}", file=sys.stderr)
    write(settings(found.results), options.out)
    console().print(f"report: {options.out} ({size(options.out.stat().st_size)})", soft_wrap=True)
    return 0


def reproduce(options: argparse.Namespace) -> int:
    """The paper's tables and figures."""
    from bifl.experiment import pairs
    from bifl.reproduce import command
    from bifl.screen import console

    names = [word for word in options.settings if "=" not in word]
    if not names:
        raise ConfigError("say which study to reproduce, such as table1, or all")
    settings = pairs(word for word in options.settings if "=" in word)
    try:
        command.reproduce(command.request(names, settings, (options.out, options.work), options.quick, options.kept), console())
    except KeyboardInterrupt:
        print("bifl: stopped; the same command goes on where it was", file=sys.stderr)
        return 130
    return 0


def show_choices(options: argparse.Namespace) -> int:
    """Everything a key can be set to."""
    from bifl.experiment import REGISTRIES
    from bifl.presets import PRESETS
    from bifl.screen import choices_table, console

    out = console()
    for key, registry in REGISTRIES.items():
        rows = {name: (registry.parameters(name), registry.summary(name)) for name in registry.names()}
        out.print(choices_table(f"{key}=", rows))
    out.print(choices_table("presets", {name: ({}, preset.about) for name, preset in PRESETS.items()}))
    return 0
