"""A client whose state directory is damaged, unreadable or another's: treated like one that lost it, and healed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bifl import __version__
from bifl.deploy import protocol
from bifl.deploy.client_app import app
from bifl.deploy.server.nodes import run_rounds
from bifl.deploy.server.requests import Rules
from bifl.runs.folder import RunFolder
from tests.deploy.test_requests import asked
from tests.support.federation import neighbours, quick, told

pytestmark = pytest.mark.usefixtures("clock")

FILES = ["terms.json", "public.npz", "client-*.npz", "train/images.npy", "train/labels.npy", "held/classes.npy"]


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garbage(path: Path) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size))


def test_a_damaged_state_is_a_lost_one(tmp_path: Path, small: Path) -> None:
    """After every round another file is damaged, of one client cut short, of another garbage. Before: refused ever after."""
    experiment = quick(small, rounds=len(FILES) + 1, batchnorm="average")
    grid = neighbours(tmp_path)
    damage: dict[int, Callable[[Path], None]] = {1: cut_short, 2: garbage}
    run = RunFolder.start(tmp_path / "run", experiment)
    for record in run_rounds(grid, run):
        assert (record.clients, record.refused, record.missing) == (3, 0, 0)
        name = (tmp_path / "run/run").read_text()
        for number, damaged in damage.items() if record.round <= len(FILES) else ():
            damaged(sorted((tmp_path / f"state-{number}" / name).glob(FILES[record.round - 1]))[-1])
    for number in damage:
        assert grid.nodes[100 + number].kinds.count(protocol.HELLO) == 1 + len(FILES)
        aside = sorted(path.name for path in (tmp_path / f"state-{number}").glob("*.damaged-*"))
        assert aside == [f"{name}.damaged-{count}" for count in range(1, len(FILES) + 1)]
        said = [text for text in grid.nodes[100 + number].heard if text.startswith("the state of this run is damaged")]
        assert len(said) == len(FILES)
    assert "refused" not in told(tmp_path / "run")


def test_damage_is_found_when_a_new_server_process_greets(tmp_path: Path, small: Path) -> None:
    """A restarted server greets everyone: a damaged client answered that it was lost, which made it a stranger."""
    experiment = quick(small, algorithm="fedavg", rounds=2, batchnorm="average")
    grid = neighbours(tmp_path)
    rounds = run_rounds(grid, RunFolder.start(tmp_path / "run", experiment))
    next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    name = (tmp_path / "run/run").read_text()
    garbage(tmp_path / "state-1" / name / "public.npz")
    again = list(run_rounds(grid, RunFolder.resume(tmp_path / "run")))
    assert [(record.round, record.clients, record.missing) for record in again] == [(2, 3, 0)]
    assert (tmp_path / "state-1" / f"{name}.damaged-1").is_dir()


def test_a_disk_that_cannot_be_read_is_not_a_damaged_file(tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = neighbours(tmp_path)
    experiment = quick(small, rounds=2, batchnorm="average")

    def unreadable(*_: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/home/me/state/public.npz")

    for record in run_rounds(grid, RunFolder.start(tmp_path / "run", experiment), Rules(1, 5)):
        if record.round == 1:
            monkeypatch.setattr("bifl.deploy.client.client_state.map_dataset", unreadable)
            grid.nodes[101].online = grid.nodes[102].online = False
            break
    name = (tmp_path / "run/run").read_text()
    message = asked(protocol.HEAR, {"run": name, "round": 1, "version": __version__, "digest": "0" * 16})
    said = protocol.fields_of(app(message, grid.nodes[100].context))
    assert said["failed"] == "cannot read its state: Permission denied"
    assert (tmp_path / "state-0" / name / "public.npz").exists()


def test_another_number_or_other_data_is_another_client(tmp_path: Path, small: Path) -> None:
    """Restarted with other --data: the images of the run's folder are not used any more."""
    grid = neighbours(tmp_path)
    experiment = quick(small, rounds=2, batchnorm="average")
    shutil.copy(small, tmp_path / "mine.npz")
    for record in run_rounds(grid, RunFolder.start(tmp_path / "run", experiment)):
        if record.round == 1:
            grid.nodes[102].context.node_config["data"] = str(tmp_path / "mine.npz")
    name = (tmp_path / "run/run").read_text()
    assert json.loads((tmp_path / "state-2" / name / "terms.json").read_text())["data"] == str(tmp_path / "mine.npz")
    assert grid.nodes[102].kinds.count(protocol.HELLO) == 2
