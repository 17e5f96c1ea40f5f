"""validation=: nobody trains on what is evaluated on, no test sample is used, and every place says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bifl.cli import main
from bifl.data.datasets import Dataset, dataset
from bifl.data.inputs import Array, Index
from bifl.data.validation import validated
from bifl.engine.loop import loop
from bifl.engine.simulator import Simulation, simulate
from bifl.errors import ConfigError
from bifl.experiment.settings import Experiment, identity
from bifl.experiment.setup import build, refuse_undeployable
from bifl.runs.record import Record
from bifl.runs.results import read_runs
from studies import keeping
from tests.support.commands import Run, refused, rounds

SMALL: dict[str, Any] = {"clients": 3, "workers": 1, "rounds": 2, "validation": 0.1}


def made(labels: Index, users: Index | None = None) -> Dataset:
    inputs = np.arange(len(labels), dtype=np.float32)[:, None]
    return Dataset(inputs, labels, -inputs[:7] - 1, labels[:7], 100, 0.0, 1.0, users)


# ---- which samples ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), min_size=60, max_size=400), st.floats(0.2, 0.8))
def test_every_class_gives_its_share_and_no_sample_is_in_both_parts(classes: list[int], share: float) -> None:
    labels = np.array(classes)
    data = validated(made(labels), share)
    chosen, rest = data.test_inputs[:, 0].astype(int), data.trained_on()
    assert sorted([*chosen, *rest]) == list(range(len(labels)))
    assert len(chosen) == round(share * len(labels))
    wanted, own = share * np.bincount(labels), np.bincount(labels[chosen], minlength=labels.max() + 1)
    assert (abs(own - wanted) < 2).all()
    assert np.array_equal(data.test_labels, labels[chosen])
    assert np.array_equal(validated(made(labels), share).test_inputs, data.test_inputs), "always the same"


@given(st.lists(st.integers(0, 40), min_size=100, max_size=400), st.floats(0.2, 0.8))
def test_users_are_whole(people: list[int], share: float) -> None:
    users = np.array(people)
    assume(np.bincount(users).max() < share * len(users))  # otherwise it may be that nobody's samples are so few
    data = validated(made(np.zeros(len(users), np.int64), users), share)
    chosen = data.test_inputs[:, 0].astype(int)
    assert not set(users[chosen]) & set(users[data.trained_on()])
    assert abs(len(chosen) - share * len(users)) <= np.bincount(users).max()


@pytest.mark.parametrize(("samples", "users", "share"), [(40, None, 0.1), (400, [0, 1], 0.1), (400, [0], 0.3), (4, None, 0.01)])
def test_too_few_to_choose_by_are_refused(samples: int, users: list[int] | None, share: float) -> None:
    owners = None if users is None else np.resize(np.array(users), samples)
    with pytest.raises(ConfigError, match=rf"validation={share:g} of {samples} .* too few to choose by"):
        validated(made(np.arange(samples) % 2, owners), share)


@pytest.mark.parametrize("share", ["1", "-0.1", "nan", "inf", "1e400", "x", "0.1,0.2", "true"])
def test_what_is_no_share_is_refused(share: str, here: Run) -> None:
    assert "validation must be " in refused(here("run", f"validation={share}"))


# ---- who trains on what ----------------------------------------------------------------------------------------------------


SPLITS: list[dict[str, Any]] = [
    {"algorithm": "baseline"}, {"algorithm": "fttq", "algorithm.validation": 0.2}, {"holdout": 0.3}, {"partition": "dirichlet"},
    {"partition": "shared", "clients": 50},
]  # fmt: skip


@pytest.mark.parametrize("words", SPLITS, ids=lambda words: "+".join(map(str, words.values())))
def test_nobody_trains_on_them_nor_holds_them_out(words: dict[str, Any]) -> None:
    setup = build(Experiment.of(None, **SMALL | words))
    assert setup.data.validation is not None
    dealt = {int(sample) for parts in (setup.parts, setup.shards, [setup.held]) for part in parts for sample in part}
    assert dealt
    assert not dealt & set(setup.data.validation.tolist())
    assert np.array_equal(setup.data.test_inputs, setup.data.inputs[setup.data.validation])


def test_all_seeds_and_partitions_are_evaluated_on_the_same_samples() -> None:
    ways: list[dict[str, Any]] = [{"seed": 1}, {"seed": 2, "partition": "by_class", "clients": 10}]
    first, second = (build(Experiment.of(None, **SMALL | way)).data.validation for way in ways)
    assert first is not None
    assert second is not None
    assert np.array_equal(first, second)


def test_where_there_are_no_test_samples_clients_hold_none_out_of_themselves() -> None:
    digits = dataset.make("mnist5k", {}).tested_on(slice(0))
    simulation = simulate(Experiment(**SMALL | {"algorithm": "fedavg"}), data=digits)
    assert [len(shard) for shard in simulation.setup.shards] == [0, 0, 0]
    assert [record.validated for record in simulation] == [400, 400]


def negative(inputs: Array, rows: Index) -> Array:
    """Some of the images with their colours turned round."""
    inputs = inputs.copy()
    inputs[rows] = 255 - inputs[rows]
    return inputs


@pytest.mark.parametrize("algorithm", ["fedavg", "fttq"])
def test_the_test_samples_decide_nothing(algorithm: str) -> None:
    digits = dataset.make("mnist5k", {})
    inputs, labels = negative(digits.test_inputs, np.arange(1000)), (digits.test_labels + 1) % 10
    other = digits._replace(test_inputs=inputs, test_labels=labels)
    first, second = (
        facts(simulate(Experiment(**SMALL | {"algorithm": algorithm, "holdout": 0.2}), data=data)) for data in (digits, other)
    )
    assert first == second


def test_the_validation_samples_decide_scores_alone() -> None:
    digits, experiment = dataset.make("mnist5k", {}), Experiment(**SMALL | {"algorithm": "biml"})
    held = build(experiment).data.validation
    assert held is not None
    one, other = (simulate(experiment, data=data) for data in (digits, digits._replace(inputs=negative(digits.inputs, held))))
    scores = [[record["accuracy"] for record in facts(each)] for each in (one, other)]
    assert all(first > second for first, second in zip(*scores, strict=True))
    assert np.array_equal(one.public.weights, other.public.weights)


def facts(simulation: Simulation) -> list[dict[str, Any]]:
    return [record._asdict() | {"seconds": 0} for record in simulation]


def test_the_twin_divides_in_the_same_way() -> None:
    experiment = Experiment(**SMALL | {"algorithm": "biml"})
    simulation = simulate(experiment)
    _ = list(simulation)
    *_, (_, public) = loop(experiment)
    assert np.array_equal(public.weights, simulation.public.weights)
    *_, (_, plain) = loop(experiment.changed({"validation": 0}))
    assert not np.array_equal(public.weights, plain.weights)


@pytest.mark.parametrize("words", [("server", "--listen", "127.0.0.1:9"), ("federation", "up", "--clients", "2")])
def test_a_deployment_is_refused(words: tuple[str, ...], here: Run, tmp_path: Path) -> None:
    said = refused(here(*words, "validation=0.1", "rounds=1", "--out", tmp_path / "run"))
    assert "validation=0.1 divides samples that are in one place: choose settings with it in a simulation" in said
    assert not (tmp_path / "run").exists()


def test_a_client_is_not_told_of_it() -> None:
    with pytest.raises(ConfigError, match="then deploy without it"):
        refuse_undeployable(Experiment(validation=0.1))


# ---- who says so -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("validation") / "run"
    assert main(["run", "algorithm=fedavg", *(f"{key}={value}" for key, value in SMALL.items()), "--out", str(folder)]) == 0
    return folder


def test_records_and_data_say_so(finished: Path, here: Run) -> None:
    assert [line["validated"] for line in rounds(finished)] == [400, 400]
    data = json.loads((finished / "data.json").read_text())
    assert (data["train"], data["test"], data["validation"]) == (3600, 0, 400)
    lines = (finished / "rounds.jsonl").read_text().splitlines()
    assert [Record.from_json(line).named for line in lines] == ["validation accuracy"] * 2
    table = read_runs(finished)
    assert table["validation_accuracy"].tolist() == table["validation_score"].tolist()
    assert table["score"].isna().all()
    assert not {"accuracy", "loss", "validated"} & {*table.columns}, "trackers and notebooks get the same names"
    assert "on mnist5k's 400 validation samples" in here("eval", finished).stdout
    assert "on mnist5k's 1,000 test samples" in here("eval", finished / "model", "mnist5k").stdout
    said = refused(here("eval", finished, "validation=0"))
    assert "'validation' is a setting of the run in" in said
    assert f"such as bifl eval {finished / 'model'} mnist5k" in said
    done = here("run", "--resume", finished)
    assert "3,600 to train, 400 to validate (no test sample is used)" in done.stdout
    assert "validation accuracy" in done.stdout


def test_the_report_says_so(finished: Path, here: Run, tmp_path: Path) -> None:
    test = tmp_path / "runs" / "test"
    here("run", "algorithm=fedavg", "clients=3", "workers=1", "rounds=1", "--out", test)
    (tmp_path / "runs" / "validation").symlink_to(finished)
    here("report", tmp_path / "runs", "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<h3>Accuracy</h3>") == page.count("<h3>Validation accuracy</h3>") == 1, "not in one table"
    assert "evaluated on validation=0.1, not on test samples" in page
    assert "Validation accuracy of the global model" in page


def test_kept_runs_are_other_cells(finished: Path, tmp_path: Path) -> None:
    plain, other = Experiment(algorithm="fedavg"), Experiment(algorithm="fedavg", validation=0.1)
    assert keeping.name(plain) != keeping.name(other)
    assert "-validation-0.1-" in keeping.name(other)
    assert identity(plain) != identity(other)
    assert keeping.name(plain.changed({"validation": 0.0})) == keeping.name(plain)


def test_worker_processes_evaluate_on_them() -> None:
    simulation = simulate(Experiment(**SMALL | {"workers": 2}))
    assert [record.validated for record in simulation] == [400, 400]
