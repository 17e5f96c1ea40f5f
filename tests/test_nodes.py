"""The Flower server and its clients, in one process: the same bytes as the simulator, and what happens to those who misbehave."""

from __future__ import annotations

import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message

from bifl import wire
from bifl.algorithm import BINARY, FLOAT32
from bifl.algorithm import Message as Said
from bifl.data.arrays import Dataset, from_npz
from bifl.data.datasets import dataset
from bifl.errors import ConfigError, RunError
from bifl.experiment import Experiment
from bifl.flower import letters, nodes
from bifl.flower.client import app
from bifl.flower.compress import expand, squeeze
from bifl.flower.server import EVENTS, federate, open_folder, rules, run_rounds
from bifl.runtime.folder import RunFolder
from bifl.runtime.record import Record
from tests.commands import rounds
from tests.grid import Clock, Handler, LocalGrid, Node
from tests.test_docs import python_blocks

QUICK: dict[str, Any] = {"clients": 3, "rounds": 3, "workers": 1, "dataset": "mnist5k"}


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "time", Clock())
    monkeypatch.setattr(nodes, "LOOK", 0.0)


def quick(small: Path, **settings: Any) -> Experiment:
    """An experiment with those digits, by a name: a server may not tell clients which files to read."""

    def few_digits() -> Dataset:
        return from_npz(small)

    dataset(few_digits)
    return Experiment(**QUICK | {"dataset": "few_digits", "batch": 32} | settings)


def neighbours(folder: Path, count: int = 3) -> LocalGrid:
    return LocalGrid({100 + number: Node(number, folder / f"state-{number}") for number in range(count)})


def deploy(grid: LocalGrid, folder: Path, experiment: Experiment, least: int = 0, deadline: float = 60) -> list[Record]:
    run = RunFolder.start(folder, experiment)
    run.keep_messages = True
    return list(run_rounds(grid, run, rules(experiment, least, deadline)))


def simulated(folder: Path, experiment: Experiment) -> Path:
    run = RunFolder.start(folder, experiment)
    run.keep_messages = True
    assert list(run)
    return folder


