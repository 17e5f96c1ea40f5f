"""The one table of rounds: what a notebook gets of runs on disk and of a simulation."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

import bifl
from bifl.experiment.settings import Experiment
from bifl.runs.folder import Result
from bifl.runs.record import Record
from bifl.runs.results import frame
from studies import keeping
from tests.support.series import series


def records(*scores: float) -> list[Record]:
    return [Record(n, score, 0.1, 0.2, 2, 100, 200, 100, 0.5, 1.5, 0.1, 1.0) for n, score in enumerate(scores, start=1)]


def test_a_row_is_a_round_of_a_run_and_columns_are_what_differs() -> None:
    betas = [Experiment(algorithm={"name": "up_down", "beta": beta}, seed=1, rounds=9) for beta in (0.3, 1.0)]
    table = frame([Result(f"run {n}", one, records(0.8, 0.9)) for n, one in enumerate([*betas, Experiment(algorithm="fedavg")])])
    assert table.columns[:4].tolist() == ["run", "seed", "algorithm", "algorithm.beta"]
    assert not {"rounds", "workers", "dataset", "lr"} & {*table.columns}, "what is the same in all runs"
    assert len(table) == 6
    rows = table[(table["algorithm"] == "up_down") & (table["algorithm.beta"] == 1.0)]
    assert rows["round"].tolist() == [1, 2]
    assert rows["score"].tolist() == rows["accuracy"].tolist() == [0.8, 0.9]
    assert table["algorithm.beta"].isna().tolist() == [False] * 4 + [True] * 2
    assert table["up_bytes"].sum() == 600


def test_rounds_without_evaluation_and_other_metrics_have_their_columns() -> None:
    gap, known = records(math.nan, 0.5)
    gap = gap._replace(loss=math.nan)
    known = known._replace(metrics={"r2": 0.4, "mse": 2.0}, layer_flips={"conv1": 0.1})
    table = frame([Result("one", Experiment(), [gap, known])])
    assert table["evaluated"].tolist() == [False, True]
    assert math.isnan(table["score"][0])
    assert table["score"][1] == 0.4
    assert table.iloc[1][["r2", "mse", "flips/conv1"]].tolist() == [0.4, 2.0, 0.1]


def test_what_validation_samples_say_is_in_no_column_of_test_samples() -> None:
    (validated,) = (record._replace(validated=400, metrics={"accuracy": 0.9, "f1": 0.8}) for record in records(0.9))
    tested = Result("tested", Experiment(), records(0.7))
    table = frame([tested, Result("validated", Experiment(validation=0.1), [validated])]).set_index("run")
    assert table["score"].dropna().to_dict() == table["accuracy"].dropna().to_dict() == {"tested": 0.7}
    assert table["loss"].dropna().index.tolist() == ["tested"]
    assert table["validation_score"].dropna().to_dict() == table["validation_accuracy"].dropna().to_dict() == {"validated": 0.9}
    assert table["validation_f1"]["validated"] == 0.8
    assert "validation_score" not in frame([tested]).columns


def test_runs_in_folders_and_kept_runs_are_read(finished: Path, tmp_path: Path) -> None:
    keeping.save(tmp_path, Experiment(seed=7), records(0.1, 0.2))
    (tmp_path / "cut.jsonl.gz").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"left out: .*cut\.jsonl\.gz' is not a kept run"):
        table = bifl.read_runs(finished, str(tmp_path))
    assert table.groupby("seed")["round"].max().to_dict() == {0: 4, 7: 2}
    assert table["run"].nunique() == 2
    with pytest.raises(bifl.BiflError, match="'nowhere' does not exist"):
        bifl.read_runs("nowhere")


def test_a_simulation_has_the_same_table() -> None:
    simulation = bifl.simulate(Experiment(clients=2, rounds=2, partition={"name": "shared", "images": 64}, workers=1))
    assert simulation.frame().empty
    seen = list(simulation)
    table = simulation.frame()
    assert table["round"].tolist() == [1, 2]
    assert table["up_bytes"].tolist() == [record.up_bytes for record in seen]
    assert {"seed", "algorithm"} <= {*table.columns}


def test_numbers_of_several_seeds_are_of_those_that_got_furthest() -> None:
    one = series("biml", records(0.9, 0.94), records(0.5), records(0.8, 0.96))
    assert (one.rounds, len(one.runs)) == (2, 2)
    assert one.last().mean == pytest.approx(95)
    assert one.last().std == pytest.approx(math.sqrt(2))
    assert one.total("up_bytes") == 200
    assert one.curve().mean.tolist() == pytest.approx([85, 95])
    assert one.curve("up_bytes").x.tolist() == [100, 200]


def test_a_run_waits_for_no_table() -> None:
    modules = "bifl.engine.simulator, bifl.engine.round, bifl.runs.comparison, bifl.show.terminal, bifl.show.plot, bifl.report.page"
    program = f"import sys, {modules}; print({{'pandas', 'matplotlib'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
