"""Numbers that training can give. Without torch: apps that only compress uploads may do without."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bifl.wire import WireError

LARGEST = 2.0**31  # no trained number is as large


def finite(*vectors: npt.NDArray[Any]) -> None:
    """Refuse all others.

    Raises:
        WireError: there are some.
    """
    for numbers in vectors:
        with np.errstate(over="ignore", invalid="ignore"):
            sensible = np.all(np.abs(numbers) < LARGEST)  # written so that NaN fails too
        if not sensible:
            raise WireError(68, "holds numbers that are not finite or far too large")
