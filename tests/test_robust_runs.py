"""Robust sums in runs: the same everywhere, what outlives a kill, and what does not fit together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bifl.core import BINARY, Algorithm, floats, mean, means, register, replace
from bifl.engine.loop import loop
from bifl.engine.simulator import Simulation
from bifl.errors import ConfigError
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from bifl.export.model import Model
from bifl.robust import robust
from bifl.runs import kept
from tests.commands import Run, refused
from tests.federation import deploy, neighbours, quick, same, simulated
from tests.grid import Clock

# ---- everywhere the same ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "rule"), [("biml", "credibility"), ("fedavg", "median"), ("murmur", "krum"), ("biml_levels", "bounded_step")]
)
def test_a_rule_is_the_same_everywhere(algorithm: str, rule: str, tmp_path: Path, small: Path, clock: Clock) -> None:
    experiment = quick(small, algorithm=algorithm, robust={"name": rule} | ({"share": 0.4} if rule == "krum" else {}))
    alone = simulated(tmp_path / "one", experiment)
    deploy(neighbours(tmp_path), tmp_path / "deployed", experiment)
    same(alone, tmp_path / "deployed")
    *_, (_, public) = loop(experiment)
    saved = Model.read(alone / "model").message
    expected = (public.weights > 0).astype(np.uint8) if saved.alphabet == BINARY else public.weights
    assert saved.symbols.tobytes() == expected.tobytes()


def test_two_workers_send_every_upload(tmp_path: Path, small: Path) -> None:
    experiment = quick(small, algorithm="murmur", robust="credibility")
    same(simulated(tmp_path / "one", experiment), simulated(tmp_path / "two", experiment.changed({"workers": 2})))


def test_trust_outlives_a_kill(tmp_path: Path, small: Path) -> None:
    experiment = quick(small, clients=5, robust={"name": "credibility", "memory": 0.9}, attack="flip")
    whole = list(Simulation(build(experiment)))
    (tmp_path / "state").mkdir()
    for rounds in (1, 2, 3):
        resumed = Simulation(build(experiment.changed({"rounds": rounds})), tmp_path / "state")
        (record,) = list(resumed)
        assert record._replace(seconds=0) == whole[rounds - 1]._replace(seconds=0)
    assert resumed._server.trust.size == 5
    assert resumed._server.trust.min() < 0.9**2


# ---- what does not fit -----------------------------------------------------------------------------------------------------


@register
def with_a_sum_of_its_own() -> Algorithm:
    """FedAvg by a sum of its own."""
    return Algorithm(floats, means, replace, aggregate=lambda uploads, public: mean(uploads), keeps=())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("robust=norm_clip", "robust=norm_clip does not fit algorithm 'biml': it bounds the length of updates, and ballots"),
        ("robust=bounded_step algorithm=fedavg", "robust=bounded_step does not fit algorithm 'fedavg': it bounds how far vote"),
        ("robust=bounded_step algorithm=up_down", "no counts are broadcast"),
        ("robust=median algorithm=bnn", "algorithm 'bnn' is centralised"),
        ("robust=median algorithm=with_a_sum_of_its_own", "has a sum of its own"),
        ("robust=trimmed_mean robust.share=0.5", "robust.share must be the share of liars to withstand, from 0 to below 0.5"),
        ("robust=credibility robust.memory=1", "robust.memory must be from 0"),
        ("robust=norm_clip algorithm=fedavg robust.reach=0", "robust.reach must be a number greater than 0"),
        ("robust=krum robust.keep=-1", "robust.keep must be a number of uploads"),
        ("robust=bounded_step robust.step=0", "robust.step must be a share of the votes"),
        ("robust=trimmed_mean clients=4", "set robust.share=0.25 or more, or take 5 or more"),
        (
            "robust=krum clients=10 participation=0.3",
            "krum does not fit 3 uploads a round: the assumed share of 0.2 is nobody",
        ),
        ("robust=krum robust.share=0.4 clients=2", "and the sum the plain mean: take 3 or more"),
        ("robust=krum robust.keep=9", "robust.keep=9 is more than the 8 that are left without the assumed share of 0.2"),
    ],
)
def test_what_makes_no_sense_is_refused(words: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        build(Experiment.of(None, words.split()))
    assert sentence in str(refusal.value)


def test_a_comparison_refuses_before_it_writes(tmp_path: Path, here: Run) -> None:
    words = ["attack=flip", "attack.share=0.3", "robust=norm_clip", "rounds=1", "clients=3", "workers=1"]
    assert "robust=norm_clip does not fit" in refused(here("compare", *words, "algorithms=fedavg,biml", "--out", tmp_path / "no"))
    assert not (tmp_path / "no").exists()
    assert here("compare", *words, "algorithms=fedavg,murmur", "--out", tmp_path / "yes").returncode == 0


def test_kept_runs_keep_their_names() -> None:
    assert kept.name(Experiment()) == "mnist5k-iid-m10-biml-s0-c912ca47"
    names = {kept.name(Experiment(robust=rule)) for rule in robust.names()}
    assert len(names) == len(robust.names())


def test_uploads_that_only_their_sum_tells_are_refused() -> None:
    with pytest.raises(ConfigError, match="of 'murmur_dealt' only the sum can be read"):
        build(Experiment(algorithm="murmur_dealt", robust="median"))
