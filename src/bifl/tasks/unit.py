"""Whether labels are numbers that a network can learn as they are, in a sentence for whoever starts a run.

>>> import numpy as np
>>> sentence(np.array([[30.0], [50.0]]))
'labels are 40 ± 10 and are not normalised, though a network begins at about 0 ± 1: save (labels - 40) / 10 instead'
"""

from __future__ import annotations

import sys

import numpy as np

from bifl.data.inputs import Array

LARGEST, LEAST = 3.0, 0.1  # root mean square and deviation beyond which the first rounds learn nothing but the unit


def sentence(labels: Array) -> str | None:
    """What is wrong with the unit of (n, outputs) numbers; None if nothing is, or if they are class numbers."""
    if labels.ndim != 2 or labels.dtype.kind != "f" or not len(labels):
        return None
    means, deviations = labels.mean(0, np.float64), labels.std(0, np.float64)
    sizes = np.hypot(means, deviations)
    wrong = (sizes > LARGEST) | ((deviations < LEAST) & (deviations > 0))
    if not wrong.any():
        return None
    column = int(np.argmax(wrong))
    mean, deviation = (f"{float(value[column]):.4g}" for value in (means, deviations))
    which = f" in column {column}" if labels.shape[1] > 1 else ""
    instead = f"(labels - {mean}) / {deviation}" if deviations[column] else f"labels - {mean}"
    begins = "and are not normalised, though a network begins at about 0 ± 1"
    return f"labels{which} are {mean} ± {deviation} {begins}: save {instead} instead"


def remark(labels: Array) -> None:
    """Tell a person at the terminal, if it is worth telling."""
    if said := sentence(labels):
        print(f"bifl: {said}", file=sys.stderr)
