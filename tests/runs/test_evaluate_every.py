"""`evaluate_every`: rounds without evaluation train the same, and nothing that reads them takes a gap for a number."""

from __future__ import annotations

import json
import math
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import bifl
import tests.support.algorithms  # noqa: F401
from bifl.engine.simulator import Simulation
from bifl.errors import ConfigError
from bifl.experiment.setup import build
from bifl.report import charts, paper_values
from bifl.report.page import render
from bifl.report.remarks import ordering, remarks, seldom
from bifl.report.summary import settings
from bifl.runs.folder import Result, RunFolder
from bifl.runs.record import Record
from bifl.show import plot
from bifl.show.terminal import Meter, client_table, run_table
from studies import keeping
from studies.cells import cells as cells_of
from studies.runner import Store
from studies.study_tables import Shown
from tests.support.commands import Run
from tests.support.federation import deploy, neighbours, quick, same, simulated
from tests.support.grid import Clock
from tests.support.series import series

OF_EVALUATION = ("accuracy", "loss", "metrics", "clients_mean", "clients_p10", "clients_worst")


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) | {"seconds": 0} for line in (folder / "rounds.jsonl").read_text().splitlines()]


def records(*scores: float | None) -> list[Record]:
    """A run; None is a round without evaluation."""
    every = [math.nan if score is None else score for score in scores]
    return [Record(n, score, score, 0.5, 2, 100, 200, 100, 0.5, 1.5, 0.1, 1.0) for n, score in enumerate(every, start=1)]


@pytest.mark.parametrize("algorithm", ["biml", "fttq"])
def test_training_is_the_same_and_only_evaluated_rounds_have_numbers_of_it(algorithm: str, tmp_path: Path, small: Path) -> None:
    """Every message and the model too; held-out evaluation alike."""
    experiment = quick(small, algorithm=algorithm, clients=2, rounds=5, holdout=0.2)
    always = simulated(tmp_path / "always", experiment)
    seldom = simulated(tmp_path / "seldom", experiment.changed({"evaluate_every": 2}))
    assert [path.read_bytes() for path in sorted((always / "messages").rglob("*")) if path.is_file()] == [
        path.read_bytes() for path in sorted((seldom / "messages").rglob("*")) if path.is_file()
    ]
    assert (always / "model").read_bytes() == (seldom / "model").read_bytes()
    for number, (one, other) in enumerate(zip(lines(always), lines(seldom), strict=True), start=1):
        assert all(one[name] is not None for name in OF_EVALUATION)
        assert other == (one if number in (2, 4, 5) else one | dict.fromkeys(OF_EVALUATION)), number
    held = [["held" in row for row in json.loads(line)["clients"]] for line in (seldom / "clients.jsonl").read_text().splitlines()]
    assert held == [[number in (2, 4, 5)] * 2 for number in range(1, 6)]


def test_a_deployment_evaluates_in_the_same_rounds(tmp_path: Path, small: Path, clock: Clock) -> None:
    experiment = quick(small, clients=2, rounds=3, holdout=0.2, evaluate_every=2)
    alone = simulated(tmp_path / "alone", experiment)
    found = deploy(neighbours(tmp_path, 2), tmp_path / "deployed", experiment)
    same(alone, tmp_path / "deployed")
    assert [record.evaluated for record in found] == [False, True, True]


def test_a_continued_run_counts_the_same_bytes_for_those_who_slept(tmp_path: Path, small: Path) -> None:
    """An evaluation on what clients hold out wakes them all; where there was none they must be sent more."""
    experiment = quick(small, algorithm="example_adam", clients=5, rounds=6, participation=0.2, idle="sleep")
    experiment = experiment.changed({"holdout": 0.2, "evaluate_every": 3})
    whole = list(bifl.simulate(experiment))
    (tmp_path / "state").mkdir()
    found = []
    for stop in (2, 4, 6):  # left after these rounds: neither is the run's last, and one follows an evaluation
        simulation = Simulation(build(experiment), tmp_path / "state")
        for record in simulation:
            found.append(record)
            if record.round == stop:
                break
        simulation.close()
    assert [record._replace(seconds=0) for record in found] == [record._replace(seconds=0) for record in whole]
    assert any(record.catch_up_bytes for record in found[4:])


def test_it_belongs_to_a_run_and_to_a_kept_run_but_not_to_the_papers_cell(tmp_path: Path) -> None:
    usual = bifl.Experiment.of("mnist-iid")
    seldom = usual.changed({"evaluate_every": 5})
    assert keeping.name(usual) != keeping.name(seldom)
    assert paper_values.value(seldom) == paper_values.value(usual) is not None
    RunFolder.start(tmp_path / "run", seldom)
    with pytest.raises(ConfigError, match="'evaluate_every' cannot change when a run is continued"):
        RunFolder.resume(tmp_path / "run", {"evaluate_every": "1"})
    with pytest.raises(ConfigError, match="evaluate_every must be 1 or more, not 0"):
        usual.changed({"evaluate_every": 0})


