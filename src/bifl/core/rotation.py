"""Random rotations that both ends of a message can derive, and the loudest numbers of a vector, which say much of a rotated one.

A rotation is random signs, then Walsh-Hadamard transforms of blocks.

A rotated vector has no large and small coordinates any more: all are about normal with the same deviation. So their signs and one
scale say much of it, and any share of its coordinates says something of all of it (DRIVE and EDEN, Vargaftik et al. 2021, 2022).

A block takes every n-th number of the vector, so all blocks hold a like mixture of the layers and one scale does for all. One pass
leaves a vector of few large numbers far from normal, which biases what is read of it; two do not (docs/research.md).

>>> import numpy as np
>>> from bifl.core.randomness import stream
>>> rotated = rotate(np.arange(5, dtype=np.float32), stream(0, 1, 2, "rotation"))
>>> unrotate(rotated, 5, stream(0, 1, 2, "rotation")).round(3) + 0
array([0., 1., 2., 3., 4.], dtype=float32)

Of each G numbers one may say only which is largest in magnitude, and its sign: log2(2·G)/G bit a number, 0.0625 with G = 128. Of a
rotated vector this tells as much as 0.1 bit of signs (quantisation to the nearest vertex of a cross-polytope; docs/research.md).

>>> symbols = loudest(np.array([0.1, -0.7, 0.2, 0.3, 0.5, 0.0], np.float32), 4)
>>> symbols, spread(symbols, 4, 6)
(array([2, 1], dtype=uint16), array([ 0., -1.,  0.,  0.,  1.,  0.], dtype=float32))
"""

from __future__ import annotations

import numpy as np

from bifl.core.message import Alphabet, Floats, Symbols
from bifl.core.randomness import random_signs

_LARGEST = 4096  # of a block: more hardly makes coordinates more normal
_PASSES = 2
_WASTE = 64  # at most one number in so many is padding, where that is possible


def block_size(count: int) -> int:
    """How many numbers a block has: a power of two, as large as it can be without much padding.

    It has at least twice the root of `count`: then every block of the second pass takes numbers of every block of the first.
    """
    size = min(_LARGEST, 1 << max(count - 1, 0).bit_length())
    while size * size >= 16 * count and -count % size > count // _WASTE:
        size //= 2
    return size


def rotated_length(count: int) -> int:
    """How many numbers a vector of `count` has when it is rotated: whole blocks."""
    return count + -count % block_size(count)


def rotate(values: Floats, generator: np.random.Generator) -> Floats:
    """(rotated_length,) the vector in a random rotation."""
    size, length = block_size(len(values)), rotated_length(len(values))
    rotated = np.zeros(length, np.float32)
    rotated[: len(values)] = values
    for signs in _signs(generator, length):
        rotated = _dealt(_hadamard(rotated * signs, size), size)
    return rotated


def unrotate(rotated: Floats, count: int, generator: np.random.Generator) -> Floats:
    """(count,) the inverse of `rotate`, given the same random numbers."""
    size, values = block_size(count), rotated
    for signs in reversed(_signs(generator, len(rotated))):
        values = _hadamard(_dealt(values, len(rotated) // size), size) * signs
    return values[:count]


def _signs(generator: np.random.Generator, length: int) -> list[Floats]:
    return [random_signs(generator, length) for _ in range(_PASSES)]


def _dealt(values: Floats, rows: int) -> Floats:
    """The numbers of `rows` rows, column by column: the next pass then mixes what this one did not."""
    return np.ascontiguousarray(values.reshape(rows, -1).T).reshape(-1)


def _hadamard(values: Floats, size: int) -> Floats:
    """The orthonormal Walsh-Hadamard transform of blocks that lie side by side: its own inverse."""
    now, then = values, np.empty_like(values)
    half = 1
    while half < size:  # block j is column j: what is added is never shorter than a row
        pairs, sums = (vector.reshape(size // (2 * half), 2, -1) for vector in (now, then))
        np.add(pairs[:, 0], pairs[:, 1], out=sums[:, 0])
        np.subtract(pairs[:, 0], pairs[:, 1], out=sums[:, 1])
        # `values` is the caller's: it is read once and never written
        now, then = then, np.empty_like(values) if now is values else now
        half *= 2
    return now * np.float32(1 / np.sqrt(size))


# ---- the loudest of every group ---------------------------------------------------------------------------------------------

MOST_IN_GROUP = 2**15  # numbers in a group: a symbol has 16 bits


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


def spread(symbols: Symbols, group: int, count: int) -> Floats:
    """(count,) ±1 at the loudest numbers, 0 elsewhere. A place beyond the last number is nobody's."""
    values = np.zeros(len(symbols) * group, np.float32)
    values[np.arange(len(symbols), dtype=np.int64) * group + (symbols >> 1)] = (symbols & 1).astype(np.float32) * 2 - 1
    return values[:count]
