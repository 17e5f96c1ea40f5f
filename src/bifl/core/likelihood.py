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
Ratio = Callable[[Array, float, bool], Array]

MANY = 2**14  # votes beyond which a table of all counts costs more than it saves
NODES = 2**16


def _mills(u: Array) -> Array:
    """φ(u)/Φ(u), accurate for every u: 0 far right, −u far left."""
    from scipy.special import erfcx

    return np.asarray(np.sqrt(2 / np.pi) / erfcx(-u / np.sqrt(2)), np.float64)


def _slope(u: Array, agree: Array, against: Array) -> Array:
    """f′(u)."""
    q = np.sqrt(u * u + 4)
    return np.asarray((agree - 1) * _mills(u) - against * _mills(-u) + 1 / q + (q - u) ** 2 / (4 * q), np.float64)


def ratio(agree: npt.ArrayLike, voters: npt.ArrayLike, voted: bool = True) -> Array:
    """r = μ̂/w̄, exactly, in (−∞, 1]: 1 where all agree, the limit of the likelihood's unbounded maximum.

    Args:
        agree: votes with my sign, from 1 (mine alone; 0 if I did not vote) to `voters`; scalar or array.
        voters: M, the votes counted, 1 or more; need not be an integer.
        voted: whether my own vote is among them.
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
    return np.where(unanimous, 1.0, _ratio_at(u, q))


def _ratio_at(u: Array, q: Array) -> Array:
    """r = û(q − û)/2, in two spellings, so that nothing cancels on either side."""
    return np.where(u > 0, 2 * u / (q + np.abs(u)), u * (q - u) / 2)


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


_exact = ratio  # by a name that no parameter hides


@lru_cache(maxsize=256)
def table(total: int, unit: int, weight: int, voted: bool, ratio: Ratio = ratio) -> Array:
    """(total + 1,) r by the number of agreeing votes, for a client of |D_i| = weight; no fewer can agree than vote for my own."""
    values = _in_units(np.arange(total + 1), total, unit, weight, voted, ratio)
    values.flags.writeable = False
    return values


def ratios(agree: npt.NDArray[np.integer], total: int, unit: int, weight: int, voted: bool, ratio: Ratio = ratio) -> Array:
    """r for vote counts, each from 0 to `total`: a table if that is short, else every count on its own."""
    if total < MANY:  # a liar can make it 2³⁰: time and memory must then follow the number of weights
        return np.take(table(total, unit, weight, voted, ratio), agree)
    quick = near_ratio if ratio is _exact else ratio
    values = np.empty(len(agree))
    for start in range(0, len(agree), MANY):
        values[start : start + MANY] = _in_units(agree[start : start + MANY], total, unit, weight, voted, quick)
    return values


def _in_units(agree: npt.NDArray[np.integer], total: int, unit: int, weight: int, voted: bool, ratio: Ratio) -> Array:
    """A vote is worth unit/weight of this client's own."""
    votes = agree * (unit / weight)
    return ratio(np.maximum(votes, 1.0 if voted else 0.0), total * (unit / weight), voted)


def near_ratio(agree: npt.ArrayLike, voters: float, voted: bool = True) -> Array:
    """`ratio` of many different counts, interpolated between exact nodes: off by less than 1e-6 of r (of 1, where |r| < 1)."""
    a, m = np.asarray(agree, np.float64), voters
    if not voted:
        a, m = a + 1, m + 1
    return np.interp(np.clip(a, 1, m), *_nodes(m))


@lru_cache(maxsize=16)
def _nodes(voters: float) -> tuple[Array, Array]:
    """Rising a from below 1 to `voters`, and r there, dense enough for straight lines between them."""
    coarse = np.linspace(-40, 0, 401)
    left = np.arcsinh(coarse[np.flatnonzero(_agree(coarse, voters) < 1).max(initial=0)])
    # beyond u = 40 r is 1 − (voters − a) almost exactly: few nodes will do
    u = np.sinh(np.concatenate([np.linspace(left, np.arcsinh(40), NODES), np.linspace(np.arcsinh(40), np.arcsinh(1e6), 512)]))
    rising = np.maximum.accumulate(np.minimum(_agree(u, voters), voters))  # it is, but for rounding
    return np.append(rising, voters), np.append(_ratio_at(u, np.sqrt(u * u + 4)), 1.0)


def _agree(u: Array, voters: float) -> Array:
    """The a whose û is u: f′(u) = 0 is linear in a, so that nodes need no search."""
    q = np.sqrt(u * u + 4)
    with np.errstate(over="ignore"):
        mine, theirs = _mills(u), _mills(-u)
    return np.asarray((mine + voters * theirs - 1 / q - (q - u) ** 2 / (4 * q)) / (mine + theirs))