def test_a_record_says_null_and_is_read_again() -> None:
    (gap,) = records(None)
    said = json.loads(gap.to_json(), parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    assert (said["accuracy"], said["loss"], said["metrics"]) == (None, None, None)
    again = Record.from_json(gap.to_json())
    assert again == gap
    assert not again.evaluated
    assert not again.accuracy > 0.5  # a loop that stops early need not ask
    for lie in ({"accuracy": 0.5}, {"loss": 0.5}, {"metrics": {"accuracy": 0.5}}):
        with pytest.raises(ValueError, match=r"(accuracy|loss) is None"):
            Record.from_json(json.dumps(said | lie))


def test_trackers_log_nothing_of_an_evaluation_that_there_was_not() -> None:
    gap, known = (record.numbers() for record in records(None, 0.5))
    assert known.keys() - gap.keys() == {"accuracy", "loss"}
    assert not any(map(math.isnan, gap.values()))


def test_tables_take_the_evaluated_rounds() -> None:
    runs = [records(None, 0.96, None, 0.94, None), records(None, 0.9, None, 0.98, None)]
    row = series("biml", *runs)
    assert (row.last().mean, row.best().mean) == pytest.approx((96, 97))
    sent = row.until(95)
    assert sent is not None
    assert (sent.rounds, sent.up_bpp) == pytest.approx((3, 1.5))
    screen = Console(width=100, file=StringIO())
    screen.print(client_table([row]))
    screen.print(run_table(runs[0], Path(__file__)))
    assert isinstance(screen.file, StringIO)
    assert "reach an accuracy in a round that was evaluated" in screen.file.getvalue()
    assert "94.00% after round 4 (best 96.00%, round 2)" in screen.file.getvalue()
    assert "0.9400 test, 0.5000 train" in screen.file.getvalue()


def test_the_terminal_shows_the_last_evaluation() -> None:
    screen = Console(width=100, file=StringIO())
    meter = Meter(screen, 10)
    meter.begin("biml", [])
    for record in records(None, 0.5, None):
        meter.show(record, 10)
    assert isinstance(screen.file, StringIO)
    first, second, third = screen.file.getvalue().splitlines()
    assert "round 1/10  –  ↑" in first
    assert "50.00%  loss 0.500" in second
    assert "50.00% in round 2  loss 0.500" in third


def test_a_report_says_what_its_means_are_of() -> None:
    experiment = bifl.Experiment.of("mnist5k-iid", evaluate_every=4, rounds=14)
    scores = [0.8 if number % 4 == 0 or number == 14 else None for number in range(1, 15)]
    every = [
        Result(f"{name}-{seed}", experiment.changed({"algorithm": name, "seed": seed}), records(*scores))
        for name, seed in (("biml", 0), ("biml", 1), ("up_down", 0))
    ]
    every.append(Result("usual", experiment.changed({"algorithm": "fedavg", "evaluate_every": 1}), records(*[0.9] * 14)))
    (setting,) = settings(every)
    biml = next(one for one in setting.series if one.label.startswith("biml"))
    assert (biml.final().mean, biml.best().mean, biml.averaged) == pytest.approx((80, 80, 3))
    reach = biml.until(80)
    assert reach is not None
    assert reach.up_bytes == pytest.approx(400)
    (said,) = [text for text in remarks(setting.series) if "evaluated every 4 rounds" in text]
    assert said.startswith("biml evaluate_every=4, up_down evaluate_every=4: evaluated every 4 rounds: 3 of the last 10")
    (all_of_them,) = seldom([one for one in setting.series if one.averaged is not None])
    assert all_of_them.startswith("All: evaluated every 4 rounds")
    assert (ordering(setting.series) or "").startswith("The paper’s order, fedavg > biml")
    page = render([setting])
    assert "last 10 rounds, as far as they were evaluated, and its best round" in page
    (line,) = [
        t for t in charts.accuracy([biml], {biml.label: 0}, plot.ROUNDS[0])["data"] if t["mode"] == "lines" and "fill" not in t
    ]
    assert (line["x"], line["y"]) == ([4, 8, 12, 14], [80, 80, 80, 80])


def test_what_was_not_evaluated_among_the_last_rounds_is_a_dash(tmp_path: Path) -> None:
    cell = cells_of("table1", "mnist", 12)[0]
    store = Store(tmp_path / "cells", tmp_path / "work")
    keeping.save(store.kept, cell.experiment, records(0.5, *[None] * 11))
    shown = Shown.of(store, "table1", "mnist", 12, [0])
    (row,) = [line.texts() for line in shown.lines]
    assert row[3] == "–"
    assert row[4] == "50.00"
    assert row[6] == "–"
    assert "as far as they were evaluated" in str(shown.table().caption)
    assert "0 of the last 10, whose mean this is" in shown.page()
    assert "–" in render(shown.settings())


def test_points_of_pictures_are_joined() -> None:
    runs = {"": [series("biml", records(None, 0.5, None, 0.6, 0.7), records(None, 0.5, None, 0.6, None))]}
    figures = plot.figure_of(runs), plot.figure_of(runs, plot.BITS)
    lines = [line for figure in figures for axes in figure.axes for line in axes.lines]
    drawn = [(np.round(np.asarray(line.get_xdata()), 6).tolist(), np.asarray(line.get_ydata()).tolist()) for line in lines]
    assert [x for x, _ in drawn] == [[2, 4], [0.0002, 0.0004], [0.0004, 0.0008], [1, 2], [4, 8]]
    assert all(scores == [50, 60] for _, scores in drawn)


def test_compare_and_report_on_the_command_line(here: Run, tmp_path: Path) -> None:
    words = ["algorithms=biml,up_down", "clients=2", "partition=shared", "partition.images=64", "rounds=3", "evaluate_every=2"]
    done = here("compare", *words, "workers=1", "--out", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    assert "nan" not in done.stdout
    assert "after 3 rounds" in done.stdout
    done = here("report", tmp_path / "runs", "-o", tmp_path / "report.html")
    assert done.returncode == 0, done.stderr
    assert "evaluated every 2 rounds; what was reached in between" in (tmp_path / "report.html").read_text()
