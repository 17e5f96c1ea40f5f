"""How algorithms differ, with intervals over seeds: for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from rich.console import Console

from bifl.registry import short
from bifl.runs.differences import Difference, differences, interval, no_interval, reference, remark
from bifl.runs.results import Series
from bifl.show.output import say
from bifl.show.tables import NAME, TEXT, Column, Table


def show_differences(out: Console, series: Sequence[Series], against: str | None, margin: float) -> None:
    """A row for each algorithm but the one that the others are compared with; a sentence where no seeds can tell."""
    other = series[reference([one.label for one in series], against)]
    found = differences(series, other, margin)
    if sentence := no_interval(found, other.label):
        say(out, sentence)
        return
    columns = [Column("algorithm", NAME), Column("points"), Column("95 % interval"), Column("seeds"), Column("that is", TEXT)]
    rows = [[short(one.label), *cells(one)] for one in found]
    out.print(Table(columns, rows, f"difference to {short(other.label)}", remark(found, other.rounds)))


def cells(one: Difference) -> list[str]:
    """Mean difference, its interval, how many seeds, and what they say."""
    where = interval(one.points)
    mean = f"{fmean(one.points):+.2f}" if one.points else "–"
    return [mean, f"{where.low:+.2f} … {where.high:+.2f}" if where else "–", str(len(one.points)), one.verdict]
