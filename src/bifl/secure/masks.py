"""The masks that hide a summand: one for every pair of clients, which cancel in the sum, and one of the client's own.

A pair's mask is added by the one with the smaller number and subtracted by the other. When a client is lost after others have added
their masks with it, the server is given the seed of its key, and takes those masks away. The own mask keeps a summand hidden that
came late, after its sender was declared lost: its seed and the key's are never both revealed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bifl.secure.integers import Field, Fields, Parts
from bifl.secure.primitives import agreed, derived, keystream


class Sum(NamedTuple):
    """One of a round's sums, as one upload takes part in it."""

    name: str
    form: Fields
    agreed: bytes = b""  # a digest of what all must agree on: with others no masks cancel

    def key(self, what: str) -> bytes:
        """What keys are derived for."""
        return f"{self.name} {what}".encode()


def add_own(parts: tuple[Parts, Parts], seed: bytes, sum: Sum, sign: int) -> None:
    """Add a client's own mask, or subtract it."""
    for part, form, what in zip(parts, sum.form, ("symbols", "numbers"), strict=True):
        _add(part, form, derived(seed, sum.key(f"own {what}")), sign)


def add_pair(parts: tuple[Parts, Parts], seed: bytes, other: bytes, sum: Sum, sign: int, *, peers: bool) -> None:
    """Add a pair's mask, or subtract it.

    Args:
        parts: symbols and numbers.
        seed: of one's key.
        other: the other's public key.
        sum: which one.
        sign: 1 or −1.
        peers: whether both speak of the same weights; only then do their symbols share a mask.
    """
    shared = agreed(seed, other, sum.key("pair") + sum.agreed)
    for part, form, what in list(zip(parts, sum.form, ("symbols", "numbers"), strict=True))[0 if peers else 1 :]:
        _add(part, form, derived(shared, what.encode()), sign)


def direction(own: int, other: int) -> int:
    """Whether a client adds the mask of a pair or subtracts it."""
    return 1 if own < other else -1


def _add(parts: Parts, form: Sequence[Field], key: bytes, sign: int) -> None:
    """Add a key stream modulo each field's 2^bits, in place."""
    sizes = [field.length * field.kind.itemsize for field in form]
    stream, start = memoryview(keystream(key, sum(sizes))), 0
    for part, field, size in zip(parts, form, sizes, strict=True):
        if size:
            mask = np.frombuffer(stream[start : start + size], field.kind)
            np.add(part, mask, out=part) if sign > 0 else np.subtract(part, mask, out=part)
            np.bitwise_and(part, field.kind.type((1 << field.bits) - 1), out=part)
        start += size
