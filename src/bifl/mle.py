"""ML-PU: the most likely mean of all clients' auxiliary weights, given my own and everyone's votes (paper §3).

The j-th auxiliary weight over the clients is taken as i.i.d. N(μ, σ²). I know my own w̄ and that M_P of M signs are positive.
With u = μ/σ and σ eliminated in closed form, and for my sign s = +1 (the other sign is its mirror image), the log-likelihood is

  f(u) = (a − 1)·ln Φ(u) + (M − a)·ln Φ(−u) + ln(q + u) − (q − u)²/8,    q = √(u² + 4),  a = votes that agree with me,

and μ̂ = r·w̄ with r = û·(q − û)/2: a number that depends on (a, M) only. f has one maximum, the root of f′.

>>> float(ratio(50, 100).round(4)), float(ratio(100, 100))
(0.0032, 1.0)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

FIT = (-5.4092, 1.3761, -0.5038)  # the paper's a1, a2, a3, made at M = 100
FIT_VOTERS = 100.0

Array = npt.NDArray[np.float64]


def _mills(u: Array) -> Array:
    """φ(u)/Φ(u), accurate for every u: 0 far right, −u far left."""
    from scipy.special import erfcx

    return np.asarray(np.sqrt(2 / np.pi) / erfcx(-u / np.sqrt(2)), np.float64)


def _slope(u: Array, agree: Array, against: Array) -> Array:
    """f′(u)."""
    q = np.sqrt(u * u + 4)
    return np.asarray((agree - 1) * _mills(u) - against * _mills(-u) + 1 / q + (q - u) ** 2 / (4 * q), np.float64)


def ratio(agree: npt.ArrayLike, voters: npt.ArrayLike, voted: bool = True) -> Array:
    """r = μ̂/w̄, exactly, for any real number of voters M ≥ 1.

    Args:
        agree: votes with my sign, from 1 (mine alone; 0 if I did not vote) to `voters`; scalar or array.
        voters: M, the votes counted; need not be an integer.
        voted: whether my own vote is among them.

    Returns:
        r in (−∞, 1]; 1 where all agree, the limit of the likelihood's unbounded maximum.

    Raises:
        ValueError: votes out of range.
    """
    from scipy.optimize import elementwise  # half a second to import, which most processes of a deployment need not spend

    a, m = np.broadcast_arrays(np.asarray(agree, np.float64), np.asarray(voters, np.float64))
    if not voted:  # I bring no vote of my own to subtract: the same f as with one more voter, who agrees with me
        a, m = a + 1, m + 1
    if not (np.all(m >= 1) and np.all(a >= 1 - 1e-9) and np.all(a <= m + 1e-9)):
        low = 1 if voted else 0
        raise ValueError(f"ratio(agree, voters) needs voters ≥ 1 and {low} ≤ agree ≤ voters")
    a = np.clip(a, 1, m)
    against = m - a
    unanimous = against <= 0
    against = np.where(unanimous, 1.0, against)  # any number will do, the result is overwritten
    # far right f′ ≈ 1/u − against·u, so û stays below 1/√against; far left the votes against cannot outweigh |u| beyond −40
    bracket = (np.full(a.shape, -40.0), 10 + 2 / np.sqrt(against))
    with np.errstate(over="ignore"):  # erfcx overflows to inf far left, where φ/Φ's partner is 0 as it should be
        u = np.asarray(elementwise.find_root(_slope, bracket, args=(a, against)).x, np.float64)
    q = np.sqrt(u * u + 4)
    r = np.where(u > 0, 2 * u / (q + np.abs(u)), u * (q - u) / 2)  # the same value, without cancellation on either side
    return np.where(unanimous, 1.0, r)


def location(ratio: Array) -> Array:
    """û = μ̂/σ̂ of a ratio r: r = û(√(û² + 4) − û)/2, solved for û; infinite where all agree."""
    with np.errstate(divide="ignore"):
        return np.asarray(ratio / np.sqrt(1 - ratio))


def fitted_ratio(agree: npt.ArrayLike, voters: npt.ArrayLike, voted: bool = True) -> Array:
    """The paper's fit a1 + a2·ln(M_P + a3) of r, made at M = 100; other M by the share of votes that agree."""
    a, m = np.asarray(agree, np.float64), np.asarray(voters, np.float64)
    if not voted:
        a, m = a + 1, m + 1
    a1, a2, a3 = FIT
    return np.asarray(a1 + a2 * np.log(np.maximum(a * FIT_VOTERS / m, 1) + a3))


@lru_cache(maxsize=256)
def table(total: int, unit: int, weight: int, voted: bool, ratio: Callable[[Array, float, bool], Array] = ratio) -> Array:
    """(total + 1,) r by the number of agreeing votes 0 … total, for a client of |D_i| = weight.

    Counts that cannot occur (fewer than my own vote) get the value of the fewest that can.
    """
    votes_of_mine = unit / weight
    agree = np.arange(total + 1) * votes_of_mine
    values = ratio(np.maximum(agree, 1.0 if voted else 0.0), total * votes_of_mine, voted)
    values.flags.writeable = False
    return values
