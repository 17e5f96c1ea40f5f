"""How far one client can move a sum of random bits: upper bounds on Rényi divergences of Poisson-binomial distributions.

n clients each send one bit, which is 1 with a probability from ½ − θ to ½ + θ. Whoever sees the sum alone and wonders whether one
client's probability was p or p′ has a Rényi divergence of order α to go by. `slopes` returns κ(α) such that, whatever the others'
probabilities are,

    D_α(sum with p ‖ sum with p′) ≤ κ(α) · (p − p′)².

Why this holds (P and Q the distributions with p′ and with p, F = E_P[(Q/P)^α], so D_α = ln F / (α − 1)):

- The others. F is jointly convex in (P, Q), and (P, Q) is linear in every other client's probability: F is largest where each of
  them is at an end of its range. The order does not matter, so only k, how many are at the upper end, does (Chen, Özgür and
  Kairouz, ICML 2022, argue the same way). All k are tried. For many clients, blocks of k are: forgetting clients, those by which
  the k of a block differ, makes F no smaller (data processing).
- p and p′. F is jointly convex in (p, p′), so at a given difference it is largest where one of the two is at an end of the range.
  Turning zeros into ones turns k into n − 1 − k, so two cases are left, for all k: p′ at the lower end and p above it; p at the
  upper end and p′ below it.
- The difference. Where P stays as it is, Q = P·(1 + δX) with δ = p − p′ and E_P[X] = 0. So F − 1 = δ²·E_P[X²·h(δX)] with
  h(y) = ((1+y)^α − 1 − αy)/y², which is monotone: h(δX) is at most the larger of h(0) and h(2θX). Where Q stays, the same holds of
  P = Q·(1 − δX) with 1 − α for α. And ln(1 + δ²K) ≤ δ²K.

Everything is a sum of positive numbers in double precision; `MARGIN` is far above its rounding. `test_privacy_laws.py`
compares with exact divergences of random probabilities.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

Numbers = npt.NDArray[np.float64]

BLOCKS = 128  # of k, for many clients
MANY = 2**14  # clients: more of them count as so many, which is an upper bound too
_GRID = 256  # numbers of clients are rounded down to so many steps an octave: drop-outs need not be computed one by one
_LEAST = 1e-150  # of a binomial's probabilities: smaller ones are left out, so products do not underflow
_LARGEST = 250.0  # α·ε₀: up to here e to that power, 1e108, times what is left out is below 1e-37
_SMALL = 1e-4  # |y| below this would cancel; h at this is larger
MARGIN = 1 + 1e-6


def slopes(clients: int, theta: float, orders: tuple[float, ...]) -> Numbers:
    """(orders,) κ of every order, for a sum of so many bits.

    Args:
        clients: whose bits are in the sum and who tell nobody else, at least 1.
        theta: θ, above 0 and below ½.
        orders: α, each above 1.
    """
    if clients < 1 or not 0 < theta < 0.5:
        raise ValueError(f"there is no sum of {clients} bits with θ = {theta}")
    return _slopes(coarse(clients), theta, orders)


def coarse(clients: int) -> int:
    """A number of clients, at most `MANY`, rounded down by less than 1/256: divergences are no smaller for fewer clients."""
    most = min(clients, MANY)
    step = max(1, (1 << (most.bit_length() - 1)) // _GRID)
    return most // step * step


@lru_cache(maxsize=512)
def _slopes(clients: int, theta: float, orders: tuple[float, ...]) -> Numbers:
    lower, upper = 0.5 - theta, 0.5 + theta
    found = np.where(np.asarray(orders) * np.log(upper / lower) > _LARGEST, np.inf, 0.0)
    finite = [(place, orders[place]) for place in np.flatnonzero(np.isfinite(found))]
    for high, low in splits(clients - 1):
        others = np.convolve(binomial(high, upper), binomial(low, lower))
        before, after = np.append(others, 0.0), np.append(0.0, others)  # the sum if this client sends 0, and 1
        at_lower, at_upper = (1 - lower) * before + lower * after, (1 - upper) * before + upper * after
        for place, order in finite:
            from_lower = _second_moment(at_lower, after - before, 2 * theta, order)
            to_upper = _second_moment(at_upper, after - before, -2 * theta, 1 - order)
            found[place] = max(found[place], from_lower / (order - 1), to_upper / (order - 1))
    found *= MARGIN
    found.flags.writeable = False
    return found


def splits(others: int) -> list[tuple[int, int]]:
    """How many of the others are at the upper and at the lower end: all cases, or what all cases of a block have in common."""
    size = 1 if others <= 2 * BLOCKS else -(-(others + 1) // BLOCKS)
    starts = range(0, others + 1, size)
    return [(start, others - min(start + size - 1, others)) for start in starts]


def binomial(count: int, share: float) -> Numbers:
    """Probabilities of numbers of ones among bits that are each 1 with one probability, from the first that is not tiny on."""
    ones = np.arange(count + 1.0)
    ways = gammaln(count + 1) - gammaln(ones + 1) - gammaln(count - ones + 1)
    found: Numbers = np.exp(ways + ones * np.log(share) + (count - ones) * np.log1p(-share))
    return found[found > _LEAST]


def _second_moment(fixed: Numbers, shift: Numbers, most: float, power: float) -> float:
    """E[X²·max(h(0), h(most·X))] where X = shift/fixed, and h belongs to (1+y)^power."""
    moves = shift / fixed
    ends = most * moves
    ends = np.where(np.abs(ends) < _SMALL, np.where(ends < 0, -_SMALL, _SMALL), ends)
    bend = (np.expm1(power * np.log1p(ends)) - power * ends) / ends**2
    return float(np.sum(fixed * moves**2 * np.maximum(bend, power * (power - 1) / 2)))
