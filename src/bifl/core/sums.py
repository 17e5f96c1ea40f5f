"""Aggregation: weighted sums that depend on neither the order of the uploads nor the platform.

What a client counts for (`Weighing`), real numbers added as integers (`ExactSum`), votes counted (`VoteSum`), and of these the sum
of a round's uploads (`Total`, `UploadList`). Real numbers are summed in fixed point, multiples of 2⁻³² in int64: one worker, ten
workers or a real federation, in whatever order the uploads arrive, end with the same bytes. Memory is that of one model.

>>> import numpy as np
>>> from bifl.core.message import BINARY, Message, NOTHING
>>> ballots = [Message.of(np.array(s, np.uint8), BINARY, NOTHING, weight=600) for s in ([1, 0], [1, 1], [1, 0])]
>>> tally = mean(ballots)
>>> tally.total, tally.unit, tally.update.votes
(3, 600, array([3, 1]))
>>> total = ExactSum()
>>> total.add([0.25, 1.0], weight=1)
>>> total.add([0.75, 4.0], weight=2)
>>> total.mean().round(4)
array([0.5833, 3.    ])
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.core.message import BINARY, NOTHING, UPDATE, Floats, Message, Vector
from bifl.errors import DataError, Diverged

_ONE = 2.0**32  # in the fixed point, whose resolution is 2⁻³² ≈ 2e-10: exact for every float32 of magnitude ≥ 2⁻⁹
_ROOM = 2.0**30  # sums of |values| below this surely fit into int64, in the fixed point
LARGEST_WEIGHT = 2**30  # of all uploads together: samples in a federation. Keeps every sum within two int64
_LARGEST = 2.0**32  # of |values|, for the same reason
LARGEST_TRAINED = 2.0**31  # no trained number is as large
_BLOCK = 2**14  # numbers at a time, so that what is computed in between stays in the processor's cache

Integers = npt.NDArray[np.int64]


class Weighing(Enum):
    """What clients tell that they weigh, and what they count for."""

    SAMPLES = "a client counts for its samples"
    ONCE = "every client counts once"
    UNTOLD = "every client counts once, and nobody tells how many samples it has"

    def told(self, samples: int) -> int:
        """What a client says that it weighs, of so many samples."""
        return 1 if self is Weighing.UNTOLD else samples

    def counts(self, told: int) -> int:
        """What a client counts for that says that it weighs so much."""
        return told if self is Weighing.SAMPLES else 1


def all_below(limit: float, *vectors: npt.ArrayLike) -> bool:
    """Whether all numbers are finite and smaller in magnitude than a limit."""
    with np.errstate(over="ignore", invalid="ignore"):
        return all(bool(np.all(np.abs(vector) < limit)) for vector in vectors)  # written so that NaN fails too


def fixed_point(values: npt.ArrayLike) -> tuple[Integers, Integers]:
    """Numbers as integers and multiples of 2⁻³² that are left, as `ExactSum` adds them."""
    exact = np.asarray(values).astype(np.float64)
    rounded = np.rint(exact)
    return rounded.astype(np.int64), np.rint((exact - rounded) * _ONE).astype(np.int64)


class ExactSum:
    """A weighted sum of float vectors in integer arithmetic: any order gives the same bits.

    The sum is whole + fine · 2⁻³². Trained numbers leave nothing for `whole`, which is made only where `fine` might overflow.
    """

    def __init__(self, whole: Integers | None = None, fine: Integers | None = None, weight: int = 0) -> None:
        self._whole, self._fine, self.weight = whole, fine, weight  # of a sum made elsewhere, in the integers of `fixed_point`
        self._reach = 0.0  # while there is no `whole`: no |fine| is beyond this, in ones

    def add(self, values: npt.ArrayLike, weight: int) -> None:
        """Add `weight` times a vector, of the same length each time."""
        given = np.asarray(values)
        least, most = np.min(given, initial=0.0), np.max(given, initial=0.0)
        if not -_LARGEST < least <= most < _LARGEST:  # written so that NaN fails too
            raise Diverged("an upload holds values that are not finite or far too large: the training diverged; lower lr")
        self._refuse(given, weight)
        if self._fine is None:
            self._fine = np.zeros(given.shape, np.int64)
        self._reserve(weight * max(-float(least), float(most)))
        numbers, fine = given.reshape(-1), self._fine.reshape(-1)
        whole = None if self._whole is None else self._whole.reshape(-1)
        for start in range(0, given.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            if whole is None:
                scaled = np.multiply(numbers[part], _ONE, dtype=np.float64)
                fraction = np.rint(scaled, out=scaled).astype(np.int64)
            else:
                integers, fraction = fixed_point(numbers[part])
                whole[part] += integers * weight
            fraction *= weight
            fine[part] += fraction
        self.weight += weight

    def merge(self, other: ExactSum) -> None:
        """Add what was added to another sum, which becomes part of this one."""
        if other._fine is None:
            return
        self._refuse(other._fine, other.weight)
        if self._fine is None:
            self._fine, self._whole, self._reach = other._fine, other._whole, other._reach
        else:
            self._reserve(other._reach)
            if self._whole is None and other._whole is None:
                self._fine += other._fine
            else:
                both = zip(self._halves(), other._halves(), strict=True)
                self._whole, self._fine = (np.asarray(ours + theirs) for ours, theirs in both)
        self.weight += other.weight

    def mean(self) -> npt.NDArray[np.float64]:
        """The weighted mean of what was added: the exact sum as a float64, divided."""
        if self._fine is None:
            raise ValueError("nothing was added to this sum")
        if self._whole is None:
            mean = np.asarray(self._fine * (1 / _ONE))
        else:
            whole, fraction = self._halves()
            mean = np.asarray(whole + fraction / _ONE)
        mean /= self.weight
        return mean

    def _refuse(self, given: npt.NDArray[Any], weight: int) -> None:
        """Refuse what does not fit to what was added."""
        if self.weight + weight > LARGEST_WEIGHT:
            raise DataError(f"the uploads weigh {self.weight + weight} images together, more than {LARGEST_WEIGHT}")
        if self._fine is not None and self._fine.shape != given.shape:
            raise DataError(f"an upload holds {given.size} numbers where the others hold {self._fine.size}")

    def _reserve(self, reach: float) -> None:
        """Make room for numbers of up to `reach`: from some size on integers are added apart from what is left of them."""
        self._reach += reach
        if self._reach >= _ROOM and self._whole is None:
            self._whole, self._fine = self._halves()

    def _halves(self) -> tuple[Integers, Integers]:
        """Integers, and the 0 to 2³² − 1 multiples of 2⁻³² that are left: one spelling of every sum."""
        fine = np.zeros(0, np.int64) if self._fine is None else self._fine
        carried = np.asarray(fine >> 32)
        whole = carried if self._whole is None else np.asarray(self._whole + carried)
        return whole, np.asarray(fine - (carried << 32))


class VoteSum:
    """Counts binary ballots, each of which weighs a whole number. Ballots of equal weight are added as bytes, 255 at a time."""

    def __init__(self, votes: npt.NDArray[Any] | None = None) -> None:
        self._votes = votes  # counted so far, here or elsewhere
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
        votes, others = self._settle(), other._settle()
        if votes is None or others is None:
            self._votes = others if votes is None else votes
        elif votes.shape != others.shape:
            raise DataError(f"an upload holds {others.size} symbols where the others hold {votes.size}")
        else:
            self._votes = votes.astype(np.int64) + others

    def __reduce__(self) -> tuple[type[VoteSum], tuple[npt.NDArray[Any] | None]]:
        """Crosses between processes in the smallest integers that hold the counts."""
        votes = self._settle()
        return VoteSum, (None if votes is None else votes.astype(np.min_scalar_type(int(votes.max(initial=0)))),)

    def votes(self, unit: int) -> npt.NDArray[np.int64] | None:
        """(count,) positive votes in units that divide every weight; None if there was no ballot."""
        votes = self._settle()
        return None if votes is None else votes.astype(np.int64, copy=False) // unit

    def _settle(self) -> npt.NDArray[Any] | None:
        """All votes so far."""
        if self._few is not None and self._ballots:
            few = self._few.astype(np.int64) * self._weight
            self._votes = few if self._votes is None else self._votes.astype(np.int64, copy=False) + few
            self._ballots = 0
        return self._votes


class VectorTally(NamedTuple):
    """The sum of one vector of a round's uploads."""

    mean: npt.NDArray[np.float64]  # (count,) weighted
    votes: npt.NDArray[np.int64] | None = None  # (count,) positive ones in the tally's units, of binary ballots
    scales: Floats = NOTHING  # weighted mean of the uploads' own


