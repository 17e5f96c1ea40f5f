"""Laws of the privacy mechanisms: what is sent is bounded and unbiased, and what it tells is never accounted too low."""

from __future__ import annotations

import dataclasses
from typing import Any

import dp_accounting
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bifl.core import mean, register
from bifl.core.layout import Layout, Tensor
from bifl.core.randomness import random_words, stream
from bifl.core.state import Client, Public
from bifl.errors import ConfigError, Refused
from bifl.experiment.settings import Experiment, compose
from bifl.privacy import Crowd, dice, poisson_binomial, privacy, refuse_unprivate, secret_dice
from bifl.privacy.accounting import ORDERS, Numbers, epsilon, gaussian_divergences, once_more
from bifl.privacy.mechanism import apply, vector
from bifl.privacy.poisson_binomial import RandomBits, bits, coarse, slopes, splits

LAYOUT = Layout(("linear",), (Tensor("linear.weight", (6, 5), 0),), (Tensor("norm.weight", (5,)),), (Tensor("norm", (5,)),))
FEW = (1.05, 1.5, 2.0, 3.0, 8.0, 32.0)
PRIVATE: dict[str, Any] = {"algorithm": "fedavg", "batchnorm": "average"}


def public(layout: Layout = LAYOUT) -> Public:
    draw = stream(1, 0, None, "public")
    mean = draw.normal(size=layout.reals - layout.trained).astype(np.float32)
    means, squares = np.split(mean, 2)
    real = np.concatenate([draw.normal(size=layout.trained), means, means**2 + 1 + squares**2])
    return Public(1, 0, layout, draw.normal(size=layout.count).astype(np.float32), real.astype(np.float32))


def words(name: str) -> dice.Words:
    generator = stream(1, 1, 0, name)
    return lambda count: random_words(generator, count)


# ---- what is sent ----------------------------------------------------------------------------------------------------------

numbers = st.floats(width=32)


@given(st.lists(numbers, min_size=30, max_size=30), st.lists(numbers, min_size=16, max_size=16), st.sampled_from([0.01, 1.0, 10.0]))
def test_an_update_is_never_longer_than_the_clip(weights: list[float], real: list[float], clip: float) -> None:
    """Whatever training gives: huge numbers, infinities, NaN."""
    client = Client(np.array(weights, np.float32), public().weights, np.array(real, np.float32), 1)
    found = vector(client, public(), clip)
    assert found.shape == (LAYOUT.count + LAYOUT.reals,)
    assert np.sqrt(np.square(found, dtype=np.float64).sum()) <= clip * (1 + 1e-6)


def test_a_short_update_arrives_as_it_is() -> None:
    """Weights, trained reals and statistics."""
    known = public()
    real = known.real + np.float32(0.01)
    client = Client(known.weights + np.float32(0.01), known.weights, real, 1)
    weights, reals = apply(vector(client, known, 1.0), known, 1.0)
    assert np.allclose(weights, client.aux, atol=1e-6)
    assert np.allclose(reals, real, atol=1e-5)


def test_variances_stay_positive_whatever_the_noise_says() -> None:
    known = public()
    by = np.full(LAYOUT.count + LAYOUT.reals, -50, np.float32)
    mean, square = np.split(apply(by, known, 1.0)[1][LAYOUT.trained :].astype(np.float64), 2)
    assert (square > mean**2).all()


def test_bits_are_unbiased() -> None:
    """Their mean is the update, but for noise of a known size: (c/2θ)/√n for every number, here within five deviations."""
    known, clients, how = public(), 4000, RandomBits(clip=1.0, reach=4.0, theta=0.3)
    update = vector(Client(known.weights + np.float32(0.3), known.weights, known.real, 1), known, 1.0)
    dealt = words("bits")
    total = np.sum([how.says(update, known, dealt) for _ in range(clients)], axis=0)
    found = how.hears(2 * total / clients - 1, clients, known, dealt)
    deviation = how.limit(len(total)) / (2 * 0.3 * np.sqrt(clients))
    assert np.abs(found - update).max() < 5 * deviation
    assert np.abs(found).max() > 10 * deviation  # it would notice zeros


def test_a_bit_s_chance() -> None:
    """½ + θ at most, ½ − θ at least."""
    for share, chance in ((-7.0, 0.2), (-1.0, 0.2), (0.0, 0.5), (0.5, 0.65), (1.0, 0.8)):
        found = bits(np.full(100_000, share), words("chance"), 0.3).mean()
        assert abs(found - chance) < 0.01


# ---- where noise comes from ------------------------------------------------------------------------------------------------


def test_secret_dice_are_nobody_else_s() -> None:
    """Not those of the seed, not the same twice; the same of the same secret."""
    known = public()
    one, two = (dice.secret_dice(known, 0, b"")(4).tolist() for _ in range(2))
    assert one != two
    assert dice.simulated_dice(known, 0, b"")(4).tolist() not in (one, two)
    again = [dice.secret_dice(known, 0, bytes(32))(4).tolist() for _ in range(2)]
    assert again[0] == again[1]


