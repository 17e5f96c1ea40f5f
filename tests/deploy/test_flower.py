"""A real federation on this machine: Flower's SuperLink with TLS and authentication, SuperNodes, kills. Slow: minutes in all.

pytest -m deployment      # only these: the others run without them
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bifl.deploy.certificates import make_keys
from bifl.deploy.flower.programs import free_port, stop
from bifl.processes import tied
from tests.support.commands import BIFL, bifl, refused, rounds

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.skipif(" " in sys.prefix, reason="Flower's SuperLink cannot run from a path with a blank"),
]
PATIENCE = 900.0  # seconds for anything; only a failure waits so long
HOSTILE = Path(__file__).parents[1] / "hostile"
CLIENTS = ["algorithm=biml", "clients=3", "workers=1"]


class Town:
    """Processes of one test, all of which end with it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.run = folder / "run"
        self._processes: list[subprocess.Popen[bytes]] = []
        make_keys(folder / "keys", ["localhost", "127.0.0.1"], 3)

    def start(self, name: str, *words: str | Path, path: Path | None = None, cwd: Path | None = None) -> subprocess.Popen[bytes]:
        """A command in the background, with a PATH on which the environment's own programs are not."""
        code = os.pathsep.join(filter(None, [str(path or ""), os.environ.get("PYTHONPATH", "")]))
        environment = dict(os.environ) | {"PATH": "/usr/bin:/bin", "PYTHONPATH": code}
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                tied([*BIFL, *words]), cwd=cwd or self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def server(self, *words: str | Path) -> subprocess.Popen[bytes]:
        return self.start("server", "server", "--listen", f"127.0.0.1:{self.port}", "--keys", "keys", *words)

    def client(self, number: int, *words: str | Path, key: Path | None = None, path: Path | None = None) -> subprocess.Popen[bytes]:
        return self.start(f"client-{number}", *self.client_words(number, key), *words, path=path)

    def client_words(self, number: int, key: Path | None = None) -> list[str | Path]:
        key = key or self.folder / "keys" / f"client-{number}"
        state = self.folder / f"state-{number}"
        return ["client", "--server", f"127.0.0.1:{self.port}", "--ca", self.folder / "keys/ca.crt", "--key", key, "--state", state]

    def wait(self, what: Callable[[], bool], process: subprocess.Popen[bytes], *, ended: bool = False) -> None:
        """Until something is so; the process may have `ended` well by then."""
        ends = time.monotonic() + PATIENCE
        while not what():
            assert process.poll() in ((None, 0) if ended else (None,)), self.said("server")
            assert time.monotonic() < ends, self.said("server")
            time.sleep(0.1)

    def finish(self, process: subprocess.Popen[bytes]) -> str:
        assert process.wait(PATIENCE) == 0, self.said("server")
        return self.said("server")

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def rounds(self) -> int:
        return len(rounds(self.run)) if (self.run / "rounds.jsonl").exists() else 0

    def close(self) -> None:
        for process in reversed(self._processes):
            stop(process)


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    town = Town(tmp_path)
    try:
        yield town
    finally:
        town.close()


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_three_machines_equal_the_simulator(town: Town, tmp_path: Path) -> None:
    """biml on mnist5k, three rounds: every message, every record and the model; strangers are not let in, nor led astray, nor
    is a client under another number than its key's."""
    server = town.server(*CLIENTS, "rounds=3", "--out", "run", "--keep-messages")
    make_keys(tmp_path / "elsewhere", ["localhost"], 1)
    town.wait(lambda: "listening" in town.said("server"), server)
    words = town.client_words(0, tmp_path / "elsewhere/client-0")
    stranger = refused(bifl(*words[:-1], tmp_path / "stranger", "--patience", "0"))
    assert "refuses the key" in stranger
    assert "not registered" in stranger
    words[words.index("--ca") + 1] = tmp_path / "elsewhere/ca.crt"
    assert "shows a certificate that" in refused(bifl(*words[:-1], tmp_path / "misled"))
    np.savez(tmp_path / "tiny.npz", images=np.zeros((9, 8, 8), np.uint8), labels=np.arange(9))
    misfit = town.client(0, "--data", tmp_path / "tiny.npz")
    town.wait(lambda: "bifl: this client's images are (1, 8, 8), the run's are (1, 28, 28)" in town.said("client-0"), server)
    town.wait(lambda: "all clients that are there failed (client 0: its images are (1, 8, 8)" in town.said("server"), server)
    stop(misfit)
    liar = town.start("liar", *town.client_words(0)[:-1], tmp_path / "liar", "--number", "1")
    town.wait(lambda: "it says that it is client 1, and its key is that of client 0" in town.said("server"), server)
    stop(liar)
    for number in range(3):
        town.client(number)
    town.wait(lambda: "the run is finished after 3 rounds" in town.said("client-0"), server, ended=True)
    assert "round 3: trained on 1333 images, loss " in town.said("client-0")
    said = town.finish(server)
    assert "round 3/3" in said
    assert "tiny.npz" not in said
    done = bifl("run", *CLIENTS, "rounds=3", "--out", tmp_path / "simulated", "--keep-messages")
    assert done.returncode == 0, done.stderr
    assert rounds(town.run) == rounds(tmp_path / "simulated")
    for path in (tmp_path / "simulated/messages").rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (town.run / path.relative_to(tmp_path / "simulated")).read_bytes()
    assert (town.run / "model").read_bytes() == (tmp_path / "simulated/model").read_bytes()


