"""`privacy=poisson_binomial`: one random bit a number; what the secure sum tells of them is private (Chen, Özgür, Kairouz, 2022).

How updates become bits, and what that costs: docs/privacy.md. Here is how far one client can move a sum of such bits: upper bounds
on Rényi divergences of Poisson-binomial distributions.

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

Everything is a sum of positive numbers in double precision; `MARGIN` is far above its rounding.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from bifl.core import BINARY, Floats, Public, rotate, rotated_length, unrotate
from bifl.core.message import Symbols
from bifl.errors import ConfigError
from bifl.privacy.accounting import ORDERS, Numbers
from bifl.privacy.dice import Words
from bifl.privacy.mechanism import Crowd, Mechanism, numbers, privacy, shortened

_ROUNDING = 1 + 1e-6  # of lengths, in single precision
BLOCKS = 128  # of k, for many clients
MANY = 2**14  # clients: more of them count as so many, which is an upper bound too
_GRID = 256  # numbers of clients are rounded down to so many steps an octave: drop-outs need not be computed one by one
_LEAST = 1e-150  # of a binomial's probabilities: smaller ones are left out, so products do not underflow
_LARGEST = 250.0  # α·ε₀: up to here e to that power, 1e108, times what is left out is below 1e-37
_SMALL = 1e-4  # |y| below this would cancel; h at this is larger
MARGIN = 1 + 1e-6


class RandomBits(NamedTuple):
    """How numbers become bits."""

    clip: float  # the largest length of an update
    reach: float  # where numbers are cut, in root mean squares of an update of that length
    theta: float  # θ, how far a bit's probability may be from ½

    def limit(self, length: int) -> float:
        """c: the largest number of a rotated update of so many."""
        return self.reach * self.clip / math.sqrt(length)

    def says(self, update: Floats, public: Public, words: Words) -> Symbols:
        """One bit for every number of the rotated update."""
        rotated = rotate(update, public.stream(None, "privacy rotation"))
        most = self.limit(len(rotated))
        bounded = shortened(np.clip(rotated, -most, most), self.clip)  # rotating rounds: the length is what is accounted
        return bits(bounded.astype(np.float64) / most, words, self.theta)

    def hears(self, mean: Numbers, clients: int, public: Public, words: Words) -> Floats:
        """The mean update: bits stand for ±1, their mean for 2·θ·x/c."""
        ones = np.rint((mean + 1) / 2 * clients)  # counts are whole: the same however the sum was made
        rotated = (2 * ones - clients) / clients * (self.limit(len(mean)) / (2 * self.theta))
        return unrotate(rotated.astype(np.float32), numbers(public.layout), public.stream(None, "privacy rotation"))

    def divergences(self, summed: int, crowd: Crowd, count: int) -> Numbers:
        """Of the sums of all bits. Those who tell the server what they sent hide nobody; the client in question is none of them.

        An update is no longer than `clip`, and divergences grow with the squares of the changes: all numbers together cost what
        4·θ²·L/`reach`² of them would cost that change by 1, `reach`² times less than the paper's bound.
        """
        changes = 4 * self.theta**2 * rotated_length(count) * min(1.0, _ROUNDING / self.reach**2)
        return slopes(max(1, summed - crowd.colluders), self.theta, ORDERS) * changes


def bits(shares: Numbers, words: Words, theta: float) -> npt.NDArray[np.uint8]:
    """Bits that are 1 with probability ½ + θ times numbers from −1 to 1."""
    chances = 0.5 + theta * np.clip(shares, -1, 1)
    return (words(len(chances)) < (chances * 2.0**64).astype(np.uint64)).astype(np.uint8)


@privacy
def poisson_binomial(
    clip: float = 1.0, theta: float = 0.05, reach: float = 4.0, delta: float = 1e-5, budget: float = 0.0
) -> Mechanism:
    """Clients send one random bit a number, 1 with probability ½ + θ·x/c; the server learns sums of bits only."""
    if not 1e-6 <= theta <= 0.499:
        raise ConfigError(f"privacy.theta must be from 0.000001 to 0.499, not {theta}")
    if not 1 <= reach <= 100:
        raise ConfigError(f"privacy.reach must be from 1 to 100, not {reach}")
    how = RandomBits(clip, reach, theta)
    return Mechanism(
        clip=clip, delta=delta, budget=budget, says=how.says, alphabet=BINARY, hears=how.hears, divergences=how.divergences,
        length=rotated_length, unseen=True,
    )  # fmt: skip


# ---- bounds on divergences ----------------------------------------------------------------------------------------------------


def slopes(clients: int, theta: float, orders: tuple[float, ...], blocks: int = BLOCKS) -> Numbers:
    """(orders,) κ of every α, for a sum of the bits of so many clients who tell nobody else. More blocks give a nearer bound."""
    if clients < 1 or not 0 < theta < 0.5:
        raise ValueError(f"there is no sum of {clients} bits with θ = {theta}")
    return _slopes(coarse(clients), theta, orders, blocks)


def coarse(clients: int) -> int:
    """A number of clients, at most `MANY`, rounded down by less than 1/256: divergences are no smaller for fewer clients."""
    most = min(clients, MANY)
    step = max(1, (1 << (most.bit_length() - 1)) // _GRID)
    return most // step * step


@lru_cache(maxsize=512)
def _slopes(clients: int, theta: float, orders: tuple[float, ...], blocks: int) -> Numbers:
    lower, upper = 0.5 - theta, 0.5 + theta
    slopes = np.where(np.asarray(orders) * np.log(upper / lower) > _LARGEST, np.inf, 0.0)
    finite = [(place, orders[place]) for place in np.flatnonzero(np.isfinite(slopes))]
    for high, low in splits(clients - 1, blocks):
        others = np.convolve(binomial(high, upper), binomial(low, lower))
        before, after = np.append(others, 0.0), np.append(0.0, others)  # the sum if this client sends 0, and 1
        at_lower, at_upper = (1 - lower) * before + lower * after, (1 - upper) * before + upper * after
        for place, order in finite:
            from_lower = _second_moment(at_lower, after - before, 2 * theta, order)
            to_upper = _second_moment(at_upper, after - before, -2 * theta, 1 - order)
            slopes[place] = max(slopes[place], from_lower / (order - 1), to_upper / (order - 1))
    slopes *= MARGIN
    slopes.flags.writeable = False
    return slopes


def splits(others: int, blocks: int = BLOCKS) -> list[tuple[int, int]]:
    """How many of the others are at the upper and at the lower end: all cases, or what all cases of a block have in common."""
    size = 1 if others <= 2 * blocks else -(-(others + 1) // blocks)
    starts = range(0, others + 1, size)
    return [(start, others - min(start + size - 1, others)) for start in starts]


def binomial(count: int, share: float) -> Numbers:
    """Probabilities of numbers of ones among bits that are each 1 with one probability, from the first that is not tiny on."""
    ones = np.arange(count + 1.0)
    ways = gammaln(count + 1) - gammaln(ones + 1) - gammaln(count - ones + 1)
    chances: Numbers = np.exp(ways + ones * np.log(share) + (count - ones) * np.log1p(-share))
    return chances[chances > _LEAST]


def _second_moment(fixed: Numbers, shift: Numbers, most: float, power: float) -> float:
    """E[X²·max(h(0), h(most·X))] where X = shift/fixed, and h belongs to (1+y)^power."""
    moves = shift / fixed
    ends = most * moves
    ends = np.where(np.abs(ends) < _SMALL, np.where(ends < 0, -_SMALL, _SMALL), ends)
    bend = (np.expm1(power * np.log1p(ends)) - power * ends) / ends**2
    return float(np.sum(fixed * moves**2 * np.maximum(bend, power * (power - 1) / 2)))
