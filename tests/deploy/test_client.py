"""A client and its operator, in one process with the server: who is told what; damaged files; different versions."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message

from bifl import __version__
from bifl.deploy import protocol
from bifl.deploy.client_app import app, client_app
from bifl.deploy.flower.programs import read_pipe, tell_pipe
from bifl.deploy.server.nodes import run_rounds
from bifl.deploy.server_app import federate
from bifl.errors import RunError
from bifl.experiment.settings import Experiment
from bifl.runs.folder import RunFolder
from tests.support.federation import deploy, neighbours, quick, told
from tests.support.grid import LocalGrid, Node

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def mute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps Flower's own logger from the terminal."""
    monkeypatch.setattr(logging.getLogger("flwr"), "disabled", True)


# ---- what the operator reads -----------------------------------------------------------------------------------------


def test_the_operator_reads_the_rounds_and_the_end(tmp_path: Path, small: Path) -> None:
    grid = neighbours(tmp_path)
    deploy(grid, tmp_path / "run", quick(small, rounds=2, holdout=0.2))
    said = grid.nodes[101].heard
    assert said[0] == "joined a run of 2 rounds as client 1: 106 images to train on, 27 held out to evaluate on"
    assert [text.partition(", loss")[0] for text in said[1:3]] == [f"round {n}: trained on 106 images" for n in (1, 2)]
    assert said[1].endswith(" kB up")
    assert said[3:] == ["the run is finished after 2 rounds; waiting for the next one (Ctrl-C to stop)"]