class Tally(NamedTuple):
    """The sum of a round's uploads."""

    clients: int  # whose uploads were counted
    total: int  # Σ weight / unit over them
    unit: int  # greatest common divisor of their weights: |D_i|, or 1 where all count once
    vectors: Mapping[str, VectorTally]  # by name
    real: Floats  # (reals,) weighted mean of the real parameters

    @property
    def update(self) -> VectorTally:
        """The sum of the vector that the weights are made of."""
        return self.vectors[UPDATE]

    def with_update(self, **fields: Any) -> Tally:
        """The same with other fields of the update."""
        return self._replace(vectors={**self.vectors, UPDATE: self.update._replace(**fields)})


@dataclass
class VectorSum:
    """Counts ballots, or averages numbers, of one name; parts of it may be made elsewhere and merged."""

    ballots: VoteSum = field(default_factory=VoteSum)
    weights: ExactSum = field(default_factory=ExactSum)
    scales: ExactSum = field(default_factory=ExactSum)

    def add(self, vector: Vector, weight: int) -> None:
        """Add the vector of one upload."""
        self.scales.add(vector.scales, weight)
        if vector.alphabet == BINARY:
            self.ballots.add(vector.symbols, weight)
        else:
            self.weights.add(vector.values(), weight)

    def merge(self, other: VectorSum) -> None:
        """Add what was added to another sum."""
        self.ballots.merge(other.ballots)
        self.weights.merge(other.weights)
        self.scales.merge(other.scales)

    def tally(self, total: int, unit: int) -> VectorTally:
        """What was added, of a total weight in units."""
        votes, scales = self.ballots.votes(unit), self.scales.mean().astype(np.float32)
        if votes is None:
            return VectorTally(self.weights.mean(), None, scales)
        if self.weights.weight:
            raise DataError("some uploads are ballots and others are not: all clients must run the same algorithm")
        return VectorTally(2 * (votes.astype(np.float64) / total) - 1, votes, scales)


