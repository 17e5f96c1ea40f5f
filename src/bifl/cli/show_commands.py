"""The commands that only look: `bifl eval`, `inspect`, `data`, `summary`, `report`, `list`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bifl.data.datasets import dataset
from bifl.errors import ConfigError, printable
from bifl.experiment.presets import PRESETS
from bifl.experiment.settings import REGISTRIES, Experiment, pairs, preset_of
from bifl.experiment.setup import load, make_network
from bifl.export import device
from bifl.export.model import MAGIC, Model
from bifl.registry import without_folder
from bifl.report import page
from bifl.report.collect import read
from bifl.report.summary import settings as by_setting
from bifl.runs.folder import setting_name
from bifl.show import device_costs, layers, split_stats
from bifl.show.inspect import read_file
from bifl.show.plot import title
from bifl.show.terminal import choices_table, console, contents_tables, size


def evaluate(options: argparse.Namespace) -> int:
    """Accuracy and size of a trained model."""
    model = Model.read(options.model, options.trust)
    choice = Experiment(dataset={"name": options.data, **pairs(options.settings)}).dataset
    metrics, loss = model.metrics(dataset.make(choice.name, choice.parameters))
    weights, reals = len(model.message.symbols), len(model.message.real)
    out = console()
    out.print(
        f"{options.model}: {without_folder(model.network.name)}, {model.forward.name} weights, "
        f"trained for {model.message.round} rounds",
        soft_wrap=True,
    )
    first, *others = metrics.items()
    said = [f"{first[0]} {first[1]:.2%}", *(f"{name} {value:.4g}" for name, value in others), f"loss {loss:.4f}"]
    out.print(f"{', '.join(said)} on {options.data}'s test images")
    out.print(
        f"size {size(options.model.stat().st_size)}: {weights:,} {model.message.alphabet.name} weights and {reals:,} real numbers"
    )
    return 0


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
    """Who holds what: table and picture."""
    preset, overrides = preset_of(options.settings)
    experiment = Experiment.of(preset, overrides)
    split = split_stats.count(experiment, load(experiment))
    out = console()
    out.print(split_stats.facts(split), soft_wrap=True)
    out.print(split_stats.table(split))
    path = options.out or Path(f"data-{preset or setting_name(experiment)}.png")
    split_stats.draw(split, path, title(experiment))
    out.print(f"picture: {path}", soft_wrap=True)
    return 0


def summary(options: argparse.Namespace) -> int:
    """A network layer by layer."""
    settings = pairs(options.settings)
    classes = settings.pop("classes", "10")
    if not classes.isdecimal() or not int(classes):
        raise ConfigError(f"classes must be a whole number, 1 or more, not '{classes}'")
    shape = device_costs.input_shape(settings.pop("input", None))
    experiment = Experiment().changed(settings | {"model": options.model})
    forward = experiment.build().at(1).forward
    network = make_network(experiment, int(classes))
    rows = layers.summarise(network, forward)
    code = device_costs.untrained(network, forward, shape)
    out = console()
    out.print(layers.table(f"{options.model}, {classes} classes, {forward.name} forward", rows))
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


def show_choices(options: argparse.Namespace) -> int:
    """Everything a key can be set to."""
    out = console()
    for key, registry in REGISTRIES.items():
        rows = {name: (registry.parameters(name), registry.summary(name)) for name in registry.names()}
        out.print(choices_table(f"{key}=", rows))
    out.print(choices_table("presets", {name: ({}, preset.about) for name, preset in PRESETS.items()}))
    return 0
