"""`bifl run`, `bifl compare` and `bifl personalise`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from bifl.data.fingerprint import loaded
from bifl.engine.round import run_folder
from bifl.engine.simulator import Simulation, simulated_clients
from bifl.errors import ConfigError, RunError
from bifl.experiment.presets import pairs, preset_of
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import LastDataset, Setup, build
from bifl.experiment.starting import remark_validated
from bifl.files import size
from bifl.nn.sent import remark
from bifl.registry import short
from bifl.runs.comparison import ALGORITHMS, Comparison, planned
from bifl.runs.differences import checked_margin, reference
from bifl.runs.folder import RunFolder, claim, ended_early, folder_name, locked
from bifl.runs.trackers import checked, followed
from bifl.show.difference_table import show_differences
from bifl.show.output import console, say
from bifl.show.plot import BITS, ROUNDS, draw, title
from bifl.show.terminal import Meter, attack_and_defence, client_table, comparison_table, data_line, run_table
from bifl.tasks import usual


def run(options: argparse.Namespace) -> int:
    """Train one model, or continue."""
    track, out = _take_track(options), console()
    if options.resume:
        run = RunFolder.resume(options.resume, pairs(options.settings), options.trust)
        setup = build(run.experiment)
    else:
        run, setup = _start(options)
    run.keep_messages = options.keep_messages
    run.settle(data := loaded(setup.data))
    say(out, data_line(run.experiment, data))
    if not _train(
        {short(run.experiment.algorithm.name): run}, lambda _: setup, f"run --resume {shlex.quote(str(run.path))}", track
    ):
        return 130
    out.print(run_table(run.records(), run.model, attack_and_defence(run.experiment, run.path)))
    if run.experiment.privacy.name != "none":
        say(out, "ε is what a deployment would spend: noise of a simulation is made of the seed and hides nothing")
    if ended := ended_early(run.experiment, run.records()):
        say(out, ended)
    return 0


def _start(options: argparse.Namespace) -> tuple[RunFolder, Setup]:
    """A new run; what cannot be run is refused before anything is written."""
    preset, overrides = preset_of(options.settings)
    experiment = Experiment.of(preset, overrides)
    setup = build(experiment)
    remark(setup.run.network)
    remark_validated(experiment.start, experiment.validation)
    usual.remark_unit(setup.data.labels)
    return RunFolder.start(options.out or claim(Path("runs"), folder_name(experiment, preset)), experiment), setup


def _train(runs: Mapping[str, RunFolder], setup_of: Callable[[RunFolder], Setup], again: str, track: str | None) -> bool:
    """Run what is left of these, by their labels; False if somebody stopped it, who is told how to go on."""
    with Meter(console(), sum(run.experiment.rounds for run in runs.values())).running() as meter:
        for label, run in runs.items():
            try:
                setup = setup_of(run)
                meter.begin(label, run.records())
                for record in followed(run_folder(run, setup, simulated_clients), run, track):
                    meter.show(record, run.experiment.rounds)
            except KeyboardInterrupt:
                command = f"bifl {again}" + " --trust" * bool(run.experiment.python_files()) + (f" track={track}" if track else "")
                done = f"round {len(run.records())} of {run.experiment.rounds}"
                print(f"bifl: stopped after {done}; continue with: {command}", file=sys.stderr)
                return False
    return True


def _take_track(options: argparse.Namespace) -> str | None:
    """Take track= out of the settings: it decides no numbers, so it is none of the experiment's."""
    kinds = [word.removeprefix("track=") for word in options.settings if word.startswith("track=")]
    options.settings = [word for word in options.settings if not word.startswith("track=")]
    if len(kinds) > 1:
        raise ConfigError("key 'track' is given twice")
    return checked(kinds[0]) if kinds else None


def compare(options: argparse.Namespace) -> int:
    """Train with several algorithms on the same split: table and picture."""
    track, data, margin = _take_track(options), LastDataset(), checked_margin(options.margin)
    setups: dict[str, Setup] = {}
    if options.resume:
        comparison = Comparison.resume(options.resume, pairs(options.settings), options.trust)
        reference([label for label, _ in comparison.runs], options.against)
    else:
        comparison, setups = _plan(options, data)
    out, first = console(), comparison.runs[0][1].experiment
    say(out, data_line(first, comparison.settle(data)))

    def setup_of(run: RunFolder) -> Setup:
        return setups.pop(run.path.name, None) or build(run.experiment, data=data.of(run.experiment))

    again = f"compare --resume {shlex.quote(str(comparison.path))}"
    if not _train({run.path.name: run for _, run in comparison.runs}, setup_of, again, track):
        return 130
    if facts := attack_and_defence(first):
        say(out, "; ".join(f"{key}: {text}" for key, text in facts.items()))
    series = comparison.series()
    out.print(comparison_table(series))
    out.print(client_table(series))
    if len(series) > 1:
        show_differences(out, series, options.against, margin)
    for picture, charts in {"compare.png": ROUNDS, "bits.png": BITS}.items():
        draw({"": series}, comparison.path / picture, title(first), charts)
        say(out, f"picture: {comparison.path / picture}")
    return 0


def _plan(options: argparse.Namespace, data: LastDataset) -> tuple[Comparison, dict[str, Setup]]:
    """A new comparison, and what its runs stand for, by their folders' names; refused before anything is written if one is."""
    preset, overrides = preset_of(options.settings)
    settings = pairs(overrides)
    for single, several in (("algorithm", "algorithms"), ("seed", "seeds")):
        if single in settings:
            raise ConfigError(f"a comparison takes {several}=…, separated by commas, instead of {single}=")
    algorithms, seeds = settings.pop("algorithms", ALGORITHMS), settings.pop("seeds", "0")
    first = {"algorithm": algorithms.partition(",")[0].partition("+")[0]}  # privacy= does not go with the usual one
    base = Experiment.of(preset).changed((first if "privacy" in settings else {}) | settings)
    rows = planned(base, algorithms, seeds)
    reference([row.label for row in rows], options.against)
    setups = {row.name: build(row.experiment, data=data.of(row.experiment)) for row in rows}
    remark(*(setup.run.network for setup in setups.values()))
    usual.remark_unit(data.of(base).labels)
    remark_validated(base.start, base.validation)
    path = options.out or claim(Path("runs"), f"compare-{preset or base.dataset.name}")
    return Comparison.start(path, rows), setups


def personalise(options: argparse.Namespace) -> int:
    """Write the network of one client, and say how it does beside the global one."""
    run = RunFolder.resume(options.run, trust=options.trust)
    with locked(run.path):
        setup = build(run.experiment)
        run.refuse_other_data(loaded(setup.data))  # the client's samples would be somebody else's
        simulation = Simulation(setup, run.checkpoint)
        if simulation.last is None:
            raise RunError(f"'{run.path}' has no complete round yet")
        personal = simulation.client_model(options.client)
    path = options.out or run.path / f"client-{options.client}.model"
    written = personal.save(path)
    out, shared = console(), simulation.model()
    shard = setup.shards[options.client]
    held_out = setup.data.tested_on(shard)
    others = "the test set" if setup.data.validation is None else "the validation samples"
    for what, data in {f"what client {options.client} holds out": held_out, others: setup.data}.items():
        if len(data.test_labels):
            mine, theirs = personal.metrics(data)[0], shared.metrics(data)[0]
            name = next(iter(mine))  # the one that tables show, in %
            result = f"{name} {mine[name]:.2%}, of the global network {theirs[name]:.2%}"
            say(out, f"{result}, on {what}, {len(data.test_labels):,} samples")
    say(out, f"{path}: {size(written)}")
    return 0
