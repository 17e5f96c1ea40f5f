"""The usual tasks: classes, numbers, and several labels at a time; whether numbers can be learnt as they are.

>>> import numpy as np
>>> regression().metrics(np.array([2.0, 2.0, 0.0, 8.0]), 4)
{'r2': 0.75, 'mse': 0.5, 'mae': 0.5}
>>> unit_sentence(np.array([[30.0], [50.0]]))
'labels are 40 ± 10 and are not normalised, though a network begins at about 0 ± 1: save (labels - 40) / 10 instead'
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor, nn

from bifl.data.inputs import Array
from bifl.errors import ConfigError, DataError
from bifl.tasks.task import Sums, Targets, Task, numbers, task, within_reach

LARGEST_SIZE, LEAST_DEVIATION = 3.0, 0.1  # of labels' columns; beyond, the first rounds learn nothing but the unit


def class_numbers(labels: Array, outputs: int) -> Targets:
    """Labels as class numbers."""
    if labels.dtype.kind == "b" and labels.ndim == 1:
        raise DataError("task=classification needs whole numbers as labels, not bool: save them with .astype(np.uint8)")
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise DataError(
            f"task=classification needs whole numbers as labels, one per sample, not {labels.dtype} {labels.shape}: "
            "use task=regression for numbers, task=multilabel for columns of 0 and 1"
        )
    return Targets(labels.astype(np.int64), outputs)


def _correct(scores: Tensor, labels: Tensor) -> Tensor:
    return (scores.argmax(1) == labels).sum().reshape(1)


@task
def classification() -> Task:
    """One class per sample: cross-entropy; accuracy."""
    return Task(
        loss=nn.functional.cross_entropy,
        sums=_correct,
        metrics=lambda sums, samples: {"accuracy": float(sums[0] / samples)},
        targets=class_numbers,
        sensible=lambda sums, samples: bool(0 <= sums[0] <= samples and sums[0] == int(sums[0])),
    )


def _errors(scores: Tensor, targets: Tensor) -> Tensor:
    """Σe², Σ|e|, Σy and Σy² of all outputs, each divided by the number of outputs."""
    error, y = scores.double() - targets.double(), targets.double()
    return torch.stack([error.square().sum(), error.abs().sum(), y.sum(), y.square().sum()]) / targets.shape[1]


def _of_errors(sums: Sums, samples: int) -> dict[str, float]:
    squares, sizes, total, total_squares = (float(value) / samples for value in sums)
    variance = total_squares - total**2
    differ = variance > 1e-12 * total_squares  # otherwise all targets are the same
    r2 = 1 - squares / variance if differ else float(squares == 0)
    return {"r2": r2, "mse": squares, "mae": sizes}


def to_predict(labels: Array, outputs: int) -> Targets:
    """Labels as numbers to predict."""
    if labels.dtype.kind in "iu" and labels.ndim == 1 and len(labels):  # everywhere else these are classes
        raise DataError(
            f"task=regression needs floats as labels, and these are class numbers from {labels.min()} to {labels.max()}: use "
            "task=classification, or if they are numbers to predict save them as floats that are about 1, such as "
            "((labels - labels.mean()) / labels.std()).astype(np.float32)"
        )
    return numbers(labels, outputs)


@task
def regression() -> Task:
    """Numbers: mean squared error; R² (of all outputs together), mse, mae."""
    return Task(nn.functional.mse_loss, _errors, _of_errors, to_predict, within_reach, length=4)


def several(labels: Array, outputs: int) -> Targets:
    """Labels as columns of 0 and 1."""
    if labels.dtype.kind not in "biuf" or (labels.ndim != 2 and len(labels)) or not np.isin(labels, (0, 1)).all():
        raise DataError(f"task=multilabel needs labels of 0 and 1, (n, classes), not {labels.dtype} {labels.shape}")
    return numbers(labels, outputs)


@task
def multilabel(threshold: float = 0.5) -> Task:
    """Any number of classes per sample: binary cross-entropy; F1 (of all answers together), accuracy of answers, exact matches."""
    if not 0 < threshold < 1:
        raise ConfigError(f"task.threshold must be between 0 and 1, not {threshold}")
    level = float(np.log(threshold / (1 - threshold)))

    def sums(scores: Tensor, targets: Tensor) -> Tensor:
        answers, true = scores > level, targets > 0.5
        counts = [(answers & true).sum(), answers.sum(), true.sum(), (answers == true).sum()]
        return torch.stack([*(count.double() / targets.shape[1] for count in counts), (answers == true).all(1).sum().double()])

    def metrics(sums: Sums, samples: int) -> dict[str, float]:
        both, answers, true, same, exact = map(float, sums)
        f1 = 2 * both / (answers + true) if answers + true else 1.0
        return {"f1": f1, "accuracy": same / samples, "exact": exact / samples}

    def sensible(sums: Sums, samples: int) -> bool:
        return bool(np.all((sums >= 0) & (sums <= samples)))

    return Task(nn.functional.binary_cross_entropy_with_logits, sums, metrics, several, sensible, length=5)


def unit_sentence(labels: Array) -> str | None:
    """What is wrong with the unit of (n, outputs) numbers; None if nothing is, or if they are class numbers."""
    if labels.ndim != 2 or labels.dtype.kind != "f" or not len(labels):
        return None
    means, deviations = labels.mean(0, np.float64), labels.std(0, np.float64)
    sizes = np.hypot(means, deviations)
    wrong = (sizes > LARGEST_SIZE) | ((deviations < LEAST_DEVIATION) & (deviations > 0))
    if not wrong.any():
        return None
    column = int(np.argmax(wrong))
    mean, deviation = (f"{float(value[column]):.4g}" for value in (means, deviations))
    which = f" in column {column}" if labels.shape[1] > 1 else ""
    instead = f"(labels - {mean}) / {deviation}" if deviations[column] else f"labels - {mean}"
    begins = "and are not normalised, though a network begins at about 0 ± 1"
    return f"labels{which} are {mean} ± {deviation} {begins}: save {instead} instead"


def remark_unit(labels: Array) -> None:
    """Tell a person at the terminal of labels that are not normalised."""
    if sentence := unit_sentence(labels):
        print(f"bifl: {sentence}", file=sys.stderr)
