"""Damaged and hostile files of every kind, given to the real commands: success or one sentence, never a traceback.

`pytest tests/test_damaged_files.py --fuzz 1000` for the long one.
"""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from bifl.data.fetching import local_only
from tests.support import mutations
from tests.support.commands import Run
from tests.support.mutations import Dice

FEW = 60
Mutation = Callable[[bytes, Dice], bytes]
BYTES: list[Mutation] = [mutations.anywhere]


@pytest.fixture
def count(pytestconfig: pytest.Config) -> int:
    return int(pytestconfig.getoption("--fuzz") or FEW)


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """No file makes this process take much more memory than it had, and none is fetched."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with local_only():
        yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000, "kB"


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """Few enough images for a round in milliseconds."""
    dice = np.random.default_rng(0)
    images, labels = dice.integers(0, 256, (24, 28, 28), np.uint8), np.arange(24) % 10
    np.savez(tmp_path / "digits.npz", images=images, labels=labels, test_images=images[:4], test_labels=labels[:4])
    return tmp_path / "digits.npz"


@pytest.fixture
def run(digits: Path, tmp_path: Path, here: Run) -> Path:
    """A run of one round."""
    words = ["algorithm=biml", "rounds=1", "clients=2", "workers=1", "dataset=npz", f"dataset.path={digits}", "--keep-messages"]
    assert here("run", *words, "--out", tmp_path / "run").returncode == 0
    return tmp_path / "run"


def survives(here: Run, number: int, *words: str | Path) -> int:
    """The exit code: 0, or 2 with one sentence."""
    done = here(*words)
    assert done.returncode in (0, 2), (number, done.stderr)
    if done.returncode:
        assert done.stderr.startswith("bifl: "), (number, done.stderr)
        assert done.stderr.count("\n") == 1, (number, done.stderr)
        assert done.stderr[:-1].isprintable(), (number, done.stderr)
    return done.returncode


def damaged(raw: bytes, number: int, ways: list[Mutation]) -> bytes:
    dice = np.random.default_rng([number, len(raw)])
    for _ in range(int(dice.integers(1, 3))):
        raw = ways[int(dice.integers(len(ways)))](raw, dice)
    return raw


def test_models(run: Path, digits: Path, tmp_path: Path, here: Run, count: int) -> None:
    raw, victim, refusals = (run / "model").read_bytes(), tmp_path / "model", 0
    for number in range(count):
        way = [mutations.model_file] if number % 3 else BYTES
        victim.write_bytes(way[0](raw, np.random.default_rng(number)))
        command: list[str | Path] = ["inspect", victim] if number % 2 else ["eval", victim, "npz", f"path={digits}"]
        refusals += survives(here, number, *command) == 2
    assert refusals > count / 2


def test_arrays(run: Path, digits: Path, tmp_path: Path, here: Run, count: int) -> None:
    raw, victim, refusals = digits.read_bytes(), tmp_path / "victim.npz", 0
    for number in range(count):
        victim.write_bytes(damaged(raw, number, [mutations.zip_member, mutations.zip_structure, *BYTES][number % 3 :][:1]))
        refusals += survives(here, number, "eval", run / "model", "npz", f"path={victim}") == 2
    assert refusals > count / 2


def test_checkpoints(run: Path, tmp_path: Path, here: Run, count: int) -> None:
    """The server's file and a client's, alternately; what can be read after all runs another round."""
    folder, refusals = tmp_path / "victim", 0
    for number in range(count):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(run, folder)
        victim = folder / "checkpoint" / ("server.npz" if number % 2 else "client-00001.round-00001.npz")
        ways = [mutations.zip_member, mutations.zip_structure, *BYTES][number % 3 :][:1]
        victim.write_bytes(damaged(victim.read_bytes(), number, ways))
        refusals += survives(here, number, "run", "--resume", folder, "rounds=2") == 2
    assert refusals > count / 2


def test_leaf_files(run: Path, tmp_path: Path, here: Run, count: int) -> None:
    dice = np.random.default_rng(0)
    people = {f"writer {n}": {"x": dice.integers(0, 2, (3, 784)).tolist(), "y": [n, 1, 2]} for n in range(3)}
    raw = json.dumps({"users": [*people], "num_samples": [3] * 3, "user_data": people}).encode()
    (tmp_path / "leaf").mkdir()
    words: list[str | Path] = ["eval", run / "model", "femnist", f"path={tmp_path / 'leaf'}", "test_share=0.5"]
    (tmp_path / "leaf" / "all_data_0.json").write_bytes(raw)
    assert here(*words).returncode == 0
    for number in range(count):
        ways = [mutations.json_text, mutations.text, *BYTES][number % 3 :][:1]
        (tmp_path / "leaf" / "all_data_0.json").write_bytes(damaged(raw, number, ways if number % 3 != 1 else [mutations.text]))
        survives(here, number, *words)


def test_configs(run: Path, here: Run, count: int) -> None:
    """Read for a message's context, for continuing the run (which has all its rounds), and for a report."""
    config = run / "config.toml"
    raw, refusals = config.read_bytes(), 0
    ballot = run / "messages" / "round-00001" / "upload-00001"
    for number in range(count):
        config.write_bytes((mutations.text if number % 3 else mutations.anywhere)(raw, np.random.default_rng(number)))
        refusals += survives(here, number, "inspect", ballot) == 2
        config.write_bytes((mutations.text if number % 3 else mutations.anywhere)(raw, np.random.default_rng(number)))
        survives(here, number, "run", "--resume", run, "rounds=1")
    assert refusals > count / 3


def test_configs_and_records_in_reports(run: Path, tmp_path: Path, here: Run, count: int) -> None:
    """A page takes its time: a tenth as many."""
    originals = {name: (run / name).read_bytes() for name in ("config.toml", "rounds.jsonl")}
    for number in range(max(count // 10, 6)):
        for name, raw in originals.items():
            (run / name).write_bytes(raw)
        victim = "rounds.jsonl" if number % 2 else "config.toml"
        way = mutations.json_text if number % 4 == 1 else mutations.text if number % 4 < 3 else mutations.anywhere
        (run / victim).write_bytes(way(originals[victim], np.random.default_rng(number)))
        survives(here, number, "report", run, "-o", tmp_path / "report.html")
