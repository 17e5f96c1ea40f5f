"""Pictures: accuracy against rounds, and against the megabytes that went up and down, side by side."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bifl.experiment.settings import Experiment
from bifl.files import write_atomic, writing
from bifl.registry import short
from bifl.runs.record import Record, evaluated, tested
from bifl.show import colours
from bifl.show.colours import PALETTE
from bifl.show.output import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Values = npt.NDArray[Any]
_SHOWN = 20  # points below the best: what came before would squeeze the rest
STYLES = ("-", "--", "-.", ":")
Curves = dict[str, list[list[Record]]]  # by label, of one or more seeds


def draw(splits: dict[str, Curves], path: Path, title: str, algorithms: Mapping[str, str] | None = None) -> None:
    """Write a PNG, a row of three charts per split; several seeds become a line of means in a band of one deviation."""
    from matplotlib.ticker import MaxNLocator

    labels, figure, lines = _laid_out(splits, 3)
    places = _places(labels, algorithms)
    for line, curves in zip(lines, splits.values(), strict=True):
        for label, seeds in curves.items():
            _curves(line, seeds, _look(places[label]) | {"label": short(label)})
        _label(line[0], "round")
        line[0].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        for axes, way in zip(line[1:], ("uploaded", "downloaded"), strict=True):
            _label(axes, f"{way} by all clients together, MB (log scale)")
    _legend(figure, inside=len(labels) <= 4 and len(splits) == 1)  # more would hide the curves
    _save(figure, path, title)


def draw_bits(splits: dict[str, Curves], path: Path, title: str, algorithms: Mapping[str, str] | None = None) -> None:
    """Write a PNG, two charts per split: accuracy against the bits per parameter that a client sent, and sent and received."""
    labels, figure, lines = _laid_out(splits, 2)
    places = _places(labels, algorithms)
    for line, curves in zip(lines, splits.values(), strict=True):
        for label, seeds in curves.items():
            up, down = (_summed(seeds, field) for field in ("up_bpp", "down_bpp"))
            for axes, bits in zip(line, (up, up + down), strict=True):
                if bits[0]:  # centralised training sends nothing
                    _curve(axes, bits, _scores(seeds), _look(places[label]) | {"label": short(label)})
        for axes, way in zip(line, ("uploaded", "uploaded and downloaded"), strict=True):
            _label(axes, f"{way} by a client, bits per parameter (log scale)")
        low, high = line[0].get_ylim()
        line[0].set_ylim(bottom=max(low, high - _SHOWN))
    _legend(figure, inside=False)
    _save(figure, path, title)


def _laid_out(splits: dict[str, Curves], columns: int) -> tuple[list[str], Figure, npt.NDArray[Any]]:
    """All labels, a figure, and its charts: a row for each split."""
    from matplotlib.figure import Figure  # takes a second to import: only when something is drawn

    labels = list(dict.fromkeys(label for curves in splits.values() for label in curves))
    figure = Figure(figsize=(14, 0.4 + 4 * len(splits)), layout="constrained")
    lines: npt.NDArray[Any] = figure.subplots(len(splits), columns, sharey="row", squeeze=False)
    for line, (split, curves) in zip(lines, splits.items(), strict=True):
        measure = next((tested(seeds[0])[-1].measure for seeds in curves.values()), "accuracy")
        line[0].set_ylabel(f"{split}\ntest {measure}, %" if len(splits) > 1 else f"test {measure}, %")
    return labels, figure, lines


def _label(axes: Axes, text: str) -> None:
    axes.set_xlabel(text)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if "log" in text:
        _log_scale(axes)


def _log_scale(axes: Axes) -> None:
    """A logarithmic axis with a few labels, however short it is."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    decades = np.log10(high / low)
    if decades < 1:
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=(1, 2, 5, 10), min_n_ticks=3))
    else:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 3 else (1.0,)))
    axes.xaxis.set_major_formatter("{x:g}")  # 0.1, 1, 10 rather than powers
    axes.xaxis.set_minor_formatter(NullFormatter())


def _legend(figure: Figure, inside: bool) -> None:
    handles = {label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if inside:
        figure.axes[0].legend(frameon=False)
    else:
        figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False)


def _scores(seeds: list[list[Record]]) -> Values:
    """(seeds, rounds that were evaluated) in %."""
    return 100 * np.array([[records[place].score for place in evaluated(*seeds)] for records in seeds])


def _places(labels: list[str], algorithms: Mapping[str, str] | None) -> dict[str, int]:
    """Where lines are among the colours. Labels that `algorithms` lacks begin with the algorithm: `up_down+beta=1`."""
    return colours.places({label: label.partition("+")[0] for label in labels} | dict(algorithms or {}))


def _look(number: int) -> dict[str, Any]:
    return {"color": PALETTE[number % len(PALETTE)], "linestyle": STYLES[number // len(PALETTE) % len(STYLES)]}


def _summed(seeds: list[list[Record]], field: str) -> Values:
    """(rounds that were evaluated,) a number that records hold, added up over all rounds until then; the mean over seeds."""
    count = min(len(records) for records in seeds)
    per_round = np.array([[getattr(r, field) for r in records[:count]] for records in seeds])
    return np.asarray(np.cumsum(per_round, axis=1).mean(0)[evaluated(*seeds)])


def _save(figure: Figure, path: Path, title: str) -> None:
    figure.suptitle(title)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    with writing(path.parent):
        write_atomic(path, picture.getvalue())


def _curves(line: npt.NDArray[Any], seeds: list[list[Record]], look: dict[str, Any]) -> None:
    """One experiment in the three charts of a split."""
    accuracy = _scores(seeds)
    _curve(line[0], np.array(evaluated(*seeds)) + 1, accuracy, look)
    for axes, field in zip(line[1:], ("up_bytes", "down_bytes"), strict=True):
        sent = _summed(seeds, field) / 1e6
        if sent[0]:  # centralised training sends nothing
            _curve(axes, sent, accuracy, look)


def _curve(axes: Axes, x: Values, accuracy: Values, look: dict[str, Any]) -> None:
    middle = accuracy.mean(0)
    axes.plot(x, middle, linewidth=1.8, marker="o" if len(x) == 1 else None, **look)  # one round alone would be no line
    if len(accuracy) > 1:
        spread = accuracy.std(0, ddof=1)
        axes.fill_between(x, middle - spread, middle + spread, color=look["color"], alpha=0.15, linewidth=0)


def title(experiment: Experiment) -> str:
    """What stands above an experiment's picture: the data and how it is split."""
    parameters = "".join(f", {key}={value}" for key, value in experiment.partition.parameters.items())
    names = f"{short(experiment.dataset.name)}, {short(experiment.partition.name)}"
    return f"{names}{parameters}, {counted(experiment.clients, 'client')}"