@dataclass
class Total:
    """Adds up uploads, one at a time. Parts of a total may be made elsewhere and merged."""

    clients: int = 0
    unit: int = 0  # greatest common divisor of their weights
    real: ExactSum = field(default_factory=ExactSum)
    vectors: dict[str, VectorSum] = field(default_factory=dict)

    def add(self, upload: Message) -> None:
        """Count one upload."""
        self._accept(upload.vectors)
        self.clients += 1
        self.unit = math.gcd(self.unit, upload.weight)
        self.real.add(upload.real, upload.weight)
        for name, vector in upload.vectors.items():
            self.vectors[name].add(vector, upload.weight)

    def merge(self, other: Any) -> None:
        """Count what another total has counted, which becomes part of this one."""
        if not other.clients:
            return
        self._accept(other.vectors)
        self.clients += other.clients
        self.unit = math.gcd(self.unit, other.unit)
        self.real.merge(other.real)
        for name, vectors in other.vectors.items():
            self.vectors[name].merge(vectors)

    def _accept(self, names: Iterable[str]) -> None:
        """Refuse vectors of other names than those that were counted; the first upload says which they are."""
        if not self.clients:
            self.vectors = {name: VectorSum() for name in names}
        elif self.vectors.keys() != set(names):
            ours, theirs = (", ".join(sorted(vectors)) for vectors in (self.vectors, names))
            raise DataError(f"an upload holds the vectors {theirs} where the others hold {ours}")

    def tally(self) -> Tally:
        """What the server learns of the uploads."""
        if self.clients == 0:
            raise ValueError("a round without uploads has no tally")
        total = self.real.weight // self.unit
        vectors = {name: vector.tally(total, self.unit) for name, vector in self.vectors.items()}
        return Tally(self.clients, total, self.unit, vectors, self.real.mean().astype(np.float32))


@dataclass
class UploadList:
    """All uploads of a round, for an `aggregate` that must see them together."""

    uploads: list[Message] = field(default_factory=list)

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
