"""FedAvgM and FedAdam: the steps that the papers print, remembered from round to round and in the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bifl
from bifl.algorithms.server_optimizers import momentum, stepping
from bifl.core import FLOAT32, UPDATE, Message, Sent, Server, Tally, VectorTally, register
from bifl.engine.loop import loop
from bifl.errors import ConfigError
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build

SMALL: dict[str, Any] = {"clients": 3, "workers": 1, "model": {"name": "mlp", "hidden": 8}}


def test_the_steps_are_the_papers() -> None:
    public = build(Experiment(**SMALL, algorithm="fedavg")).public
    dice = np.random.default_rng(0)
    changes = [dice.normal(0, 0.01, public.layout.count).astype(np.float32) for _ in range(3)]
    speed, first, second = (np.zeros(public.layout.count) for _ in range(3))
    states = {"fedavgm": (Server(), public), "fedadam": (Server(), public)}
    for change in changes:
        speed = 0.9 * speed + change
        first, second = 0.9 * first + 0.1 * change, 0.99 * second + 0.01 * change.astype(np.float64) ** 2
        for name, step in {"fedavgm": speed, "fedadam": 0.01 * first / (np.sqrt(second) + 0.001)}.items():
            server, known = states[name]
            tally = Tally(3, 3, 1, {UPDATE: VectorTally(known.weights.astype(np.float64) + change)}, known.real)
            said = register.make(name, {}).at(1).broadcast(tally, known, server)
            assert isinstance(said, Sent)
            assert isinstance(said.message, Message)
            assert said.message.update.alphabet == FLOAT32
            np.testing.assert_allclose(said.message.update.values() - known.weights, step, atol=1e-5)
            states[name] = Server(said.memory), known._replace(weights=said.message.update.values())


def test_what_the_broadcast_remembers_stays_beside_the_optimiser() -> None:
    """FedDyn's h is a row of the server's memory: with momentum of 0 around it nothing changes."""
    public = build(Experiment(**SMALL, algorithm="fedavg")).public
    plain = register.make("feddyn", {}).at(1)
    around = stepping(plain, momentum(1.0, 0.0), 1)
    servers = {"plain": Server(), "around": Server()}
    for number in range(3):
        change = np.random.default_rng(number).normal(0, 0.01, public.layout.count)
        tally = Tally(1, 1, 1, {UPDATE: VectorTally(public.weights + change)}, public.real)
        made = {name: which.broadcast(tally, public, servers[name]) for name, which in (("plain", plain), ("around", around))}
        news = []
        for name, sent in made.items():
            assert isinstance(sent, Sent)
            servers[name] = Server(sent.memory)
            news.append(sent.message.update.values())
        np.testing.assert_allclose(news[0], news[1], atol=1e-6)
    assert servers["around"].memory.shape == (2, public.layout.count)


@pytest.mark.parametrize("algorithm", ["fedavgm", {"name": "fedadam", "down": "sign"}], ids=str)
def test_what_the_server_remembers_is_in_the_checkpoint(algorithm: Any, tmp_path: Path) -> None:
    experiment = Experiment(**SMALL, algorithm=algorithm, rounds=3)
    *_, (_, public) = loop(experiment)
    for rounds in (1, 3):
        resumed = bifl.simulate(experiment.changed({"rounds": rounds}), folder=tmp_path)
        list(resumed)
    assert resumed.public.weights.tobytes() == public.weights.tobytes()


@pytest.mark.parametrize(("word", "reason"), [("fedavgm.beta=1", "from 0 to below 1"), ("fedadam.tau=0", "above 0")])
def test_what_makes_no_sense_is_refused(word: str, reason: str) -> None:
    name, _, setting = word.partition(".")
    with pytest.raises(ConfigError, match=reason):
        Experiment.of(None, [f"algorithm={name}", f"algorithm.{setting}"])
