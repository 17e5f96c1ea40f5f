"""Clients that do nothing in a round: nobody trains for nothing, and what wakes them is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

import bifl
import tests.support.algorithms  # noqa: F401
from bifl.core.forward import PLAIN, Local
from bifl.core.state import Client
from bifl.engine.round import sampled
from bifl.engine.simulator import Simulation
from bifl.engine.worker import LocalSide
from bifl.experiment.setup import build
from tests.support.federation import deploy, neighbours, quick, same, simulated
from tests.support.grid import Clock


@pytest.mark.parametrize(("algorithm", "trainings"), [("fedavg", 2), ("fttq", 2), ("biml", 10), ("hybrid", 10)])
def test_nobody_trains_whose_work_is_thrown_away(
    algorithm: str, trainings: int, monkeypatch: pytest.MonkeyPatch, small: Path
) -> None:
    """Before: all ten clients trained where two uploaded and nothing is remembered of the others."""
    trained: list[int] = []
    train = LocalSide.train

    def noted(side: LocalSide, client: Client, local: Local = PLAIN) -> tuple[Client, float]:
        trained.append(client.number)
        return train(side, client, local)

    monkeypatch.setattr(LocalSide, "train", noted)
    experiment = quick(small, algorithm=algorithm, participation=0.2, clients=10, rounds=1)
    list(bifl.simulate(experiment))
    assert len(trained) == trainings
    assert set(sampled(experiment.seed, 10, 2, 1)) <= set(trained)


@pytest.mark.parametrize("algorithm", ["example_adam", "biml", "fedavg"])
def test_a_simulation_counts_what_a_deployment_sends_to_those_who_slept(
    algorithm: str, tmp_path: Path, small: Path, clock: Clock
) -> None:
    """Where a broadcast is a change of the model, who missed some must be sent the model. Before: it was not counted."""
    experiment = quick(small, algorithm=algorithm, clients=5, rounds=6, participation=0.2, idle="sleep")
    alone = simulated(tmp_path / "one", experiment)
    records = deploy(neighbours(tmp_path, 5), tmp_path / "deployed", experiment)
    same(alone, tmp_path / "deployed")
    assert any(record.catch_up_bytes for record in records) == (algorithm == "example_adam")


def test_who_slept_for_a_while_is_sent_what_it_missed(tmp_path: Path, small: Path, clock: Clock) -> None:
    """A bit a weight for each round that was missed, as long as that is less than the model; never more than the model."""
    experiment = quick(small, algorithm="murmur", clients=5, rounds=9, participation=0.2, idle="sleep")
    alone = simulated(tmp_path / "one", experiment)
    records = deploy(neighbours(tmp_path, 5), tmp_path / "deployed", experiment)
    same(alone, tmp_path / "deployed")
    caught_up = [record.catch_up_bytes for record in records if record.catch_up_bytes]
    assert caught_up
    assert max(caught_up) < 9 * records[-1].broadcast_bytes < 4 * 81_958


def test_a_continued_run_counts_the_same_bytes(tmp_path: Path, small: Path) -> None:
    """Who had slept when the run was stopped is woken by the same messages afterwards."""
    experiment = quick(small, algorithm="example_adam", clients=5, rounds=6, participation=0.2, idle="sleep")
    whole = list(bifl.simulate(experiment))
    (tmp_path / "state").mkdir()
    parts = (Simulation(build(experiment.changed({"rounds": rounds})), tmp_path / "state") for rounds in (2, 3, 6))
    records = [record for part in parts for record in part]
    assert [record._replace(seconds=0) for record in records] == [record._replace(seconds=0) for record in whole]
    assert any(record.catch_up_bytes for record in records[3:])
