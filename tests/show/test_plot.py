"""One algorithm has one colour, in the report and in all pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bifl.core.algorithm import register
from bifl.report import charts
from bifl.show import plot
from bifl.show.plot import ALGORITHMS, PALETTE, places
from tests.report.test_report import result
from tests.support.series import series


def test_an_algorithm_has_one_colour_in_all_pictures() -> None:
    """Whatever stands beside it, in the report and in the pictures of `bifl compare` and `bifl reproduce`."""
    assert set(ALGORITHMS) <= set(register.names())  # a new one takes a free place until it has its own
    assert len(set(ALGORITHMS)) == len(ALGORITHMS)
    usual = ["fedavg", "murmur", "full", "biml", "up_down"]
    assert len({charts.key(place) for place in places(dict(zip(usual, usual, strict=True))).values()}) == len(usual)
    for beside in (["up_down"], ["fedavg", "murmur"], ["biml_fit", "qsgd"]):
        lines = {name: name for name in [*beside, "biml"]}
        assert places(lines)["biml"] == places({"biml": "biml"})["biml"]
    assert places({"BiFL-BiML": "biml"}) == {"BiFL-BiML": places({"biml": "biml"})["biml"]}
    variants = places({"biml alpha=3": "biml", "biml": "biml", "mine": "mine.py:biml"}, {"mine": 4})
    assert variants["biml"] == places({"biml": "biml"})["biml"]
    assert len(set(variants.values())) == 3
    assert variants["mine"] == 4  # as in the picture before


@pytest.mark.parametrize("across", [plot.ROUNDS, plot.BITS])
def test_a_pictures_colours_are_the_reports(across: Any, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    imports = "from bifl.core import register\nfrom bifl.algorithms.paper import up_down\n"
    file.write_text(f"{imports}@register\ndef mine(): return up_down()\n")
    runs = {"up_down+beta=1": "up_down", f"{file}:mine": f"{file}:mine", "FA": "fedavg"}
    figure = plot.figure_of({"": [series(label, result().records, algorithm=name) for label, name in runs.items()]}, across)
    lines = {line.get_label(): line.get_color() for line in figure.axes[0].lines}
    assert {label: lines[label] for label in ("up_down+beta=1", "FA")} == {"up_down+beta=1": PALETTE[4], "FA": PALETTE[0]}
    assert "mine" in lines


def test_a_dash_is_the_same_in_pictures_and_in_the_report() -> None:
    names = {"fedavg": "fedavg", "eden": "eden", "qsgd": "qsgd", "top_k": "top_k"}
    look = places(names)
    axes = plot.figure_of({"": [series(name, result().records, algorithm=name) for name in names]}).axes[0]
    assert {line.get_label(): line.get_linestyle() for line in axes.lines} == dict(zip(names, ("-", "--", ":", "-."), strict=True))
    assert [charts.key(look[name]).split()[0] for name in names] == ["solid", "dashed", "dotted", "double"]
    lines = [series(name, result().records, algorithm=name) for name in names]
    traces = charts.accuracy(lines, look, plot.ROUNDS[0])["data"]
    assert [trace["line"]["dash"] for trace in traces if "line" in trace] == ["solid", "dash", "dot", "dashdot"]
