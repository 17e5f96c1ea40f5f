"""The charts, as plotly.js takes them. Colours are the page's CSS variables: script.js looks them up, for light, dark and paper.

>>> from bifl.report.charts import key
>>> key(0), key(8)
('solid var(--series-1)', 'dashed var(--series-2)')
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from bifl.core import rules
from bifl.report.summary import printed
from bifl.runs.record import SURENESS_BINS, Record
from bifl.runs.results import Curve, Series, Spread
from bifl.show.plot import PALETTE, Chart, colour_of, dash_of

Figure = dict[str, Any]
Trace = dict[str, Any]
_BARE: Mapping[str, Any] = MappingProxyType({})  # an axis of which there is nothing to say
_FONT = {"color": "var(--soft-ink)", "size": 12}
_PLOTLY = {"dashed": "dash", "dotted": "dot"}  # other names for dashes
_CSS = {"dashdot": "double"}  # what CSS has instead
FEW = 12  # rounds or clients: so few that every one is written on the axis
SNAPSHOTS = 4  # rounds of which the votes are shown
EMPTY, FULL = "var(--heat-0)", "var(--heat-1)"


def key(place: int) -> str:
    """How a line looks, for the tables: a CSS border."""
    dash = dash_of(place)
    return f"{_CSS.get(dash, dash)} {_colour(place)}"


def accuracy(series: list[Series], places: dict[str, int], chart: Chart) -> Figure:
    """Test accuracy over the rounds, with the paper's values at the end, or over what was sent, if anything was."""
    shown = [one for one in series if one.sends or not chart.sent]
    traces = [trace for one in shown for trace in _curves(one.label, one.curve(*chart.sent), chart.unit, places[one.label])]
    end = max(one.rounds for one in series)
    of_paper = {one.label: value for one in series if not chart.sent and (value := printed(one))}
    traces += [_printed(label, value, places[label], end * (1.02 + n / 100)) for n, (label, value) in enumerate(of_paper.items())]
    x = {"type": "log", "dtick": _labels([value for trace in traces for value in trace["x"]])} if chart.sent else _each(end)
    y = {"range": _accuracies(series)}
    return _figure(traces, chart.across, f"{series[0].full_measure}, %", x, y, showlegend=not chart.sent)


def _labels(values: Sequence[float | None]) -> int | str:
    """What a logarithmic axis labels: powers of ten, 2 and 5 of them too, or every digit, the shorter it is the more."""
    sent = [value for value in values if value]
    decades = math.log10(max(sent) / min(sent)) if sent else 0.0
    return 1 if decades > 3 else "D2" if decades > 0.7 else "D1"


def flips(records: list[Record]) -> Figure:
    """The share of signs that change per round, by layer where that was recorded."""
    rounds = [record.round for record in records]
    layers = [record.layer_flips for record in records if record.layer_flips is not None]
    recorded = layers[0] if len(layers) == len(records) else ()
    lines = {name: [layer.get(name, 0.0) for layer in layers] for name in recorded}
    lines["all layers"] = [record.flips for record in records]
    traces = [_line(rounds, [100 * share for share in shares], name, place) for place, (name, shares) in enumerate(lines.items())]
    traces[-1]["line"] |= {"dash": "dot", "color": _colour(len(PALETTE) - 1)}
    y = {"rangemode": "tozero"}
    return _figure(traces, "round", "signs flipped, %", _each(len(rounds)), y, showlegend=len(traces) > 1)


def sureness(records: list[Record]) -> Figure | None:
    """How sure the votes were, in a few rounds from the first to the last; None where no votes were recorded."""
    voted = [record for record in records if record.sureness is not None]
    if not voted:
        return None
    chosen = sorted({round(place) for place in np.linspace(0, len(voted) - 1, SNAPSHOTS)})
    centres = [(place + 0.5) / SURENESS_BINS for place in range(SURENESS_BINS)]
    traces = [
        {
            "type": "bar", "name": f"round {voted[place].round}", "marker": {"color": f"var(--step-{number + 1})"},
            "x": centres, "y": [_digits(100 * share) for share in voted[place].sureness or ()],
            "hovertemplate": "%{y:.1f} % of the weights<extra>%{fullData.name}</extra>",
        }
        for number, place in enumerate(chosen)
    ]  # fmt: skip
    across, x = "|W̃|: from 0, votes split, to 1, unanimous", {"range": [0, 1], "dtick": 0.2, "showgrid": False}
    return _figure(traces, across, "weights, %", x, showlegend=True, bargap=0.15, bargroupgap=0.05)


def ml_pu(voters: int) -> Figure:
    """ML-PU's r = μ̂/w̄ and û = μ̂/σ̂ by the votes that agree with a client (the paper's Fig. 3), and the paper's fit."""
    agree = np.arange(1.0, voters + 1)
    ratio = rules.exact_ratio(agree, voters)
    fitted = rules.fitted_ratio(agree, voters)
    lines = {"r, exact": ratio, "r, the paper’s fit": fitted, "û, exact": rules.location(ratio)}
    hover = {"hovertemplate": "%{y:.3f} at %{x} votes<extra>%{fullData.name}</extra>"}
    traces = [_line(agree, values, name, place) | hover for place, (name, values) in enumerate(lines.items())]
    traces[1]["line"]["dash"] = "dot"
    return _figure(traces, f"votes of {voters} that agree with a client’s own sign", "factor, or û", showlegend=True)


