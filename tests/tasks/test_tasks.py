"""Tasks and inputs of any kind, end to end: the same bytes in the simulator, the loop and on Flower's nodes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bifl
from bifl.data.arrays import assemble, held_out
from bifl.data.datasets import dataset
from bifl.data.inputs import Dataset
from bifl.deploy.server_app import federate
from bifl.engine.loop import loop
from bifl.errors import ConfigError, DataError
from bifl.experiment.model import Model
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from bifl.nn.models import model
from bifl.runs.folder import read_records
from bifl.tasks import task, usual
from bifl.tasks.usual import class_numbers
from tests.support.commands import Run, refused
from tests.support.federation import deploy, neighbours, same, simulated
from tests.support.grid import Clock, LocalGrid, Node

SEEN: dict[str, Any] = {"algorithm": "biml", "clients": 3, "rounds": 3, "workers": 1, "batch": 16, "holdout": 0.2}


def windows() -> Dataset:
    """Two channels of very different size; the target is the first one's mean."""
    dice = np.random.default_rng(0)
    level = dice.normal(size=(120, 1, 1))
    inputs = (np.array([[[1.0], [1000.0]]]) * (level + 0.1 * dice.normal(size=(120, 2, 16))) + 7).astype(np.float32)
    labels = level[:, 0].astype(np.float32)
    return assemble(inputs, labels, None, 1, held_out(np.zeros(120, np.int64), 0.2), "windows")


def sentences() -> Dataset:
    """Six words of twelve; the class is which of the first three occurs."""
    dice = np.random.default_rng(0)
    labels = np.arange(240) % 3
    tokens = dice.integers(3, 12, size=(240, 6))
    tokens[np.arange(240), dice.integers(6, size=240)] = labels
    return assemble(tokens.astype(np.int32), labels, None, 3, held_out(labels, 0.2), "sentences")


def tags() -> Dataset:
    dice = np.random.default_rng(0)
    inputs = dice.normal(size=(150, 4)).astype(np.float16)
    return assemble(inputs, (inputs[:, :3] > 0).astype(np.uint8), None, 3, held_out(np.zeros(150, np.int64), 0.2), "tags")


@model
def reader(classes: int, words: int = 12) -> nn.Module:
    return Reader(classes, words)


