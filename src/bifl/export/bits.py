"""Weights that take two or three values as bits, and the number that the bits are multiplied with."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.export.operations import Floats

Words = npt.NDArray[np.uint32]


class Signs(NamedTuple):
    """Weights as planes of signs: the mean of ±1 over the planes, times `size`. Ternary weights take two planes.

    >>> signs_of(np.array([2, -2, 2], np.float32)).planes.tolist()
    [[True, False, True]]
    >>> signs_of(np.array([2, -2, 0], np.float32)).planes.tolist()
    [[True, False, True], [True, False, False]]
    >>> signs_of(np.array([2, -1, 0], np.float32)) is None
    True
    """

    planes: npt.NDArray[np.bool_]  # (1 or 2, *shape of the weights)
    size: float


def signs_of(weight: Floats) -> Signs | None:
    """The signs of binary or ternary weights; None where they are neither."""
    sizes = np.abs(weight)
    largest = sizes.max(initial=0)
    if not np.isfinite(largest) or not ((sizes == largest) | (sizes == 0)).all():
        return None
    if largest and (sizes == largest).all():
        return Signs((weight > 0)[None], float(largest))
    return Signs(np.stack([weight >= 0, weight > 0]), float(largest))


def words_of(signs: npt.NDArray[np.bool_]) -> Words:
    """(outputs, inputs) → (⌈inputs/32⌉, outputs) words: bit j of a word is the sign of input 32·row + j, 1 where it is negative.

    >>> words_of(np.array([[True, False, True], [False, False, True]])).tolist()
    [[2, 3]]
    """
    padded = np.pad(~signs, ((0, 0), (0, -signs.shape[1] % 32)))
    packed = np.ascontiguousarray(np.packbits(padded, axis=1, bitorder="little"))
    return np.ascontiguousarray(packed.view("<u4").astype(np.uint32).T)
