"""`pip install bifl` alone is enough for simulations, and what needs an extra says which."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.commands import BIFL, refused

WITHOUT_EXTRAS = os.environ | {"PYTHONPATH": str(Path(__file__).parent / "base_install")}
SMALL = ["dataset=mnist5k", "partition=iid", "model=mlp", "clients=2", "local_steps=1", "rounds=1"]


def bifl(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command, where no package can be imported that an extra brings."""
    return subprocess.run([*BIFL, *words], capture_output=True, text=True, cwd=cwd, env=WITHOUT_EXTRAS, timeout=300, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with a run in it."""
    made = tmp_path_factory.mktemp("base")
    done = bifl("run", *SMALL, "workers=2", "--out", "run", cwd=made)
    assert done.returncode == 0, done.stderr
    return made


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["list", "biml"],
        ["compare", "algorithms=biml,fedavg", *SMALL, "workers=1", "--out", "both"],
        ["ask", *SMALL],
        ["eval", "run/model"],
        ["export", "run/model", "--c", "model.c"],
        ["report", "run"],
    ],
    ids=lambda words: words[0],
)
def test_simulations_and_what_is_made_of_them_need_no_extra(words: Sequence[str], folder: Path) -> None:
    done = bifl(*words, cwd=folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["run", *SMALL, "secure_sum=true"], "secure"),
        (["run", *SMALL, "algorithm=fedavg", "batchnorm=average", "privacy=gaussian"], "privacy"),
        (["run", *SMALL, "track=tensorboard"], "tensorboard"),
        (["run", *SMALL, "track=mlflow"], "mlflow"),
        (["run", "dataset=femnist", *SMALL[1:]], "datasets"),
        (["export", "run/model", "--onnx", "model.onnx"], "export"),
        (["server", *SMALL], "flower"),
        (["keys"], "flower"),
    ],
)
def test_what_needs_an_extra_says_which(words: Sequence[str], extra: str, folder: Path) -> None:
    assert f"pip install 'bifl[{extra}]'" in refused(bifl(*words, cwd=folder))
