"""The curves of ML-PU (the paper's Fig. 3): û and r by the votes that agree, exact, as fitted in the paper, and fitted again."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import curve_fit

from bifl.core import rules
from studies.theory.quadratics import Array

VOTERS = 100


class Curves(NamedTuple):
    """Values for a = 1 … M − 1 votes that agree; at a = M û is infinite and r is 1."""

    agree: Array  # (M − 1,)
    ratio: Array  # (M − 1,) r = μ̂/w̄, exact
    location: Array  # (M − 1,) û = μ̂/σ̂, exact
    printed: Array  # (M − 1,) the paper's fit, said to be of û
    ratio_fit: tuple[float, float, float]  # a1, a2, a3 of a1 + a2·ln(a + a3) by least squares, r(M) = 1 included


def ml_pu_curves(voters: int = VOTERS) -> Curves:
    """Solve, and fit r by least squares; û is no logarithm, such a fit of it runs off to a straight line (a3 → ∞)."""
    agree = np.arange(1.0, voters + 1)
    ratio = rules.exact_ratio(agree, voters)
    location = rules.location(ratio[:-1])
    printed = rules.fitted_ratio(agree, voters)
    return Curves(agree[:-1], ratio[:-1], location, printed[:-1], _fit(agree, ratio))


def logarithm(agree: Array, a1: float, a2: float, a3: float) -> Array:
    """The paper's shape of a fit."""
    return np.asarray(a1 + a2 * np.log(agree + a3), np.float64)


def _fit(agree: Array, values: Array) -> tuple[float, float, float]:
    a1, a2, a3 = curve_fit(logarithm, agree, values, p0=rules.FIT)[0]
    return float(a1), float(a2), float(a3)
