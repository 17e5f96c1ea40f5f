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
    votes: npt.NDArray[np.int64] | None = None
    weights, real = ExactSum(), ExactSum()
    for upload in uploads:
        clients += 1
        unit = math.gcd(unit, upload.weight)
        real.add(upload.real, upload.weight)
        if upload.alphabet != BINARY:
            weights.add(upload.values(), upload.weight)
            continue
        ballot = upload.symbols.astype(np.int64) * upload.weight
        if votes is not None and votes.shape != ballot.shape:
            raise DataError(f"an upload holds {ballot.size} symbols where the others hold {votes.size}")
        votes = ballot if votes is None else votes + ballot
    if votes is not None and weights.weight:
        raise DataError("some uploads are ballots and others are not: all clients must run the same algorithm")
    if clients == 0:
        raise ValueError("a round without uploads has no tally")
    total = real.weight // unit
    if votes is None:
        return Tally(clients, total, unit, None, weights.mean(), real.mean().astype(np.float32))
    votes //= unit  # exact: every summand is a multiple of unit
    share = votes.astype(np.float64) / total
    return Tally(clients, total, unit, votes, 2 * share - 1, real.mean().astype(np.float32))
