"""What must agree between processors that round differently: public states, and what every message means to its readers.

Only PyTorch's, oneDNN's, numba's and BLAS's loops round differently (sums in another order, fused multiply-add): training, and the
initial weights. What both ends of the wire compute is integers, or single IEEE 754 operations, which are the same everywhere.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bifl.core import Message, Public, take_over
from bifl.core.message import FLOAT32, NOTHING
from bifl.engine.catch_up import digest, restored, whole
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import serve
from tests.processors import EMULATED, environment
from tests.support.documented import python_blocks

ROOT = Path(__file__).parents[2]
EXPERIMENTS = [
    "algorithm=biml",
    "algorithm=up_down partition=quantity",
    "algorithm=up_only batchnorm=average partition=dirichlet",  # sizes without a common divisor: large alphabets of vote counts
    "algorithm=fttq algorithm.validation=0.1",
    "algorithm=fedavg",
    "algorithm=full reals=float32",
    "algorithm=hybrid algorithm.switch=2",
    "algorithm=biml wire=packed participation=0.5 idle=sleep",
]


@pytest.mark.skipif(not EMULATED, reason="only x86-64 processors can be told to compute as older ones")
@pytest.mark.parametrize(("server", "clients", "part"), [("old", "own", 0), ("own", "old", 1)])
def test_an_old_and_a_new_processor_make_a_federation(tmp_path: Path, small: Path, server: str, clients: str, part: int) -> None:
    """Three rounds each: nothing is refused or said twice, every message is read as its sender meant it, all states are equal.

    Half of the experiments have the old server, the others old clients: what both ends compute is compared, whichever is the older.
    """
    (tmp_path / "own.py").write_text(python_blocks("docs/adding-an-algorithm.md")[0])  # its states add up
    experiments = [*EXPERIMENTS, f"algorithm={tmp_path}/own.py:direction_vote"][part::2]
    common = f"dataset=npz dataset.path={small} clients=2 rounds=3 batch=32 "
    command = [
        sys.executable,
        "-m",
        "tests.support.two_processors",
        clients,
        str(tmp_path),
        *(common + words for words in experiments),
    ]
    done = subprocess.run(command, env=environment(server), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    different = found["server"]["processor"] != found["clients"]["processor"]  # unless this machine is an old one itself
    for words, rounds in found["rounds"].items():
        assert [record["refused"] + record["missing"] for record in rounds] == [0, 0, 0], words
        first, *later = (record["catch_up_bytes"] for record in rounds)
        assert (first > 0) == different, "the initial weights are rounded differently …"
        assert not any(later) or "sleep" in words, "… and nothing else that both compute"
        before = [set(record["in"]) for record in rounds[1:]] + [set(rounds[-1]["heard"])]
        for record, known in zip(rounds, before, strict=True):
            assert record["after"] in known, f"the clients never had the server's state after round {record['round']} of {words}"
    read = [found[end]["read"] for end in ("server", "clients")]
    assert set(read[0]) <= set(read[1])
    assert [name for name, meaning in read[0].items() if read[1][name] != meaning] == []


def adding(public: Public, news: Message) -> Public:
    """An `absorb` for broadcasts that are changes: the new state depends on the initial weights for ever."""
    return take_over(public, news)._replace(weights=public.weights + news.update.values())


@pytest.mark.parametrize("rounds", [0, 1, 2])
@pytest.mark.parametrize("react", [take_over, adding])
def test_the_whole_state_does_without_the_readers_initial_weights(rounds: int, react: Callable[[Public, Message], Public]) -> None:
    experiment = Experiment(algorithm="fedavg", clients=2)
    setup = serve(experiment)
    run, fresh = replace(setup.run, algorithm=replace(setup.run.algorithm.at(1), absorb=react)), setup.public
    ballot = run.ballot
    public, generator = fresh, np.random.default_rng(0)
    for round in range(1, rounds + 1):
        symbols = generator.normal(size=fresh.layout.count).astype(np.float32)
        public = ballot.advance(public, Message.of(symbols, FLOAT32, fresh.real, NOTHING, round=round))
    elsewhere = fresh._replace(weights=np.nextafter(fresh.weights, np.float32(2)))
    assert digest(elsewhere, True) != digest(fresh, True)
    exchanges = (ballot, *setup.run.exchanges[1:])
    said = whole(public, exchanges, fresh, True, {})
    assert digest(restored(said, exchanges, elsewhere), True) == digest(public, True)
    assert ("model" in said) == (rounds == 0 or react is adding), "the model only where the broadcasts do not tell it"
