"""Aggregation: weighted sums that depend on neither the order of the uploads nor the platform.

Votes are integers, and real numbers are added as integers (`bifl.core.exact_sum`). Memory is that of one model.

>>> import numpy as np
>>> from bifl.core.message import BINARY, Message, NOTHING
>>> ballots = [Message(np.array(s, np.uint8), BINARY, NOTHING, weight=600) for s in ([1, 0], [1, 1], [1, 0])]
>>> tally = mean(ballots)
>>> tally.total, tally.unit, tally.votes
(3, 600, array([3, 1]))
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.core.exact_sum import ExactSum
from bifl.core.message import BINARY, NOTHING, Floats, Message
from bifl.errors import DataError


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

    def merge(self, other: VoteSum) -> None:
        """Add what was added to another sum."""
        self._settle()
        other._settle()
        if self._votes is None or other._votes is None:
            self._votes = other._votes if self._votes is None else self._votes
        elif self._votes.shape != other._votes.shape:
            raise DataError(f"an upload holds {other._votes.size} symbols where the others hold {self._votes.size}")
        else:
            self._votes = self._votes.astype(np.int64) + other._votes

    def __reduce__(self) -> tuple[type[VoteSum], tuple[()], dict[str, Any]]:
        """Crosses between processes in the smallest integers that hold the counts."""
        self._settle()
        votes = None if self._votes is None else self._votes.astype(np.min_scalar_type(int(self._votes.max(initial=0))))
        return VoteSum, (), {"_votes": votes}

    def votes(self, unit: int) -> npt.NDArray[np.int64] | None:
        """(count,) positive votes in units that divide every weight; None if there was no ballot."""
        self._settle()
        return None if self._votes is None else self._votes.astype(np.int64, copy=False) // unit

    def _settle(self) -> None:
        if self._few is None or not self._ballots:
            return
        few = self._few.astype(np.int64) * self._weight
        self._votes = few if self._votes is None else self._votes.astype(np.int64, copy=False) + few
        self._ballots = 0


def vote_sum(votes: npt.NDArray[np.int64]) -> VoteSum:
    """A count that was made elsewhere."""
    found = VoteSum()
    found._votes = votes
    return found


class Tally(NamedTuple):
    """The sum of a round's uploads.

    Attributes:
        clients: how many uploads were counted.
        total: Σ weight / unit over them.
        unit: greatest common divisor of their weights: |D_i|, or 1 where all count once.
        votes: (count,) positive votes in units, for binary ballots; else None.
        mean: (count,) weighted mean of the uploaded weights.
        real: (reals,) weighted mean of the real parameters.
        scales: weighted mean of the uploads' own scales.
    """

    clients: int
    total: int
    unit: int
    votes: npt.NDArray[np.int64] | None
    mean: npt.NDArray[np.float64]
    real: Floats
    scales: Floats = NOTHING


class Total:
    """Counts ballots, or averages weights, one upload at a time. Parts of a total may be made elsewhere and merged."""

    def __init__(self) -> None:
        self.clients, self._unit = 0, 0
        self._ballots, self._weights, self._real, self._scales = VoteSum(), ExactSum(), ExactSum(), ExactSum()

    @classmethod
    def of_sums(cls, weights: Iterable[int], real: ExactSum, scales: ExactSum) -> Total:
        """A total of uploads of these weights that were added up elsewhere."""
        found = cls()
        for weight in weights:
            found.clients += 1
            found._unit = math.gcd(found._unit, weight)
        found._real, found._scales = real, scales
        return found

    def with_votes(self, votes: VoteSum) -> Total:
        """The same with counted ballots."""
        self._ballots = votes
        return self

    def with_weights(self, weights: ExactSum) -> Total:
        """The same with averaged weights."""
        self._weights = weights
        return self

    def add(self, upload: Message) -> None:
        """Count one upload."""
        self.clients += 1
        self._unit = math.gcd(self._unit, upload.weight)
        self._real.add(upload.real, upload.weight)
        self._scales.add(upload.scales, upload.weight)
        if upload.alphabet == BINARY:
            self._ballots.add(upload.symbols, upload.weight)
        else:
            self._weights.add(upload.values(), upload.weight)

    def merge(self, other: Any) -> None:
        """Count what another total has counted, which becomes part of this one."""
        self.clients += other.clients
        self._unit = math.gcd(self._unit, other._unit)
        self._ballots.merge(other._ballots)
        self._weights.merge(other._weights)
        self._real.merge(other._real)
        self._scales.merge(other._scales)

    def tally(self) -> Tally:
        """What the server learns of the uploads.

        Raises:
            DataError: they were not of one kind.
        """
        if self.clients == 0:
            raise ValueError("a round without uploads has no tally")
        unit = self._unit
        votes, total = self._ballots.votes(unit), self._real.weight // unit
        real, scales = self._real.mean().astype(np.float32), self._scales.mean().astype(np.float32)
        if votes is not None and self._weights.weight:
            raise DataError("some uploads are ballots and others are not: all clients must run the same algorithm")
        if votes is None:
            return Tally(self.clients, total, unit, None, self._weights.mean(), real, scales)
        share = votes.astype(np.float64) / total
        return Tally(self.clients, total, unit, votes, 2 * share - 1, real, scales)


class UploadList:
    """All uploads of a round, for an `aggregate` that must see them together."""

    def __init__(self) -> None:
        self.uploads: list[Message] = []

    @property
    def clients(self) -> int:
        """How many there are."""
        return len(self.uploads)

    def add(self, upload: Message) -> None:
        """One more."""
        self.uploads.append(upload)

    def merge(self, other: Any) -> None:
        """All of another list."""
        self.uploads += other.uploads

    def in_order(self) -> list[Message]:
        """By sender, whoever was first."""
        return sorted(self.uploads, key=lambda upload: upload.sender or 0)


def mean(uploads: Iterable[Message]) -> Tally:
    """Count ballots, or average weights."""
    total = Total()
    for upload in uploads:
        total.add(upload)
    return total.tally()