class Reader(nn.Module):
    def __init__(self, classes: int, words: int) -> None:
        super().__init__()
        self.words, self.gru = nn.Embedding(words, 16), nn.GRU(16, 16, batch_first=True)
        self.norm, self.scores = nn.BatchNorm1d(16), nn.Linear(16, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.scores(self.norm(self.gru(self.words(tokens))[0].amax(1)))
        return found


for made in (windows, sentences, tags):
    dataset(made)

CASES: dict[str, dict[str, Any]] = {
    "regression": {"dataset": "windows", "task": "regression", "model": {"name": "har_cnn", "channels": 2}, "lr": 0.01},
    "tokens": {"dataset": "sentences", "model": "reader", "lr": 0.02},
    "multilabel": {"dataset": "tags", "task": "multilabel", "model": {"name": "mlp", "inputs": 4, "hidden": 16}, "lr": 0.01},
}


@pytest.mark.parametrize("algorithm", ["fedavg", "biml"])
@pytest.mark.parametrize("case", CASES)
def test_a_task_is_the_same_everywhere(tmp_path: Path, clock: Clock, case: str, algorithm: str) -> None:
    experiment = Experiment(**SEEN | CASES[case] | {"algorithm": algorithm})
    alone = simulated(tmp_path / "one", experiment)
    deploy(neighbours(tmp_path), tmp_path / "deployed", experiment)
    same(alone, tmp_path / "deployed")
    assert (alone / "clients.jsonl").read_text() == (tmp_path / "deployed/clients.jsonl").read_text()
    *_, (_, public) = loop(experiment)
    saved = Model.read(alone / "model")
    assert saved.message.real.tobytes() == public.real.tobytes()
    metrics, loss = saved.metrics(build(experiment).data)
    last = read_records(alone)[-1]
    assert last.metrics == pytest.approx(metrics, rel=1e-5)
    assert loss == pytest.approx(last.loss, rel=1e-5)


@pytest.mark.floats
@pytest.mark.parametrize(("case", "least"), [("regression", 0.8), ("tokens", 0.8), ("multilabel", 0.8)])
def test_a_task_is_learnt(case: str, least: float) -> None:
    """Three seeds gave 0.95 to 0.98, 1.00 and 0.91 to 0.93."""
    records = list(bifl.simulate(Experiment(**SEEN | CASES[case] | {"algorithm": "fedavg", "rounds": 15})))
    assert records[-1].score > least
    assert records[-1].measure == {"regression": "r2", "tokens": "accuracy", "multilabel": "f1"}[case]


def test_two_workers_give_the_same(tmp_path: Path) -> None:
    experiment = Experiment(**SEEN | CASES["regression"] | {"algorithm": "fedavg"})
    same(simulated(tmp_path / "one", experiment), simulated(tmp_path / "two", experiment.changed({"workers": 2})))


def test_clients_have_a_file_of_their_own(tmp_path: Path) -> None:
    folder = simulated(tmp_path / "run", Experiment(**SEEN | CASES["multilabel"]))
    lines = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert [row["client"] for row in lines[0]["clients"]] == [0, 1, 2]
    row = lines[-1]["clients"][1]
    assert row.keys() == {"client", "images", "train_loss", "up_bytes", "held", "loss", "f1", "accuracy", "exact"}
    assert (row["images"], row["held"]) == (32, 8)
    last = read_records(folder)[-1]
    assert last.clients_worst == min(row["f1"] for row in lines[-1]["clients"])
    assert last.numbers()["f1"] == last.score


def test_clients_bring_windows_to_a_server_without_data(tmp_path: Path, clock: Clock) -> None:
    """The server gives the scales; a client with other data is refused in a sentence."""
    data = windows()
    for number in range(2):
        np.savez(tmp_path / f"{number}.npz", inputs=data.inputs[number::2], labels=data.labels[number::2])
    grid = LocalGrid({5 + n: Node(n, tmp_path / f"state-{n}", data=str(tmp_path / f"{n}.npz")) for n in range(2)})
    remote = {"name": "remote", "classes": 1, "shape": "2,16", "kind": "floats", "means": "7,7", "stds": "1,1000"}
    experiment = Experiment(**SEEN | CASES["regression"] | {"dataset": remote, "clients": 2, "algorithm": "fedavg"})
    records = list(federate(grid, experiment))
    assert records[-1].metrics is not None
    assert list(records[-1].metrics) == ["r2", "mse", "mae"]
    np.savez(tmp_path / "0.npz", inputs=np.zeros((9, 2, 16), np.int64), labels=np.zeros(9))
    grid.nodes[5].context.node_config["state-dir"] = str(tmp_path / "new")
    records = deploy(grid, tmp_path / "run", experiment, least=1, deadline=0.5)
    assert [record.clients for record in records] == [1, 1, 1]
    assert "its inputs are tokens, the run's are floats" in (tmp_path / "run/events.jsonl").read_text()


OWN = """
import torch
from torch import nn
from bifl.tasks import Task, task

@task
def mine(weight: float = 2.0) -> Task:
    '''Cross-entropy with smoothing.'''
    def loss(scores, labels):
        return weight * nn.functional.cross_entropy(scores, labels, label_smoothing=0.1)
    def sums(scores, labels):
        return (scores.argsort(1)[:, -2:] == labels[:, None]).any(1).sum().reshape(1)
    return Task(loss, sums, lambda sums, samples: {"top2": float(sums[0] / samples)})
"""


def test_a_task_of_ones_own(tmp_path: Path, here: Run) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    words = ["task=mine.py:mine", "task.weight=3", "clients=2", "rounds=1", "workers=2"]
    done = here("run", *words, "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "top2" in done.stdout
    record = read_records(tmp_path / "run")[0]
    assert record.measure == "top2"
    assert np.isnan(record.accuracy)
    assert "would run the code" in refused(here("eval", "run/model", "mnist5k", cwd=tmp_path))
    done = here("eval", "run/model", "mnist5k", "--trust", cwd=tmp_path)
    assert f"top2 {record.score:.2%}" in done.stdout


def test_two_classes_as_true_and_false_are_refused_with_the_remedy() -> None:
    with pytest.raises(DataError, match=r"not bool: save them with .astype\(np.uint8\)"):
        class_numbers(np.array([True, False]), 2)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"dataset": "windows"}, "task=classification needs whole numbers as labels"),
        ({"dataset": "sentences", "model": {"name": "reader", "words": 5}}, "index out of range"),
        ({"dataset": "windows", "task": "multilabel"}, "task=multilabel needs labels of 0 and 1"),
        ({"task": {"name": "multilabel", "threshold": 1.0}}, "task.threshold must be between 0 and 1"),
        ({"task": "clasification"}, "did you mean 'classification'"),
        (
            {"dataset": "tags", "task": "multilabel", "model": "mlp"},
            "does not take the inputs of dataset 'tags', 3 outputs of 4.*: it takes 784 numbers, the data have 4: model.inputs=4$",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises((ConfigError, DataError), match=sentence):
        build(Experiment(**settings))


def test_class_numbers_are_no_numbers_to_predict() -> None:
    with pytest.raises(DataError, match=r"are class numbers from 0 to 9: use task=classification, or .* save them as floats"):
        build(Experiment(task="regression"))
    goal = task.make("regression", {})
    assert goal.targets(np.array([[20], [80]]), 1).labels.tolist() == [[20], [80]], "a column of whole numbers is none of classes"
    assert goal.targets(np.zeros(0, np.int64), 3).outputs == 3, "of a server without data"


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([[1.0], [-1.0]], None),
        ([[0.0], [1.0]], None),
        ([[0.0], [9.0]], r"labels are 4.5 ± 4.5 .*save \(labels - 4.5\) / 4.5 instead"),
        ([[0.5, 1000.0], [-0.5, 1002.0]], "in column 1 are 1001 ± 1 "),
        ([[0.01], [0.02]], "are 0.015 ± 0.005"),
        ([[7.0], [7.0]], "save labels - 7 instead"),
        ([[0.0], [0.0]], None),
        ([0, 9], None),
    ],
    ids=str,
)
def test_a_unit_far_from_what_a_network_begins_with_is_told(labels: list[Any], said: str | None) -> None:
    found = usual.unit_sentence(np.array(labels))
    assert (found is None) if said is None else re.search(said, found or "")


