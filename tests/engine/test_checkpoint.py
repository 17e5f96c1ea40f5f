"""What was reported survives a power cut: contents reach the disk before names do, clients' files before the server's."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from bifl.engine.round import run_folder
from bifl.engine.simulator import simulated_clients
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from bifl.files import append_line, write_atomic, write_secret
from bifl.runs.folder import RunFolder

Log = list[tuple[str, str]]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """What is synced and renamed, in order; both are done as well."""
    done: Log = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        done.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))

    def noted_replace(self: Path, target: Path) -> Path:
        done.append(("rename", target.name))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    return done


def test_a_file_is_synced_before_its_name_and_the_folder_after(tmp_path: Path, log: Log) -> None:
    write_atomic(tmp_path / "file", "text")
    assert log == [("sync", f".file.{os.getpid()}.tmp"), ("rename", "file"), ("sync", tmp_path.name)]


def test_a_line_is_synced(tmp_path: Path, log: Log) -> None:
    append_line(tmp_path / "file", "text")
    assert (tmp_path / "file").read_text() == "text\n"
    assert log == [("sync", "file")]


def test_a_round_is_on_the_disk_before_it_is_reported(tmp_path: Path, log: Log) -> None:
    images, labels = np.random.default_rng(0).integers(0, 256, (24, 28, 28), np.uint8), np.arange(24) % 10
    np.savez(tmp_path / "digits.npz", images=images, labels=labels, test_images=images[:4], test_labels=labels[:4])
    dataset = {"name": "npz", "path": str(tmp_path / "digits.npz")}
    experiment = Experiment(algorithm="biml", dataset=dataset, clients=2, rounds=2, workers=1)
    rounds = run_folder(RunFolder.start(tmp_path / "run", experiment), build(experiment), simulated_clients)
    next(rounds)
    log.clear()
    next(rounds)  # while it is being reported nothing is left to be written
    renamed = [name for kind, name in log if kind == "rename"]
    clients = ["client-00000.round-00002.npz", "client-00001.round-00002.npz"]
    assert renamed == [*clients, "server.npz"]
    for name in renamed:
        before = log[: log.index(("rename", name))]
        assert before[-1] == ("sync", f".{name}.{os.getpid()}.tmp"), "contents before the name"
    server = log.index(("rename", "server.npz"))
    assert ("sync", "checkpoint") in log[log.index(("rename", clients[-1])) : server], "the clients' names before the server's"
    assert log[server + 1 :] == [("sync", "checkpoint"), ("sync", "rounds.jsonl")]


def test_a_secret_leaves_other_files_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that writes a file while a secret is written gets the mode that files usually have."""
    usual, meanwhile = tmp_path / "usual", tmp_path / "meanwhile"
    usual.touch()
    monkeypatch.setattr(os, "fsync", lambda descriptor: meanwhile.touch())
    assert write_secret(tmp_path / "secret", b"1").stat().st_mode & 0o777 == 0o600
    assert meanwhile.stat().st_mode == usual.stat().st_mode
