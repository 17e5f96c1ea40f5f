"""`bifl ask` and `bifl eval` over a running federation: the real processes of a server and of three clients."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.deploy.test_flower import Town, town
from tests.support.commands import bifl, rounds

__all__ = ["town"]
pytestmark = [
    pytest.mark.deployment,
    pytest.mark.skipif(" " in sys.prefix, reason="Flower's SuperLink cannot run from a path with a blank"),
]
REMOTE = ["dataset=remote", "dataset.classes=3", "dataset.shape=2,5", "dataset.kind=floats", "clients=3"]


def windows(folder: Path, number: int) -> Path:
    dice = np.random.default_rng(number)
    inputs = dice.normal([[10.0], [-1.0]], [[2.0], [0.5]], (20, 2, 5)).astype(np.float32)
    np.savez(folder / f"own-{number}.npz", inputs=inputs, labels=np.arange(20) % 3)
    return folder / f"own-{number}.npz"


def test_a_federation_is_asked_and_then_trains(town: Town, tmp_path: Path) -> None:
    """Mean and deviation come from the clients, who hold all data, and the next run is normalised by them."""
    where = ["--listen", f"127.0.0.1:{town.port}", "--keys", "keys"]
    asking = town.start("server", "ask", *where, "--out", "asked", *REMOTE)
    own = [windows(tmp_path, number) for number in range(3)]
    for number, path in enumerate(own):
        town.client(number, "--data", path)
    said = town.finish(asking)
    inputs = np.concatenate([np.load(path)["inputs"] for path in own]).astype(np.float64)
    (record,) = rounds(tmp_path / "asked")
    report = record["report"]
    assert isinstance(report, dict)
    assert report["samples"] == 60
    assert report["mean 0"] == pytest.approx(inputs[:, 0].mean(), rel=1e-6)
    assert report["std 1"] == pytest.approx(inputs[:, 1].std(), rel=1e-5)
    assert f"to normalise by it: dataset.means={report['mean 0']:.6g},{report['mean 1']:.6g}" in said
    serving = ["server", *where, "--asked", "asked", "--out", "run", *REMOTE]
    training = town.start("server", *serving, "model=mlp", "model.inputs=10", "rounds=1", "algorithm=fedavg")
    town.finish(training)
    config = (tmp_path / "run/config.toml").read_text()
    assert f"{report['mean 0']:.6g},{report['mean 1']:.6g}" in config
    evaluating = town.start("server", "eval", "run", *where, "--out", "evaluated")
    table = [line.split() for line in town.finish(evaluating).splitlines()]
    assert ["all", "12"] in [line[:2] for line in table], "a fifth of each client's samples"
    assert bifl("eval", "run", "--clients", cwd=tmp_path).returncode == 2, "there is nothing to simulate"
