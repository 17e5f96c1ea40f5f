"""`pip install bifl` alone is enough for simulations, and what needs an extra says which."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.commands import refused

WITHOUT_EXTRAS = os.environ | {"PYTHONPATH": str(Path(__file__).parent / "base_install")}
SMALL = ["dataset=mnist5k", "partition=iid", "model=mlp", "clients=2", "local_steps=1", "rounds=1"]
NEED_NO_EXTRA = [
    ["run", *SMALL, "workers=2", "--out", "run"],
    ["list"],
    ["list", "biml"],
    ["compare", "algorithms=biml,fedavg", *SMALL, "workers=1", "--out", "both"],
    ["ask", *SMALL, "workers=1"],
    ["eval", "run/model"],
    ["export", "run/model", "--c", "model.c"],
    ["report", "run"],
]
NEED_AN_EXTRA = [
    (["run", *SMALL, "secure_sum=true"], "secure"),
    (["run", *SMALL, "algorithm=fedavg", "batchnorm=average", "privacy=gaussian"], "privacy"),
    (["run", *SMALL, "track=tensorboard"], "tensorboard"),
    (["run", *SMALL, "track=mlflow"], "mlflow"),
    (["run", "dataset=femnist", *SMALL[1:]], "datasets"),
    (["export", "run/model", "--onnx", "model.onnx"], "export"),
    (["server", *SMALL], "flower"),
    (["keys"], "flower"),
]
# One process for all commands: what cannot be imported is the same in each, and torch is imported once. Those that are refused come
# last, in the folder with the run.
CALLED = """
import contextlib, io, json, sys
from bifl.cli import main
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    print(json.dumps([words, code, out.getvalue(), err.getvalue()]), flush=True)
"""
Done = dict[tuple[str, ...], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """What came of all commands, where no package can be imported that an extra brings."""
    commands = json.dumps([*NEED_NO_EXTRA, *(words for words, _ in NEED_AN_EXTRA)])
    process = subprocess.run(
        [sys.executable, "-c", CALLED, commands], capture_output=True, text=True, timeout=300, check=False,
        cwd=tmp_path_factory.mktemp("base"), env=WITHOUT_EXTRAS,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    found = map(json.loads, process.stdout.splitlines())
    return {tuple(words): subprocess.CompletedProcess(words, *said) for words, *said in found}


@pytest.mark.parametrize("words", NEED_NO_EXTRA, ids=lambda words: words[0])
def test_simulations_and_what_is_made_of_them_need_no_extra(words: Sequence[str], done: Done) -> None:
    assert done[tuple(words)].returncode == 0, done[tuple(words)].stderr


@pytest.mark.parametrize(("words", "extra"), NEED_AN_EXTRA)
def test_what_needs_an_extra_says_which(words: Sequence[str], extra: str, done: Done) -> None:
    assert f"pip install 'bifl[{extra}]'" in refused(done[tuple(words)])
