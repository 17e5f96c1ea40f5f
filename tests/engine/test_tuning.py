"""Choosing settings on a grid: never on test samples, resumed where it stopped, and no edge is called an optimum."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import bifl
from bifl.cli import main
from bifl.cli.tune_command import table, verdict
from bifl.engine import tuning
from bifl.engine.tuning import Trial, Tuning, extension, points_of, tune
from bifl.errors import ConfigError, RunError
from bifl.experiment.settings import Experiment
from bifl.runs.folder import Result, RunFolder
from bifl.runs.record import Record
from tests.support.commands import Run, refused, rounds

WORDS = ["algorithm=fedavg", "optimizer=sgd", "clients=2", "workers=1", "rounds=1"]
BASE = Experiment.of(None, WORDS)


# ---- grids and their edges ---------------------------------------------------------------------------------------------


RATES = st.lists(st.floats(1e-4, 10).map(lambda rate: f"{rate:.3g}"), min_size=2, max_size=6, unique_by=float)


@given(RATES, st.data())
def test_an_edge_is_extended_beyond_itself_and_the_inside_is_not(rates: list[str], data: st.DataObject) -> None:
    best = data.draw(st.sampled_from(rates))
    beyond = extension(BASE, {"lr": rates}, {"lr": best})
    numbers = sorted(map(float, rates))
    assume(all(later / earlier > 1.02 for earlier, later in pairwise(numbers)))
    if float(best) == numbers[-1]:
        assert float(beyond["lr"]) > numbers[-1]
    elif float(best) == numbers[0]:
        assert 0 < float(beyond["lr"]) < numbers[0]
    else:
        assert beyond == {}


EDGES: list[tuple[str, list[str], str, str | None]] = [
    ("lr", ["0.01", "0.1"], "0.1", "1"), ("lr", ["0.01", "0.1"], "0.01", "0.001"), ("lr", ["0.1"], "0.1", None),
    ("algorithm.group", ["32", "64", "128"], "128", "256"), ("algorithm.group", ["32", "64", "128"], "64", None),
    ("local_epochs", ["1", "2", "4"], "1", None), ("participation", ["0.25", "0.5", "1"], "1", None),
    ("optimizer.momentum", ["0", "0.5", "0.9"], "0", None), ("optimizer.momentum", ["0", "0.5", "0.9"], "0.9", "0.97"),
    ("optimizer", ["sgd", "adam"], "adam", None), ("secure_sum", ["true", "false"], "true", None),
]  # fmt: skip


@pytest.mark.parametrize(("key", "values", "best", "beyond"), EDGES)
def test_edges(key: str, values: list[str], best: str, beyond: str | None) -> None:
    experiment = Experiment.of(None, ["algorithm=murmur", "optimizer=sgd", "lr=0.1"])
    assert extension(experiment, {key: values}, {key: best}) == ({} if beyond is None else {key: beyond})


def trial(score: float, why_not: str = "", **point: str) -> Trial:
    record = Record(1, score, 0.1, 0.1, 2, 100, 200, 100, 0.5, 1.5, 0.1, 1.0, validated=400)
    return Trial(point, [Result("run", BASE, [record])], why_not)


def test_the_best_mean_is_chosen_and_its_experiment_is_for_the_test_samples() -> None:
    found = Tuning(BASE, {"lr": ["0.1", "0.2", "0.3"]}, [trial(0.8, lr="0.1"), trial(0.9, lr="0.2"), trial(0.99, "gone", lr="0.3")])
    assert found.best.point == {"lr": "0.2"}
    assert found.beyond == {}
    assert found.optimum == BASE.changed({"lr": 0.2, "validation": 0})
    edge = found._replace(trials=[trial(0.9, lr="0.1"), trial(0.8, lr="0.2"), trial(math.nan, lr="0.3")])
    assert edge.optimum is None
    with pytest.raises(RunError, match="no point of the grid can be scored: gone"):
        _ = Tuning(BASE, {"lr": ["0.1", "0.2"]}, [trial(0.9, "gone", lr="0.1")]).best


def test_the_edge_of_every_word_counts() -> None:
    grid = {"optimizer": ["sgd", "adam"], "lr": ["0.3", "0.01", "0.1"]}
    scores = {"sgd": (0.8, 0.6, 0.7), "adam": (0.7, 0.8, 0.9)}
    trials = [
        trial(score, optimizer=word, lr=rate) for word in scores for rate, score in zip(grid["lr"], scores[word], strict=True)
    ]
    found = Tuning(BASE, grid, trials)
    assert found.best.point == {"optimizer": "adam", "lr": "0.1"}
    assert found.beyond == {}
    assert [(edge.at, edge.key, edge.value) for edge in found.edges] == [({"optimizer": "sgd"}, "lr", "0.3")]
    assert found.optimum is None, "sgd with a larger rate may be better"
    (said,) = verdict(found)
    assert said == "optimizer=sgd: lr=0.3 is the largest that was tried, so no optimum: add lr=0.01,0.1,0.3,0.9"
    lost = found._replace(trials=[one._replace(why_not="gone") if one.point["optimizer"] == "sgd" else one for one in trials])
    assert lost.edges == [], "of a word with which all diverged nothing is known"
    one = found._replace(trials=[each for each in trials if each.point["optimizer"] == "sgd"])
    assert [edge.at for edge in one.edges] == [{}], "the best of all is not told twice"


def test_the_table_says_how_far_to_trust_it() -> None:
    found = Tuning(BASE, {"lr": ["0.1", "0.2"]}, [trial(0.9, lr="0.1"), trial(0.8, lr="0.2")])
    assert table(found).caption == "the best of 2 points is chosen by these same seeds, which flatters it"
    twice = found._replace(trials=[one._replace(results=one.results * 2) for one in found.trials])
    assert "intervals are not corrected for the number of points; of 2 seeds an interval reaches 12.7" in table(twice).caption


WRONG: list[tuple[Mapping[str, list[Any]], str]] = [
    ({}, "a grid needs a key with several values"), ({"lr": [0.1]}, "a grid needs a key"), ({"lr": []}, "lr must have values"),
    ({"lr": [0.1, 0.1]}, "values that differ"), ({"rounds": [1, 2]}, "'rounds' cannot be tuned"),
    ({"dataset.path": ["a", "b"]}, "'dataset.path' cannot be tuned"),
    ({"lr": "0.1"}, "lr must have a list of values, such as .*, not '0.1'"),  # type: ignore[dict-item]
    ({"lr": {0.1: 1, 0.2: 1}}, "lr must have a list of values"), ({"lr": 0.1}, "lr must have a list of values"),  # type: ignore[dict-item]
    ({"algorithm": [{"name": "murmur"}, "biml"]}, "algorithm must have words or numbers as values"),
]  # fmt: skip


@pytest.mark.parametrize(("grid", "why"), WRONG)
def test_what_is_no_grid_is_refused(grid: Mapping[str, list[Any]], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        points_of(grid)


# ---- runs --------------------------------------------------------------------------------------------------------------


class Watched:
    """Who is told of every round."""

    def __init__(self) -> None:
        self.rounds: list[tuple[str, int]] = []

    def __call__(self, run: RunFolder, record: Record) -> None:
        self.rounds.append((run.path.name, record.round))


def test_the_same_call_runs_nothing_again_and_a_larger_one_what_is_new(tmp_path: Path) -> None:
    first, again, larger, longer = Watched(), Watched(), Watched(), Watched()
    one = tune(BASE, {"lr": [0.03, 0.1]}, [0], tmp_path, first)
    assert [round for _, round in first.rounds] == [1, 1]
    assert tune(BASE, {"lr": [0.03, 0.1]}, [0], tmp_path, again).facts() == one.facts()
    assert again.rounds == []
    both = tune(BASE, {"lr": [0.03, 0.1]}, [0, 1], tmp_path, larger)
    assert len(larger.rounds) == 2
    assert not {*larger.rounds} & {*first.rounds}
    assert [trial.scores[:1] for trial in both.trials] == [trial.scores for trial in one.trials]
    tune(BASE.changed({"rounds": 2}), {"lr": [0.03, 0.1]}, [0], tmp_path, longer)
    assert [round for _, round in longer.rounds] == [2, 2]
    shorter = tune(BASE, {"lr": [0.03, 0.1]}, [0], tmp_path, again)
    assert again.rounds == []
    assert shorter.facts() == one.facts(), "who asks for fewer rounds gets the first ones"
    assert {record.validated for trial in both.trials for result in trial.results for record in result.records} == {400}


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    base, grid = BASE.changed({"rounds": 2}), {"lr": [0.03, 0.1]}
    whole = tune(base, grid, [0], tmp_path / "whole")

    def stop(run: RunFolder, record: Record) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(base, grid, [0], tmp_path / "killed", stop)
    watched = Watched()
    assert tune(base, grid, [0], tmp_path / "killed", watched).facts() == whole.facts()
    assert [round for _, round in watched.rounds] == [2, 1, 2]


def test_the_folder_tells_what_was_tried(tmp_path: Path) -> None:
    tune(BASE, {"lr": [0.1, 1e30]}, [0, 1], tmp_path)
    tried = json.loads((tmp_path / "tried.json").read_text())
    assert tried["version"] == bifl.__version__
    assert tried["grid"] == {"lr": ["0.1", "1e+30"]}
    assert {run["settings"]["validation"] for run in tried["runs"]} == {0.1}
    assert {*tried["runs"][0]["settings"]} >= {"lr", "batch", "optimizer.momentum"}, "also what is as usual today"
    assert {run["run"] for run in tried["runs"] + tried["failed"]} <= {path.name for path in tmp_path.iterdir()}
    assert [(run["point"], run["seed"], run["rounds"]) for run in tried["runs"]] == [
        ({"lr": "0.1"}, 0, 1),
        ({"lr": "0.1"}, 1, 1),
    ]
    kept = {path.name: rounds(path) for path in tmp_path.glob("*-s0-*") if (path / "rounds.jsonl").exists()}
    (records,) = [records for records in kept.values() if records]
    assert tried["runs"][0]["validation_score"] == records[0]["accuracy"]
    assert records[0]["validated"] == 400
    (failed,) = tried["failed"]
    assert (failed["point"], failed["seed"]) == ({"lr": "1e+30"}, 0)
    assert "the training diverged" in failed["why_not"]


def test_the_folder_remembers_what_other_calls_tried(tmp_path: Path) -> None:
    def tried() -> dict[float, int]:
        return {run["settings"]["lr"][0]: run["rounds"] for run in json.loads((tmp_path / "tried.json").read_text())["runs"]}

    tune(BASE, {"lr": [0.03, 0.1]}, [0], tmp_path)
    tune(BASE.changed({"rounds": 2}), {"lr": [0.1, 0.3]}, [0], tmp_path)
    assert tried() == {0.03: 1, 0.1: 2, 0.3: 2}
    (tmp_path / "tried.json").write_text('{"runs": [{}], "failed": []}')
    with pytest.raises(RunError, match="is no list of what was tried: move it elsewhere"):
        tune(BASE, {"lr": [0.03, 0.1]}, [0], tmp_path)


def test_a_run_is_no_folder_of_runs(tmp_path: Path) -> None:
    RunFolder.start(tmp_path, BASE)
    with pytest.raises(RunError, match="is the folder of a single run: choose another"):
        tune(BASE, {"lr": [0.03, 0.1]}, [0], tmp_path)
    assert not list(tmp_path.glob("mnist5k*"))


def test_another_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    tune(BASE, {"lr": [0.03, 0.1]}, [0], tmp_path)
    for path in tmp_path.glob("*/config.toml"):
        path.write_text(path.read_text().replace("batch = 64", "batch = 63"))
    with pytest.raises(RunError, match="is a run with other settings"):
        tune(BASE, {"lr": [0.03, 0.1]}, [0], tmp_path)


def test_what_cannot_be_run_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="by_class cuts 10 classes"):
        tune(BASE.changed({"partition": "by_class"}), {"lr": [0.03, 0.1]}, [0], tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_own_files_stay_inside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(
        "from bifl.data.partitions import partition\n\n\n@partition\ndef first():\n"
        "    return lambda labels, clients, generator, users: [range(64 * n, 64 * n + 64) for n in range(clients)]\n"
    )
    base, watched = BASE.changed({"partition": f"{tmp_path / 'my.py'}:first"}), Watched()
    for _ in range(2):
        tune(base, {"lr": [0.03, 0.1]}, [0], tmp_path / "work", watched)
    assert len(watched.rounds) == 2
    assert len(list((tmp_path / "work").glob("mnist5k-first-fedavg-s0-*"))) == 2


def test_without_validation_it_is_set() -> None:
    assert tuning.validating(BASE).validation == 0.1
    assert tuning.validating(BASE.changed({"validation": 0.3})).validation == 0.3


# ---- the command ---------------------------------------------------------------------------------------------------------


def test_the_command(here: Run, tmp_path: Path) -> None:
    words = ["tune", *WORDS, "--out", tmp_path / "work"]
    done = here(*words, "lr=0.03,0.1")
    assert done.returncode == 0, done.stderr
    assert "2 points of the grid, 1 seed each" in done.stdout
    assert "validation accuracy" in done.stdout
    assert "that was tried, so no optimum: add lr=0.03,0.1," in done.stdout
    assert "best inside the grid" not in done.stdout
    several = here(*words, "lr=0.03,0.1,1e30", "seeds=0,1").stdout
    assert "diverged" in several
    assert "1 point diverged" in several
    assert "on validation=0.1, not on test samples" in several
    assert ("best inside the grid: lr=0.1; now test it, without validation=" in several) == (
        "lr=0.03 is the smallest" not in several
    )


def test_where_all_diverged_the_table_is_shown_all_the_same(here: Run, tmp_path: Path) -> None:
    done = here("tune", *WORDS, "lr=1e29,1e30", "--out", tmp_path)
    assert "no point of the grid can be scored: round 1: " in refused(done)
    assert done.stdout.replace(str(tmp_path), "").count("diverged") == 2
    assert "the best of" not in done.stdout
    assert len(json.loads((tmp_path / "tried.json").read_text())["failed"]) == 2


def test_a_start_that_may_know_the_samples_is_told(here: Run, finished: Path, tmp_path: Path) -> None:
    start = f"start={finished / 'model'}"
    told = "the model of start= may have been trained on them"
    assert told in here("run", *WORDS, start, "validation=0.1", "--out", tmp_path / "one").stderr
    assert told in here("tune", *WORDS, start, "lr=0.001,0.002", "--out", tmp_path / "grid").stderr
    assert told not in here("run", *WORDS, start, "--out", tmp_path / "plain").stderr


def test_the_help_is_of_what_the_command_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tune", "--help"])
    said = capsys.readouterr().out
    assert f"validation ({tuning.VALIDATION:g})" in said
    assert "seeds (0)" in said
    assert "  seed (" not in said


REFUSED = {
    ("lr=0.1",): "a grid needs a key with several values, such as lr=0.01,0.03,0.1",
    ("lr=0.1,x",): "lr must be a number, not 'x'",
    ("lr=0.1,",): "lr must be",
    ("lr=0.1,-1",): "lr must be one or more positive numbers",
    ("lr=0.1,0.3", "seed=1"): "bifl tune takes seeds=",
    ("lr=0.1,0.3", "seeds=1,1"): "seeds must be one or more that differ, not '1,1'",
    ("lr=0.1,0.3", "exchange=inputs"): "exchange must be ballot where settings are chosen, not 'inputs'",
    ("lr=0.1,0.3", "validation=0.001"): "too few to choose by: take a larger share\n",
    ("lr=0.1,0.3", "seeds=x"): "seed must be a whole number, not 'x'",
    ("lr=0.1,0.10",): "lr must have values that differ: lr=0.1 and lr=0.10 are the same run",
    ("lr=0.1,0.3", "validation=0"): "never by test samples",
    ("lr=0.1,0.3", "validation=0.1,0.2"): "validation must be a number",
    ("lr=0.1,0.3", "rounds=1,2"): "rounds must be a whole number",
    ("algorithm.grup=1,2",): "unknown key 'algorithm.grup'",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_the_command_refuses(words: tuple[str, ...], here: Run, tmp_path: Path) -> None:
    assert REFUSED[words] in refused(here("tune", *WORDS[:-1], *words, "--out", tmp_path / "work"))
    assert not (tmp_path / "work").exists()


def test_from_python(tmp_path: Path) -> None:
    found = bifl.tune(bifl.Experiment(algorithm="fedavg", clients=2, workers=1, rounds=1), {"lr": [0.001, 0.005]}, folder=tmp_path)
    assert found.best.mean == np.max([trial.mean for trial in found.trials])
    assert found.optimum is None