def test_a_misfit_is_told_to_both_but_paths_only_to_the_operator(
    tmp_path: Path,
    small: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before: the operator read "connected", the server the client's paths."""
    np.savez(tmp_path / "tiny.npz", images=np.zeros((9, 8, 8), np.uint8), labels=np.arange(9))
    np.savez(tmp_path / "one.npz", images=np.zeros((1, 28, 28), np.uint8), labels=np.arange(1))
    (tmp_path / "broken.npz").write_bytes(b"PK")
    grid = neighbours(tmp_path)
    for number, name in enumerate(("tiny.npz", "one.npz", "broken.npz")):
        grid.nodes[100 + number].context.node_config["data"] = str(tmp_path / name)
    looks = iter([list(grid.nodes)] * 100)
    monkeypatch.setattr(grid, "get_node_ids", lambda: next(looks))  # a server that waited would look more often
    with pytest.raises(RunError, match="all clients failed: client 0: its images") as failed:
        deploy(grid, tmp_path / "run", quick(small, rounds=1))
    shown = [node.problems for node in grid.nodes.values()]
    assert shown[0][0].startswith("this client's images are (1, 8, 8), the run's are (1, 28, 28): give other images with --data")
    assert "client 1 has 1 images" in shown[1][0]
    assert str(tmp_path / "broken.npz") in shown[2][0]
    events = told(tmp_path / "run")
    assert "client 0 failed: its images are (1, 8, 8), the run's are (1, 28, 28)" in events
    assert "client 2 failed: its data cannot be used" in events
    assert str(tmp_path) not in events + str(failed.value)


def test_a_server_says_at_once_that_all_who_are_there_failed(tmp_path: Path, small: Path) -> None:
    """And goes on when others come: here one that mends its data, which the clock lets it do in the sixth second."""
    grid = neighbours(tmp_path)
    grid.nodes[101].online = grid.nodes[102].online = False
    grid.nodes[100].context.node_config["data"] = str(tmp_path / "nothing.npz")
    said: list[str] = []

    def look() -> list[int]:
        looks.append(1)
        if len(looks) == 30:
            said.append(told(tmp_path / "run"))
            grid.nodes[101].online = grid.nodes[102].online = True
        return [number for number, node in grid.nodes.items() if node.online]

    looks: list[int] = []
    grid.get_node_ids = look  # type: ignore[method-assign]
    records = deploy(grid, tmp_path / "run", quick(small, rounds=1), deadline=60)
    assert [(record.clients, record.missing) for record in records] == [(2, 0)]  # it never was a client
    assert said[0].count("all clients that are there failed (client 0: its data cannot be used") == 1


def test_a_full_disk_is_told_without_paths(tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = neighbours(tmp_path)
    experiment = quick(small, rounds=3, batchnorm="average")
    before = os.replace

    def full(path: Path, target: Path) -> Path:
        if "state-2" in str(target):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        before(path, target)
        return Path(target)

    run = RunFolder.start(tmp_path / "run", experiment)
    counts = []
    for record in run_rounds(grid, run):
        monkeypatch.setattr(Path, "replace", full if record.round == 1 else _replace)
        counts.append((record.clients, record.missing))
    said = grid.nodes[102].problems
    assert counts == [(3, 0), (2, 1), (3, 0)]
    assert "No space left on device" in said[0]
    assert str(tmp_path / "state-2") in said[0]
    events = told(tmp_path / "run")
    assert "client 2 failed: cannot write its state: No space left on device" in events
    assert str(tmp_path / "state-2") not in events


_replace = Path.replace


def test_a_mistake_in_an_app_of_one_s_own_keeps_its_text_to_itself(tmp_path: Path) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("/home/me/patients")

    grid = LocalGrid({5: Node(0, tmp_path / "state")})
    grid.nodes[5].app = client_app(broken)
    with pytest.raises(RunError, match="all clients failed: client 0: it failed with KeyError") as failed:
        list(federate(grid, Experiment(algorithm="biml", dataset="remote", clients=1, rounds=1)))
    assert "patients" not in str(failed.value)


def test_a_file_that_the_operator_allows_is_dealt_out(tmp_path: Path, small: Path) -> None:
    """Known by its name, read from where the operator has it; whoever allows nothing is left out, and told what to do."""
    grid = neighbours(tmp_path)
    (tmp_path / "mine").mkdir()
    for number in (0, 1):
        grid.nodes[100 + number].context.node_config["allow-0"] = str(shutil.copy(small, tmp_path / "mine"))
    experiment = Experiment(algorithm="biml", dataset={"name": "npz", "path": str(small)}, clients=3, rounds=1, workers=1)
    records = deploy(grid, tmp_path / "run", experiment, deadline=1)
    assert [record.clients for record in records] == [2]
    events = told(tmp_path / "run")
    assert "client 0 is there, with 133 images" in events
    assert f"client 2 failed: it does not allow dataset.path={small.name}, a file: its operator can, with --allow" in events


# ---- the pipe --------------------------------------------------------------------------------------------------------


def test_what_is_told_is_one_printable_line(mute: None) -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    tell = tell_pipe(writing)
    assert list(read_pipe(reading)) == []
    tell("x\nfinished\x1b[2J\u202e" + "y" * 5000, True)
    tell("a\rb\u2028", False)
    (text, problem), notice = read_pipe(reading)
    assert problem
    assert text.startswith(r"x\nfinished\x1b[2J\u202eyyy")
    assert len(text) == 900
    assert notice == (r"a\rb\u2028", False)
    os.close(reading)
    os.close(writing)


def test_a_pipe_that_nobody_reads_stops_nothing(mute: None) -> None:
    reading, writing = os.pipe()
    tell = tell_pipe(writing)
    for _ in range(1000):
        tell("\u00e4" * 900, False)  # more than a pipe holds
    assert {text for text, _ in read_pipe(reading)} == {"\u00e4" * 900}
    os.close(reading)
    tell("nobody listens: lost, and no harm done", False)
    os.close(writing)


# ---- versions --------------------------------------------------------------------------------------------------------


def test_two_versions_meet(tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence on both sides; a client from before versions were told is refused as well."""
    grid = neighbours(tmp_path)

    told_by_newer: list[str] = []
    newer_app = client_app(tell=lambda text, problem: told_by_newer.append(text))

    def newer(message: Message, context: Context) -> Message:
        with monkeypatch.context() as patch:
            for module in ("protocol", "client_app"):
                patch.setattr(f"bifl.deploy.{module}.__version__", "9.9")
            return newer_app(message, context)

    def older(message: Message, context: Context) -> Message:
        reply = app(message, context)
        del reply.content[protocol.RECORD]["version"]
        return reply

    grid.nodes[101].app, grid.nodes[102].app = newer, older
    records = deploy(grid, tmp_path / "run", quick(small, rounds=1), least=1, deadline=0.5)
    assert [record.clients for record in records] == [1]
    sentence = f"the server runs bifl {__version__}, this client bifl 9.9: install the same version on both"
    assert told_by_newer == [sentence]
    events = told(tmp_path / "run")
    assert f"client 1 failed: {sentence}" in events
    assert f"it runs a bifl that does not tell its version, the server bifl {__version__}" in events
