"""`bifl ask`, and `bifl eval --clients`: what clients say without training, in a simulation or over a running federation."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from bifl.cli.dispatch import load_work
from bifl.data.inputs import TOKENS
from bifl.engine.simulator import Simulation
from bifl.errors import BiflError, ConfigError
from bifl.exchanges.input_counts import normalised_by
from bifl.experiment import config_file
from bifl.experiment.composition import plain_algorithm
from bifl.experiment.presets import pairs, preset_of
from bifl.experiment.run import share_of
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build, load
from bifl.files import size
from bifl.runs.folder import CLIENTS, CONFIG, read_records
from bifl.runs.record import Record
from bifl.show.output import console, say

_PLAIN = {"algorithm": "fedavg", "rounds": "1"}  # what is trained does not matter where nobody trains


def ask(options: argparse.Namespace) -> int:
    """Ask all clients once, and show what they say in sum."""
    preset, overrides = preset_of(options.settings)
    settings = _PLAIN | {"exchange": "inputs"} | pairs(overrides)
    experiment = Experiment.of(preset).changed(settings)
    form = load(experiment).form
    if "model" not in settings and form.kind != TOKENS:  # none is used, and one that takes such inputs is needed
        experiment = experiment.changed({"model": {"name": "mlp", "inputs": math.prod(form.shape), "hidden": 1}})
    record, _ = _hold(options, experiment)
    report, out, table = record.report or {}, console(), Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in report.items():
        table.add_row(name, f"{value:,.0f}" if value == int(value) else f"{value:,.6g}")
    out.print(table)
    say(out, _bytes(record))
    if words := normalised_by(report, form):
        say(out, "to normalise by it: " + " ".join(f"{key}={value}" for key, value in words.items()))
    return 0


def evaluate_clients(options: argparse.Namespace, model: Path) -> int:
    """Evaluate a model on what clients hold out: client by client, and in all."""
    folder, settings = model.parent, pairs(options.settings)
    run = config_file.read(folder / CONFIG, options.trust) if (folder / CONFIG).is_file() else Experiment()
    plain = {"robust": "none", "attack": "none", "privacy": "none", "secure_sum": "false", "colluders": "0", "participation": "1"}
    asked = {"exchange": "evaluation", "start": str(model)}
    experiment = run.changed(plain | _PLAIN | {"weigh": "auto"} | settings | asked)
    if (folder / CONFIG).is_file() and not any(key.partition(".")[0] == "dataset" for key in settings):
        _refuse_trained_on(folder, run, experiment)
    dealt = experiment if plain_algorithm(run).central else replace(experiment, algorithm=run.algorithm)
    record, clients = _hold(options, experiment, dealt)
    report, out = record.report or {}, console()
    names = [*(name for name in report if name != "loss"), "loss"]
    table = Table(box=None, pad_edge=False)
    for title in ("client", "samples", *names):
        table.add_column(title, justify="right")
    tested = [row for row in clients if "held" in row]
    for row in tested:
        table.add_row(str(row["client"]), f"{row['held']:,}", *(f"{row[name]:.4g}" for name in names))
    table.add_row("all", f"{sum(row['held'] for row in tested):,}", *(f"{report[name]:.4g}" for name in names))
    out.print(table)
    say(out, _bytes(record))
    return 0


def _refuse_trained_on(folder: Path, run: Experiment, experiment: Experiment) -> None:
    """Refuse to evaluate on samples that clients of the run have trained on.

    Raises:
        ConfigError: more is held out than was in the run.
    """
    data = load(run)
    share, wanted = share_of(run, data), share_of(experiment, data)
    if wanted > share:
        remedy = f"leave it at {share:g}" if share else "train with holdout=0.2 first, or name another dataset"
        raise ConfigError(
            f"the clients of '{folder}' held out {share:g} of their samples and have trained on the others, so that "
            f"holdout={wanted:g} would test on those: {remedy}"
        )


def _hold(
    options: argparse.Namespace, experiment: Experiment, dealt: Experiment | None = None
) -> tuple[Record, list[dict[str, Any]]]:
    """One round with the clients of a simulation, or with those who come to an address: its record, and what is known of each."""
    if options.listen:
        serve_once = load_work("bifl.deploy.server_commands:serve_once")
        folder = serve_once(options, experiment).path
        lines = (folder / CLIENTS).read_text().splitlines()
        return read_records(folder)[-1], json.loads(lines[-1])["clients"]
    if options.keys or options.out or options.min_clients or options.deadline:
        raise ConfigError("--keys, --out, --min-clients and --deadline go with --listen: a simulation has no network")
    rows: dict[int, list[dict[str, Any]]] = {}  # by round
    simulation = Simulation(build(experiment, dealt=dealt))
    simulation.note_clients = lambda round, clients: rows.update({round: clients})
    try:
        *_, record = simulation
    except BiflError:
        simulation.close()
        raise
    return record, rows[record.round]


def _bytes(record: Record) -> str:
    return f"{size(record.up_bytes)} up, {size(record.down_bytes)} down, {record.clients} clients"
