"""`bifl ask` and `bifl eval`: what clients say without training, and how good a trained model is."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from bifl.cli.dispatch import load_work
from bifl.data.arrays import TABLES
from bifl.data.datasets import dataset
from bifl.data.inputs import TOKENS, Dataset
from bifl.engine.simulator import Simulation
from bifl.errors import BiflError, ConfigError, DataError, RunError
from bifl.exchanges.input_counts import normalised_by
from bifl.experiment import config_file
from bifl.experiment.model import Model
from bifl.experiment.presets import pairs, preset_of
from bifl.experiment.run import share_of
from bifl.experiment.settings import SETTINGS, Experiment, plain_algorithm
from bifl.experiment.setup import build, load
from bifl.files import size
from bifl.registry import short, without_folder
from bifl.runs.comparison import PLAN
from bifl.runs.folder import CLIENTS, CONFIG, MODEL, read_records
from bifl.runs.record import Record
from bifl.show.output import console, counted, say
from bifl.show.tables import Column, Table, facts

_ANY_TRAINING = {"algorithm": "fedavg", "rounds": "1"}  # what is trained does not matter where nobody trains


def ask(options: argparse.Namespace) -> int:
    """Ask all clients once, and show what they say in sum."""
    preset, overrides = preset_of(options.settings)
    settings = _ANY_TRAINING | {"exchange": "inputs"} | pairs(overrides)
    experiment = Experiment.of(preset).changed(settings)
    form = load(experiment).form
    if "model" not in settings and form.kind != TOKENS:  # none is used, and one that takes such inputs is needed
        experiment = experiment.changed({"model": {"name": "mlp", "inputs": math.prod(form.shape), "hidden": 1}})
    record, _ = _hold(options, experiment)
    report, out = record.report or {}, console()
    out.print(facts((name, f"{value:,.0f}" if value == int(value) else f"{value:,.6g}") for name, value in report.items()))
    say(out, _bytes(record))
    if words := normalised_by(report, form):
        say(out, "to normalise by it: " + " ".join(f"{key}={value}" for key, value in words.items()))
    return 0


def evaluate(options: argparse.Namespace) -> int:
    """Metrics and size of a trained model."""
    path = _model_file(options.model)
    if options.clients or options.listen:
        return _evaluate_clients(options, path)
    words = [word for word in options.settings if "=" not in word]
    if len(words) > 1:
        raise ConfigError(f"only one dataset can be given, not {' and '.join(words)}; its parameters are key=value")
    model = Model.read(path, options.trust)
    settings = pairs(word for word in options.settings if "=" in word)
    data, name = _given(words[0], settings) if words else _of_run(options.model, settings, options.trust)
    metrics, loss = model.metrics(data)
    first, *others = metrics.items()
    results = [f"{first[0]} {first[1]:.2%}", *(f"{metric} {value:.4g}" for metric, value in others), f"loss {loss:.4f}"]
    weights, reals = len(model.message.update.symbols), len(model.message.real)
    network = f"{without_folder(model.network.name)}, {model.forward.name} weights"
    out = console()
    say(out, f"{path}: {network}, trained for {counted(model.message.round, 'round')}")
    say(out, f"{', '.join(results)} on {name}")
    numbers = f"{weights:,} {model.message.update.alphabet.name} weights and {reals:,} real numbers"
    say(out, f"size {size(path.stat().st_size)}: {numbers}")
    return 0


def _model_file(path: Path) -> Path:
    """The model of a run's folder; any other path is a model file itself."""
    if not path.is_dir():
        return path
    if (path / MODEL).is_file():
        return path / MODEL
    if (path / PLAN).is_file():
        runs = ", ".join(str(config.parent) for config in sorted(path.glob(f"*/{CONFIG}")))
        raise RunError(f"'{path}' is a comparison: give one of its runs ({runs})")
    if (path / CONFIG).is_file():
        raise RunError(f"'{path}' has no model yet: finish the run with bifl run --resume {path}")
    raise RunError(f"'{path}' holds no run: there is no {CONFIG} in it")