def test_a_round_is_answered_once() -> None:
    """Another answer to the same round would have other noise, and noise of many answers can be averaged away."""
    notes: dict[str, bytes] = {}
    known = public()
    first = dice.round_secret(notes, known)
    assert len(first) == dice.KEY
    assert dice.round_secret(notes, known) == first
    with pytest.raises(Refused, match="tells no other for round 1"):
        dice.round_secret(notes, known._replace(weights=known.weights + 1))
    assert dice.round_secret(notes, known._replace(round=1)) != first
    with pytest.raises(Refused, match="told its private update of round 2"):
        dice.round_secret(notes, known)


# ---- what it tells ---------------------------------------------------------------------------------------------------------


def exact(chances: list[float]) -> Numbers:
    """The distribution of a sum of bits."""
    found = np.ones(1)
    for chance in chances:
        found = np.convolve(found, [1 - chance, chance])
    return found


@given(
    st.sampled_from([0.01, 0.1, 0.25, 0.4, 0.49]),
    st.lists(st.one_of(st.sampled_from([-1.0, 1.0]), st.floats(-1, 1)), min_size=0, max_size=7),
    st.tuples(*[st.one_of(st.sampled_from([-1.0, 1.0]), st.floats(-1, 1))] * 2),
)
def test_no_divergence_is_above_the_bound(theta: float, others: list[float], own: tuple[float, float]) -> None:
    """By enumeration, for any probabilities of the others and of the client in question."""
    if abs(own[0] - own[1]) < 1e-4:
        return
    one, two = (exact([0.5 + theta * share for share in (mine, *others)]) for mine in own)
    bound = slopes(len(others) + 1, theta, FEW) * (theta * (own[0] - own[1])) ** 2
    for order, most in zip(FEW, bound, strict=True):
        assert np.log(np.sum(one * (one / two) ** (order - 1))) / (order - 1) <= most * (1 + 1e-9) + 1e-13


def test_the_bound_is_not_far_above_either() -> None:
    """Of many clients it is that of the Gaussian with the same variance, but for little: α/(2·n·(¼ − θ²))."""
    found, normal = slopes(1000, 0.05, (2.0, 8.0)), np.array([2.0, 8.0]) / (2 * 1000 * (0.25 - 0.05**2))
    assert (found > normal).all()
    assert (found < 1.05 * normal).all()


def test_blocks_of_cases_are_above_all_cases() -> None:
    clients, theta = 601, 0.2
    blocks = slopes(clients, theta, FEW[:4])
    assert len(splits(coarse(clients) - 1)) < 200
    assert len(splits(coarse(clients) - 1, clients)) == coarse(clients)
    one_by_one = slopes(clients, theta, FEW[:4], clients)
    assert (blocks >= one_by_one).all()
    assert (blocks < 1.02 * one_by_one).all()


@given(st.integers(1, 10**7))
def test_more_clients_are_rounded_down(clients: int) -> None:
    assert min(clients, poisson_binomial.MANY) * (1 - 1 / 256) <= coarse(clients) <= clients


@given(st.sampled_from([0.02, 0.1, 0.3]), st.integers(2, 40), st.integers(1, 50))
def test_epsilon_grows_with_rounds_and_theta_and_falls_with_clients(theta: float, clients: int, rounds: int) -> None:
    def spent(theta: float, clients: int, rounds: int, colluders: int = 0) -> float:
        how = RandomBits(1.0, 4.0, theta).divergences(clients, Crowd(99, colluders=colluders), 500)
        return epsilon(rounds * how, 1e-3)

    here = spent(theta, clients, rounds)
    assert here < spent(theta, clients, rounds + 1)
    assert here < spent(1.2 * theta, clients, rounds)
    assert here > spent(theta, clients + 1, rounds)
    assert spent(theta, clients + 3, rounds, colluders=3) == here


def test_sums_are_counted() -> None:
    assert once_more(once_more(once_more(once_more((), 9, 20), 7, 20), 9, 20), 9, 9) == ((7, 20, 1), (9, 9, 1), (9, 20, 2))


# ---- the library's own numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "rounds", "delta"), [(1.0, 1, 1e-5), (4.0, 30, 1e-6), (0.5, 3, 1e-3)])
def test_epsilon_is_the_library_s(noise: float, rounds: int, delta: float) -> None:
    """One client moves the sum by twice its clip. No RDP bound is below the exact ε of the Gaussian mechanism."""
    experiment = Experiment(**PRIVATE, privacy={"name": "gaussian", "noise": noise, "delta": delta})
    private = compose(experiment, secret_dice).privacy
    assert private is not None
    accountant = dp_accounting.rdp.RdpAccountant(ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_accounting.GaussianDpEvent(noise / 2), rounds)
    found = private.epsilon(((10, 10, rounds),), LAYOUT)
    assert found == pytest.approx(accountant.get_epsilon(delta), rel=1e-5)
    assert found > accountant.get_epsilon(delta)  # updates are rounded
    best = dp_accounting.get_epsilon_gaussian(noise / 2 / np.sqrt(rounds), delta)
    assert best <= found <= 1.25 * best


