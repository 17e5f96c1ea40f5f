"""`bifl run` and `bifl compare`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from bifl.data.fingerprint import Loaded, loaded
from bifl.engine import running
from bifl.errors import ConfigError, RunError
from bifl.experiment.settings import Experiment, pairs, preset_of
from bifl.experiment.setup import LastDataset, Setup, build
from bifl.nn.sent import remark
from bifl.registry import short
from bifl.runs.budget import ended_early
from bifl.runs.comparison import ALGORITHMS, Comparison, planned, summarise
from bifl.runs.folder import CONFIG, RunFolder, claim, folder_name
from bifl.runs.trackers import checked, followed
from bifl.show.liars import attack_text, comparison_text, robust_text
from bifl.show.output import say
from bifl.show.plot import draw, draw_bits, title
from bifl.show.terminal import Meter, comparison_table, console, data_line, price_table, run_table
from bifl.tasks import unit


def run(options: argparse.Namespace) -> int:
    """Train one model, or continue."""
    track, out = _track(options), console()
    if options.resume:
        run = RunFolder.resume(options.resume, pairs(options.settings), options.trust)
        setup = build(run.experiment)
    else:
        preset, overrides = preset_of(options.settings)
        experiment = Experiment.of(preset, overrides)
        setup = build(experiment)  # refuses what cannot be run, before anything is written
        running.check(setup)
        remark(setup.run.network)
        unit.remark(setup.data.labels)
        run = RunFolder.start(options.out or claim(Path("runs"), folder_name(experiment, preset)), experiment)
    run.keep_messages = options.keep_messages
    run.settle(found := loaded(setup.data))
    say(out, data_line(run.experiment, found))
    with Meter(out, run.experiment.rounds).running() as meter:
        try:
            _go(run, setup, meter, short(run.experiment.algorithm.name), track)
        except KeyboardInterrupt:
            return _stopped(run, f"bifl run --resume {shlex.quote(str(run.path))}", track)
    lies = {"attack": attack_text(run.experiment), "robust": robust_text(run.experiment, run.path)}
    out.print(run_table(run.records(), run.path / "model", lies))
    if run.experiment.privacy.name != "none":
        say(out, "ε is what a deployment would spend: noise of a simulation is made of the seed and hides nothing")
    if ended := ended_early(run.experiment, run.records()):
        say(out, ended)
    return 0


def compare(options: argparse.Namespace) -> int:
    """Train with several algorithms on the same split: table and picture."""
    track, images = _track(options), LastDataset()
    if options.resume:
        comparison = Comparison.resume(options.resume, pairs(options.settings), options.trust)
    else:
        preset, overrides = preset_of(options.settings)
        settings = pairs(overrides)
        for single, several in (("algorithm", "algorithms"), ("seed", "seeds")):
            if single in settings:
                raise ConfigError(f"a comparison takes {several}=…, separated by commas, instead of {single}=")
        algorithms, seeds = settings.pop("algorithms", ALGORITHMS), settings.pop("seeds", "0")
        first = {"algorithm": algorithms.partition(",")[0].partition("+")[0]}  # privacy= does not go with the usual one
        base = Experiment.of(preset).changed((first if "privacy" in settings else {}) | settings)
        rows = planned(base, algorithms, seeds)
        networks = []
        for row in rows:  # one at a time: what a client holds need not be kept of all of them
            setup = build(row.experiment, data=images.of(row.experiment))
            running.check(setup)
            networks.append(setup.run.network)
        remark(*networks)
        unit.remark(images.of(base).labels)
        path = options.out or claim(Path("runs"), f"compare-{preset or base.dataset.name}")
        comparison = Comparison.start(path, rows)
    out = console()
    say(out, data_line(comparison.runs[0].run.experiment, _settled(comparison, images)))
    with Meter(out, sum(one.run.experiment.rounds for one in comparison.runs)).running() as meter:
        for one in comparison.runs:
            try:
                setup = build(one.run.experiment, data=images.of(one.run.experiment))
                _go(one.run, setup, meter, one.run.path.name, track)
            except KeyboardInterrupt:
                return _stopped(one.run, f"bifl compare --resume {shlex.quote(str(comparison.path))}", track)
    if lies := comparison_text(comparison.runs[0].run.experiment):
        say(out, lies)
    results = comparison.results()
    rounds = max(len(records) for seeds in results.values() for records in seeds)
    out.print(comparison_table([summarise(*item) for item in results.items()], rounds, max(map(len, results.values()))))
    if prices := price_table(results):
        out.print(prices)
    about = title(comparison.runs[0].run.experiment)
    for picture, drawn in {"compare.png": draw, "bits.png": draw_bits}.items():
        drawn({"": results}, comparison.path / picture, about)
        say(out, f"picture: {comparison.path / picture}")
    return 0


def _settled(comparison: Comparison, images: LastDataset) -> Loaded:
    """The data of all runs of a comparison.

    Raises:
        RunError: some have others, or had others before.
    """
    found = [images.loaded(one.run.experiment) for one in comparison.runs]
    if len(set(found)) > 1:
        raise RunError(f"the runs in '{comparison.path}' have different data, by their {CONFIG}: they cannot be compared")
    comparison.settle(found[0])
    return found[0]


def _go(run: RunFolder, setup: Setup, meter: Meter, label: str, track: str | None) -> None:
    meter.begin(label, run.records())
    for record in followed(running.run(run, setup), run, track):
        meter.show(record, run.experiment.rounds)


def _track(options: argparse.Namespace) -> str | None:
    """Take track= out of the settings: it decides no numbers, so it is none of the experiment's."""
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
