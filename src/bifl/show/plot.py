"""Pictures: accuracy against rounds, and against the megabytes that went up and down, side by side."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bifl.experiment.settings import Experiment
from bifl.files import write_atomic, writing
from bifl.runs.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")  # Okabe–Ito: safe for colour-blind eyes
Values = npt.NDArray[Any]
STYLES = ("-", "--", "-.", ":")
Curves = dict[str, list[list[Record]]]  # by label, of one or more seeds


def draw(splits: dict[str, Curves], path: Path, title: str) -> None:
    """Write a PNG, a row of three charts per split; several seeds become a line of means in a band of one deviation."""
    from matplotlib.figure import Figure  # takes a second to import: only when something is drawn

    labels = list(dict.fromkeys(label for curves in splits.values() for label in curves))
    figure = Figure(figsize=(14, 0.4 + 4 * len(splits)), layout="constrained")
    for line, (split, curves) in zip(figure.subplots(len(splits), 3, sharey="row", squeeze=False), splits.items(), strict=True):
        for label, seeds in curves.items():
            number = labels.index(label)
            look = {"color": PALETTE[number % len(PALETTE)], "linestyle": STYLES[number // len(PALETTE) % len(STYLES)]}
            _curves(line, seeds, look | {"label": label})
        for axes, way in zip(line, ("", "uploaded", "downloaded"), strict=True):
            axes.set(xlabel=f"{way} by all clients together, MB (log scale)" if way else "round")
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        for axes in line[1:]:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")  # 0.1, 1, 10 rather than powers
        measure = next((seeds[0][-1].measure for seeds in curves.values()), "accuracy")
        line[0].set_ylabel(f"{split}\ntest {measure}, %" if len(splits) > 1 else f"test {measure}, %")
    handles = {label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if len(labels) > 4 or len(splits) > 1:  # more would hide the curves
        figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False)
    else:
        figure.axes[0].legend(frameon=False)
    figure.suptitle(title)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    with writing(path.parent):
        write_atomic(path, picture.getvalue())


def _curves(line: npt.NDArray[Any], seeds: list[list[Record]], look: dict[str, Any]) -> None:
    """One experiment in the three charts of a split."""
    count = min(len(records) for records in seeds)
    accuracy = 100 * np.array([[r.score for r in records[:count]] for records in seeds])
    _curve(line[0], np.arange(1, count + 1), accuracy, look)
    for axes, field in zip(line[1:], ("up_bytes", "down_bytes"), strict=True):
        sent = np.cumsum([[getattr(r, field) for r in records[:count]] for records in seeds], axis=1).mean(0) / 1e6
        if sent[0]:  # centralised training sends nothing
            _curve(axes, sent, accuracy, look)


def _curve(axes: Axes, x: Values, accuracy: Values, look: dict[str, Any]) -> None:
    middle = accuracy.mean(0)
    axes.plot(x, middle, linewidth=1.8, **look)
    if len(accuracy) > 1:
        spread = accuracy.std(0, ddof=1)
        axes.fill_between(x, middle - spread, middle + spread, color=look["color"], alpha=0.15, linewidth=0)


def title(experiment: Experiment) -> str:
    """What stands above an experiment's picture: the data and how it is split."""
    parameters = "".join(f", {key}={value}" for key, value in experiment.partition.parameters.items())
    return f"{experiment.dataset.name}, {experiment.partition.name}{parameters}, {experiment.clients} clients"
