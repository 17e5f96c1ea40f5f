"""The commands that only look: `bifl inspect`, `data`, `summary`, `report`."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from bifl.codec.model_file import MAGIC
from bifl.errors import ConfigError, printable
from bifl.experiment.model import Model
from bifl.experiment.presets import pairs, preset_of
from bifl.experiment.run import make_network
from bifl.experiment.settings import Experiment, of_words, plain_algorithm
from bifl.experiment.setup import load
from bifl.export.c_model import Code
from bifl.export.raw import input_shape
from bifl.files import size
from bifl.report import page
from bifl.report.summary import settings as group
from bifl.runs.results import read
from bifl.show import layers, split_stats
from bifl.show.inspect import contents_tables, read_file
from bifl.show.output import console, say
from bifl.show.plot import title

CLASSES = 10  # of a network whose dataset nobody named


def inspect(options: argparse.Namespace) -> int:
    """What a message or a model file contains."""
    out = console()
    for table in contents_tables(read_file(options.file, options.trust), options.file.name):
        out.print(table)
    if options.file.read_bytes().startswith(MAGIC):
        model = Model.read(options.file, options.trust)
        _show_costs(out, layers.trained(model, options.file))
    return 0


def data(options: argparse.Namespace) -> int:
    """Who holds what: a table, and a picture if it is asked for."""
    experiment = of_words(options.settings)
    split = split_stats.count(experiment, load(experiment))
    out = console()
    say(out, split_stats.facts(split))
    out.print(split_stats.table(split))
    if options.out is None:
        say(out, "for a picture of it: --out FILE.png")
        return 0
    split_stats.draw(split, options.out, title(experiment))
    say(out, f"picture: {options.out}")
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
    code = layers.untrained(network, forward, shape)
    out = console()
    what = "classes" if experiment.task.name == "classification" else "outputs"
    out.print(layers.table(f"{options.model}, {classes} {what}, {forward.name} forward", rows))
    say(out, layers.verdict(rows))
    if price := layers.price_of_reals(network):
        say(out, price)
    _show_costs(out, code)
    return 0


def _show_costs(out: Console, code: Code | str) -> None:
    """What a network costs on a device, or why that is not known."""
    if isinstance(code, str):
        say(out, code)
    else:
        out.print(layers.device_table(code))


def report(options: argparse.Namespace) -> int:
    """Finished runs as one HTML file."""
    runs = read(options.runs)
    for problem in runs.unreadable:
        print(f"bifl: left out: {printable(problem)}", file=sys.stderr)
    page.write(group(runs.results), options.out)
    say(console(), f"report: {options.out} ({size(options.out.stat().st_size)})")
    return 0