def partition(counts: npt.NDArray[np.int64]) -> Figure:
    """(clients, classes) images, as a heat map."""
    gap = 1 if len(counts) <= 150 else 0
    legend = {"title": {"text": "images", "side": "right", "font": _FONT}, "thickness": 10, "outlinewidth": 0, "tickfont": _FONT}
    trace = {
        "type": "heatmap", "z": counts.T.tolist(), "zmin": 0, "zmax": int(counts.max()), "xgap": gap, "ygap": gap,
        "colorscale": [[0, EMPTY], [1, FULL]], "colorbar": legend,
        "hovertemplate": "client %{x}, class %{y}: %{z:,} images<extra></extra>",
    }  # fmt: skip
    x, y = {"showgrid": False} | _each(len(counts)), {"showgrid": False, "dtick": 1 if counts.shape[1] <= 12 else 10}
    return _figure([trace], "client", "class", x, y)


def _each(things: int) -> dict[str, Any]:
    """An axis of whole rounds or clients; plotly would write numbers between 1 and 2 on it."""
    return {"dtick": 1} if things <= FEW else {}


def _curves(label: str, curve: Curve, unit: float, place: int) -> list[Trace]:
    """A line of means over seeds, in a band of one deviation where there are several seeds."""
    x, mean, std = curve.x / unit, curve.mean, curve.std
    line = _line(x, mean, label, place)
    if std is None:
        return [line]
    band = _line(np.append(x, x[::-1]), np.append(mean + std, (mean - std)[::-1]), label, place)
    band |= {"fill": "toself", "showlegend": False, "hoverinfo": "skip", "opacity": 0.35}
    band["line"] = {**band["line"], "width": 0, "dash": "solid"}
    del band["hovertemplate"]
    return [band, line]


def _line(x: Iterable[float], y: Iterable[float], name: str, place: int) -> Trace:
    across, up = ([_digits(value) for value in values] for values in (x, y))
    return {
        "type": "scatter", "mode": "lines" if len(across) > 1 else "markers", "name": name, "legendgroup": name,
        "x": across, "y": up,
        "line": {"color": _colour(place), "width": 2, "dash": _PLOTLY.get(dash_of(place), dash_of(place))},
        "hovertemplate": "%{y:.2f} % at %{x:.4~g}<extra>%{fullData.name}</extra>",
    }  # fmt: skip


def _colour(place: int) -> str:
    return f"var(--series-{colour_of(place) + 1})"


def _printed(label: str, value: Spread, place: int, x: float) -> Trace:
    """The paper's mean ± deviation, a little right of the last round."""
    return _line([x], [value.mean], label, place) | {
        "showlegend": False,
        "error_y": {"array": [value.std], "thickness": 1.2, "width": 3, "color": _colour(place)},
        "marker": {"color": _colour(place), "symbol": "diamond", "size": 8},
        "hovertemplate": f"{value} % in the paper<extra>%{{fullData.name}}</extra>",
    }


def _accuracies(series: list[Series]) -> list[float | None]:
    """What the axis shows: everything after the first tenth of the rounds, whose climb would flatten all the rest."""
    values = [100 * r.score for one in series for records in one.runs for r in records[len(records) // 10 :]]
    finite = [value for value in values if math.isfinite(value)]
    of_paper = [value for one in series if (value := printed(one))]
    finite += [bound for value in of_paper for bound in (value.mean - (value.std or 0.0), value.mean)]
    low, high = min(finite, default=0.0), max(finite, default=100.0)
    margin = max(0.5, (high - low) / 20)
    return [_digits(max(0.0, low - margin)), _digits(min(100.0, high + margin))]


def _figure(
    traces: list[Trace], across: str, up: str, x: Mapping[str, Any] = _BARE, y: Mapping[str, Any] = _BARE, **more: Any
) -> Figure:
    """Traces in a layout; `x` and `y` say more of the axes, `more` of all."""
    lines = {"gridcolor": "var(--line)", "linecolor": "var(--line)", "zeroline": False}
    axis = {**lines, "ticks": "", "automargin": True, "tickfont": _FONT}
    layout = {
        "xaxis": {**axis, "title": {"text": across, "font": _FONT, "standoff": 10}, **x},
        "yaxis": {**axis, "title": {"text": up, "font": _FONT, "standoff": 8}, **y},
        "showlegend": False,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {**_FONT, "color": "var(--ink)"}},
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "uirevision": "kept",
        "hoverlabel": {"bgcolor": "var(--card)", "bordercolor": "var(--line)", "font": {"color": "var(--ink)"}},
    }  # fmt: skip
    return {"data": traces, "layout": layout | more}


def _digits(value: float) -> float | None:
    """Five digits are more than a screen shows, and half the bytes; a gap where nothing was measured."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
