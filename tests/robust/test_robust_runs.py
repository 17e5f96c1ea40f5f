"""Robust sums in runs: the same everywhere, what outlives a kill, and what does not fit together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bifl.attacks import liars
from bifl.core import BINARY, Algorithm, Floats, Message, Public, Tally, floats, mean, means, register, replace
from bifl.engine.loop import loop
from bifl.engine.simulator import Simulation
from bifl.errors import AlgorithmError, ConfigError, RunError
from bifl.experiment.model import Model
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from bifl.robust import Rule, robust, trust_of
from studies import keeping
from tests.support.commands import Run, refused
from tests.support.documented import python_blocks
from tests.support.federation import deploy, neighbours, quick, same, simulated
from tests.support.grid import Clock
from tests.support.workers import beside

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
    expected = (public.weights > 0).astype(np.uint8) if saved.update.alphabet == BINARY else public.weights
    assert saved.update.symbols.tobytes() == expected.tobytes()


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
    assert trust_of(resumed.state.server).size == 5
    assert trust_of(resumed.state.server).min() < 0.9**2
    with np.load(tmp_path / "state" / "server.npz") as found:
        arrays = {"trust" if name == "state trust" else name: found[name] for name in found.files}
    np.savez(tmp_path / "state" / "server.npz", **arrays)
    with pytest.raises(RunError, match="trust is of an earlier version"):  # and not forgotten
        Simulation(build(experiment), tmp_path / "state")


def own_rule(folder: Path) -> str:
    """The rule that docs/robust.md shows, as a file."""
    (folder / "mine.py").write_text(python_blocks("docs/robust.md")[1])
    return f"{folder}/mine.py:nearest"


@pytest.mark.parametrize("algorithm", ["biml", "fedavg"])
def test_a_rule_of_one_s_own_is_one_file(algorithm: str, tmp_path: Path, small: Path) -> None:
    experiment = quick(small, clients=4, rounds=1, algorithm=algorithm, attack={"name": "flip", "share": 0.25})
    ruled = experiment.changed({"robust": own_rule(tmp_path), "robust.share": 0.75})
    one, two = (beside(ruled.changed({"workers": number})) for number in (1, 2))
    assert [record._replace(seconds=0) for record in one] == [record._replace(seconds=0) for record in two]
    (liar,) = liars(0, 4, 0.25)
    kept: list[list[int]] = []

    @robust
    def honest_only() -> Rule:
        """The mean of all but the liar."""

        def total(uploads: Sequence[Message], public: Public, trust: Floats) -> tuple[Tally, Floats]:
            kept.append([upload.sender or 0 for upload in uploads])
            return mean([upload for upload in uploads if upload.sender != liar]), trust

        return Rule(total)

    ideal = Simulation(build(experiment.changed({"robust": "honest_only"})))
    assert [record.loss for record in ideal] == [one.last.loss if one.last else None]
    assert kept == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("returns", "sentence"),
    [
        (lambda tally, trust: tally, "total returned a Tally; it must be two things: a Tally, and the trust"),
        (lambda tally, trust: (None, trust), "total returned a NoneType; it must be a Tally"),
        (lambda tally, trust: (tally, None), "total returned memory of NoneType; it must be float32"),
        (lambda tally, trust: (tally.with_update(mean=tally.update.mean[1:]), trust), "total returned mean of shape"),
    ],
)
def test_a_rule_s_mistake_is_one_sentence(returns: Callable[..., Any], sentence: str, small: Path) -> None:
    @robust
    def mistaken_rule() -> Rule:
        """A mean that returns something else."""
        return Rule(lambda uploads, public, trust: returns(mean(uploads), trust))

    with pytest.raises(AlgorithmError, match=f"robust=mistaken_rule: {sentence}"):
        list(Simulation(build(quick(small, rounds=1, robust="mistaken_rule"))))


def test_the_screen_tells_who_lied_and_who_has_no_credit(tmp_path: Path, here: Run) -> None:
    words = ["attack=flip", "clients=5", "rounds=1", "workers=1", "local_steps=4"]
    ran = here("run", *words, "robust=credibility", cwd=tmp_path)
    (liar,) = liars(0, 5, 0.2)
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in ran.stdout.splitlines() if line.strip()}
    assert rows["attack"] == f"flip, 1 of 5 clients ({liar})"
    assert rows["robust"] == f"credibility, memory 0.8, reach 2.0; 1 of 5 clients without credit now ({liar})"
    both = here("compare", *words, "robust=median", "algorithms=biml,fedavg", cwd=tmp_path)
    assert "attack: flip, 1 of 5 clients; robust: median\n" in both.stdout
    plain = here("run", "clients=2", "rounds=1", "workers=1", "local_steps=1", cwd=tmp_path)
    assert "attack" not in plain.stdout
    assert "robust" not in plain.stdout


# ---- what does not fit -----------------------------------------------------------------------------------------------------


@register
def with_a_sum_of_its_own() -> Algorithm:
    """FedAvg by a sum of its own."""
    return Algorithm(floats, means, replace, aggregate=lambda uploads, public: mean(uploads), keeps=())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "robust=norm_clip algorithm=biml",
            "robust=norm_clip does not fit algorithm 'biml': it bounds the length of updates, and ballots",
        ),
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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("run robust=credibility secure_sum=true", "which robust= must see: choose one of the two"),
        ("run algorithm=murmur secure_sum=true", "algorithm 'murmur' cannot be used with secure_sum=true"),
        ("run algorithm=fedavg privacy=gaussian privacy.budget=0.001 batchnorm=average", "privacy.budget=0.001 is less than one"),
        ("run colluders=1", "colluders=1 is about what a secure sum hides: set secure_sum=true, or leave it out"),
        ("compare algorithms=biml,murmur secure_sum=true", "algorithm 'murmur' cannot be used with secure_sum=true"),
        ("compare algorithms=fedavg,biml robust=norm_clip", "robust=norm_clip does not fit algorithm 'biml'"),
    ],
)
def test_a_refusal_leaves_nothing_behind(words: str, sentence: str, tmp_path: Path, here: Run) -> None:
    assert sentence in refused(here(*words.split(), "clients=3", "rounds=1", "workers=1", cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_kept_runs_keep_their_names() -> None:
    assert keeping.name(Experiment(algorithm="biml")) == "mnist5k-iid-m10-biml-s0-c912ca47"
    names = {keeping.name(Experiment(algorithm="biml", robust=rule)) for rule in robust.names()}
    assert len(names) == len(robust.names())


def test_uploads_that_only_their_sum_tells_are_refused() -> None:
    with pytest.raises(ConfigError, match="of 'murmur_dealt' only the sum can be read"):
        build(Experiment(algorithm="murmur_dealt", robust="median"))
