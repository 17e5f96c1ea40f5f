"""Runs that are stopped, killed, damaged or out of disk, and continued."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.support.commands import BALLOTS, Run, bifl, refused, rounds, start, wait_for_round


def test_killed_and_resumed_is_as_never_killed(finished: Path, tmp_path: Path, here: Run) -> None:
    """Killed twice, at whatever moment, and continued with other workers: one, then two, then one."""
    folder = tmp_path / "killed"
    first: list[str | Path] = [*BALLOTS, "rounds=4", "--out", folder]
    second: list[str | Path] = ["--resume", folder, "workers=2"]
    for words, complete in ((first, 1), (second, 3)):
        process = start(*words)
        wait_for_round(folder, complete)
        process.kill()
        process.communicate()
    done = here("run", "--resume", folder, "workers=1")
    assert done.returncode == 0, done.stderr
    assert rounds(folder) == rounds(finished)
    assert (folder / "model").read_bytes() == (finished / "model").read_bytes()


def test_killed_between_checkpoint_and_record(finished: Path, tmp_path: Path, here: Run) -> None:
    """The moments a kill can hit on purpose: a line not written, half written, or written for a round that is not complete."""
    for tail in ("", '{"round": 2, "accu'):
        folder = tmp_path / f"cut{len(tail)}"
        assert here("run", *BALLOTS, "rounds=2", "--out", folder).returncode == 0
        first = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)[0]
        (folder / "rounds.jsonl").write_text(first + tail)
        (folder / "model").unlink()
        done = here("run", "--resume", folder, "rounds=4")
        assert done.returncode == 0, done.stderr
        assert rounds(folder) == rounds(finished)


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(finished: Path, tmp_path: Path, here: Run) -> None:
    folder = tmp_path / "stopped"
    process = start("algorithm=biml", "clients=2", "--out", folder, "workers=2", "rounds=1000")
    wait_for_round(folder, 1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"continue with: bifl run --resume {folder}" in error
    assert "Traceback" not in error
    more = len(rounds(folder)) + 1
    assert here("run", "--resume", folder, "workers=1", f"rounds={more}").returncode == 0
    assert len(rounds(folder)) == more
    assert all(one == other for one, other in zip(rounds(folder), rounds(finished), strict=False))


def test_a_killed_server_leaves_no_workers_and_no_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    process = start("algorithm=biml", "clients=2", "workers=2", "rounds=1000", "--out", tmp_path / "orphans")
    wait_for_round(tmp_path / "orphans", 1)
    workers = [int(word) for word in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    process.kill()
    process.communicate()
    assert len(workers) == 2
    assert not list((tmp_path / "temporary").iterdir())
    for _ in range(3000):
        if not any(Path(f"/proc/{pid}").exists() for pid in workers):
            return
        time.sleep(0.01)
    raise AssertionError("a worker is still there")


def test_a_full_disk_loses_nothing(finished: Path, tmp_path: Path, here: Run) -> None:
    folder = tmp_path / "full"
    assert here("run", *BALLOTS, "rounds=2", "--out", folder).returncode == 0
    sentence = refused(bifl("run", "--resume", folder, "rounds=4", limit=100))  # a client's state takes 328 kB
    assert "File too large" in sentence
    assert len(rounds(folder)) == 2
    assert not list(folder.rglob("*.tmp"))
    assert here("run", "--resume", folder).returncode == 0
    assert rounds(folder) == rounds(finished)


def test_a_folder_that_cannot_be_written(tmp_path: Path, here: Run) -> None:
    (tmp_path / "file").write_text("")
    assert "Not a directory" in refused(here("run", *BALLOTS, "--out", tmp_path / "file" / "run"))


def test_a_run_is_never_overwritten(finished: Path, here: Run) -> None:
    before = (finished / "rounds.jsonl").read_bytes()
    assert "holds a run already" in refused(here("run", *BALLOTS, "rounds=1", "--out", finished))
    assert (finished / "rounds.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("victim", "sentence"),
    [
        ("server.npz", "server.npz' cannot be read"),
        ("client-00001.round-00004.npz", "client-00001.round-00004.npz' cannot be read"),
    ],
)
def test_a_truncated_or_missing_checkpoint_is_named(finished: Path, tmp_path: Path, victim: str, sentence: str, here: Run) -> None:
    folder = shutil.copytree(finished, tmp_path / "damaged")
    path = folder / "checkpoint" / victim
    path.write_bytes(path.read_bytes()[:-100])
    before = (folder / "rounds.jsonl").read_bytes()
    assert sentence in refused(here("run", "--resume", folder, "rounds=5"))
    assert (folder / "rounds.jsonl").read_bytes() == before
    if "client" in victim:
        path.unlink()
        assert sentence in refused(here("run", "--resume", folder))


def test_resume_changes_nothing_but_rounds_and_workers(finished: Path, here: Run) -> None:
    assert "less than the 4 rounds" in refused(here("run", "--resume", finished, "rounds=3"))
    assert "'seed' cannot change" in refused(here("run", "--resume", finished, "seed=1"))


def test_two_processes_do_not_share_a_folder(tmp_path: Path, here: Run) -> None:
    process = start(*BALLOTS, "rounds=1000", "--out", tmp_path / "busy")
    wait_for_round(tmp_path / "busy", 1)
    try:
        assert "another process is running" in refused(here("run", "--resume", tmp_path / "busy"))
    finally:
        process.kill()
        process.communicate()
