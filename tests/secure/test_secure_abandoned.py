"""A secure sum that cannot be completed: its round is held again, or ends without it once its broadcast was told."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bifl.core.message import Message as Said
from bifl.deploy.client_app import app
from bifl.deploy.server.nodes import run_rounds
from bifl.deploy.server.requests import Rules
from bifl.engine.loop import loop
from bifl.engine.simulator import simulate
from bifl.errors import RunError
from bifl.exchanges.bounds import Bounds
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from bifl.runs.folder import RunFolder
from bifl.runs.record import Record
from bifl.secure.integers import Fields, Parts, summands
from tests.secure.test_secure_runs import failing, identical, nodes
from tests.support.federation import quick, told
from tests.support.grid import LocalGrid

AFTER = ("statistics", "statistics_agree", "statistics_reveal")  # the ballot's sum is in the broadcast by then


@pytest.fixture
def experiment(small: Path) -> Experiment:
    return quick(small, rounds=2, model="mlp", clients=4, secure_sum=True)


def held(grid: LocalGrid, run: RunFolder, keys: Path, most: int = 9) -> list[Record]:
    """At most so many rounds of a run that may have been begun."""
    return list(itertools.islice(run_rounds(grid, run, Rules(3, 60, 10_000), keys=keys), most))


def rounds_in(folder: Path) -> list[tuple[int, int]]:
    """Which rounds a run has records of, and how many ballots each."""
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [(record["round"], record["clients"]) for record in records]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("step", AFTER)
def test_too_few_are_left_after_the_broadcast(tmp_path: Path, keys: Path, experiment: Experiment, step: str) -> None:
    """Two of four: the round is complete with the ballot's broadcast, no ballot is held twice, and the run can be resumed."""
    grid = nodes(tmp_path, keys, 4)
    for number in (102, 103):
        grid.nodes[number].app = failing(step)
    records = held(grid, RunFolder.start(tmp_path / "run", experiment), keys, 1)
    assert [(record.round, record.clients) for record in records] == [(1, 4)]
    assert told(tmp_path / "run").count("the secure sum needs 3: nothing was counted; round 1 ends without this exchange") == 1
    assert grid.nodes[100].kinds.count("keys") == 1
    for number in (102, 103):
        grid.nodes[number].app = app
    records = held(grid, RunFolder.resume(tmp_path / "run", trust=True), keys)
    assert [(record.round, record.clients, record.refused, record.missing) for record in records] == [(2, 4, 0, 0)]
    assert rounds_in(tmp_path / "run") == [(1, 4), (2, 4)]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("step", ["shares", "ballot_agree", "ballot_reveal"])
def test_nobody_answers_before_the_broadcast(tmp_path: Path, keys: Path, experiment: Experiment, step: str) -> None:
    """It is no round: five attempts, no record, and the run goes on when they are back."""
    grid = nodes(tmp_path, keys, 4)
    for node in grid.nodes.values():
        node.app = failing(step)
    with pytest.raises(RunError, match=f"round 1: nobody has answered in '{step}': nothing was counted"):
        held(grid, RunFolder.start(tmp_path / "run", experiment), keys)
    assert grid.nodes[100].kinds.count("keys") == 5
    assert rounds_in(tmp_path / "run") == []
    for node in grid.nodes.values():
        node.app = app
    records = held(grid, RunFolder.resume(tmp_path / "run", trust=True), keys)
    assert [(record.round, record.clients) for record in records] == [(1, 4), (2, 4)]


@pytest.mark.usefixtures("clock")
def test_those_who_have_revealed_go_on_with_the_same_survivors(tmp_path: Path, keys: Path, experiment: Experiment) -> None:
    """Two of four have revealed, and three must: another sum would tell the difference, the same one tells nothing more."""
    grid = nodes(tmp_path, keys, 4)
    for number in (102, 103):
        grid.nodes[number].app = failing("ballot_reveal")
    with pytest.raises(RunError, match="2 clients have revealed their shares, and the secure sum needs 3"):
        held(grid, RunFolder.start(tmp_path / "run", experiment), keys)
    grid.nodes[102].app = app
    grid.nodes[103].app = failing("ballot")
    with pytest.raises(RunError, match="clients have signed who is left, and the secure sum needs 3"):
        held(grid, RunFolder.resume(tmp_path / "run", trust=True), keys)
    assert "another list of survivors" in told(tmp_path / "run")
    grid.nodes[103].app = app
    records = held(grid, RunFolder.resume(tmp_path / "run", trust=True), keys)
    assert [(record.round, record.clients) for record in records] == [(1, 4), (2, 4)]


def moments(upload: Said, trained: int) -> Said:
    real = upload.real.copy()
    real[trained:] = -1e6
    return upload._replace(real=real)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("settings", "lie"),
    [
        ({"batchnorm": "average"}, moments),
        ({"batchnorm": "average", "algorithm": {"name": "murmur_dealt", "together": 2}},
         lambda upload, _: upload.with_update(scales=np.full_like(upload.update.scales, 1e6))),
    ],
    ids=["moments", "scales"],
)  # fmt: skip
def test_numbers_that_no_mean_can_reach_are_counted_in_no_round(
    tmp_path: Path, small: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], lie: Any
) -> None:
    """One of four masks them: nobody knows who it was, and nothing of it is broadcast."""
    experiment = quick(small, rounds=2, model="mlp", clients=4, secure_sum=True, **settings)
    trained, honest = build(experiment).public.layout.trained, summands

    def masked(upload: Said, times: int, form: Fields) -> Parts:
        return honest(lie(upload, trained) if upload.sender == 3 else upload, times, form)

    monkeypatch.setattr("bifl.secure.member.summands", masked)
    grid = nodes(tmp_path, keys, 4)
    with pytest.raises(RunError, match="numbers that no honest clients send: nothing was counted"):
        held(grid, RunFolder.start(tmp_path / "run", experiment), keys)
    assert rounds_in(tmp_path / "run") == []


@pytest.mark.usefixtures("clock")
def test_implausible_statistics_are_not_told_and_cost_no_round(
    tmp_path: Path, keys: Path, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of four masks them: the rounds are those without statistics."""
    honest = summands

    def masked(upload: Said, times: int, form: Fields) -> Parts:
        lies = upload.sender == 3 and not len(upload.update.symbols)
        return honest(upload._replace(real=upload.real + np.float32(1e6)) if lies else upload, times, form)

    monkeypatch.setattr("bifl.secure.member.summands", masked)
    records = held(nodes(tmp_path, keys, 4), RunFolder.start(tmp_path / "run", experiment), keys)
    assert [(record.round, record.clients) for record in records] == [(1, 4), (2, 4)]
    assert told(tmp_path / "run").count("no honest clients send: nothing was counted; round 2 ends without this exchange") == 1
    assert not list((tmp_path / "run/messages").rglob("statistics_reveal"))


def test_simulator_and_loop_end_such_a_round_alike(monkeypatch: pytest.MonkeyPatch, experiment: Experiment) -> None:
    monkeypatch.setattr(Bounds, "plausible_statistics", lambda *_: False)
    simulation = simulate(experiment)
    assert [(record.round, record.clients) for record in simulation] == [(1, 4), (2, 4)]
    *_, (_, public) = loop(experiment)
    identical(simulation.public, public)
    assert public.real[public.layout.trained :].tobytes() == simulation.setup.public.real[public.layout.trained :].tobytes()
