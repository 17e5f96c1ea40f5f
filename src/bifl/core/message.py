"""What is said: named vectors of symbols, plus real numbers. How it becomes bytes is `bifl.codec`.

>>> import numpy as np
>>> ballot = Message.of(np.array([1, 0, 1], np.uint8), BINARY, real=np.zeros(0, np.float32))
>>> ballot.update.values()
array([ 1., -1.,  1.], dtype=float32)
>>> Alphabet("four levels", 4).values(np.arange(4)).round(2)
array([-1.  , -0.33,  0.33,  1.  ], dtype=float32)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Symbols = npt.NDArray[Any]  # unsigned integers 0 … size−1, or floats
Floats = npt.NDArray[np.float32]

NOTHING: Floats = np.zeros(0, np.float32)
NOTHING.flags.writeable = False


@dataclass(frozen=True)
class Alphabet:
    """The symbols 0 … size−1 of a vector; size 0 means floats. Any size may be used: `Alphabet("four levels", 4)`."""

    name: str = field(compare=False)  # what errors and tables call it; two alphabets of one size are equal whatever they are called
    size: int
    bits: int = field(default=0, repr=False)  # of a float, 32 or 16

    def values(self, symbols: Symbols) -> Floats:
        """The numbers that the symbols stand for: evenly spaced from −1 to +1, floats as they are."""
        if self.size == 0:
            return symbols.astype(np.float32, copy=False)
        return np.asarray(symbols * (2.0 / max(self.size - 1, 1)) - 1.0, np.float32)


@dataclass(frozen=True)
class Votes(Alphabet):
    """Counts 0 … total of positive votes: W̃ = 2·count/total − 1.

    A vote weighs |D_i|, so counts are in units of `unit`, the greatest common divisor of the voters' |D_i|:
    integers whatever the sizes, never a rounded float.
    """

    total: int = 0
    unit: int = 1

    def __init__(self, total: int, unit: int = 1) -> None:
        super().__init__("votes", total + 1)
        object.__setattr__(self, "total", total)
        object.__setattr__(self, "unit", unit)


BINARY = Alphabet("binary", 2)  # 0 = −1, 1 = +1
TERNARY = Alphabet("ternary", 3)  # 0 = −1, 1 = 0, 2 = +1
FLOAT32 = Alphabet("float32", 0, 32)
FLOAT16 = Alphabet("float16", 0, 16)
TERNARY_THRESHOLD = 0.7  # Δ / mean|θ|, above which a weight is ±1: FTTQ's (paper §5)


def even_levels(count: int) -> Alphabet:
    """So many numbers, evenly spaced from −1 to 1."""
    return Alphabet(f"{count} levels", count)


def halves(values: Floats) -> Floats:
    """(n,) the numbers nearest to these that 16-bit floats hold."""
    return np.clip(values, -60000, 60000).astype(np.float16).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Selection:
    """What the symbols of a vector are about. Both ends know it before the message is sent."""

    length: int  # how many symbols there are
    positions: npt.NDArray[np.int64] | None = None  # of weights, rising; None for symbols about no single ones, as of a rotation
    # where in the vector that `reads` returns the symbols stand, side by side, if they do; elsewhere it holds 0. Who has the same
    # place speaks of the same
    place: int | None = None

    @classmethod
    def of(cls, positions: npt.ArrayLike) -> Selection:
        """Some of the weights."""
        chosen = np.asarray(positions, np.int64)
        return cls(len(chosen), chosen)

    def spread(self, values: Floats, count: int) -> Floats:
        """(count,) the values at their positions, zeros elsewhere."""
        if self.positions is None:
            raise ValueError("these symbols are about no single weights: only their algorithm can say what they mean")
        spread = np.zeros(count, np.float32)
        spread[self.positions] = values
        return spread


UPDATE = "update"  # the vector that every message has: the weights are made of it
MOST_VECTORS = 8  # of a message
LONGEST_NAME = 16  # letters of a vector's name
_NAME = re.compile(rf"[a-z_]{{1,{LONGEST_NAME}}}")
Selections = Mapping[str, Selection | None]  # name of a vector → what its symbols are about; None for all weights, in order


def is_name(name: object) -> bool:
    """Whether a vector may have this name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


class Vector(NamedTuple):
    """One vector of a message."""

    symbols: Symbols  # (count,) one per coded weight, or as many as `Algorithm.selects` says
    alphabet: Alphabet  # what they may be and mean
    scales: Floats = NOTHING  # numbers of an algorithm's own, one per layer for example; the tally holds their mean
    about: Selection | None = None  # the weights that the symbols are about; None for all, in order. Filled in for an algorithm

    def values(self) -> Floats:
        """(count,) the numbers that the symbols stand for."""
        return self.alphabet.values(self.symbols)


class Message(NamedTuple):
    """One upload or broadcast. An algorithm gives the first two fields, the others are filled in for it."""

    vectors: Mapping[str, Vector]  # one is called `update`; both ends know the names before it is sent (`Algorithm.selects`)
    real: Floats  # (reals,) the parameters that stay real, averaged in every algorithm (`bifl.core.layout`)
    sender: int | None = None  # number of the client, None for the server
    weight: int = 1  # |D_i| as it is sent; what the ballot counts for, once it is opened
    round: int = 0  # whose training the message sums up; the first is 1

    @classmethod
    def of(
        cls, symbols: Symbols, alphabet: Alphabet, real: Floats, scales: Floats = NOTHING, sender: int | None = None,
        weight: int = 1, round: int = 0, about: Selection | None = None,
    ) -> Message:  # fmt: skip
        """A message whose only vector is the update."""
        return cls({UPDATE: Vector(symbols, alphabet, scales, about)}, real, sender, weight, round)

    @property
    def update(self) -> Vector:
        """The vector that the weights are made of."""
        return self.vectors[UPDATE]

    def with_vectors(self, vectors: Mapping[str, Vector]) -> Message:
        """The same with these vectors in the place of those of the same names."""
        return self._replace(vectors={**self.vectors, **vectors})

    def with_update(self, **fields: Any) -> Message:
        """The same with other fields of the update."""
        return self.with_vectors({UPDATE: self.update._replace(**fields)})


def reals_only(real: Floats) -> Message:
    """A message without symbols. Its update has an alphabet all the same: binary, by convention."""
    return Message.of(np.zeros(0, np.uint8), BINARY, real)
