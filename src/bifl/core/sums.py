"""Aggregation: weighted sums that depend on neither the order of the uploads nor the platform.

Votes are integers, and real numbers are added as integers (`bifl.core.exact_sum`). Memory is that of one model.

>>> import numpy as np
>>> from bifl.core.message import BINARY, Message, NOTHING
>>> ballots = [Message.of(np.array(s, np.uint8), BINARY, NOTHING, weight=600) for s in ([1, 0], [1, 1], [1, 0])]
>>> tally = mean(ballots)
>>> tally.total, tally.unit, tally.update.votes
(3, 600, array([3, 1]))
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.core.exact_sum import ExactSum
from bifl.core.message import BINARY, NOTHING, UPDATE, Floats, Message, Vector
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


class VectorTally(NamedTuple):
    """The sum of one vector of a round's uploads.

    Attributes:
        mean: (count,) weighted mean of what was uploaded.
        votes: (count,) positive votes in the tally's units, for binary ballots; else None.
        scales: weighted mean of the uploads' own scales.
    """

    mean: npt.NDArray[np.float64]
    votes: npt.NDArray[np.int64] | None = None
    scales: Floats = NOTHING


class Tally(NamedTuple):
    """The sum of a round's uploads.

    Attributes:
        clients: how many uploads were counted.
        total: Σ weight / unit over them.
        unit: greatest common divisor of their weights: |D_i|, or 1 where all count once.
        vectors: the sum of each vector, by name.
        real: (reals,) weighted mean of the real parameters.
    """

    clients: int
    total: int
    unit: int
    vectors: Mapping[str, VectorTally]
    real: Floats

    @property
    def update(self) -> VectorTally:
        """The sum of the vector that the weights are made of."""
        return self.vectors[UPDATE]

    def with_update(self, **fields: Any) -> Tally:
        """The same with other fields of the update."""
        return self._replace(vectors={**self.vectors, UPDATE: self.update._replace(**fields)})


class VectorSum:
    """Counts ballots, or averages numbers, of one name; parts of it may be made elsewhere and merged."""

    def __init__(self, ballots: VoteSum | None = None, weights: ExactSum | None = None, scales: ExactSum | None = None) -> None:
        self._ballots, self._weights, self._scales = ballots or VoteSum(), weights or ExactSum(), scales or ExactSum()

    def add(self, vector: Vector, weight: int) -> None:
        """Add the vector of one upload."""
        self._scales.add(vector.scales, weight)
        if vector.alphabet == BINARY:
            self._ballots.add(vector.symbols, weight)
        else:
            self._weights.add(vector.values(), weight)

    def merge(self, other: VectorSum) -> None:
        """Add what was added to another sum."""
        self._ballots.merge(other._ballots)
        self._weights.merge(other._weights)
        self._scales.merge(other._scales)

    def tally(self, total: int, unit: int) -> VectorTally:
        """What was added, of a total weight in units."""
        votes, scales = self._ballots.votes(unit), self._scales.mean().astype(np.float32)
        if votes is None:
            return VectorTally(self._weights.mean(), None, scales)
        if self._weights.weight:
            raise DataError("some uploads are ballots and others are not: all clients must run the same algorithm")
        return VectorTally(2 * (votes.astype(np.float64) / total) - 1, votes, scales)


class Total:
    """Adds up uploads, one at a time. Parts of a total may be made elsewhere and merged."""

    def __init__(self) -> None:
        self.clients, self._unit = 0, 0
        self._vectors: dict[str, VectorSum] = {}
        self._real = ExactSum()

    @classmethod
    def of_sums(cls, weights: Iterable[int], real: ExactSum, vectors: Mapping[str, VectorSum]) -> Total:
        """A total of uploads of these weights that were added up elsewhere."""
        total = cls()
        for weight in weights:
            total.clients += 1
            total._unit = math.gcd(total._unit, weight)
        total._real, total._vectors = real, dict(vectors)
        return total

    def add(self, upload: Message) -> None:
        """Count one upload."""
        self._accept(upload.vectors)
        self.clients += 1
        self._unit = math.gcd(self._unit, upload.weight)
        self._real.add(upload.real, upload.weight)
        for name, vector in upload.vectors.items():
            self._vectors[name].add(vector, upload.weight)

    def merge(self, other: Any) -> None:
        """Count what another total has counted, which becomes part of this one."""
        if not other.clients:
            return
        self._accept(other._vectors)
        self.clients += other.clients
        self._unit = math.gcd(self._unit, other._unit)
        self._real.merge(other._real)
        for name, vectors in other._vectors.items():
            self._vectors[name].merge(vectors)

    def _accept(self, names: Iterable[str]) -> None:
        """Refuse vectors of other names than those that were counted; the first upload says which they are."""
        if not self.clients:
            self._vectors = {name: VectorSum() for name in names}
        elif self._vectors.keys() != set(names):
            raise DataError(
                f"an upload holds the vectors {', '.join(sorted(names))} where the others hold {', '.join(sorted(self._vectors))}"
            )

    def real_sums(self) -> npt.NDArray[np.float64]:
        """Weighted sums of the real numbers, in double precision."""
        sums: npt.NDArray[np.float64] = self._real.mean() * self._real.weight
        return sums

    def tally(self) -> Tally:
        """What the server learns of the uploads.

        Raises:
            DataError: they were not of one kind.
        """
        if self.clients == 0:
            raise ValueError("a round without uploads has no tally")
        total = self._real.weight // self._unit
        vectors = {name: vector.tally(total, self._unit) for name, vector in self._vectors.items()}
        return Tally(self.clients, total, self._unit, vectors, self._real.mean().astype(np.float32))


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
