"""One algorithm has one colour, in the report and in all pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bifl.core.algorithm import register
from bifl.report import charts
from bifl.show import plot
from bifl.show.colours import ALGORITHMS, PALETTE, places
from tests.report.test_report import result


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


@pytest.mark.parametrize("drawn", [plot.draw, plot.draw_bits])
def test_a_pictures_colours_are_the_reports(drawn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = list[Any]()
    monkeypatch.setattr(plot, "_save", lambda figure, path, title: figures.append(figure))
    runs = [result().records]
    drawn({"": {"up_down+beta=1": runs, "/home/me/own.py:mine": runs, "FA": runs}}, tmp_path / "x.png", "", {"FA": "fedavg"})
    lines = {line.get_label(): line.get_color() for line in figures[0].axes[0].lines}
    assert {label: lines[label] for label in ("up_down+beta=1", "FA")} == {"up_down+beta=1": PALETTE[4], "FA": PALETTE[0]}
    assert "mine" in lines
