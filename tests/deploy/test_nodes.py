"""The Flower server and its clients, in one process: the same bytes as the simulator, also when clients come and go."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message

from bifl import codec
from bifl.data.datasets import dataset
from bifl.deploy import protocol
from bifl.deploy.client_app import app
from bifl.deploy.server.nodes import run_rounds
from bifl.deploy.server.requests import Rules
from bifl.deploy.server_app import federate, open_folder
from bifl.errors import ConfigError
from bifl.experiment.settings import Experiment
from bifl.runs.folder import RunFolder
from tests.support.documented import python_blocks
from tests.support.federation import deploy, neighbours, quick, same, simulated, told
from tests.support.grid import BALLOT, EVALUATION, STATISTICS, Clock, LocalGrid, Node, kind_of

pytestmark = pytest.mark.usefixtures("clock")

CODED = {"name": "scaffold", "up": "murmur", "down": "sign"}  # a whole state is told in two vectors


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "biml"},
        {"algorithm": "fedavg", "rounds": 2},
        {"algorithm": "up_down", "batchnorm": "average"},
        {"algorithm": {"name": "hybrid", "switch": 1}},
        {"algorithm": {"name": "fttq", "validation": 0.1}},
        {"algorithm": "fttq", "reals": "byte"},
        {"algorithm": "fttq", "reals": "sign", "participation": 0.5, "idle": "sleep", "rounds": 4},
        {"partition": {"name": "quantity"}, "holdout": 0.2},
        {"participation": 0.5},
        {"scores": "fixed", "rounds": 2},
        {"participation": 0.5, "idle": "sleep", "rounds": 4},
        {"algorithm": "scaffold", "optimizer": "sgd", "participation": 0.5},
        {"algorithm": CODED, "optimizer": "sgd", "participation": 0.5, "idle": "sleep", "rounds": 4},
    ],
    ids=str,
)
def test_the_same_bytes_as_the_simulator(tmp_path: Path, small: Path, settings: dict[str, Any]) -> None:
    experiment = quick(small, **settings)
    grid = neighbours(tmp_path)
    records = deploy(grid, tmp_path / "deployed", experiment, most=10_000)  # one of three may have half of all images here
    same(simulated(tmp_path / "simulated", experiment), tmp_path / "deployed")
    assert not any(record.refused or record.missing for record in records)
    assert {kind for node in grid.nodes.values() for kind in node.kinds} <= {
        protocol.HELLO, BALLOT, STATISTICS, EVALUATION, protocol.HEAR,
    }  # fmt: skip


def test_without_a_state_dir_flower_keeps_the_state(tmp_path: Path, small: Path) -> None:
    experiment = quick(small)
    deploy(LocalGrid({7 + number: Node(number) for number in range(3)}), tmp_path / "deployed", experiment)
    same(simulated(tmp_path / "simulated", experiment), tmp_path / "deployed")


def test_one_is_missing_and_comes_back(tmp_path: Path, small: Path) -> None:
    """Away in rounds 2 and 3: the tally counts two; afterwards it gets a message without context and votes again."""
    grid = neighbours(tmp_path)
    experiment = quick(small, rounds=6)
    run = RunFolder.start(tmp_path / "run", experiment)
    run.keep_messages = True
    counts, extra = [], []
    for record in run_rounds(grid, run):
        grid.nodes[102].online = record.round not in (1, 2)
        counts.append(record.clients)
        extra.append(record.catch_up_bytes)
    assert counts == [3, 2, 2, 3, 3, 3]
    assert extra[3] > 0
    assert not any(extra[:3] + extra[4:])
    totals = [codec.read_header((tmp_path / f"run/messages/round-0000{n}/broadcast").read_bytes()).total for n in range(1, 7)]
    assert [3 * total // totals[0] for total in totals] == counts


def test_a_newcomer_joins_late(tmp_path: Path, small: Path) -> None:
    grid = neighbours(tmp_path)
    grid.nodes[101].online = False
    experiment = quick(small, rounds=4)
    run = RunFolder.start(tmp_path / "run", experiment)
    counts = []
    for record in run_rounds(grid, run, Rules(2, 0.5)):
        grid.nodes[101].online = record.round >= 2
        counts.append(record.clients)
    assert counts == [2, 2, 3, 3]
    assert grid.nodes[101].kinds[0] == protocol.HELLO


def test_a_client_that_lost_its_folder_is_told_everything_again(tmp_path: Path, small: Path) -> None:
    grid = neighbours(tmp_path)
    experiment = quick(small, algorithm="fedavg", rounds=4)  # whose clients remember nothing: the result is the same
    run = RunFolder.start(tmp_path / "deployed", experiment)
    run.keep_messages = True
    for record in run_rounds(grid, run):
        if record.round == 2:
            shutil.rmtree(tmp_path / "state-1")
    whole = simulated(tmp_path / "simulated", experiment)
    assert (tmp_path / "deployed/model").read_bytes() == (whole / "model").read_bytes()
    assert grid.nodes[101].kinds.count(protocol.HELLO) == 2


def test_one_that_is_silent_is_waited_for_once(tmp_path: Path, small: Path, clock: Clock) -> None:
    """Client 2 is killed in round 2 and Flower does not notice: one deadline passes, not one in every exchange and round."""
    grid = neighbours(tmp_path)

    def mute(message: Message, context: Context) -> Message | None:
        return app(message, context) if grid.nodes[102].kinds.count(BALLOT) < 2 else None

    grid.nodes[102].app = mute
    records = deploy(grid, tmp_path / "run", quick(small, rounds=4), deadline=60)
    assert [record.clients for record in records] == [3, 2, 2, 2]
    assert 60 < clock.now < 70
    assert [record.missing for record in records] == [0, 1, 1, 1]


def test_one_that_was_silent_and_answers_is_waited_for_again(tmp_path: Path, small: Path, clock: Clock) -> None:
    """Client 2 is away in round 2, and slow afterwards: it takes 30 s to answer, longer than the others."""
    grid, slow = neighbours(tmp_path), []

    def answer(message: Message, context: Context) -> Message | None:
        if kind_of(message) != BALLOT or grid.nodes[102].kinds.count(BALLOT) == 1:
            return app(message, context)
        slow.append((clock.now + 30, app(message, context)))
        return None

    def deliver() -> None:
        for due, late in list(slow):
            if clock.now > due and grid.nodes[102].kinds.count(BALLOT) > 2:
                slow.remove((due, late))
                grid.deliver(late)

    def pull(names: Iterable[str], real: Callable[[Iterable[str]], Iterable[Message]] = grid.pull_messages) -> Iterable[Message]:
        deliver()
        return real(names)

    grid.nodes[102].app, grid.pull_messages = answer, pull  # type: ignore[method-assign,assignment]
    records = deploy(grid, tmp_path / "run", quick(small, rounds=4, batchnorm="average"), deadline=60)
    assert [record.clients for record in records] == [3, 2, 3, 3]
    assert "the ballot of round 2 came late" in told(tmp_path / "run")


@pytest.mark.parametrize("when", [BALLOT, STATISTICS])
def test_a_killed_server_continues(tmp_path: Path, small: Path, when: str) -> None:
    """In the middle of round 2, after some have answered: what they did twice they did the same way."""
    experiment = quick(small)
    grid = neighbours(tmp_path)
    seen: list[str] = []

    def die(message: Message) -> None:
        seen.append(kind_of(message))
        if seen.count(when) == 5:
            raise KeyboardInterrupt

    grid.before_push = die
    with pytest.raises(KeyboardInterrupt):
        deploy(grid, tmp_path / "deployed", experiment)
    grid.before_push = lambda message: None
    run, _ = open_folder("", str(tmp_path / "deployed"))
    run.keep_messages = True
    assert [record.round for record in run_rounds(grid, run)] == [2, 3]
    whole = simulated(tmp_path / "simulated", experiment)
    assert (tmp_path / "deployed/model").read_bytes() == (whole / "model").read_bytes()
    for name in ("upload-00000", "upload-00002", "broadcast"):
        said = [(folder / "messages/round-00003" / name).read_bytes() for folder in (whole, tmp_path / "deployed")]
        assert said[0] == said[1]


@pytest.mark.floats
def test_images_of_the_clients_own(tmp_path: Path) -> None:
    """A server without any image: the clients bring files, and evaluate."""
    digits = dataset.make("mnist5k", {})
    for number in range(2):
        np.savez(tmp_path / f"{number}.npz", images=digits.inputs[number::20, 0], labels=digits.labels[number::20])
    grid = LocalGrid({5 + n: Node(n, tmp_path / f"state-{n}", data=str(tmp_path / f"{n}.npz")) for n in range(2)})
    experiment = Experiment(algorithm="biml", dataset="remote", clients=2, rounds=4, batch=16)
    records = list(federate(grid, experiment))
    assert records[-1].accuracy > 0.4  # 77 to 85 % of 80 images with four seeds
    last = records[-1]
    assert last.clients_worst is not None
    assert last.clients_mean is not None
    assert last.clients_p10 is not None
    assert last.clients_worst <= last.clients_p10 <= last.clients_mean
    grid.nodes[5].context.node_config["data"] = ""
    assert [record.clients for record in deploy(grid, tmp_path / "run", experiment, deadline=0.5)] == [1] * 4
    assert "client 0 failed: it has no images: the run has no dataset" in told(tmp_path / "run")


def test_rules_are_checked() -> None:
    with pytest.raises(ConfigError, match="min-clients must be from 1 to clients=3"):
        Rules(min_clients=4).check(Experiment(clients=3))
    with pytest.raises(ConfigError, match="deadline must be"):
        Rules(deadline=0)
    assert Rules().least(Experiment(clients=5)) == 3


def test_a_round_that_needs_more_clients_than_there_are_is_refused_everywhere(tmp_path: Path, small: Path) -> None:
    experiment, grid = quick(small, rounds=1), neighbours(tmp_path)
    with pytest.raises(ConfigError, match="min-clients must be from 1 to clients=3"):
        list(federate(grid, experiment, min_clients=4))
    with pytest.raises(ConfigError, match="min-clients must be from 1 to clients=3"):
        deploy(grid, tmp_path / "run", experiment, least=4)


def test_nobody_serves_what_has_no_clients(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="centralised"):
        open_folder("algorithm=baseline", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.floats
def test_the_documented_apps_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Our algorithms in somebody's own app, and only our compression in another."""
    digits = dataset.make("mnist5k", {})
    np.savez(tmp_path / "mine.npz", images=digits.inputs[::10], labels=digits.labels[::10])
    monkeypatch.chdir(tmp_path)
    ours, compression = python_blocks("docs/deploy.md")
    page: dict[str, Any] = {}
    exec(ours, page)
    grid = LocalGrid({5 + number: Node(number, tmp_path / f"state-{number}") for number in range(2)})
    for node in grid.nodes.values():
        node.app = page["client"]
    page["server"](grid, grid.nodes[5].context)
    assert capsys.readouterr().out.count("on images that clients held out") == 3
    exec(compression, page)
    for node in grid.nodes.values():
        node.app = page["plain"]
    network = torch.nn.Linear(784, 10)
    start = ArrayRecord(network.state_dict())
    result = page["strategy"].start(grid=grid, initial_arrays=start, num_rounds=8, train_config=ConfigRecord({}))
    network.load_state_dict(result.arrays.to_torch_state_dict())
    scores = network(torch.tensor(digits.test_inputs.reshape(1000, -1) / 255, dtype=torch.float32))
    assert float((scores.argmax(1).numpy() == digits.test_labels).mean()) > 0.7
