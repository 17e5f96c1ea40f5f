"""Weights that take two or three values a row as signs, and signs as words of 32 bits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.export.operations import Floats


class Rows(NamedTuple):
    """Weights as signs times a size for each row.

    >>> rows_of(np.array([[2, -2], [0.5, 0]], np.float32))
    Rows(signs=array([[ 1, -1],
           [ 1,  0]], dtype=int8), sizes=array([2. , 0.5], dtype=float32))
    >>> rows_of(np.array([[2, -1]], np.float32)) is None
    True
    """

    signs: npt.NDArray[np.int8]  # −1, 0 or 1; of a row of zeros 1, so that one zero scale costs no third value
    sizes: Floats

    @property
    def binary(self) -> bool:
        """Whether no sign is 0."""
        return bool(self.signs.all())


def rows_of(weight: Floats) -> Rows | None:
    """The signs of binary or ternary weights, whose rows are ±s or ±s and 0; None where a row has several sizes."""
    sizes = np.abs(weight).reshape(len(weight), -1)
    largest = sizes.max(1, initial=0)
    if not np.isfinite(largest).all() or not ((sizes == largest[:, None]) | (sizes == 0)).all():
        return None
    signs = np.sign(weight).astype(np.int8)
    signs[largest == 0] = 1
    return Rows(signs, largest)


def words_of(signs: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """(outputs, inputs) → (⌈inputs/32⌉, outputs) words: bit j of a word is the sign of input 32·row + j, 1 where it is negative.

    >>> words_of(np.array([[True, False, True], [False, False, True]])).tolist()
    [[2, 3]]
    """
    padded = np.pad(~signs, ((0, 0), (0, -signs.shape[1] % 32)))
    packed = np.ascontiguousarray(np.packbits(padded, axis=1, bitorder="little"))
    return np.ascontiguousarray(packed.view("<u4").astype(np.uint32).T)
