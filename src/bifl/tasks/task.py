"""What a task is: a loss, and numbers that tell how good a network is.

Evaluation adds up: chunks of samples, clients and machines each give `sums`, and only the sum of all is made into metrics.
So a federation's metrics are those of all samples together, whoever evaluated them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from bifl.data.arrays import Array
from bifl.errors import DataError
from bifl.registry import Registry

Sums = npt.NDArray[np.float64]
LARGEST = 1e12  # that a sum may be for each sample, whatever is summed


class Targets(NamedTuple):
    """What the loss compares scores with."""

    labels: Array  # (n,) int64 class numbers, or (n, outputs) float32
    outputs: int  # that the network has for one sample


def as_found(labels: Array, outputs: int) -> Targets:
    """The usual `targets` of a user's own task: class numbers as int64, anything else as (n, outputs) float32.

    Raises:
        DataError: they are no finite numbers.
    """
    if labels.dtype.kind in "iu" and labels.ndim == 1:
        return Targets(labels.astype(np.int64), outputs)
    return numbers(labels, outputs)


def numbers(labels: Array, outputs: int) -> Targets:
    """Labels as (n, outputs) float32.

    Raises:
        DataError: they are no finite numbers, or not one row per sample.
    """
    if labels.dtype.kind not in "biuf" or labels.ndim not in (1, 2):
        raise DataError(f"labels must be numbers, (n,) or (n, outputs), not {labels.dtype} {labels.shape}")
    found = labels.reshape(len(labels), -1) if len(labels) else np.zeros((0, outputs))
    found = found.astype(np.float32)
    if not np.isfinite(found).all():
        raise DataError("labels must be finite numbers: one of them is NaN or infinite")
    return Targets(found, found.shape[1])


def within_reach(sums: Sums, samples: int) -> bool:
    """The usual `sensible`: finite numbers, none of them huge."""
    return bool(np.all(np.abs(sums) <= LARGEST * samples))  # NaN is not


@dataclass(frozen=True)
class Task:
    """What is learnt, and how well.

    Attributes:
        loss: (scores, targets) → the mean loss of a batch, differentiable. Scores are what the network gives, (n, outputs).
        sums: (scores, targets) → (k,) numbers of a batch that can be added up: how many answers are correct, for example.
        metrics: (sums of all samples, number of samples) → numbers by name. Tables and pictures show the first, in %:
            the higher the better, and 1 is perfect.
        targets: (labels, outputs) → labels as `loss` takes them and how many outputs the network must have; refuses others with
            a DataError. `outputs` are what the dataset tells: its classes, or the columns of its labels.
        sensible: (sums, number of samples) → whether a client may say so; a server asks before it adds them up.
        length: how many sums there are.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    sums: Callable[[Tensor, Tensor], Tensor]
    metrics: Callable[[Sums, int], dict[str, float]]
    targets: Callable[[Array, int], Targets] = as_found
    sensible: Callable[[Sums, int], bool] = within_reach
    length: int = 1


task: Registry[Task] = Registry("task")
