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
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.core.message import BINARY, NOTHING, UPDATE, Floats, Message, Vector
from bifl.errors import DataError, Diverged

_ONE = 2.0**32  # in the fixed point, whose resolution is 2⁻³² ≈ 2e-10: exact for every float32 of magnitude ≥ 2⁻⁹
_SHIFT = 32
_ROOM = 2.0**30  # sums of |values| below this surely fit into int64, in the fixed point
LARGEST_WEIGHT = 2**30  # of all uploads together: images in a federation. Keeps every sum within two int64
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

    def __init__(self) -> None:
        self.weight = 0
        self._fine: Integers | None = None
        self._whole: Integers | None = None
        self._reach = 0.0  # while there is no `whole`: no |fine| is beyond this, in ones

    @classmethod
    def of(cls, whole: Integers, fraction: Integers, weight: int) -> ExactSum:
        """A sum that was made elsewhere, in the integers of `fixed_point`."""
        total = cls()
        total._whole, total._fine, total.weight = whole, fraction, weight
        return total

    def add(self, values: npt.ArrayLike, weight: int) -> None:
        """Add `weight` times a vector, of the same length each time.

        Raises:
            Diverged: a value is not finite or too large to be a trained number.
        """
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
        carried = np.asarray(fine >> _SHIFT)
        whole = carried if self._whole is None else np.asarray(self._whole + carried)
        return whole, np.asarray(fine - (carried << _SHIFT))


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
    count = VoteSum()
    count._votes = votes
    return count


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
