"""Aggregation: weighted sums that depend on neither the order of the uploads nor the platform.

Votes are integers. Real numbers are summed in fixed point (multiples of 2⁻³² in two int64 halves), so that one worker, ten
workers or a real federation, in whatever order the uploads arrive, end with the same bytes. Memory is that of one model.

>>> import numpy as np
>>> from bifl.message import BINARY, Message, NOTHING
>>> ballots = [Message(np.array(s, np.uint8), BINARY, NOTHING, weight=600) for s in ([1, 0], [1, 1], [1, 0])]
>>> tally = mean(ballots)
>>> tally.total, tally.unit, tally.votes
(3, 600, array([3, 1]))
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.errors import DataError, Diverged
from bifl.message import BINARY, Floats, Message

_FRACTION = 2.0**32  # resolution of the fixed point: 2⁻³² ≈ 2e-10, exact for every float32 of magnitude ≥ 2⁻⁹
LARGEST_WEIGHT = 2**30  # of all uploads together: images in a federation. Keeps every sum within int64
_BLOCK = 2**14  # numbers at a time, so that what is computed in between stays in the processor's cache
_LARGEST = 2.0**32  # |values| beyond this would not: they are no trained numbers


class ExactSum:
    """A weighted sum of float vectors in integer arithmetic: any order gives the same bits."""

    def __init__(self) -> None:
        self.weight = 0
        self._whole: npt.NDArray[np.int64] | None = None
        self._fraction: npt.NDArray[np.int64] | None = None

    def add(self, values: npt.ArrayLike, weight: int) -> None:
        """Add `weight` times a vector, of the same length each time.

        Raises:
            Diverged: a value is not finite or too large to be a trained number.
        """
        given = np.asarray(values)
        if not -_LARGEST < np.min(given, initial=0.0) <= np.max(given, initial=0.0) < _LARGEST:  # written so that NaN fails too
            raise Diverged("an upload holds values that are not finite or far too large: the training diverged; lower lr")
        if self.weight + weight > LARGEST_WEIGHT:
            raise DataError(f"the uploads weigh {self.weight + weight} images together, more than {LARGEST_WEIGHT}")
        if self._whole is not None and self._whole.shape != given.shape:
            raise DataError(f"an upload holds {given.size} numbers where the others hold {self._whole.size}")
        if self._whole is None or self._fraction is None:
            self._whole, self._fraction = np.zeros(given.shape, np.int64), np.zeros(given.shape, np.int64)
        flat = [array.reshape(-1) for array in (given, self._whole, self._fraction)]
        for start in range(0, given.size, _BLOCK):
            numbers, whole, fraction = (array[start : start + _BLOCK] for array in flat)
            exact = numbers.astype(np.float64)
            rounded = np.rint(exact)
            whole += rounded.astype(np.int64) * weight
            fraction += np.rint((exact - rounded) * _FRACTION).astype(np.int64) * weight
        self.weight += weight

    def mean(self) -> npt.NDArray[np.float64]:
        """The weighted mean of what was added."""
        if self._whole is None or self._fraction is None:
            raise ValueError("nothing was added to this sum")
        return (self._whole + self._fraction / _FRACTION) / self.weight


class VoteSum:
    """Counts binary ballots, each of which weighs a whole number. Ballots of equal weight are added as bytes, 255 at a time."""

    def __init__(self) -> None:
        self._votes: npt.NDArray[np.int64] | None = None
        self._few: npt.NDArray[np.uint8] | None = None  # the last ballots, not yet in _votes
        self._ballots = self._weight = 0  # how many they are, and what each weighs

    def add(self, ballot: npt.NDArray[np.uint8], weight: int) -> None:
        """Add a ballot of zeros and ones, of the same length each time."""
        if self._few is not None and self._few.shape != ballot.shape:
            raise DataError(f"an upload holds {ballot.size} symbols where the others hold {self._few.size}")
        if self._few is None or weight != self._weight or self._ballots in (0, 255):
            self._settle()
            self._few, self._ballots, self._weight = ballot.astype(np.uint8), 1, weight
            return
        self._few += ballot
        self._ballots += 1

    def votes(self, unit: int) -> npt.NDArray[np.int64] | None:
        """(count,) positive votes in units that divide every weight; None if there was no ballot."""
        self._settle()
        return None if self._votes is None else self._votes // unit

    def _settle(self) -> None:
        if self._few is None or not self._ballots:
            return
        few = self._few.astype(np.int64) * self._weight
        self._votes = few if self._votes is None else self._votes + few
        self._ballots = 0


class Tally(NamedTuple):
    """The sum of a round's uploads.

    Attributes:
        clients: how many uploads were counted.
        total: Σ|D_i| / unit over them.
        unit: greatest common divisor of their |D_i|.
        votes: (count,) positive votes in units, for binary ballots; else None.
        mean: (count,) weighted mean of the uploaded weights.
        real: (reals,) weighted mean of the real parameters.
    """

    clients: int
    total: int
    unit: int
    votes: npt.NDArray[np.int64] | None
    mean: npt.NDArray[np.float64]
    real: Floats


def mean(uploads: Iterable[Message], shared: object = None) -> Tally:
    """Count ballots, or average weights, one upload at a time; needs nothing of what is `shared`."""
    clients, unit = 0, 0
    ballots, weights, real = VoteSum(), ExactSum(), ExactSum()
    for upload in uploads:
        clients += 1
        unit = math.gcd(unit, upload.weight)
        real.add(upload.real, upload.weight)
        if upload.alphabet == BINARY:
            ballots.add(upload.symbols, upload.weight)
        else:
            weights.add(upload.values(), upload.weight)
    if clients == 0:
        raise ValueError("a round without uploads has no tally")
    votes, total = ballots.votes(unit), real.weight // unit
    if votes is not None and weights.weight:
        raise DataError("some uploads are ballots and others are not: all clients must run the same algorithm")
    if votes is None:
        return Tally(clients, total, unit, None, weights.mean(), real.mean().astype(np.float32))
    share = votes.astype(np.float64) / total
    return Tally(clients, total, unit, votes, 2 * share - 1, real.mean().astype(np.float32))
