"""What inputs a federation has: samples, how many of each class, mean and deviation of every channel, missing values.

The least and the largest input are not told: a sum does not tell them, and the largest of all is some client's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bifl.core.sides import ClientSide
from bifl.core.state import Public
from bifl.data.inputs import BYTES, FLOATS, TOKENS, Form
from bifl.errors import ConfigError, DataError, Refused
from bifl.exchanges.exchange import Surroundings, exchange
from bifl.exchanges.numbers import LARGEST, Numbers, Sums
from bifl.tasks import Task

_SLACK = 1e-3  # relative: sums are rounded


@dataclass(frozen=True)
class InputCounts(Numbers):
    """Clients say how many samples they have, of each class, and for each channel how many values miss, Σx and Σx²."""

    classes: int  # of the labels; 0 where they are no class numbers
    channels: int  # of inputs; 0 of tokens, whose mean means nothing
    unit: float  # what inputs are divided by that are no pixels, so that their sums are not too large
    share: float  # of its samples that a client holds out, which are counted too
    pixels: bool = False  # inputs are from 0 to 255; what is told of them is from 0 to 1
    name: str = "inputs"

    def length(self, public: Public) -> int:
        """Samples, classes, and three numbers for each channel."""
        return 1 + self.classes + 3 * self.channels

    def count(self, side: ClientSide, public: Public) -> Sums:
        """Of a sample the mean over a channel's values counts once, so that numbers are those of samples."""
        inputs, labels = side.samples()
        classes = np.bincount(labels, minlength=self.classes)[: self.classes] if self.classes else np.zeros(0)
        if not self.channels:
            return np.array([len(inputs), *classes], np.float64)
        missing, first, second = (np.zeros(self.channels) for _ in range(3))
        scale = 255.0 if self.pixels else self.unit
        for sample in inputs:  # one at a time: double precision of all would not fit
            values = sample.reshape(self.channels, -1).astype(np.float64) / scale
            gone = np.isnan(values)
            values = np.where(gone, 0, values)
            missing, first, second = missing + gone.mean(1), first + values.mean(1), second + np.square(values).mean(1)
        if not self.pixels and np.any((np.abs([first, second]) >= LARGEST) & np.isfinite([first, second])):
            raise Refused(
                f"exchange '{self.name}': inputs are too large for their squares to be added up: divide them by more than "
                f"exchange.unit={self.unit:g}"
            )
        return np.concatenate([[len(inputs)], classes, missing, first, second])

    def problem(self, numbers: Sums, weight: int) -> str | None:
        """Whole numbers of samples, as many as declared; Σx² that no Σx makes impossible."""
        samples, classes, (missing, first, second) = self._parts(numbers)
        slack = _SLACK * (1 + samples)
        most = weight + (self.share * weight + 1) / (1 - self.share) + 1
        if samples < 1 or (weight and not weight - slack <= samples <= most):
            return f"{samples:g} samples, where it has declared {weight}"
        if np.any(classes < -slack) or (self.classes and abs(classes.sum() - samples) > slack):
            return "its classes are not those of its samples"
        if np.any(missing < -slack) or np.any(missing > samples + slack):
            return "more values miss than there are"
        there = np.maximum(samples - missing, 0)
        if np.any(np.square(first) > second * there * (1 + _SLACK) + slack):
            return "its inputs would have a negative variance"
        if self.pixels and (np.any(first < -slack) or np.any(second > first + slack) or np.any(first > there + slack)):
            return "pixels are from 0 to 255"
        return None

    def report(self, sums: Sums, clients: int) -> Mapping[str, float]:
        """Counts, and mean and deviation of all inputs and of each channel."""
        samples, classes, (missing, first, second) = self._parts(sums)
        report = {"clients": float(clients), "samples": round(samples)}
        report |= {f"class {place}": round(count) for place, count in enumerate(classes.tolist())}
        if not self.channels:
            return report
        there = np.maximum(samples - missing, 1e-9)
        mean, square = first / there, second / there
        deviation, unit = np.sqrt(np.maximum(square - mean**2, 0)), self.unit
        whole = float(first.sum() / there.sum())
        report |= {"missing": float(missing.sum() / samples / self.channels), "mean": whole * unit}
        report["std"] = float(np.sqrt(max(second.sum() / there.sum() - whole**2, 0))) * unit
        for channel in range(self.channels):
            report |= {f"mean {channel}": float(mean[channel]) * unit, f"std {channel}": float(deviation[channel]) * unit}
        return report

    def _parts(self, numbers: Sums) -> tuple[float, Sums, Sums]:
        samples, classes, rest = np.split(numbers, [1, 1 + self.classes])
        return float(samples[0]), classes, rest.reshape(3, self.channels)


def _one_class(task: Task, classes: int) -> bool:
    """Whether labels are class numbers, one for each sample."""
    try:
        return task.targets(np.zeros(1, np.int64), classes).labels.ndim == 1
    except DataError:
        return False


@exchange
def inputs(run: Surroundings, unit: float = 1.0) -> InputCounts:
    """Samples, classes, mean, deviation and missing values of the inputs of all clients; unit=1000 for inputs that are huge."""
    if not 0 < unit < float("inf"):
        raise ConfigError(f"exchange.unit must be above 0, not {unit}")
    kind, shape = run.form.kind, run.form.shape
    classes = run.classes if _one_class(run.task, run.classes) else 0
    if kind == BYTES and unit != 1:
        raise ConfigError(f"exchange.unit is for inputs that are no pixels: leave out exchange.unit={unit:g}")
    return InputCounts(classes, 0 if kind == TOKENS else shape[0], unit, run.share, pixels=kind == BYTES)


def normalised_by(report: Mapping[str, float], form: Form) -> dict[str, str]:
    """Settings of dataset=remote that normalise inputs by what a federation has; none for tokens."""
    if "mean" not in report or form.kind not in (BYTES, FLOATS):
        return {}
    if form.kind == BYTES:
        return {"dataset.mean": f"{report['mean']:.6g}", "dataset.std": f"{report['std'] or 1:.6g}"}
    channels = range(form.shape[0])
    columns = {f"dataset.{name}s": [report[f"{name} {channel}"] for channel in channels] for name in ("mean", "std")}
    columns["dataset.stds"] = [value or 1.0 for value in columns["dataset.stds"]]
    return {name: ",".join(f"{value:.6g}" for value in values) for name, values in columns.items()}
