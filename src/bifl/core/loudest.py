"""The loudest of every group: of each G numbers only which one is largest in magnitude, and its sign. log2(2·G)/G bit a number.

Of a vector in a random rotation this tells more a bit than signs of a share of the coordinates do: with G = 128 it takes 0.0625 bit
a weight and errs as much as 0.1 bit of signs (it is quantisation to the nearest vertex of a cross-polytope). docs/research.md.

>>> import numpy as np
>>> symbols = loudest(np.array([0.1, -0.7, 0.2, 0.3, 0.5, 0.0], np.float32), 4)
>>> symbols, spread(symbols, 4, 6)
(array([2, 1], dtype=uint16), array([ 0., -1.,  0.,  0.,  1.,  0.], dtype=float32))
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bifl.core.message import Alphabet, Floats, Symbols

MOST = 2**15  # numbers in a group: a symbol has 16 bits


def loud_alphabet(group: int) -> Alphabet:
    """Twice the place in its group, plus one where the number is positive."""
    return Alphabet(f"loudest of {group}", 2 * group)


def groups(count: int, group: int) -> int:
    """How many groups so many numbers make."""
    return -(-count // group)


def loudest(values: Floats, group: int) -> Symbols:
    """(groups,) of every group the place and the sign of its loudest number; the last group may be short."""
    padded = np.zeros(groups(len(values), group) * group, np.float32)
    padded[: len(values)] = values
    rows = padded.reshape(-1, group)
    places = np.abs(rows).argmax(1)
    positive = np.take_along_axis(rows, places[:, None], 1)[:, 0] > 0
    symbols: Symbols = (2 * places + positive).astype(np.uint16)
    return symbols


def positions(symbols: Symbols, group: int) -> npt.NDArray[np.int64]:
    """(groups,) where in the whole vector the loudest numbers are."""
    return np.arange(len(symbols), dtype=np.int64) * group + (symbols >> 1)


def spread(symbols: Symbols, group: int, count: int) -> Floats:
    """(count,) ±1 at the loudest numbers, 0 elsewhere. A place beyond the last number is nobody's."""
    found = np.zeros(len(symbols) * group, np.float32)
    found[positions(symbols, group)] = (symbols & 1).astype(np.float32) * 2 - 1
    return found[:count]
