"""Ditto: every client keeps a model of its own beside the shared one, which is what it would be without."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bifl.core.forward import Local
from bifl.core.sides import ClientReply, ClientSide
from bifl.core.state import Client, Public
from bifl.engine.loop import loop
from bifl.engine.simulator import simulate
from bifl.engine.worker import ClientTools, LocalSide
from bifl.errors import ConfigError
from bifl.exchanges.personal import Personal
from bifl.experiment.model import Model
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from bifl.nn.batch import Samples
from tests.support.commands import rounds
from tests.support.federation import deploy, neighbours, quick, same, simulated
from tests.support.grid import Clock

DITTO: dict[str, Any] = {"algorithm": "ditto", "holdout": 0.2, "model": "mlp", "optimizer": "sgd", "lr": 0.1}


def clients_of(folder: Path) -> list[list[dict[str, Any]]]:
    return [json.loads(line)["clients"] for line in (folder / "clients.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("around", ["fedavg", "murmur"])
def test_the_shared_model_is_what_it_is_without(tmp_path: Path, small: Path, around: str) -> None:
    ditto = simulated(tmp_path / "ditto", quick(small, **DITTO | {"algorithm": {"name": "ditto", "around": around}}))
    plain = simulated(tmp_path / "plain", quick(small, **DITTO | {"algorithm": around}))
    weights = [Model.read(folder / "model").message.update.symbols.tobytes() for folder in (ditto, plain)]
    assert weights[0] == weights[1]
    with_own, without = rounds(ditto), rounds(plain)
    assert [line["up_bytes"] for line in with_own] == [line["up_bytes"] for line in without], "nothing of own models is sent"
    assert [line["clients_mean"] for line in with_own] == [line["clients_mean"] for line in without]
    assert all("personal_accuracy" in row for row in clients_of(ditto)[-1])


def test_an_own_model_takes_the_steps_of_the_paper(small: Path) -> None:
    """v ← v − η(∇F(v) + λ(v − w)), from the weights that are public at first; checked by a step of plain SGD."""
    experiment = quick(small, **DITTO | {"algorithm": "fedavg", "local_steps": 1, "batchnorm": "average"})
    setup = build(experiment)
    samples = Samples.of(setup.data.inputs, setup.data.labels, setup.data)
    tools, public = ClientTools(setup.run, samples, setup.parts), setup.public
    v = public.weights + np.float32(0.1)
    side = LocalSide(tools, Client(v, v, public.real, 1), public, voted=True)
    free, _ = side.train(side.client)
    pulled, _ = side.train(side.client, Local(pull=0.5, centre=(public.weights, public.real)))
    np.testing.assert_allclose(pulled.aux - free.aux, -0.1 * 0.5 * (v - public.weights), atol=1e-6)


def test_a_strong_pull_keeps_own_models_near_the_shared_one(small: Path) -> None:
    far = [distance(quick(small, **DITTO | {"algorithm": {"name": "ditto", "pull": pull}})) for pull in (0.0, 5.0)]
    assert 0 < far[1] < 0.8 * far[0]


def distance(experiment: Experiment) -> float:
    """How far client 0's own model is from the shared one after its first training."""
    setup = build(experiment)
    public, samples = setup.public, Samples.of(setup.data.inputs, setup.data.labels, setup.data)
    (personal,) = (one for one in setup.run.exchanges if one.name == "personal")
    fresh = Client(public.weights, public.weights, public.real, 1)
    side = LocalSide(ClientTools(setup.run, samples, setup.parts), fresh, public, voted=True)
    own = personal.own_model(personal.say(side, public, uploads=False).client, public)
    assert own is not None
    return float(np.linalg.norm(own[0] - public.weights))


@pytest.mark.parametrize("settings", [{}, {"participation": 0.6, "rounds": 4}], ids=str)
def test_nodes_do_what_the_simulator_does(tmp_path: Path, small: Path, clock: Clock, settings: dict[str, Any]) -> None:
    experiment = quick(small, **DITTO | settings)
    deploy(neighbours(tmp_path), tmp_path / "deployed", experiment)
    same(simulated(tmp_path / "simulated", experiment), tmp_path / "deployed")
    assert clients_of(tmp_path / "simulated") == clients_of(tmp_path / "deployed")


def test_own_models_survive_an_end(tmp_path: Path, small: Path) -> None:
    experiment = quick(small, **DITTO)
    whole = [record.metrics for record in simulate(experiment)]
    first = simulate(experiment, folder=tmp_path / "run")
    next(iter(first))
    first.close()
    assert [record.metrics for record in simulate(experiment, folder=tmp_path / "run")] == whole[1:]


def test_a_run_that_was_continued_counts_the_same_bytes(tmp_path: Path, small: Path) -> None:
    experiment = quick(small, **DITTO | {"rounds": 4, "clients": 6, "participation": 0.5, "holdout": 0.0})
    whole = [record.catch_up_bytes for record in simulate(experiment)]
    assert any(whole)
    parts = []
    for _ in whole:
        simulation = simulate(experiment, folder=tmp_path / "run")
        parts.append(next(iter(simulation)).catch_up_bytes)
        simulation.close()
    assert parts == whole


def test_a_server_that_asks_twice_gets_the_same_answer(tmp_path: Path, small: Path, clock: Clock) -> None:
    """Each time it trains again an own model would move on."""
    experiment = quick(small, **DITTO | {"rounds": 2})
    grid = neighbours(tmp_path)
    node = grid.nodes[101]
    honest = node.app

    def twice(message: Any, context: Any) -> Any:
        honest(message, context)
        return honest(message, context)

    node.app = twice
    deploy(grid, tmp_path / "deployed", experiment)
    same(simulated(tmp_path / "simulated", experiment), tmp_path / "deployed")
    assert clients_of(tmp_path / "simulated") == clients_of(tmp_path / "deployed")


def test_under_masks_own_models_are_trained_and_nothing_is_told(small: Path) -> None:
    records = list(simulate(quick(small, **DITTO | {"holdout": 0.0, "secure_sum": True, "rounds": 2})))
    assert all(np.isnan(record.train_loss) for record in records)
    assert all(record.metrics is not None and "personal_accuracy" not in record.metrics for record in records)


def test_under_masks_own_models_outlive_rounds_that_begin_afresh(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where some were away all forget what their uploads are made of; own models are in none."""
    had: dict[int, list[bool]] = defaultdict(list)
    say = Personal.say

    def noting(self: Personal, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        had[side.client.number].append(self.own_model(side.client, public) is not None)
        return say(self, side, public, uploads=uploads)

    monkeypatch.setattr(Personal, "say", noting)
    list(loop(quick(small, **DITTO | {"holdout": 0.0, "secure_sum": True, "rounds": 4, "clients": 4, "participation": 0.75})))
    assert len(had) == 4
    assert all(before == [False, *[True] * (len(before) - 1)] for before in had.values())


def test_a_pull_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.pull must be 0 or more, not -1"):
        Experiment(algorithm={"name": "ditto", "pull": -1.0})
