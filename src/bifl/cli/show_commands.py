"""The commands that only look: `bifl inspect`, `data`, `summary`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bifl.cli.parser import RUN_KEYS, Commands, Parser, add_command, add_settings, add_trust
from bifl.errors import ConfigError
from bifl.experiment.declarations import SETTINGS
from bifl.experiment.presets import pairs, preset_of

if TYPE_CHECKING:
    from rich.console import Console

    from bifl.export.c_model import Code

CLASSES = 10  # of a network whose dataset nobody named


def add(commands: Commands[Parser]) -> None:
    """Declare them."""
    command = add_command(
        commands, "inspect", inspect, help="show what a message or a model file contains",
        description="Header, bytes of every section, bits per weight by layer.",
    )  # fmt: skip
    add_trust(command, "run the Python file that the model, or its run's configuration, names")
    command.add_argument("file", type=Path, metavar="FILE", help="runs/<name>/model, or a message: see bifl run --keep-messages")

    command = add_command(
        commands, "data", data, keys=[*SETTINGS], epilog=RUN_KEYS, help="show who holds which images",
        description="How many images of each class every client gets: a table, and with --out a picture.",
    )  # fmt: skip
    add_settings(command)
    command.add_argument("--out", type=Path, metavar="FILE", help="draw it too: a PNG of clients and classes")

    command = add_command(
        commands, "summary", summary, keys=[*SETTINGS, "classes", "input"], help="show a network layer by layer",
        description="What is binary in a network, what stays real, what it weighs.",
    )  # fmt: skip
    command.add_argument("model", metavar="MODEL", help="a network from `bifl list`, or my.py:mine")
    command.add_argument(
        "settings", nargs="*", metavar="PRESET | KEY=VALUE",
        help="as of bifl run: algorithm=biml, whose weights are binary; dataset=, or else classes=10 and input=1x28x28",
    )  # fmt: skip


def inspect(options: argparse.Namespace) -> int:
    """What a message or a model file contains."""
    from bifl.experiment.model import MAGIC, Model
    from bifl.show import layers
    from bifl.show.inspect import contents_tables, read_file
    from bifl.show.output import console

    out = console()
    for table in contents_tables(read_file(options.file, options.trust), options.file.name):
        out.print(table)
    if options.file.read_bytes().startswith(MAGIC):
        model = Model.read(options.file, options.trust)
        _show_costs(out, layers.trained(model, options.file))
    return 0


def data(options: argparse.Namespace) -> int:
    """Who holds what: a table, and a picture if it is asked for."""
    from bifl.experiment.settings import of_words
    from bifl.experiment.setup import load
    from bifl.show import split_stats
    from bifl.show.output import console, say
    from bifl.show.plot import title

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
    from bifl.experiment.composition import plain_algorithm
    from bifl.experiment.run import make_network
    from bifl.experiment.settings import Experiment
    from bifl.experiment.setup import load
    from bifl.export.raw import input_shape
    from bifl.show import layers
    from bifl.show.output import console, say

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
    from bifl.show import layers
    from bifl.show.output import say

    if isinstance(code, str):
        say(out, code)
    else:
        out.print(layers.device_table(code))