@pytest.mark.parametrize(
    ("secure", "colluders", "there", "hidden_among"),
    [(False, 0, 100, 99), (False, 1, 100, 99), (False, 30, 100, 70), (False, 0, 40, 39), (False, 90, 100, 0), (True, 0, 100, 0)],
)
def test_who_was_drawn_hides_clients_among_those_of_whom_nobody_knows(
    secure: bool, colluders: int, there: int, hidden_among: int
) -> None:
    """Whoever looks on knows of itself, and colluders of each other, that they were not drawn; of the absent everyone does."""
    settings: dict[str, Any] = {"clients": 100, "participation": 0.1, "secure_sum": secure, "privacy": "gaussian"}
    experiment = Experiment(**PRIVATE | settings | {"colluders": 0 if secure else colluders})
    private = compose(experiment, secret_dice).privacy
    assert private is not None
    accountant = dp_accounting.rdp.RdpAccountant(ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    event = dp_accounting.GaussianDpEvent(0.5)
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(hidden_among, 10, event) if hidden_among else event, 5)
    assert private.epsilon(((10, there, 5),), LAYOUT) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-5)


@pytest.mark.parametrize("noise", [1.0, 2.0, 20.0])
def test_samples_of_nearly_all_cost_no_more_than_all(noise: float) -> None:
    """The library's bound for them does."""
    assert (gaussian_divergences(noise, 99, 100) <= gaussian_divergences(noise)).all()


def test_a_tiny_clip_is_as_long_as_the_grid_makes_it() -> None:
    """Sums are multiples of 2⁻³²: rounding 46 numbers to them moves a sum by up to √46·2⁻³³ besides."""
    small, usual = (privacy.make("gaussian", {"clip": clip}) for clip in (1e-9, 1.0))
    assert small is not None
    assert usual is not None
    crowd = Crowd(10)
    assert small.divergences(10, crowd, 46)[0] > 1.5 * usual.divergences(10, crowd, 46)[0]


def test_gaussian_noise_has_its_deviation() -> None:
    how = privacy.make("gaussian", {"clip": 0.5, "noise": 3.0})
    assert how is not None
    noise = how.hears(np.zeros(200_000), 10, public(), words("noise"))
    assert np.std(noise) == pytest.approx(0.5 * 3.0 / 10, rel=0.01)
    assert abs(np.mean(noise)) < 5 * 0.15 / np.sqrt(200_000)


def test_divergences_that_are_kept_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        gaussian_divergences(1.0)[0] = 0


# ---- settings --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"algorithm": "biml"}, r"those of algorithm 'biml' do not: take fedavg, full, fedavgm or fedadam"),
        ({"algorithm": "hybrid"}, "of algorithm 'hybrid' do not"),
        ({"algorithm": "baseline"}, "those of algorithm 'baseline' do not"),
        ({"batchnorm": "recalibrate"}, "set batchnorm=average"),
        ({"holdout": 0.1}, "set holdout=0"),
        ({"robust": "median"}, "privacy= accounts for a plain sum"),
        ({"attack": "flip"}, "leave one of the two out"),
        ({"privacy": {"name": "gaussian", "delta": 0.1}}, r"privacy.delta=0.1 .* it must be below 0.1"),
        ({"privacy": {"name": "gaussian", "noise": 0.0}}, "privacy.noise must be"),
        ({"privacy": {"name": "gaussian", "clip": 64.0}}, "privacy.clip must be"),
        ({"privacy": {"name": "gaussian", "budget": -1.0}}, "privacy.budget must be"),
        ({"privacy": {"name": "poisson_binomial", "theta": 0.5}}, "privacy.theta must be"),
        ({"privacy": {"name": "poisson_binomial", "reach": 0.5}}, "privacy.reach must be"),
    ],
    ids=str,
)
def test_refusals(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Experiment(**PRIVATE | {"privacy": "gaussian"} | settings)


def test_a_sum_of_one_s_own_is_not_accounted_for() -> None:
    """It would see single uploads, and ε is that of a plain sum."""
    own = dataclasses.replace(register.make("fedavg", {}).at(1), aggregate=lambda uploads, public: mean(uploads))
    how = privacy.make("gaussian", {})
    assert how is not None
    with pytest.raises(ConfigError, match="has a sum of its own"):
        refuse_unprivate(own, how, 10)
