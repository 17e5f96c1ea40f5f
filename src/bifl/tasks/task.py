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

from bifl.data.inputs import Array
from bifl.errors import DataError
from bifl.registry import Registry

Count = Callable[[Tensor], int]
Sums = npt.NDArray[np.float64]
LARGEST = 1e12  # that a sum may be for each sample, whatever is summed


class Targets(NamedTuple):
    """What the loss compares scores with."""

    labels: Array  # (n,) int64 class numbers, (n, outputs) float32, or (n, …) int64 with a class for every position
    outputs: int  # that the network has for one sample, or for one position


def as_found(labels: Array, outputs: int) -> Targets:
    """The usual `targets` of a user's own task: class numbers as int64, anything else as (n, outputs) float32."""
    if labels.dtype.kind in "iu" and labels.ndim == 1:
        return Targets(labels.astype(np.int64), outputs)
    return numbers(labels, outputs)


def numbers(labels: Array, outputs: int) -> Targets:
    """Labels as (n, outputs) float32."""
    if labels.dtype.kind not in "biuf" or labels.ndim not in (1, 2):
        raise DataError(f"labels must be numbers, (n,) or (n, outputs), not {labels.dtype} {labels.shape}")
    rows = (labels.reshape(len(labels), -1) if len(labels) else np.zeros((0, outputs))).astype(np.float32)
    if not np.isfinite(rows).all():
        raise DataError("labels must be finite numbers: one of them is NaN or infinite")
    return Targets(rows, rows.shape[1])


def class_per_position(labels: Array, outputs: int) -> Targets:
    """Labels as (n, …) class numbers, −1 where a position does not count: padding, or what nobody is to predict."""
    if labels.dtype.kind not in "iu" or (labels.ndim < 2 and len(labels)):
        raise DataError(f"labels must be whole numbers, (n, …), one for every position, not {labels.dtype} {labels.shape}")
    if labels.size and not -1 <= labels.min() <= labels.max() < outputs:
        raise DataError(
            f"labels must run from −1, which does not count, to {outputs - 1}, not from {labels.min()} to {labels.max()}: "
            "an array `classes` in the file, or dataset.classes=, says how many there are"
        )
    return Targets(labels.astype(np.int64), outputs)


def positions(targets: Tensor) -> int:
    """How many positions count."""
    return int((targets >= 0).sum())


def one_each(targets: tuple[int, ...]) -> int:
    """The usual `most`: samples are counted."""
    return 1


def one_row(targets: tuple[int, ...], outputs: int) -> tuple[int, ...]:
    """The usual `output`: so many numbers for a sample."""
    return (outputs,)


def row_per_position(targets: tuple[int, ...], outputs: int) -> tuple[int, ...]:
    """So many numbers for every position of a sample's targets: (…, outputs)."""
    return (*targets, outputs)


def within_reach(sums: Sums, count: int) -> bool:
    """The usual `sensible`: finite numbers, none of them huge."""
    return bool(np.all(np.abs(sums) <= LARGEST * count))  # NaN is not


@dataclass(frozen=True)
class Task:
    """What is learnt, and how well.

    Attributes:
        loss: (output, targets) → the mean loss of a batch, differentiable. The output is what the network gives, (n, outputs) if
            `output` says nothing else. A third parameter, without a default, is an array of the data by its name: `mask`.
        sums: (output, targets) → (length,) numbers of a batch that can be added up, as how many answers are correct. It may take
            further arrays too.
        metrics: (sums of all samples, their number) → numbers by name. Tables and pictures show the first, in %: 1 is perfect.
        targets: (labels, outputs) → labels as `loss` takes them and how many outputs the network must have, or a DataError.
            `outputs` are what the dataset tells: its classes, or the columns of its labels.
        sensible: (sums, number of samples) → whether a client may say so; a server asks before it adds them up.
        length: how many sums there are.
        output: (shape of one sample's targets, outputs) → the shape of what the network must give for one sample.
        count: (targets of a batch) → what its loss is the mean of, and what `metrics` and `sensible` get as number: of samples, or
            of positions (`positions`). A batch may have none: its loss must be 0 then.
        most: shape of one sample's targets → the most that `count` may find in it, beyond which a server believes no client.
    """

    loss: Callable[..., Tensor]
    sums: Callable[..., Tensor]
    metrics: Callable[[Sums, int], dict[str, float]]
    targets: Callable[[Array, int], Targets] = as_found
    sensible: Callable[[Sums, int], bool] = within_reach
    length: int = 1
    output: Callable[[tuple[int, ...], int], tuple[int, ...]] = one_row
    count: Count = len
    most: Callable[[tuple[int, ...]], int] = one_each


task: Registry[Task] = Registry("task")
