"""Named random streams, which every end of a federation can derive: the same name gives the same numbers everywhere.

A stream belongs to an experiment's seed, a round, a sender and a purpose. Streams of different names are independent.

>>> stream(seed=7, round=3, sender=5, name="rotation").integers(100, size=3)
array([63, 42, 92])
>>> stream(seed=7, round=3, sender=5, name="batches").integers(100, size=3)
array([64, 82, 83])

Numpy may change how it makes normal or uniform numbers of random bits. `random_signs` and `random_positions` use the bits alone,
which it may not change: use these where a server and a client must draw the same.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from bifl.core.message import Floats

Real = npt.NDArray[np.floating]


def _entropy(seed: int, round: int, sender: int | None, name: str) -> int:
    who = "server" if sender is None else str(sender)
    return int.from_bytes(hashlib.sha256(f"{seed} {round} {who} {name}".encode()).digest(), "little")


def stream(seed: int, round: int, sender: int | None, name: str) -> np.random.Generator:
    """The random numbers of one purpose, by its name.

    The round is that in which they are used, 0 before the first; the sender is None for the server, or for what all have in common.
    """
    return np.random.Generator(np.random.PCG64(_entropy(seed, round, sender, name)))


def stream_seed(seed: int, round: int, sender: int | None, name: str) -> int:
    """A 64-bit seed of the same, for other generators such as PyTorch's."""
    return _entropy(seed, round, sender, name) & (2**64 - 1)


def forward_key(seed: int, round: int, sender: int) -> int:
    """`Latent.key` of a client in a round: what its forward draws, the server can draw again."""
    return stream_seed(seed, round, sender, "forward")


def random_words(generator: np.random.Generator, count: int) -> npt.NDArray[np.uint64]:
    """(count,) random bits, 64 at a time."""
    words: npt.NDArray[np.uint64] = generator.bit_generator.random_raw(count)
    return words


def random_signs(generator: np.random.Generator, count: int) -> Floats:
    """(count,) ±1 at random."""
    words = random_words(generator, -(-count // 64)).astype("<u8").view(np.uint8)
    return np.unpackbits(words, count=count).astype(np.float32) * 2 - 1


def uniform(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Numbers between 0 and 1, neither of which they are: 53 bits of every word."""
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def round_at_random(places: Real, size: int, dice: np.random.Generator) -> npt.NDArray[np.uint8]:
    """(n,) symbols 0 … size−1: places between them, rounded up or down at random so that the mean is right."""
    symbols: npt.NDArray[np.uint8] = np.clip(np.floor(places + dice.random(len(places), np.float32)), 0, size - 1).astype(np.uint8)
    return symbols


def random_levels(shares: Real, levels: int, dice: np.random.Generator) -> npt.NDArray[np.uint8]:
    """(n,) which of so many evenly spaced levels from −1 to 1, up or down at random so that the mean is right."""
    return round_at_random((shares + 1) * np.float32((levels - 1) / 2), levels, dice)


def dithered_signs(values: Real, widths: Real | np.floating, dice: np.random.Generator) -> npt.NDArray[np.uint8]:
    """(n,) 1 for + and 0 for −, once noise uniform on ±width was added: times the width they are right in the mean."""
    noise = dice.random(len(values), np.float32) * 2 - 1
    return (values + noise * widths > 0).astype(np.uint8)


def random_positions(generator: np.random.Generator, count: int, chosen: int) -> npt.NDArray[np.int64]:
    """(chosen,) different numbers from 0 to count−1, rising."""
    if not 0 <= chosen <= count:
        raise ValueError(f"{chosen} of {count} cannot be chosen")
    if chosen == count:
        return np.arange(count)
    # the smallest of random words; a stable order makes even equal words no matter of chance
    words = random_words(generator, count)
    return np.sort(np.argsort(words, kind="stable")[:chosen])
