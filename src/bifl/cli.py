"""The command line: bifl run, compare, eval, data, summary, list."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bifl.errors import BiflError, ConfigError

if TYPE_CHECKING:  # the real imports stand in the commands: --help must not wait for torch
    from bifl.experiment import Experiment
    from bifl.runtime.folder import RunFolder
    from bifl.screen import Meter

_EXAMPLES = """\
examples:
  bifl run                                     train with 1-bit uploads on embedded digits
  bifl run algorithm=up_down algorithm.beta=1  another algorithm, another parameter
  bifl run mnist-iid --out runs/table1         the paper's setting on full MNIST
  bifl run --resume runs/table1                continue what was stopped or killed
  bifl compare seeds=0,1,2 rounds=30           fedavg, full, biml, up_down: table and picture
  bifl eval runs/table1/model mnist            a trained model on a test set
  bifl run --keep-messages --out runs/look     keep every message …
  bifl inspect runs/look/messages/round-00002/upload-00001    … and see what its bytes are
  bifl data mnist-nc3                          who holds what: table and picture
  bifl summary mnist_cnn                       a network layer by layer: what is binary, what it weighs
  bifl list                                    algorithms, datasets, partitions, models, presets

Bad input ends with one sentence and exit code 2, Ctrl-C with 130.
"""

_KEYS = """\
  dataset (mnist5k), partition (iid), model (mnist_cnn)
                        names from `bifl list`, parameters as for algorithms
  rounds (15), clients (10)
  participation (1.0)   share of clients that upload in a round
  idle (train)          what the others do: train (as in the paper) or sleep
  optimizer (adam)      adam or sgd, fresh every round
  lr (0.005,0.002,0.001), lr_steps (30,60)
                        learning rates, and the rounds after which the next one applies;
                        a single lr is used throughout
  batch (64), local_epochs (1)
  batchnorm (average)   running statistics of the clients are pooled exactly; recalibrate: those that
                        clients measure of the broadcast network, in an exchange of their own
  holdout (0.0)         share of its images that every client keeps for evaluation; without test
                        images a fifth
  wire (context)        context codes messages in what both ends know, packed spells every bit out;
                        results do not depend on it
  reals (short)         batch-norm and scales in 6 binary digits up and 10 down, or float32
  device (auto)         a GPU if there is one; cpu, cuda
  workers (0)           processes, 0 = one per core; results do not depend on it