def same(one: Path, other: Path) -> None:
    """Every message, the records but for seconds, and the model."""
    for path in sorted((one / "messages").rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (other / path.relative_to(one)).read_bytes(), path.relative_to(one)
    assert rounds(one) == rounds(other)
    assert (one / "model").read_bytes() == (other / "model").read_bytes()


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "biml"},
        {"algorithm": "fedavg", "rounds": 2},
        {"algorithm": "up_down", "batchnorm": "average"},
        {"algorithm": {"name": "hybrid", "switch": 1}},
        {"algorithm": {"name": "fttq", "validation": 0.1}},
        {"partition": {"name": "quantity"}, "holdout": 0.2},
        {"participation": 0.5},
        {"participation": 0.5, "idle": "sleep", "rounds": 4},
    ],
    ids=str,
)
def test_the_same_bytes_as_the_simulator(tmp_path: Path, small: Path, settings: dict[str, Any]) -> None:
    experiment = quick(small, **settings)
    grid = neighbours(tmp_path)
    records = deploy(grid, tmp_path / "deployed", experiment)
    same(simulated(tmp_path / "simulated", experiment), tmp_path / "deployed")
    assert not any(record.refused or record.missing for record in records)
    assert {kind for node in grid.nodes.values() for kind in node.kinds} <= {
        letters.HELLO, letters.TURN, letters.MEASURE, letters.SCORE, letters.HEAR,
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
    for record in run_rounds(grid, run, rules(experiment)):
        grid.nodes[102].online = record.round not in (1, 2)
        counts.append(record.clients)
        extra.append(record.catch_up_bytes)
    assert counts == [3, 2, 2, 3, 3, 3]
    assert extra[3] > 0
    assert not any(extra[:3] + extra[4:])
    totals = [wire.read_header((tmp_path / f"run/messages/round-0000{n}/broadcast").read_bytes()).total for n in range(1, 7)]
    assert [3 * total // totals[0] for total in totals] == counts


def test_a_newcomer_joins_late(tmp_path: Path, small: Path) -> None:
    grid = neighbours(tmp_path)
    grid.nodes[101].online = False
    experiment = quick(small, rounds=4)
    run = RunFolder.start(tmp_path / "run", experiment)
    counts = []
    for record in run_rounds(grid, run, rules(experiment, 2, 0.5)):
        grid.nodes[101].online = record.round >= 2
        counts.append(record.clients)
    assert counts == [2, 2, 3, 3]
    assert grid.nodes[101].kinds[0] == letters.HELLO


def test_a_client_that_lost_its_folder_is_told_everything_again(tmp_path: Path, small: Path) -> None:
    grid = neighbours(tmp_path)
    experiment = quick(small, algorithm="fedavg", rounds=4)  # whose clients remember nothing: the result is the same
    run = RunFolder.start(tmp_path / "deployed", experiment)
    run.keep_messages = True
    for record in run_rounds(grid, run, rules(experiment)):
        if record.round == 2:
            shutil.rmtree(tmp_path / "state-1")
    whole = simulated(tmp_path / "simulated", experiment)
    assert (tmp_path / "deployed/model").read_bytes() == (whole / "model").read_bytes()
    assert grid.nodes[101].kinds.count(letters.HELLO) == 2


@pytest.mark.parametrize("when", [letters.TURN, letters.MEASURE])
def test_a_killed_server_continues(tmp_path: Path, small: Path, when: str) -> None:
    """In the middle of round 2, after some have answered: what they did twice they did the same way."""
    experiment = quick(small)
    grid = neighbours(tmp_path)
    seen: list[str] = []

    def die(message: Message) -> None:
        seen.append(message.metadata.message_type)
        if seen.count(when) == 5:
            raise KeyboardInterrupt

    grid.before_push = die
    with pytest.raises(KeyboardInterrupt):
        deploy(grid, tmp_path / "deployed", experiment)
    grid.before_push = lambda message: None
    run = open_folder("", str(tmp_path / "deployed"))
    run.keep_messages = True
    assert [record.round for record in run_rounds(grid, run, rules(experiment))] == [2, 3]
    whole = simulated(tmp_path / "simulated", experiment)
    assert (tmp_path / "deployed/model").read_bytes() == (whole / "model").read_bytes()
    for name in ("upload-00000", "upload-00002", "broadcast"):
        said = [(folder / "messages/round-00003" / name).read_bytes() for folder in (whole, tmp_path / "deployed")]
        assert said[0] == said[1]


def spoiled(spoil: Callable[[bytes], Any], kind: str = letters.TURN) -> Handler:
    """A client whose uploads are spoiled."""

    def answer(message: Message, context: Context) -> Message:
        reply = app(message, context)
        record = reply.content[letters.RECORD]
        if message.metadata.message_type == kind and isinstance(record, ConfigRecord):
            record["upload"] = spoil(record["upload"])  # type: ignore[arg-type]
        return reply

    return answer


def flipped(data: bytes) -> bytes:
    return data[:100] + bytes([data[100] ^ 1]) + data[101:]


def otherwise(**changes: Any) -> Callable[[bytes], bytes]:
    """The right checksum, but something else in the message."""

    def spoil(data: bytes) -> bytes:
        header = wire.read_header(data)
        symbols, real = np.zeros(header.symbols, np.uint8), np.zeros(header.reals, np.float32)
        message = Said(symbols, BINARY, real, sender=header.sender, weight=header.weight, round=header.round)
        plain = bytearray(wire.encode(message._replace(**changes)))
        plain[28:36] = changes.get("model", header.model)
        plain[-4:] = zlib.crc32(plain[:-4]).to_bytes(4, "little")
        return bytes(plain)

    return spoil


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory, small: Path) -> bytes:
    """The model of two clients where the third is not there."""
    folder = tmp_path_factory.mktemp("honest")
    grid = LocalGrid({100: Node(0, folder / "a"), 101: Node(1, folder / "b")})
    deploy(grid, folder / "run", quick(small, rounds=1, batchnorm="average"), deadline=0.5)
    return (folder / "run/model").read_bytes()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda data: b"garbage", "cut short"),
        (flipped, "checksum"),
        (otherwise(round=7), "is of round 7"),
        (otherwise(sender=0), "is from client 0"),
        (otherwise(weight=10**6), "weighs 1000000"),
        (otherwise(symbols=np.zeros(5, np.uint8)), "holds 5 symbols"),
        (otherwise(real=np.full(860, np.nan, np.float32)), "real numbers|not finite"),
        (otherwise(symbols=np.ones(81958, np.float32), alphabet=FLOAT32), "spelled in float32"),
        (lambda data: 3, "lacks a loss or an upload"),
    ],
    ids=["garbage", "checksum", "round", "sender", "weight", "size", "numbers", "alphabet", "type"],
)
def test_what_cannot_be_counted_is_refused(
    tmp_path: Path, small: Path, honest: bytes, spoil: Callable[[bytes], Any], why: str
) -> None:
    grid = neighbours(tmp_path)
    grid.nodes[102].app = spoiled(spoil)
    records = deploy(grid, tmp_path / "run", quick(small, rounds=1, batchnorm="average"))
    assert [(record.clients, record.refused) for record in records] == [(2, 1)]
    pattern = "|".join(f"client 2 refused: .*{part}" for part in why.split("|"))
    assert re.search(pattern, (tmp_path / "run" / EVENTS).read_text())
    assert (tmp_path / "run/model").read_bytes() == honest


def test_spoiled_statistics_are_refused(tmp_path: Path, small: Path) -> None:
    grid = neighbours(tmp_path)
    grid.nodes[102].app = spoiled(flipped, letters.MEASURE)
    records = deploy(grid, tmp_path / "run", quick(small, rounds=1))
    assert [(record.clients, record.refused) for record in records] == [(3, 1)]


