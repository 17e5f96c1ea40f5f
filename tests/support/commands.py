"""The command line for tests: as processes of its own, or within this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

BIFL = [sys.executable, "-m", "bifl.cli"]
SMALL = ["clients=2", "workers=1"]
BALLOTS = ["algorithm=biml", *SMALL]  # clients remember their auxiliary weights, and messages are coded in context
Run = Callable[..., subprocess.CompletedProcess[str]]


def bifl(
    *words: str | Path, cwd: Path | None = None, limit: int | None = None, data: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command. `limit` caps the size of every file it writes, in kB: a full disk, on request. `data` is its BIFL_DATA."""
    command: Sequence[str | Path] = [*BIFL, *words]
    if limit is not None:
        command = ["bash", "-c", f'ulimit -f {limit}; exec "$@"', "bash", *command]
    environment = os.environ | ({"BIFL_DATA": str(data)} if data else {})
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=300, check=False)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence of a refusal."""
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("bifl: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def rounds(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def start(*words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen([*BIFL, "run", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_round(folder: Path, count: int) -> None:
    for _ in range(30_000):
        if (folder / "rounds.jsonl").exists() and len((folder / "rounds.jsonl").read_text().splitlines()) >= count:
            return
        time.sleep(0.01)
    raise AssertionError(f"round {count} never came")