"""

_RUN_KEYS = f"""\
keys (default) and their meaning:
  algorithm (biml)      a name from `bifl list`; its parameters are set as algorithm.alpha=1.5;
                        algorithm=my.py:mine takes one from a file of your own
  seed (0)              fixes everything
{_KEYS}"""

_COMPARE_KEYS = f"""\
keys (default) and their meaning:
  algorithms (fedavg,full,biml,up_down)
                        names from `bifl list`, parameters after plus signs: biml,up_down+beta=1;
                        my.py:mine is one from a file of your own
  seeds (0)             several give mean ± standard deviation
{_KEYS}"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the process's exit code."""
    parser = _parser()
    options, more = parser.parse_known_args(arguments)
    if more and hasattr(options, "settings") and not any(word.startswith("-") for word in more):
        options.settings += more  # key=value may stand after --out too
    elif more:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    try:
        code: int = options.command(options)
        sys.stdout.flush()
        return code
    except BiflError as error:
        print(f"bifl: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # of standard output; everything else has a sentence of its own
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"bifl: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bifl: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "bifl",
        formatter_class=raw,
        epilog=_EXAMPLES,
        description="Federated learning in which every client uploads about one bit per weight.",
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run", help="train one model", formatter_class=raw, epilog=_RUN_KEYS, description="Train one model federatedly."
    )
    run.set_defaults(command=_run)
    compare = commands.add_parser(
        "compare", help="train with several algorithms on the same split", formatter_class=raw,
        epilog=_COMPARE_KEYS,
        description="Train with several algorithms on the same split: a table, and a picture of accuracy against bytes.",
    )  # fmt: skip
    compare.set_defaults(command=_compare)
    for command in (run, compare):
        command.add_argument("settings", nargs="*", metavar="PRESET | KEY=VALUE", help="a preset first, if any, then keys")
        where = command.add_mutually_exclusive_group()
        where.add_argument("--out", type=Path, metavar="DIR", help="write into exactly this folder (default: runs/<name>)")
        where.add_argument(
            "--resume", type=Path, metavar="DIR", help="continue what is in this folder; rounds= and workers= may change"
        )

    run.add_argument("--keep-messages", action="store_true", help="keep a copy of every message in DIR/messages, for bifl inspect")

    inspect = commands.add_parser(
        "inspect", help="explain a message or a model file", description="Header, bytes of every section, bits per weight by layer."
    )
    inspect.set_defaults(command=_inspect)
    inspect.add_argument("file", type=Path, metavar="FILE", help="runs/<name>/model, or a message: see bifl run --keep-messages")

    evaluate = commands.add_parser("eval", help="test a trained model", description="Accuracy and size of a trained model.")
    evaluate.set_defaults(command=_eval)
    evaluate.add_argument("model", type=Path, metavar="MODEL", help="a model file: runs/<name>/model")
    evaluate.add_argument("data", metavar="DATA", help="a dataset from `bifl list`: its test images are used")
    evaluate.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="parameters of the dataset: path=mine.npz")

    census = commands.add_parser(
        "data", help="show who holds which images", formatter_class=raw, epilog=_RUN_KEYS,
        description="How many images of each class every client gets: a table, and a picture.",
    )  # fmt: skip
    census.set_defaults(command=_data)
    census.add_argument("settings", nargs="*", metavar="PRESET | KEY=VALUE", help="a preset first, if any, then keys")
    census.add_argument("--out", type=Path, metavar="FILE", help="the picture (default: data-<name>.png)")

    summary = commands.add_parser(
        "summary", help="show a network layer by layer", description="What is binary in a network, what stays real, what it weighs."
    )
    summary.set_defaults(command=_summary)
    summary.add_argument("model", metavar="MODEL", help="a network from `bifl list`, or my.py:mine")
    summary.add_argument(
        "settings", nargs="*", metavar="KEY=VALUE", help="classes (10), algorithm (biml): fttq's weights are ternary"
    )

    listing = commands.add_parser("list", help="show what there is to choose from", description="Everything a key can be set to.")
    listing.set_defaults(command=_list)
    return parser


def _version() -> str:
    from bifl import __version__

    return f"bifl {__version__}"


def _run(options: argparse.Namespace) -> int:
    from bifl.experiment import Experiment, pairs
    from bifl.registry import short
    from bifl.runtime.folder import RunFolder, claim
    from bifl.runtime.world import build
    from bifl.screen import Meter, console, run_table

    if options.resume:
        run = RunFolder.resume(options.resume, pairs(options.settings))
    else:
        preset, overrides = _preset(options.settings)
        experiment = Experiment.of(preset, overrides)
        build(experiment)  # refuses what cannot be run, before anything is written
        setting = preset or _setting(experiment)
        name = f"{setting}-{short(experiment.algorithm.name)}-s{experiment.seed}"
        run = RunFolder.start(options.out or claim(Path("runs"), name), experiment)
    run.keep_messages = options.keep_messages
    out = console()
    with Meter(out, run.experiment.rounds).running() as meter:
        try:
            _go(run, meter, short(run.experiment.algorithm.name))
        except KeyboardInterrupt:
            return _stopped(run, f"bifl run --resume {shlex.quote(str(run.path))}")
    out.print(run_table(run.records(), run.path / "model"))
    return 0


