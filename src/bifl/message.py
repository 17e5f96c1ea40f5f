"""What is said: symbols of an alphabet, plus real numbers. How it is spelled as bytes is `bifl.wire`.

>>> import numpy as np
>>> ballot = Message(np.array([1, 0, 1], np.uint8), BINARY, real=np.zeros(0, np.float32))
>>> ballot.values()
array([ 1., -1.,  1.], dtype=float32)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Symbols = npt.NDArray[Any]  # unsigned integers 0 … size−1, or float32
Floats = npt.NDArray[np.float32]

NOTHING: Floats = np.zeros(0, np.float32)
NOTHING.flags.writeable = False


@dataclass(frozen=True)
class Alphabet:
    """The symbols 0 … size−1 a message is made of; size 0 means any float32.

    Attributes:
        name: what errors and tables call it.
        size: number of symbols.
    """

    name: str
    size: int

    def values(self, symbols: Symbols) -> Floats:
        """The numbers that the symbols stand for: evenly spaced from −1 to +1, floats as they are."""
        if self.size == 0:
            return symbols.astype(np.float32, copy=False)
        return np.asarray(symbols * (2.0 / (self.size - 1)) - 1.0, np.float32)


@dataclass(frozen=True)
class Votes(Alphabet):
    """Counts 0 … total of positive votes: W̃ = 2·count/total − 1.

    A vote weighs |D_i|, so counts are in units of `unit`, the greatest common divisor of the voters' |D_i|:
    integers whatever the sizes, never a rounded float.
    """

    total: int
    unit: int

    def __init__(self, total: int, unit: int = 1) -> None:
        super().__init__("votes", total + 1)
        object.__setattr__(self, "total", total)
        object.__setattr__(self, "unit", unit)


BINARY = Alphabet("binary", 2)  # 0 = −1, 1 = +1
TERNARY = Alphabet("ternary", 3)  # 0 = −1, 1 = 0, 2 = +1
FLOAT32 = Alphabet("float32", 0)


class Message(NamedTuple):
    """One upload or broadcast.

    Attributes:
        symbols: (count,) one symbol per coded weight.
        alphabet: what the symbols may be and mean.
        real: (reals,) the parameters that stay real, averaged in every algorithm (`Layout.real`).
        scales: numbers of an algorithm's own, one per layer for example; never averaged for it.
        sender: index of the client, None for the server.
        weight: |D_i|, how much the sender's ballot counts.
        round: the round whose training the message sums up; the first is 1.
    """

    symbols: Symbols
    alphabet: Alphabet
    real: Floats
    scales: Floats = NOTHING
    sender: int | None = None
    weight: int = 1
    round: int = 0

    def values(self) -> Floats:
        """(count,) the weights that the symbols stand for."""
        return self.alphabet.values(self.symbols)
