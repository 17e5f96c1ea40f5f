"""Clients that share images: each draws its own when they are asked for, so that nothing is kept of a client.

>>> parts = Drawn(np.arange(60_000), size=20, clients=10**9, key=7)
>>> len(parts), len(parts[123_456_789]), bool((parts[5] == parts[5]).all())
(1000000000, 20, True)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from bifl.core.randomness import stream

Index = npt.NDArray[np.int64]


class Drawn(Sequence[Index]):
    """One part for each client: distinct images, drawn with the client's own stream.

    Args:
        images: to draw from.
        size: of a part.
        clients: how many there are.
        key: of the streams.
    """

    def __init__(self, images: Index, size: int, clients: int, key: int) -> None:
        self._images, self._size, self._clients, self._key = images, size, clients, key

    def among(self, images: Index) -> Drawn:
        """The same draws from other images of the same number."""
        return Drawn(images, self._size, self._clients, self._key)

    def __len__(self) -> int:
        return self._clients

    @overload
    def __getitem__(self, number: int) -> Index: ...
    @overload
    def __getitem__(self, number: slice) -> list[Index]: ...
    def __getitem__(self, number: int | slice) -> Index | list[Index]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(self._clients))]
        if not -self._clients <= number < self._clients:
            raise IndexError(f"there are {self._clients} clients, and no client {number}")
        generator = stream(self._key, 0, number % self._clients, "shared images")
        return np.sort(self._images[generator.choice(len(self._images), self._size, replace=False)])
