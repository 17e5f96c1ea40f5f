"""Rejects numbers that no training gives. Imports no torch: apps that only compress uploads may not have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bifl.codec import WireError

LARGEST = 2.0**31  # no trained number is as large


def finite(*vectors: npt.NDArray[Any]) -> None:
    """Check that all numbers are finite and below `LARGEST`.

    Raises:
        WireError: one is not.
    """
    for numbers in vectors:
        with np.errstate(over="ignore", invalid="ignore"):
            sensible = np.all(np.abs(numbers) < LARGEST)  # written so that NaN fails too
        if not sensible:
            raise WireError(68, "holds numbers that are not finite or far too large")
