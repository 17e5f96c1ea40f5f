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
from collections.abc import Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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


class Chart(NamedTuple):
    """What accuracy is drawn against: rounds, or what was sent."""

    across: str
    sent: tuple[str, ...] = ()  # numbers of a record, added up; none for rounds
    unit: float = 1.0


_ALL, _ONE = "by all clients together, MB", "by a client, bits per parameter"
ROUNDS = (Chart("round"), Chart(f"uploaded {_ALL}", ("up_bytes",), 1e6), Chart(f"downloaded {_ALL}", ("down_bytes",), 1e6))
BITS = (Chart(f"uploaded {_ONE}", ("up_bpp",)), Chart(f"uploaded and downloaded {_ONE}", ("up_bpp", "down_bpp")))


def draw(splits: Splits, path: Path, title: str, charts: Sequence[Chart] = ROUNDS) -> None:
    """Write a PNG, a row of charts per split; several seeds become a line of means in a band of one deviation."""
    save(figure_of(splits, charts), path, title)


def figure_of(splits: Splits, charts: Sequence[Chart] = ROUNDS) -> Figure:
    """Accuracy against each of these, side by side."""
    from matplotlib.figure import Figure  # takes a second to import: only when something is drawn

    figure = Figure(figsize=(14, 0.4 + 4 * len(splits)), layout="constrained")
    rows: npt.NDArray[Any] = figure.subplots(len(splits), len(charts), sharey="row", squeeze=False)
    taken = places({one.label: one.experiment.algorithm.name for series in splits.values() for one in series})
    for row, (split, series) in zip(rows, splits.items(), strict=True):
        axis = series[0].full_measure if series else "test accuracy"
        row[0].set_ylabel(f"{split}\n{axis}, %" if len(splits) > 1 else f"{axis}, %")
        for axes, chart in zip(row, charts, strict=True):
            for one in series:
                _curve(axes, one.curve(*chart.sent), chart.unit, short(one.label), taken[one.label])
            _label(axes, chart)
        if charts[0].sent:
            low, high = row[0].get_ylim()
            row[0].set_ylim(bottom=max(low, high - _SHOWN))
    if len(taken) <= 4 and len(splits) == 1 and not charts[0].sent:  # more would hide the curves
        figure.axes[0].legend(frameon=False)
    else:
        handles = {label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False)
    return figure


def _curve(axes: Axes, curve: Curve, unit: float, label: str, place: int) -> None:
    x, mean, std = curve
    if not x[0]:  # centralised training sends nothing
        return
    colour, marker = PALETTE[colour_of(place)], "o" if len(x) == 1 else None  # one round alone would be no line
    axes.plot(x / unit, mean, linewidth=1.8, marker=marker, color=colour, linestyle=dash_of(place), label=label)
    if std is not None:
        axes.fill_between(x / unit, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)


def _label(axes: Axes, chart: Chart) -> None:
    """Name the axis across; where it is logarithmic give it a few labels, however short it is."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    axes.set_xlabel(f"{chart.across} (log scale)" if chart.sent else chart.across)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if not chart.sent:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        return
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    decades = np.log10(high / low)
    if decades < 1:
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=(1, 2, 5, 10), min_n_ticks=3))
    else:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 3 else (1.0,)))
    axes.xaxis.set_major_formatter("{x:g}")  # 0.1, 1, 10 rather than powers
    axes.xaxis.set_minor_formatter(NullFormatter())


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