def test_a_killed_server_continues_where_it_was(town: Town, tmp_path: Path) -> None:
    quick = [*CLIENTS, "rounds=2", "batchnorm=average"]
    server = town.server(*quick, "--out", "run")
    for number in range(3):
        town.client(number)
    town.wait(lambda: town.rounds() == 1, server)
    kill(server)
    again = town.start("server", "server", "--resume", "run")
    town.finish(again)
    done = bifl("run", *quick, "--out", tmp_path / "simulated")
    assert done.returncode == 0, done.stderr
    assert (town.run / "model").read_bytes() == (tmp_path / "simulated/model").read_bytes()


def test_a_killed_client_comes_back_and_garbage_is_refused(town: Town) -> None:
    """Client 2 sends garbage in every round; client 1 is killed in round 2 and started again: Flower lets it in a minute later."""
    server = town.server(*CLIENTS, "rounds=100", "batchnorm=average", "--out", "run", "--min-clients", "1", "--deadline", "25")
    town.client(0)
    victim = town.client(1)
    town.client(2, path=HOSTILE)
    town.wait(lambda: town.rounds() >= 1, server)
    kill(victim)
    town.wait(lambda: town.rounds() >= 2, server)
    town.client(1)
    town.wait(lambda: any(record["clients"] == 2 for record in rounds(town.run)[2:]), server)
    server.send_signal(signal.SIGINT)
    assert server.wait(PATIENCE) == 130
    records = rounds(town.run)
    assert any(record["refused"] for record in records)
    assert any(record["clients"] == 1 for record in records)
    back = next(record for record in records[2:] if record["clients"] == 2)
    assert back["catch_up_bytes"] > 0
    assert "client 2 refused: bad message at byte" in town.said("server")
    assert "continue with: bifl server --resume" in town.said("server")


READER = """
from torch import nn
from bifl.nn.models import model

class Reader(nn.Module):
    def __init__(self, classes, words):
        super().__init__()
        self.words, self.norm, self.scores = nn.Embedding(words, 16), nn.BatchNorm1d(16), nn.Linear(16, classes)

    def forward(self, tokens):
        return self.scores(self.norm(self.words(tokens).amax(1)))

@model
def reader(classes, words: int = 12):
    return Reader(classes, words)
"""


@pytest.mark.parametrize("kind", ["windows", "sentences"])
def test_clients_bring_data_of_any_kind(kind: str, tmp_path: Path) -> None:
    """The server has no data: a regression of sensor windows, and sentences of tokens."""
    dice = np.random.default_rng(0)
    level = dice.normal(size=(2, 60, 1, 1))
    windows = (level + 0.1 * dice.normal(size=(2, 60, 3, 32))).astype(np.float32)
    tokens, classes = dice.integers(3, 12, size=(2, 60, 6)), np.arange(60) % 3
    tokens[:, np.arange(60), dice.integers(6, size=60)] = classes
    (tmp_path / "reader.py").write_text(READER)
    (tmp_path / "town").mkdir()
    remote = ["dataset=remote", "clients=2", "rounds=2", "workers=1", "algorithm=murmur", "lr=0.02", "batch=16"]
    said = {
        "windows": ["dataset.kind=floats", "dataset.shape=3,32", "dataset.classes=1", "dataset.means=0,0,0", "dataset.stds=1,1,1",
                    "task=regression", "model=har_cnn", "model.channels=3"],
        "sentences": ["dataset.kind=tokens", "dataset.shape=6", "dataset.classes=3", f"model={tmp_path}/reader.py:reader"],
    }  # fmt: skip
    inputs: dict[str, Any] = {"windows": (windows, level[..., 0, 0]), "sentences": (tokens, [classes, classes])}
    town = Town(tmp_path / "town")
    try:
        server = town.server(*remote, *said[kind], "--out", "run")
        for number in range(2):
            np.savez(tmp_path / f"{number}.npz", inputs=inputs[kind][0][number], labels=inputs[kind][1][number])
            town.client(number, "--data", tmp_path / f"{number}.npz", "--allow", tmp_path / "reader.py")
        town.finish(server)
        last: dict[str, Any] = rounds(town.run)[-1]
        assert (last["round"], last["clients"]) == (2, 2)
        assert np.isfinite((last["metrics"] or last)["r2" if kind == "windows" else "accuracy"])
        # headers and batch-norm are 6.8 bit a parameter of the reader's 277; its embedding as floats would be 22 more
        assert last["up_bpp"] < 16, "the weights of all layers, the embedding's too, are coded"
    finally:
        town.close()