def test_a_late_ballot_is_refused_and_its_client_told_so(tmp_path: Path, small: Path) -> None:
    grid = neighbours(tmp_path)
    late: list[tuple[Message, Context]] = []
    voted: list[bool] = []

    def slow(message: Message, context: Context) -> Message | None:
        if message.metadata.message_type == letters.TURN:
            voted.append(bool(letters.fields_of(message)["voted"]))
            if len(voted) == 1:
                late.append((message, context))
                return None
            if late:
                grid.deliver(app(*late.pop()))  # of the last round, just before the answer of this one
        return app(message, context)

    grid.nodes[101].app = slow
    records = deploy(grid, tmp_path / "run", quick(small, rounds=3), deadline=1.0)
    assert [(record.clients, record.missing, record.refused) for record in records] == [(2, 1, 0), (3, 0, 1), (3, 0, 0)]
    assert voted == [False, False, True]
    assert "client 1 refused: the ballot of round 1 came late" in (tmp_path / "run" / EVENTS).read_text()


def test_nobody_is_two_clients(tmp_path: Path, small: Path) -> None:
    grid = neighbours(tmp_path)
    grid.nodes[200] = Node(1, tmp_path / "again")
    grid.nodes[201] = Node(9, tmp_path / "nine")
    records = deploy(grid, tmp_path / "run", quick(small, rounds=2))
    assert [record.clients for record in records] == [3, 3]
    said = (tmp_path / "run" / EVENTS).read_text()
    assert "client 1 is there already" in said
    assert "client number 9 is none of 0 to 2" in said


def test_too_few_ballots_end_the_run_with_a_reason(tmp_path: Path, small: Path) -> None:
    grid = neighbours(tmp_path)

    def broken(message: Message, context: Context) -> Message:
        if message.metadata.message_type == letters.TURN:
            raise ValueError("no electricity")
        return app(message, context)

    for number in (101, 102):
        grid.nodes[number].app = broken
    with pytest.raises(RunError, match=r"round 1: too few ballots, 1 of 2"):
        deploy(grid, tmp_path / "run", quick(small), deadline=0.5)
    assert "no electricity" in (tmp_path / "run" / EVENTS).read_text()


@pytest.mark.floats
def test_images_of_the_clients_own(tmp_path: Path) -> None:
    """A server without any image: the clients bring files, and evaluate."""
    digits = dataset.make("mnist5k", {})
    for number in range(2):
        np.savez(tmp_path / f"{number}.npz", images=digits.images[number::20, 0], labels=digits.labels[number::20])
    grid = LocalGrid({5 + n: Node(n, tmp_path / f"state-{n}", data=str(tmp_path / f"{n}.npz")) for n in range(2)})
    experiment = Experiment(dataset="remote", clients=2, rounds=4, batch=16)
    records = list(federate(grid, experiment))
    assert records[-1].accuracy > 0.4  # 77 to 85 % of 80 images with four seeds
    last = records[-1]
    assert last.clients_worst is not None
    assert last.clients_mean is not None
    assert last.clients_p10 is not None
    assert last.clients_worst <= last.clients_p10 <= last.clients_mean
    grid.nodes[5].context.node_config["data"] = ""
    assert [record.clients for record in deploy(grid, tmp_path / "run", experiment, deadline=0.5)] == [1] * 4
    assert "client 0 failed: it has no images: the run has no dataset" in (tmp_path / "run" / EVENTS).read_text()


def test_rules_are_checked() -> None:
    with pytest.raises(ConfigError, match="min-clients must be from 1 to clients=3"):
        rules(Experiment(clients=3), min_clients=4)
    with pytest.raises(ConfigError, match="deadline must be"):
        rules(Experiment(), deadline=0)
    assert rules(Experiment(clients=5)).least == 3


def test_nobody_serves_what_has_no_clients(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="centralised"):
        open_folder("algorithm=baseline", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.floats
def test_the_documented_apps_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Our algorithms in somebody's own app, and only our compression in another."""
    digits = dataset.make("mnist5k", {})
    np.savez(tmp_path / "mine.npz", images=digits.images[::10], labels=digits.labels[::10])
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
    scores = network(torch.tensor(digits.test_images.reshape(1000, -1) / 255, dtype=torch.float32))
    assert float((scores.argmax(1).numpy() == digits.test_labels).mean()) > 0.7


def test_squeezed_updates_are_right_on_average() -> None:
    generator = np.random.default_rng(0)
    start = [generator.normal(size=(20, 30)).astype(np.float32), np.zeros(5, np.float32), np.array(3)]
    end = [
        start[0] + generator.uniform(-0.01, 0.01, start[0].shape).astype(np.float32),
        np.arange(5, dtype=np.float32),
        np.array(4),
    ]
    data = [squeeze(start, end, [seed]) for seed in range(2000)]
    assert len(data[0]) < 600 / 8 + 130
    mean = np.mean([expand(start, each)[0] for each in data], axis=0)
    width = 1.5 * np.abs(end[0] - start[0]).mean()
    inside = np.abs(end[0] - start[0]) < width
    assert np.abs(mean - end[0])[inside].max() < 5 * width / np.sqrt(2000)
    assert [array.tolist() for array in expand(start, data[0])[1:]] == [[0, 1, 2, 3, 4], 4]
    with pytest.raises(wire.WireError, match=r"other arrays"):
        expand(start[:1], data[0])
