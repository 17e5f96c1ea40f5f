"""The commands that only look: `bifl inspect`, `data`, `summary`, `report`."""

from __future__ import annotations

import argparse
import sys

from rich.console import RenderableType

from bifl.errors import ConfigError, printable
from bifl.experiment.presets import pairs, preset_of
from bifl.experiment.run import make_network
from bifl.experiment.settings import Experiment, of_words, plain_algorithm
from bifl.experiment.setup import load
from bifl.export.raw import input_shape
from bifl.files import size
from bifl.report import page
from bifl.report.summary import settings as group
from bifl.runs.differences import checked_margin, reference
from bifl.runs.results import read
from bifl.show import layers, split_stats
from bifl.show.inspect import file_tables
from bifl.show.output import console, say
from bifl.show.plot import title

CLASSES = 10  # of a network whose dataset nobody named


def inspect(options: argparse.Namespace) -> int:
    """What a message or a model file contains."""
    _show(*file_tables(options.file, options.trust))
    return 0


def _show(*parts: RenderableType) -> None:
    """Print tables, and say sentences."""
    out = console()
    for part in parts:
        if isinstance(part, str):
            say(out, part)
        else:
            out.print(part)


def data(options: argparse.Namespace) -> int:
    """Who holds what: a table, and a picture if it is asked for."""
    experiment = of_words(options.settings)
    split = split_stats.count(experiment, load(experiment))
    _show(split_stats.facts(split), split_stats.table(split))
    if options.out is not None:
        split_stats.draw(split, options.out, title(experiment))
    _show(f"picture: {options.out}" if options.out else "for a picture of it: --out FILE.png")
    return 0


def summary(options: argparse.Namespace) -> int:
    """A network layer by layer, as a run with these settings has it."""
    preset, overrides = preset_of(options.settings)
    settings = pairs(overrides)
    typed, shape = settings.pop("classes", None), None
    if "input" in settings:
        shape = input_shape(settings.pop("input"), "input")
    if typed is not None and not (typed.isdecimal() and int(typed)):
        raise ConfigError(f"classes must be a whole number, 1 or more, not '{typed}'")
    experiment = Experiment.of(preset).changed(settings | {"model": options.model})
    classes = int(typed or CLASSES)
    if (preset or "dataset" in settings) and (typed is None or shape is None):
        dataset = load(experiment)
        classes, shape = classes if typed else dataset.classes, shape or dataset.form.shape
    forward = plain_algorithm(experiment).at(1).forward
    network = make_network(experiment, classes)
    rows = layers.summarise(network, forward)
    what = "classes" if experiment.task.name == "classification" else "outputs"
    table = layers.table(f"{options.model}, {classes} {what}, {forward.name} forward", rows)
    price = layers.price_of_reals(network)
    _show(table, layers.verdict(rows), *([price] if price else []), layers.untrained(network, forward, shape))
    return 0


def report(options: argparse.Namespace) -> int:
    """Finished runs as one HTML file."""
    margin, runs = checked_margin(options.margin), read(options.runs)
    for problem in runs.unreadable:
        print(f"bifl: left out: {printable(problem)}", file=sys.stderr)
    groups = group(runs.results)
    reference([one.label for each in groups for one in each.series], options.against)  # refused now, if at all
    page.write(groups, options.out, options.against, margin)
    _show(f"report: {options.out} ({size(options.out.stat().st_size)})")
    return 0