def _of_run(path: Path, settings: dict[str, str], trust: bool) -> tuple[Dataset, str]:
    """The dataset of the run that a folder, or a model file in one, belongs to."""
    folder = path if path.is_dir() else path.parent
    if not (folder / CONFIG).is_file():
        raise ConfigError(f"say what to test '{path}' on, such as mnist5k or mine.npz: it lies in no run's folder")
    run = config_file.read(folder / CONFIG, trust)
    for key in settings:
        if key in SETTINGS:
            raise ConfigError(
                f"'{key}' is a setting of the run in '{folder}', which stays as it was trained: leave it out, or name what to "
                f"test on, such as bifl eval {folder / MODEL} {short(run.dataset.name)}"
            )
    experiment = run.changed({f"dataset.{key}": value for key, value in settings.items()})
    data, name = load(experiment), short(experiment.dataset.name)
    if not len(data.test_labels):
        raise DataError(
            f"{name}, the dataset of '{folder}', has no test samples; how the clients' models do on their held-out samples "
            f"is in '{folder / CLIENTS}'; to test it on others, name a file: bifl eval {folder} FILE.npz"
        )
    return data, _its_tests(data, name)


def _given(name: str, settings: dict[str, str]) -> tuple[Dataset, str]:
    """A dataset by name, or a file, and what of it is tested on: where a file has no test samples, all of it."""
    path = Path(name)
    is_file = name.endswith(".npz") or path.is_dir() or (path.suffix.lower() in TABLES and path.is_file())
    choice = Experiment(dataset=({"name": "npz", "path": name} if is_file else {"name": name}) | settings).dataset
    data = choice.made(dataset)
    if not is_file or len(data.test_labels):
        return data, _its_tests(data, path.name if is_file else short(name))
    return data.tested_on(slice(None)), f"all {counted(len(data.labels), 'sample')} of {path.name}, which names none for tests"


def _its_tests(data: Dataset, name: str) -> str:
    what = "test sample" if data.validation is None else "validation sample"
    return f"{name}'s {counted(len(data.test_labels), what)}"


def _evaluate_clients(options: argparse.Namespace, model: Path) -> int:
    """Evaluate a model on what clients hold out: client by client, and in all."""
    folder, settings = model.parent, pairs(options.settings)
    run = config_file.read(folder / CONFIG, options.trust) if (folder / CONFIG).is_file() else Experiment()
    plain = {"robust": "none", "attack": "none", "privacy": "none", "secure_sum": "false", "colluders": "0", "participation": "1"}
    asked = {"exchange": "evaluation", "start": str(model)}
    experiment = run.changed(plain | _ANY_TRAINING | {"weigh": "auto"} | settings | asked)
    if (folder / CONFIG).is_file() and not any(key.partition(".")[0] == "dataset" for key in settings):
        data = load(run)
        share, wanted = share_of(run, data), share_of(experiment, data)
        if wanted > share:
            remedy = f"leave it at {share:g}" if share else "train with holdout=0.2 first, or name another dataset"
            raise ConfigError(
                f"the clients of '{folder}' held out {share:g} of their samples and have trained on the others, so that "
                f"holdout={wanted:g} would test on those: {remedy}"
            )
    dealt = experiment if plain_algorithm(run).central else replace(experiment, algorithm=run.algorithm)
    record, clients = _hold(options, experiment, dealt)
    report, out = record.report or {}, console()
    names = [*(name for name in report if name != "loss"), "loss"]
    tested = [row for row in clients if "held" in row]
    rows = [[str(row["client"]), f"{row['held']:,}", *(f"{row[name]:.4g}" for name in names)] for row in tested]
    whole = ["all", f"{sum(row['held'] for row in tested):,}", *(f"{report[name]:.4g}" for name in names)]
    headings = zip(("client", "samples", *names), whole, strict=True)
    out.print(Table([Column(heading, footer=footer) for heading, footer in headings], rows))
    say(out, _bytes(record))
    return 0


def _hold(
    options: argparse.Namespace, experiment: Experiment, dealt: Experiment | None = None
) -> tuple[Record, list[dict[str, Any]]]:
    """One round with the clients of a simulation, or with those who come to an address: its record, and what is known of each."""
    if options.listen:
        serve_once = load_work("bifl.deploy.server.server_commands:serve_once")
        folder = serve_once(options, experiment).path
        lines = (folder / CLIENTS).read_text().splitlines()
        return read_records(folder)[-1], json.loads(lines[-1])["clients"]
    if options.keys or options.out or options.min_clients or options.deadline:
        raise ConfigError("--keys, --out, --min-clients and --deadline go with --listen: a simulation has no network")
    rows: dict[int, list[dict[str, Any]]] = {}  # by round
    simulation = Simulation(build(experiment, dealt=dealt), note_clients=lambda round, clients: rows.update({round: clients}))
    try:
        *_, record = simulation
    except BiflError:
        simulation.close()
        raise
    return record, rows[record.round]


def _bytes(record: Record) -> str:
    return f"{size(record.up_bytes)} up, {size(record.down_bytes)} down, {record.clients} clients"
