"""How curves look, here and in the report, and pictures of them: accuracy against rounds, megabytes and bits.

One algorithm has one colour and one dash everywhere. A place is a colour of the palette and a dash: the palette first with whole
lines, then with the next dash.

>>> places({"biml": "biml", "biml alpha=3": "biml", "mine": "mine.py:mine"})
{'biml': 3, 'biml alpha=3': 5, 'mine': 6}
>>> colour_of(8), dash_of(8)
(1, 'dashed')
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bifl.experiment.settings import Experiment
from bifl.files import write_atomic, writing
from bifl.registry import short
from bifl.runs.results import Curve, Series
from bifl.show.output import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")  # Okabe–Ito: safe for colour-blind eyes
DASHES = ("solid", "dashed", "dashdot", "dotted")
ALGORITHMS = (  # by their places: a line here is a dash. Those that are usually compared have whole lines
    "fedavg", "murmur", "full", "biml", "up_down", "up_only", "baseline",
    "float16", "murmur_momentum", "fttq", "biml_fit", "sign_majority", "eden", "bnn",
    "fedavgm", "murmur_dealt", "fedvote", "biml_levels", "ef_sign", "dither", "top_k",
    "fedadam", "fedmrn", "fedpm", "hybrid", "fedbat", "up_only_literal", "qsgd",
)  # fmt: skip

_SELDOM = (5, 6)  # places that others take first: whole lines, in colours that few pictures have
_SHOWN = 20  # points below the best: what came before would squeeze the rest
Splits = Mapping[str, list[Series]]  # what is shown in a row of charts each


def places(lines: Mapping[str, str], known: Mapping[str, int] | None = None) -> dict[str, int]:
    """The places of a picture's lines by label: no two the same.

    Args:
        lines: the algorithms by label. Of several lines of one algorithm that with the shortest label has the algorithm's place.
        known: places that labels have in other pictures, to keep where they are free.
    """
    taken: dict[str, int] = {}
    for label in sorted(lines, key=len):
        if lines[label] in ALGORITHMS and (place := ALGORITHMS.index(lines[label])) not in taken.values():
            taken[label] = place
    for label, place in (known or {}).items():
        if label in lines and place not in taken.values():
            taken.setdefault(label, place)
    for label in lines:
        taken.setdefault(label, next(place for place in chain(_SELDOM, count()) if place not in taken.values()))
    return {label: taken[label] for label in lines}


def colour_of(place: int) -> int:
    """Which of the palette."""
    return place % len(PALETTE)


def dash_of(place: int) -> str:
    """How the line is broken."""
    return DASHES[place // len(PALETTE) % len(DASHES)]


def draw(splits: Splits, path: Path, title: str) -> None:
    """Write a PNG, a row of three charts per split; several seeds become a line of means in a band of one deviation."""
    save(figure_of_rounds(splits), path, title)


def draw_bits(splits: Splits, path: Path, title: str) -> None:
    """Write a PNG, two charts per split: accuracy against the bits per parameter that a client sent, and sent and received."""
    save(figure_of_bits(splits), path, title)


def figure_of_rounds(splits: Splits) -> Figure:
    """Accuracy against rounds, and against the megabytes that went up and down, side by side."""
    from matplotlib.ticker import MaxNLocator

    figure, rows = _layout(splits, 3)
    looks = _looks(splits)
    for row, series in zip(rows, splits.values(), strict=True):
        for one in series:
            _curve(row[0], one.curve(), looks[one.label])
            for axes, field in zip(row[1:], ("up_bytes", "down_bytes"), strict=True):
                _curve_of_sent(axes, one, [field], looks[one.label], unit=1e6)
        _label(row[0], "round")
        row[0].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        for axes, way in zip(row[1:], ("uploaded", "downloaded"), strict=True):
            _label(axes, f"{way} by all clients together, MB (log scale)")
    _legend(figure, inside=len(looks) <= 4 and len(splits) == 1)  # more would hide the curves
    return figure


def figure_of_bits(splits: Splits) -> Figure:
    """Accuracy against bits per parameter."""
    figure, rows = _layout(splits, 2)
    looks = _looks(splits)
    for row, series in zip(rows, splits.values(), strict=True):
        for one in series:
            for axes, fields in zip(row, (["up_bpp"], ["up_bpp", "down_bpp"]), strict=True):
                _curve_of_sent(axes, one, fields, looks[one.label])
        for axes, way in zip(row, ("uploaded", "uploaded and downloaded"), strict=True):
            _label(axes, f"{way} by a client, bits per parameter (log scale)")
        low, high = row[0].get_ylim()
        row[0].set_ylim(bottom=max(low, high - _SHOWN))
    _legend(figure, inside=False)
    return figure


def _layout(splits: Splits, columns: int) -> tuple[Figure, npt.NDArray[Any]]:
    """A figure, and its charts: a row for each split."""
    from matplotlib.figure import Figure  # takes a second to import: only when something is drawn

    figure = Figure(figsize=(14, 0.4 + 4 * len(splits)), layout="constrained")
    rows: npt.NDArray[Any] = figure.subplots(len(splits), columns, sharey="row", squeeze=False)
    for row, (split, series) in zip(rows, splits.items(), strict=True):
        measure = series[0].measure if series else "accuracy"
        row[0].set_ylabel(f"{split}\ntest {measure}, %" if len(splits) > 1 else f"test {measure}, %")
    return figure, rows


def _looks(splits: Splits) -> dict[str, dict[str, Any]]:
    """What matplotlib is told of the lines, by label."""
    algorithms = {one.label: one.experiment.algorithm.name for series in splits.values() for one in series}
    return {
        label: {"color": PALETTE[colour_of(place)], "linestyle": dash_of(place), "label": short(label)}
        for label, place in places(algorithms).items()
    }


def _curve_of_sent(axes: Axes, series: Series, fields: list[str], look: dict[str, Any], unit: float = 1.0) -> None:
    """Accuracy over what was sent; centralised training sends nothing."""
    curve = series.curve(*fields)
    if curve.x[0]:
        _curve(axes, curve._replace(x=curve.x / unit), look)


def _curve(axes: Axes, curve: Curve, look: dict[str, Any]) -> None:
    x, mean, std = curve
    axes.plot(x, mean, linewidth=1.8, marker="o" if len(x) == 1 else None, **look)  # one round alone would be no line
    if std is not None:
        axes.fill_between(x, mean - std, mean + std, color=look["color"], alpha=0.15, linewidth=0)


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


def save(figure: Figure, path: Path, title: str = "", dpi: int = 110) -> None:
    """Write a figure as a PNG."""
    if title:
        figure.suptitle(title)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=dpi)
    with writing(path.parent):
        write_atomic(path, picture.getvalue())


def title(experiment: Experiment) -> str:
    """What stands above an experiment's picture: the data and how it is split."""
    parameters = "".join(f", {key}={value}" for key, value in experiment.partition.parameters.items())
    names = f"{short(experiment.dataset.name)}, {short(experiment.partition.name)}"
    return f"{names}{parameters}, {counted(experiment.clients, 'client')}"
