"""`bifl eval`: of a run, a model or a file, for tasks other than classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bifl.cli.dispatch import main
from bifl.runs.record import Record
from tests.support.commands import Run, refused


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of a run of regression and of one of several labels, with their files."""
    folder = tmp_path_factory.mktemp("tasks")
    inputs = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    split = np.array([0] * 40 + [1] * 20)
    labels = {"regression": inputs.sum(1, keepdims=True), "multilabel": (inputs[:, :2] > 0).astype(np.uint8)}
    for task, own in labels.items():
        np.savez(folder / f"{task}.npz", inputs=inputs, labels=own, split=split)
        np.savez(folder / f"{task}-all.npz", inputs=inputs, labels=own)
        words = [
            f"task={task}",
            "dataset=npz",
            f"dataset.path={folder / f'{task}.npz'}",
            "model=mlp",
            "model.inputs=4",
            "model.hidden=8",
        ]
        assert main(["run", *words, "algorithm=fedavg", "clients=2", "rounds=1", "workers=1", "--out", str(folder / task)]) == 0
    return folder


@pytest.mark.parametrize(("task", "measure"), [("regression", "r2"), ("multilabel", "f1")])
def test_eval_takes_a_run_a_model_and_a_file(task: str, measure: str, trained: Path, here: Run) -> None:
    line = (trained / task / "rounds.jsonl").read_text().splitlines()[-1]
    score = Record.from_json(line).score
    for words in (
        [task],
        [f"{task}/model"],
        [f"{task}/model", str(trained / f"{task}.npz")],
        [task, "npz", f"path={trained / task}.npz"],
    ):
        done = here("eval", trained / words[0], *words[1:])
        assert done.returncode == 0, done.stderr
        assert f"{measure} {score:.2%}" in done.stdout
        assert "20 test samples" in done.stdout
        assert "trained for 1 round\n" in done.stdout
    whole = here("eval", trained / task, trained / f"{task}-all.npz")
    assert f"on all 60 samples of {task}-all.npz" in whole.stdout


def test_eval_says_what_is_missing(trained: Path, here: Run, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes((trained / "regression" / "model").read_bytes())
    assert "say what to test" in refused(here("eval", tmp_path / "model"))
    (tmp_path / "model").unlink()
    assert "holds no run" in refused(here("eval", tmp_path))
    (tmp_path / "config.toml").write_text("")
    assert f"has no model yet: finish the run with bifl run --resume {tmp_path}" in refused(here("eval", tmp_path))
    (tmp_path / "compare.toml").write_text("")
    assert "is a comparison: give one of its runs" in refused(here("eval", tmp_path))
    assert "only one dataset" in refused(here("eval", trained / "regression", "mnist5k", "mnist"))
