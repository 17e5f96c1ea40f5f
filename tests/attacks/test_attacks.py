"""Clients that lie: each attack changes what it should and nothing else, and only of the clients that were drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bifl.attacks import Attack, attack, attacked, liars
from bifl.attacks.lies import LARGE, shifted, wild
from bifl.core import BINARY, Client, Floats, Message, Public, register, signs, stream
from bifl.core.algorithm import Algorithm
from bifl.deploy.client.operator_choices import permitted
from bifl.deploy.protocol import Refusal
from bifl.engine.loop import loop
from bifl.errors import ConfigError
from bifl.exchanges.ballot import make_upload
from bifl.experiment.model import Model
from bifl.experiment.settings import Experiment, compose
from bifl.experiment.setup import build, serve
from bifl.privacy import secret_dice
from tests.support.commands import Run, refused
from tests.support.documented import python_blocks
from tests.support.federation import quick, same, simulated

ATTACKS = [name for name in attack.names() if name != "none"]
BALLOTS, UPDATES = ["biml", "sign_majority", "fedvote"], ["fedavg", "murmur", "eden", "dither"]


@pytest.fixture(scope="module")
def public() -> Public:
    return build(Experiment(clients=4, algorithm="fedavg")).public


def trained(public: Public, number: int) -> Client:
    dice = np.random.default_rng(number)
    aux = (public.weights + dice.normal(0, 0.01, public.layout.count)).astype(np.float32)
    real = (public.real + dice.normal(0, 0.01, public.layout.reals)).astype(np.float32)
    return Client(aux, public.weights, real, 400, number)


def said(name: str, algorithm: str, public: Public, number: int = 1) -> tuple[Message, Message]:
    """The honest and the lying upload of one client."""
    honest, lies = register.make(algorithm, {}), attack.make(name, {})
    assert isinstance(honest, Algorithm)
    assert lies is not None
    lying = attacked(honest, lies, frozenset({1, 2})).at(1)
    client = trained(public, number)
    return make_upload(honest, client, public)[1], make_upload(lying, client, public)[1]


def change(algorithm: str, message: Message, public: Public) -> Floats:
    """What an upload stands for, as a change of the public weights."""
    return register.make(algorithm, {}).at(1).reads(message, public).update.values() - public.weights


def cosine(one: Floats, other: Floats) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("algorithm", [*BALLOTS, *UPDATES])
def test_an_honest_client_says_what_it_would_have_said(name: str, algorithm: str, public: Public) -> None:
    honest, other = said(name, algorithm, public, number=3)
    assert other.update.symbols.tobytes() == honest.update.symbols.tobytes()
    assert other.real.tobytes() == honest.real.tobytes()
    assert other.update.scales.tobytes() == honest.update.scales.tobytes()


@pytest.mark.parametrize("algorithm", BALLOTS)
def test_lies_about_ballots(algorithm: str, public: Public) -> None:
    against = (public.weights <= 0).astype(np.uint8)
    for name in ("flip", "collude", "random"):
        honest, lie = said(name, algorithm, public)
        assert lie.real.tobytes() == honest.real.tobytes()
        assert lie.update.alphabet == BINARY
        agree = np.mean(lie.update.symbols == honest.update.symbols)
        if name == "flip":
            assert agree == 0
        elif name == "collude":
            assert (
                lie.update.symbols.tobytes()
                == against.tobytes()
                == said(name, algorithm, public, number=2)[1].update.symbols.tobytes()
            )
        else:
            assert 0.45 < agree < 0.55
            assert lie.update.symbols.tobytes() != said(name, algorithm, public, number=2)[1].update.symbols.tobytes()


@pytest.mark.parametrize("algorithm", UPDATES)
def test_lies_about_updates(algorithm: str, public: Public) -> None:
    _, lie = said("flip", algorithm, public)
    assert cosine(trained(public, 1).aux - public.weights, change(algorithm, lie, public)) < -0.2
    both = [change(algorithm, said("collude", algorithm, public, number)[1], public) for number in (1, 2)]
    wrong = np.where(public.weights > 0, -1, 1).astype(np.float32)
    assert all(cosine(own, wrong) > 0.2 for own in both)
    _, lie = said("random", algorithm, public)
    assert abs(cosine(trained(public, 1).aux - public.weights, change(algorithm, lie, public))) < 0.02
    for name in ("flip", "collude", "random"):
        honest, lie = said(name, algorithm, public)
        assert lie.real.tobytes() == honest.real.tobytes()


def test_exactly_the_other_way_and_ten_times_as_far(public: Public) -> None:
    honest, lie = said("flip", "fedavg", public)
    np.testing.assert_allclose(lie.update.symbols - public.weights, public.weights - honest.update.symbols, atol=1e-6)
    honest, lie = said("scaled", "fedavg", public)
    np.testing.assert_allclose(lie.update.symbols - public.weights, -10 * (honest.update.symbols - public.weights), atol=1e-5)
    trained = public.layout.trained
    np.testing.assert_allclose((lie.real - public.real)[:trained], -10 * (honest.real - public.real)[:trained], atol=1e-4)
    assert lie.real[trained:].tobytes() == honest.real[trained:].tobytes()


@pytest.mark.parametrize("algorithm", ["biml", "fedavg"])
def test_poisoned_reals_leave_the_weights_alone(algorithm: str, public: Public) -> None:
    honest, lie = said("reals", algorithm, public)
    trained = public.layout.trained
    assert lie.update.symbols.tobytes() == honest.update.symbols.tobytes()
    assert np.all(np.abs(lie.real[:trained]) == LARGE)
    assert lie.real[trained:].tobytes() == honest.real[trained:].tobytes()
    assert lie.real[:trained].tobytes() == said("reals", algorithm, public, number=2)[1].real[:trained].tobytes()


def test_wrong_labels() -> None:
    wrong = shifted(np.arange(10), 10, stream(0, 0, None, "x"))
    assert sorted(wrong) == list(range(10))
    assert not np.any(wrong == np.arange(10))
    numbers = np.arange(12, dtype=np.float32).reshape(6, 2)
    dealt = shifted(numbers, 7, stream(0, 0, None, "x"))
    assert sorted(dealt[:, 0]) == sorted(numbers[:, 0])
    assert np.all(dealt[:, 1] == dealt[:, 0] + 1)


@pytest.mark.parametrize("name", ATTACKS)
def test_whoever_is_drawn_lies_and_nobody_else(name: str, tmp_path: Path, small: Path) -> None:
    """The first round's uploads: later ones are honest answers to what the liars did."""
    experiment = quick(small, clients=4, rounds=1, algorithm="fedavg", batchnorm="average")  # ballots tell statistics too
    plain = simulated(tmp_path / "plain", experiment)
    lied = simulated(tmp_path / "lied", experiment.changed({"attack": name, "attack.share": 0.5}))
    who = liars(0, 4, 0.5)
    assert len(who) == 2
    before, after = uploads(plain), uploads(lied)
    assert len(before) == 4
    assert {int(upload.rpartition("-")[2]) for upload in before if before[upload] != after[upload]} == who


