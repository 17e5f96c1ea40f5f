"""ML-PU against the printed values and against a brute-force maximum of the original likelihood."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import curve_fit, minimize
from scipy.stats import norm

from bifl.core import rules

pytestmark = pytest.mark.floats

PRINTED = {1: -6.253, 2: -5.039, 5: -3.474, 10: -2.337, 20: -1.263, 30: -0.676, 70: 0.4074, 90: 0.7035, 95: 0.7797, 99: 0.8669}


def test_the_values_of_the_paper() -> None:
    assert rules.exact_ratio(list(PRINTED), 100) == pytest.approx(list(PRINTED.values()), abs=5e-4)
    assert rules.exact_ratio(50, 100) == pytest.approx(0.0032, abs=5e-5)
    assert rules.exact_ratio(100, 100) == 1


def brute_force(positive: float, voters: float, aux: float, voted: bool) -> float:
    """μ̂/w̄ by maximising over μ and σ the likelihood of my own weight and of everybody else's signs."""
    mine = 1.0 if voted else 0.0
    for_plus, for_minus = positive - mine * (aux > 0), voters - positive - mine * (aux < 0)

    def loss(point: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        mu, sigma = point[0], np.exp(point[1])
        signs = for_plus * norm.logcdf(mu / sigma) + for_minus * norm.logcdf(-mu / sigma)
        return -float(signs + norm.logpdf(aux, mu, sigma))

    starts = [(aux * share, np.log(abs(aux) * width)) for share in (1.0, 0.3, -0.3, -2) for width in (0.3, 1, 3)]
    options = {"xatol": 1e-10, "fatol": 1e-13, "maxiter": 20_000, "maxfev": 20_000}
    best = min((minimize(loss, start, method="Nelder-Mead", options=options) for start in starts), key=lambda found: found.fun)
    return float(best.x[0] / aux)


@pytest.mark.parametrize("case", range(25))
def test_it_is_the_maximum_of_the_likelihood(case: int) -> None:
    generator = np.random.default_rng(case)
    voters = generator.choice([float(generator.integers(2, 200)), generator.uniform(2, 200)])  # every other M is no integer
    voted = bool(generator.integers(2))
    aux = generator.choice([-1, 1]) * generator.uniform(0.05, 1)
    agree = generator.uniform(1 if voted else 0, voters - 0.5)
    positive = agree if aux > 0 else voters - agree
    assert rules.exact_ratio(agree, voters, voted) == pytest.approx(brute_force(positive, voters, aux, voted), abs=2e-4)


@given(voters=st.floats(1, 1e6), share=st.floats(0, 1), other=st.floats(0, 1))
def test_more_agreement_never_lowers_the_ratio(voters: float, share: float, other: float) -> None:
    low, high = sorted([1 + share * (voters - 1), 1 + other * (voters - 1)])
    ratios = rules.exact_ratio([low, high], voters)
    assert ratios[0] <= ratios[1] + 1e-9
    assert np.all(ratios <= 1)


@given(voters=st.floats(1, 1e4), share=st.floats(0, 1))
def test_who_did_not_vote_counts_as_one_more(voters: float, share: float) -> None:
    assert rules.exact_ratio(share * voters, voters, voted=False) == pytest.approx(
        rules.exact_ratio(share * voters + 1, voters + 1), abs=1e-9
    )


@pytest.mark.parametrize("gap", [1e-3, 1e-6, 1e-9, 1e-12])
def test_the_limit_is_reached_smoothly(gap: float) -> None:
    assert 1 - 2 * gap <= rules.exact_ratio(7.5 - gap, 7.5) <= 1


def test_a_lone_voter_keeps_its_weight() -> None:
    assert rules.exact_ratio(1, 1) == 1


@pytest.mark.parametrize(("agree", "voters", "voted"), [(0.5, 10, True), (11, 10, True), (-1, 10, False), (1, 0.5, True)])
def test_impossible_votes_are_refused(agree: float, voters: float, voted: bool) -> None:
    with pytest.raises(ValueError, match="agree ≤ voters"):
        rules.exact_ratio(agree, voters, voted)


def test_the_papers_constants_fit_the_ratio() -> None:
    agree = np.arange(1.0, 101)
    constants, _ = curve_fit(lambda x, a, b, c: a + b * np.log(x + c), agree, rules.exact_ratio(agree, 100), p0=rules.FIT)
    assert constants == pytest.approx(rules.FIT, abs=3e-3)
    assert np.abs(rules.fitted_ratio(agree, 100) - rules.exact_ratio(agree, 100)).max() < 0.2


@pytest.mark.parametrize("voters", [10, 50, 200])
def test_the_fit_is_near_for_other_numbers_of_voters(voters: int) -> None:
    agree = np.arange(voters // 10, voters + 1)
    assert np.abs(rules.fitted_ratio(agree, voters) - rules.exact_ratio(agree, voters)).max() < 0.15


def test_a_table_counts_in_units() -> None:
    # sizes 1200, 600, 300: a client of 600 sees half a vote per unit of 300, and M_i = |D|/|D_i|
    table = rules.table(total=200, unit=300, weight=600, voted=True)
    assert table[150] == rules.exact_ratio(75, 100)
    assert table[0] == table[2] == rules.exact_ratio(1, 100)  # fewer than my own two units cannot agree with me


@given(
    voters=st.floats(1, 1e9), share=st.floats(0, 1), decades=st.floats(0, 12), end=st.sampled_from(["few", "all", "any"]),
    voted=st.booleans(),
)  # fmt: skip
def test_interpolated_ratios_are_near_the_exact_ones(voters: float, share: float, decades: float, end: str, voted: bool) -> None:
    least = 1.0 if voted else 0.0
    part = {"few": 10**-decades, "all": 1 - 10**-decades, "any": share}[end]
    agree = min(least + part * (voters - least), voters)
    exact = rules.exact_ratio(agree, voters, voted)
    assert abs(rules.near_ratio(agree, voters, voted) - exact) <= 1e-6 * max(abs(float(exact)), 1)


@pytest.mark.parametrize("ratio", [rules.exact_ratio, rules.fitted_ratio])
def test_many_votes_are_not_tabulated(ratio: rules.Ratio) -> None:
    """A liar of 2³⁰ images, or an honest million without a common divisor, may not cost a client more than its own weights do."""
    agree = np.random.default_rng(0).integers(0, 10**6, 50_000)
    tracemalloc.start()
    found = rules.ratios(agree, 10**6, 1, 997, True, ratio)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6  # bytes; a table of a million counts and its search took 453 MB
    exact = ratio(np.maximum(agree[:500] / 997, 1), 10**6 / 997, True)
    assert np.all(np.abs(found[:500] - exact) <= 1e-6 * np.maximum(np.abs(exact), 1))
    assert np.all(np.isfinite(rules.ratios(np.array([0, 2**29, 2**30]), 2**30, 1, 600, False, ratio)))


def test_few_votes_come_from_the_exact_table() -> None:
    agree = np.array([3, 100, 1])
    assert rules.ratios(agree, 100, 600, 600, True).tolist() == rules.exact_ratio(agree, 100).tolist()
