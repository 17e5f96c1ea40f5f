"""The commands that only look: `bifl inspect`, `data`, `summary`, `report`."""

from __future__ import annotations

import argparse
import sys

from bifl.errors import ConfigError, printable
from bifl.experiment.composition import plain_algorithm
from bifl.experiment.run import make_network
from bifl.experiment.settings import Experiment, pairs, preset_of
from bifl.experiment.setup import load
from bifl.export import device
from bifl.export.model import MAGIC, Model
from bifl.report import page
from bifl.report.collect import read
from bifl.report.summary import settings as by_setting
from bifl.show import device_costs, layers, split_stats
from bifl.show.inspect import read_file
from bifl.show.plot import title
from bifl.show.terminal import console, contents_tables, size

CLASSES = 10  # of a network whose dataset nobody named


def inspect(options: argparse.Namespace) -> int:
    """What a message or a model file contains."""
    out = console()
    for table in contents_tables(read_file(options.file, options.trust), options.file.name):
        out.print(table)
    if options.file.read_bytes().startswith(MAGIC):
        model = Model.read(options.file, options.trust)
        code = device.cost(model, options.file)
        out.print(code if isinstance(code, str) else device_costs.table(code), soft_wrap=isinstance(code, str))
    return 0


def data(options: argparse.Namespace) -> int:
    """Who holds what: a table, and a picture if it is asked for."""
    preset, overrides = preset_of(options.settings)
    experiment = Experiment.of(preset, overrides)
    split = split_stats.count(experiment, load(experiment))
    out = console()
    out.print(split_stats.facts(split), soft_wrap=True)
    out.print(split_stats.table(split))
    if options.out is None:
        out.print("for a picture of it: --out FILE.png", soft_wrap=True)
        return 0
    split_stats.draw(split, options.out, title(experiment))
    out.print(f"picture: {options.out}", soft_wrap=True)
    return 0


def summary(options: argparse.Namespace) -> int:
    """A network layer by layer, as a run with these settings has it."""
    preset, overrides = preset_of(options.settings)
    settings = pairs(overrides)
    typed, shape = settings.pop("classes", None), device_costs.input_shape(settings.pop("input", None))
    if typed is not None and not (typed.isdecimal() and int(typed)):
        raise ConfigError(f"classes must be a whole number, 1 or more, not '{typed}'")
    experiment = Experiment.of(preset).changed(settings | {"model": options.model})
    classes = int(typed or CLASSES)
    if (preset or "dataset" in settings) and (typed is None or shape is None):
        found = load(experiment)
        classes, shape = classes if typed else found.classes, shape or found.form.shape
    forward = plain_algorithm(experiment).at(1).forward
    network = make_network(experiment, classes)
    rows = layers.summarise(network, forward)
    code = device_costs.untrained(network, forward, shape)
    out = console()
    what = "classes" if experiment.task.name == "classification" else "outputs"
    out.print(layers.table(f"{options.model}, {classes} {what}, {forward.name} forward", rows))
    out.print(layers.verdict(rows), soft_wrap=True)
    out.print(code if isinstance(code, str) else device_costs.table(code), soft_wrap=isinstance(code, str))
    return 0


def report(options: argparse.Namespace) -> int:
    """Finished runs as one HTML file."""
    found = read(options.runs)
    for problem in found.unreadable:
        print(f"bifl: left out: {printable(problem)}", file=sys.stderr)
    page.write(by_setting(found.results), options.out)
    console().print(f"report: {options.out} ({size(options.out.stat().st_size)})", soft_wrap=True)
    return 0
