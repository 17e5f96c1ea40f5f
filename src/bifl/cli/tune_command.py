"""`bifl tune`: the best of a grid on validation samples, and where the grid is too small to say so."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import stdev

from bifl.engine.tuning import NOT_TUNED, TRIED, Edge, Trial, Tuning, points_of, tune, validating
from bifl.errors import ConfigError
from bifl.experiment.presets import pairs, preset_of
from bifl.experiment.settings import Experiment
from bifl.experiment.starting import remark_validated
from bifl.files import size
from bifl.registry import short
from bifl.runs.differences import few, interval
from bifl.runs.folder import RunFolder
from bifl.runs.record import Record
from bifl.runs.results import LAST
from bifl.show.output import console, counted, say
from bifl.show.tables import NAME, SPREAD, Column, Table
from bifl.show.terminal import Meter


def run(options: argparse.Namespace) -> int:
    """Run a grid, and say what is best."""
    preset, overrides = preset_of(options.settings)
    words = pairs(overrides)
    if "seed" in words:
        raise ConfigError("bifl tune takes seeds=…, separated by commas, instead of seed=")
    listed = words.pop("seeds", "0")
    grid = {key: value.split(",") for key, value in words.items() if "," in value and key.partition(".")[0] not in NOT_TUNED}
    points = points_of(grid)
    first = {key: values[0] for key, values in grid.items()}
    base = Experiment.of(preset).changed(words | first)
    if "validation" in words and not base.validation:
        raise ConfigError("bifl tune chooses by validation samples, never by test samples: leave validation= out, or set a share")
    base = validating(base)
    seeds = [base.changed({"seed": seed}).seed for seed in listed.split(",")]
    folder = options.out or Path("runs") / f"tune-{preset or short(base.dataset.name)}-{short(base.algorithm.name)}"
    out = console()
    say(out, f"{counted(len(points), 'point')} of the grid, {counted(len(seeds), 'seed')} each, in {folder}")
    remark_validated(base.start, base.validation)
    with Meter(out, len(points) * len(seeds) * base.rounds).running() as meter:
        running = ""

        def watch(run: RunFolder, record: Record) -> None:
            nonlocal running
            if running != run.path.name:
                running = run.path.name
                meter.begin(_label(run.experiment, grid), run.records()[:-1])
            meter.show(record, run.experiment.rounds)

        try:
            found = tune(base, grid, seeds, folder, watch)
        except KeyboardInterrupt:
            print("bifl: stopped; the same command goes on", file=sys.stderr)
            return 130
    out.print(table(found))
    say(out, f"tried: {folder / TRIED} ({size((folder / TRIED).stat().st_size)})")
    for sentence in verdict(found):
        say(out, sentence)
    return 0


def _label(experiment: Experiment, grid: dict[str, list[str]]) -> str:
    settings = experiment.flat()
    values = {key: settings[key] for key in grid if key in settings}
    texts = [f"{key}={','.join(map(str, value)) if isinstance(value, tuple) else value}" for key, value in values.items()]
    return " ".join([*texts, f"seed={experiment.seed}"])


def table(found: Tuning) -> Table:
    """A row for each point: its score, and, of several seeds, where its difference to the best lies."""
    best, seeds = found.best_with({}), max(len(trial.results) for trial in found.trials)
    measure = next((trial.results[0].records[-1].named for trial in found.trials if trial.results), "validation score")
    columns = [Column(key, NAME) for key in found.grid] + [Column(f"{measure}\n%", SPREAD)]
    columns += [Column("less the best\n95 % interval")] if seeds > 1 else []
    rows = []
    for trial in found.trials:
        spread = f" ± {100 * stdev(trial.scores):.2f}" if len(trial.scores) > 1 else ""
        cells = ["diverged" if trial.why_not else f"{100 * trial.mean:.2f}{spread}"]
        if seeds > 1:
            where = None if best is None or trial.why_not or trial is best else interval(_less(trial, best))
            cells.append("best" if trial is best else f"{where.low:+.2f} … {where.high:+.2f}" if where else "–")
        rows.append([*trial.point.values(), *cells])
    rounds = found.experiment.rounds
    what = f"mean of the last {LAST} of {rounds} rounds" if rounds >= LAST else f"after {counted(rounds, 'round')}"
    over = f", mean ± std of {seeds} seeds" if seeds > 1 else ""
    title = f"{what}{over}, on validation={found.experiment.validation:g}, not on test samples"
    return Table(columns, rows, title, _caution(len(found.trials), seeds) if best else "")


def _less(trial: Trial, best: Trial) -> list[float]:
    """What a trial's score is less than the best one's, seed by seed, in points."""
    return [100 * (mine - its) for mine, its in zip(trial.scores, best.scores, strict=False)]


def _caution(points: int, seeds: int) -> str:
    """How far to trust the table, in a sentence."""
    chosen = f"the best of {points} points is chosen by these same seeds, which flatters it"
    if seeds < 2:
        return chosen
    return "; ".join(filter(None, [f"{chosen}; intervals are not corrected for the number of points", few(seeds)]))


def verdict(found: Tuning) -> list[str]:
    """What is best, or what to try next."""
    best = found.best
    words = " ".join(f"{key}={value}" for key, value in best.point.items())
    edges = [_edge(edge, found.grid[edge.key]) for edge in found.edges]
    alone = [] if len(best.results) > 1 or edges else ["one seed: the next one may choose otherwise, seeds=0,1,2 tell"]
    chosen = [] if edges else [f"best inside the grid: {words}; now test it, without validation="]
    failed = sum(bool(trial.why_not) for trial in found.trials)
    return [*edges, *chosen, *alone, *([f"{counted(failed, 'point')} diverged"] if failed else [])]


def _edge(edge: Edge, values: Sequence[str]) -> str:
    """Which key to extend, and with what."""
    where = "".join(f"{key}={value}: " for key, value in edge.at.items())
    longer = ",".join(sorted({*values, edge.beyond}, key=float))
    return (
        f"{where}{edge.key}={edge.value} is the {_end(values, edge.value)} that was tried, so no optimum: add {edge.key}={longer}"
    )


def _end(values: Sequence[str], value: str) -> str:
    return "largest" if float(value) == max(map(float, values)) else "smallest"
