"""`privacy=poisson_binomial`: one random bit a number; what the secure sum tells of them is private (Chen, Özgür, Kairouz, 2022).

A client's update, no longer than `clip`, is rotated at random (the rotation is public) so that all its L numbers are about equally
small, and each is cut at c = `reach`·clip/√L. A number x becomes one bit, which is 1 with probability ½ + θ·x/c: the client's own
randomness is the noise. Of n bits the sum S tells x in the mean, as (S/n − ½)·c/θ.

The paper bounds every number by c and pays for L numbers that all change from −c to c. But an update is no longer than `clip`, and
divergences grow with the squares of the changes (`divergence`): all numbers together cost what 4·θ²·L/`reach`² of them would cost
that change by 1, `reach`² times less than the paper's bound. With θ small this is what the Gaussian mechanism costs that has the
same noise in the sum, without a server that is trusted.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.core.message import BINARY, Floats, Symbols
from bifl.core.rotation import rotate, rotated_length, unrotate
from bifl.core.state import Public
from bifl.errors import ConfigError
from bifl.privacy.accounting import ORDERS, Numbers
from bifl.privacy.dice import Words
from bifl.privacy.divergence import slopes
from bifl.privacy.mechanism import Crowd, Mechanism, privacy
from bifl.privacy.whole_update import numbers, shortened

_ROUNDING = 1 + 1e-6  # of lengths, in single precision


class RandomBits(NamedTuple):
    """How numbers become bits.

    Attributes:
        clip: the largest length of an update.
        reach: where numbers are cut, in root mean squares of an update of that length.
        theta: θ, how far a bit's probability may be from ½.
    """

    clip: float
    reach: float
    theta: float

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
        """Of the sums of all bits. Those who tell the server what they sent hide nobody; the client in question is none of them."""
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