def test_lies_about_statistics_leave_the_ballots_alone(tmp_path: Path, small: Path) -> None:
    experiment = quick(small, clients=4, rounds=1, algorithm="fedavg")
    lying = experiment.changed({"attack": "statistics", "attack.share": 0.5})
    plain, lied = simulated(tmp_path / "plain", experiment), simulated(tmp_path / "lied", lying)
    assert uploads(plain) == uploads(lied)
    before, after = uploads(plain, "statistics"), uploads(lied, "statistics")
    assert {int(upload.rpartition("-")[2]) for upload in before if before[upload] != after[upload]} == liars(0, 4, 0.5)
    same(lied, simulated(tmp_path / "two", lying.changed({"workers": 2})))
    *_, (_, public) = loop(lying)
    assert Model.read(lied / "model").message.real.tobytes() == public.real.tobytes()


def test_liars_agree_on_wild_statistics(public: Public) -> None:
    honest = public.real[public.layout.trained :]
    one, two = (wild(moments, public, stream(0, 1, None, "x")) for moments in (honest, 0 * honest))
    assert one.tobytes() == two.tobytes()
    means, squares = np.split(one, 2)
    assert set(means) == {LARGE, -LARGE}
    assert set(squares - means**2) == {0, LARGE**2}


def test_the_seed_draws_the_liars() -> None:
    assert liars(0, 10, 0.3) == liars(0, 10, 0.3) < liars(0, 10, 0.4)
    assert len({liars(seed, 10, 0.3) for seed in range(5)}) > 1
    assert [len(liars(0, 10, share)) for share in (0, 0.1, 0.25, 1)] == [0, 1, 2, 10]


def test_nobody_lies_unless_told() -> None:
    usual = compose(Experiment(algorithm="biml"), secret_dice)
    assert usual.algorithm.at(1).upload is signs
    assert usual.robust is None


def uploads(run: Path, kind: str = "upload") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(run.rglob(f"round-00001/{kind}-*"))}


@pytest.mark.parametrize("algorithm", ["biml", "fedavg"])
def test_an_attack_of_one_s_own_is_one_file(tmp_path: Path, small: Path, algorithm: str) -> None:
    """The one that docs/robust.md shows."""
    example, _ = python_blocks("docs/robust.md")
    (tmp_path / "mine.py").write_text(example)
    experiment = quick(small, clients=4, rounds=1, algorithm=algorithm)
    lying = experiment.changed({"attack": f"{tmp_path}/mine.py:sleepers", "attack.share": 0.5, "attack.start": 1})
    plain = uploads(simulated(tmp_path / "plain", experiment))
    one, two = (uploads(simulated(tmp_path / f"{number}", lying.changed({"workers": number}))) for number in (1, 2))
    assert one == two
    assert {int(name.rpartition("-")[2]) for name in plain if plain[name] != one[name]} == liars(0, 4, 0.5)
    assert uploads(simulated(tmp_path / "asleep", lying.changed({"attack.start": 2}))) == plain


def test_refusals(here: Run) -> None:
    with pytest.raises(ConfigError, match=r"attack=flip makes clients of a simulation lie: use bifl run, or leave it out"):
        serve(Experiment(attack="flip"))
    with pytest.raises(Refusal, match="makes clients of a simulation lie"):
        permitted("attack=flip", (), own_data=False)
    with pytest.raises(ConfigError, match="algorithm 'bnn' is centralised"):
        Experiment(attack="flip", algorithm="bnn")
    with pytest.raises(ConfigError, match=r"attack\.share must be a share of the clients, from 0 to 1, not 1\.5"):
        Attack(1.5)
    assert "attack.factor must be a number" in refused(here("run", "attack=scaled", "attack.factor=nan"))
    assert "unknown attack 'flipp': did you mean 'flip'?" in refused(here("run", "attack=flipp"))
    assert refused(here("run", "attack.share=0.3")) == "bifl: unknown key 'attack.share': set attack= too\n"
    with pytest.raises(ConfigError, match=r"attack\.share=0\.2 of 2 clients is nobody: it takes 3 clients or more, or .*0\.25"):
        Experiment(attack="flip", clients=2)
    assert len(liars(0, 3, 0.2)) == len(liars(0, 2, 0.26)) == 1