def test_metrics_are_those_of_all_samples() -> None:
    dice = torch.Generator().manual_seed(0)
    said, true = torch.randn(50, 2, generator=dice), torch.randn(50, 2, generator=dice)
    goal = task.make("regression", {})
    sums = sum(goal.sums(said[part], true[part]).numpy() for part in (slice(20), slice(20, 50)))
    found = goal.metrics(np.asarray(sums), 50)
    assert found["mse"] == pytest.approx(float((said - true).square().mean()), rel=1e-5)
    assert found["mae"] == pytest.approx(float((said - true).abs().mean()), rel=1e-5)
    assert found["r2"] == pytest.approx(1 - found["mse"] / float(true.var(correction=0)), rel=1e-5)
    assert goal.metrics(np.array([0.0, 0.0, 5.0, 5.0]), 5)["r2"] == 1, "all targets are the same, and met"


@pytest.mark.parametrize("sums", [[float("inf")] * 4, [float("nan")] * 4, [1e30] * 4], ids=str)
def test_a_server_refuses_sums_that_cannot_be(sums: list[Any]) -> None:
    goal = task.make("regression", {})
    assert goal.sensible(np.array([1.0, 1.0, 0.0, 1.0]), 3)
    assert not goal.sensible(np.array(sums), 3)