def _compare(options: argparse.Namespace) -> int:
    from bifl.compare import ALGORITHMS, Comparison, summarise
    from bifl.experiment import Experiment, pairs
    from bifl.plot import draw
    from bifl.runtime.folder import claim
    from bifl.runtime.world import build
    from bifl.screen import Meter, comparison_table, console

    if options.resume:
        comparison = Comparison.resume(options.resume, pairs(options.settings))
    else:
        preset, overrides = _preset(options.settings)
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
                _go(cell.run, meter, cell.run.path.name)
            except KeyboardInterrupt:
                return _stopped(cell.run, f"bifl compare --resume {shlex.quote(str(comparison.path))}")
    results = comparison.results()
    rounds = max(len(records) for seeds in results.values() for records in seeds)
    out.print(comparison_table([summarise(*item) for item in results.items()], rounds, max(map(len, results.values()))))
    draw(results, comparison.path / "compare.png", _title(comparison.cells[0].run.experiment))
    out.print(f"picture: {comparison.path / 'compare.png'}", soft_wrap=True)
    return 0


def _go(run: RunFolder, meter: Meter, label: str) -> None:
    meter.begin(label, run.records())
    for record in run:
        meter.show(record, run.experiment.rounds)


def _stopped(run: RunFolder, command: str) -> int:
    print(f"bifl: stopped after round {len(run.records())} of {run.experiment.rounds}; continue with: {command}", file=sys.stderr)
    return 130


def _setting(experiment: Experiment) -> str:
    from bifl.registry import short

    return f"{short(experiment.dataset.name)}-{short(experiment.partition.name)}"


def _title(experiment: Experiment) -> str:
    parameters = "".join(f", {key}={value}" for key, value in experiment.partition.parameters.items())
    return f"{experiment.dataset.name}, {experiment.partition.name}{parameters}, {experiment.clients} clients"


def _preset(settings: list[str]) -> tuple[str | None, list[str]]:
    """The word that is not key=value, if there is one, and the rest."""
    words = [word for word in settings if "=" not in word]
    if len(words) > 1:
        raise ConfigError(f"only one preset can be given, not {' and '.join(words)}; settings are key=value")
    return (words[0] if words else None), [word for word in settings if "=" in word]


def _eval(options: argparse.Namespace) -> int:
    from bifl.data.datasets import dataset
    from bifl.experiment import Experiment, pairs
    from bifl.model import Model
    from bifl.screen import console, size

    model = Model.read(options.model)
    choice = Experiment(dataset={"name": options.data, **pairs(options.settings)}).dataset
    accuracy, loss = model.score(dataset.make(choice.name, choice.parameters))
    weights, reals = len(model.message.symbols), len(model.message.real)
    out = console()
    out.print(
        f"{options.model}: {model.network.name}, {model.forward.name} weights, trained for {model.message.round} rounds",
        soft_wrap=True,
    )
    out.print(f"accuracy {accuracy:.2%}, loss {loss:.4f} on {options.data}'s test images")
    out.print(
        f"size {size(options.model.stat().st_size)}: {weights:,} {model.message.alphabet.name} weights and {reals:,} real numbers"
    )
    return 0


def _inspect(options: argparse.Namespace) -> int:
    from bifl.explain import explain
    from bifl.screen import console, explanation_tables

    out = console()
    for table in explanation_tables(explain(options.file), options.file.name):
        out.print(table)
    return 0


def _data(options: argparse.Namespace) -> int:
    from bifl.census import count, draw, facts, table
    from bifl.experiment import Experiment
    from bifl.screen import console

    preset, overrides = _preset(options.settings)
    experiment = Experiment.of(preset, overrides)
    census = count(experiment)
    out = console()
    out.print(facts(census), soft_wrap=True)
    out.print(table(census))
    path = options.out or Path(f"data-{preset or _setting(experiment)}.png")
    draw(census, path, _title(experiment))
    out.print(f"picture: {path}", soft_wrap=True)
    return 0


def _summary(options: argparse.Namespace) -> int:
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


def _list(options: argparse.Namespace) -> int:
    from bifl.experiment import REGISTRIES
    from bifl.presets import PRESETS
    from bifl.screen import choices_table, console

    out = console()
    for key, registry in REGISTRIES.items():
        rows = {name: (registry.parameters(name), registry.summary(name)) for name in registry.names()}
        out.print(choices_table(f"{key}=", rows))
    out.print(choices_table("presets", {name: ({}, preset.about) for name, preset in PRESETS.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
