"""A client's messages are answered by forks of one process; a SuperNode looks for the next message soon after an answer."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bifl.deploy import pinned, warm

pytestmark = pytest.mark.skipif(not warm.SUPPORTED, reason="forks are used on Linux only")

APP = """
import os, socket, sys
from bifl.deploy import warm
def be(words):
    with open(words[0] + ".tmp", "w") as file:
        file.write(f"{os.getppid()} {os.getpid()} {words[1:]} {os.read(0, 1)}")
    os.rename(words[0] + ".tmp", words[0])
    sys.exit(3)
warm.serve(be, socket.socket(fileno=0), float(sys.argv[1]))
"""


class Started:
    """Remembers the processes that were started."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def __call__(self, command: list[str], **options: Any) -> None:
        self.processes.append(subprocess.Popen(command, **options))


def read(path: Path) -> list[str]:
    """What a fork wrote: its parent, itself, and the rest."""
    for _ in range(30_000):
        if path.exists():
            return path.read_text().split(" ", 2)
        time.sleep(0.01)
    raise AssertionError(f"no fork wrote {path}")


def asked(idle: str) -> tuple[warm.WarmProcess, Started]:
    started = Started()
    return warm.WarmProcess([sys.executable, "-c", APP, idle], started), started


def test_every_request_is_a_fork_of_one_process_which_ends_with_who_asks(tmp_path: Path) -> None:
    process, started = asked("300")
    assert process.start([str(tmp_path / "one"), "--token", "x"])
    assert process.start([str(tmp_path / "two")])
    one, two = read(tmp_path / "one"), read(tmp_path / "two")
    (parent,) = started.processes
    assert [one[0], two[0]] == [str(parent.pid)] * 2
    assert one[1] != two[1]
    assert one[2] == "['--token', 'x'] b''"  # nothing to read: requests are for the process alone
    del process
    assert parent.wait(60) == 0


def test_one_that_was_idle_ends_and_another_is_started(tmp_path: Path) -> None:
    process, started = asked("0.05")
    assert process.start([str(tmp_path / "one")])
    started.processes[0].wait(60)
    assert process.start([str(tmp_path / "two")])
    assert read(tmp_path / "two")[0] == str(started.processes[1].pid)
    started.processes[1].wait(60)


def test_where_it_cannot_be_started_the_caller_is_told() -> None:
    started = Started()
    assert not warm.WarmProcess([sys.executable, "-c", "pass"], started).start(["x"])
    for process in started.processes:
        process.wait(60)


def test_a_supernode_looks_again_soon_after_a_message_and_rests_when_none_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int | None] = [None, 7, None, None, 8, *[None] * 9]
    pauses: list[float] = []
    monkeypatch.setattr("bifl.deploy.pinned.time.sleep", pauses.append)
    pull = pinned.pull_eagerly(lambda state: found.pop(0))
    assert [pull(state=0) for _ in range(3)] == [None, 7, 8]
    assert pauses == [0.2, pytest.approx(0.3)]  # the first time it did not wait: Flower does
    assert pull(state=0) is None
    assert sum(pauses[2:]) == pytest.approx(6.43, abs=0.01)
    assert (pull(state=0), len(pauses)) == (None, 9)
