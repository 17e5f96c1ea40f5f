"""Pictures: accuracy against rounds, and against the megabytes that went up and down, side by side."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bifl.files import write_atomic, writing
from bifl.runtime.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")  # Okabe–Ito: safe for colour-blind eyes
Values = npt.NDArray[Any]
STYLES = ("-", "--", "-.", ":")


def draw(results: dict[str, list[list[Record]]], path: Path, title: str) -> None:
    """Write a PNG; several seeds become a line of means in a band of one deviation."""
    from matplotlib.figure import Figure  # takes a second to import: only when something is drawn

    figure = Figure(figsize=(14, 4.4), layout="constrained")
    rounds, *ways = figure.subplots(1, 3, sharey=True)
    for number, (label, seeds) in enumerate(results.items()):
        count = min(len(records) for records in seeds)
        accuracy = 100 * np.array([[r.accuracy for r in records[:count]] for records in seeds])
        look = {"color": PALETTE[number % len(PALETTE)], "linestyle": STYLES[number // len(PALETTE) % len(STYLES)]}
        _curve(rounds, np.arange(1, count + 1), accuracy, look | {"label": label})
        for axes, field in zip(ways, ("up_bytes", "down_bytes"), strict=True):
            sent = np.cumsum([[getattr(r, field) for r in records[:count]] for records in seeds], axis=1).mean(0) / 1e6
            if sent[0]:  # centralised training sends nothing
                _curve(axes, sent, accuracy, look)
    rounds.set(xlabel="round", ylabel="test accuracy, %")
    for axes, way in zip(ways, ("uploaded", "downloaded"), strict=True):
        axes.set(xlabel=f"{way} by all clients together, MB (log scale)", xscale="log")
        axes.xaxis.set_major_formatter("{x:g}")  # 0.1, 1, 10 rather than powers
    for axes in (rounds, *ways):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    if len(results) > 4:  # more would hide the curves
        figure.legend(loc="outside right center", frameon=False)
    else:
        rounds.legend(frameon=False)
    figure.suptitle(title)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    with writing(path.parent):
        write_atomic(path, picture.getvalue())


def _curve(axes: Axes, x: Values, accuracy: Values, look: dict[str, Any]) -> None:
    middle = accuracy.mean(0)
    axes.plot(x, middle, linewidth=1.8, **look)
    if len(accuracy) > 1:
        spread = accuracy.std(0, ddof=1)
        axes.fill_between(x, middle - spread, middle + spread, color=look["color"], alpha=0.15, linewidth=0)
