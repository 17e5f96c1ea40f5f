"""Weighted sums of real numbers that depend on neither the order of what is added nor the platform.

Numbers are summed in fixed point, multiples of 2⁻³² in int64: one worker, ten workers or a real federation, in whatever order
the uploads arrive, end with the same bytes.

>>> total = ExactSum()
>>> total.add([0.25, 1.0], weight=1)
>>> total.add([0.75, 4.0], weight=2)
>>> total.mean().round(4)
array([0.5833, 3.    ])
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bifl.errors import DataError, Diverged

_ONE = 2.0**32  # in the fixed point, whose resolution is 2⁻³² ≈ 2e-10: exact for every float32 of magnitude ≥ 2⁻⁹
_SHIFT = 32
_ROOM = 2.0**30  # sums of |values| below this surely fit into int64, in the fixed point
LARGEST_WEIGHT = 2**30  # of all uploads together: images in a federation. Keeps every sum within two int64
_LARGEST = 2.0**32  # of |values|, for the same reason: beyond it they are no trained numbers
_BLOCK = 2**14  # numbers at a time, so that what is computed in between stays in the processor's cache

Integers = npt.NDArray[np.int64]


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
        found = cls()
        found._whole, found._fine, found.weight = whole, fraction, weight
        return found

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
            found = np.asarray(self._fine * (1 / _ONE))
        else:
            whole, fraction = self._halves()
            found = np.asarray(whole + fraction / _ONE)
        found /= self.weight
        return found

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
