"""A study's numbers beside the paper's: as a table for the terminal and for a page, and as a picture."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import mean

from rich import box
from rich.table import Table

from bifl import cells
from bifl.files import write_atomic, writing
from bifl.plot import Curves, draw
from bifl.report.collect import Result
from bifl.report.summary import LAST, Series, Spread, ordering
from bifl.reproduce.runner import Store
from bifl.reproduce.studies import Cell, Study

HEADINGS = ("", "split", "rounds ×\u00a0seeds", f"last {LAST} %", "best %", "paper %", "differ- ence", "bit up", "bit down")


class Line:
    """A cell with all of its seeds."""

    def __init__(self, cell: Cell, results: list[Result]) -> None:
        self.cell = cell
        self.series = Series(cell.row, results)

    def texts(self) -> list[str]:
        """What stands in the table."""
        series = self.series
        printed, final = series.printed, series.final()
        paper = ["–", "–"] if printed is None else [f"{printed.mean:.2f} ± {printed.std:.2f}", f"{final.mean - printed.mean:+.2f}"]
        bits = [f"{series.average(way):.3f}" if series.average(way) else "–" for way in ("up_bpp", "down_bpp")]
        counts = f"{series.rounds} × {len(series.runs)}"
        return [self.cell.row, self.cell.column, counts, _text(final), _text(series.best()), *paper, *bits]


def collect(store: Store, study: list[Cell], seeds: Iterable[int]) -> list[Line]:
    """What is known of a study; cells of which nothing is are left out."""
    lines = []
    for cell in study:
        experiments = [cell.experiment.changed({"seed": seed}) for seed in seeds]
        results = [Result(cells.name(one), one, records) for one in experiments if (records := store.known(one))]
        if results:
            lines.append(Line(cell, results))
    return lines


def remarks(lines: list[Line]) -> list[str]:
    """What the table does not show: whether the paper's order holds, and what switching costs a hybrid."""
    said = []
    for column in dict.fromkeys(line.cell.column for line in lines):
        series = [
            line.series._replace(label=line.cell.experiment.algorithm.name)
            for line in lines
            if line.cell.column == column and line.series.experiment.algorithm.parameters.get("beta") != 1
        ]
        if len({one.label for one in series}) == len(series) and (sentence := ordering(series)):
            said.append(f"{column}: {sentence}")
    for line in lines:
        switch = line.cell.experiment.algorithm.parameters.get("switch")
        if switch and line.series.rounds > switch:
            before, after = (100 * mean(records[n].accuracy for records in line.series.runs) for n in (switch - 1, switch))
            said.append(f"{line.cell.row}: {before:.2f} % before the switch, {after:.2f} % in the round after it.")
    return said


def table(study: Study, dataset: str, lines: list[Line]) -> Table:
    """For the terminal."""
    title = f"{study.title} ({dataset})"
    shown = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", collapse_padding=True)
    for number, heading in enumerate(HEADINGS):
        shown.add_column(heading.replace(" ", "\n"), justify="left" if number < 2 else "right", no_wrap=True)
    for line in lines:
        shown.add_row(*line.texts())
    return shown


def write(name: str, study: Study, dataset: str, lines: list[Line], folder: Path) -> list[Path]:
    """A page and a picture of a study: `table1-mnist.md`, `table1-mnist.png`."""
    page, picture = folder / f"{name}-{dataset}.md", folder / f"{name}-{dataset}.png"
    rows = [
        [heading.replace("- ", "") for heading in HEADINGS],
        ["---"] * 2 + ["---:"] * (len(HEADINGS) - 2),
        *(line.texts() for line in lines),
    ]
    text = [f"# {study.title} ({dataset})", "", f"`bifl reproduce {name} dataset={dataset}`", ""]
    text += ["| " + " | ".join(row) + " |" for row in rows]
    text += ["", *(f"- {remark}" for remark in remarks(lines)), "", f"![accuracy against rounds and megabytes]({picture.name})"]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(page, "\n".join(text) + "\n")
    splits: dict[str, Curves] = {line.cell.column: {} for line in lines}
    for line in lines:
        splits[line.cell.column][line.cell.row] = line.series.runs
    draw(splits, picture, f"{study.title} ({dataset})")
    return [page, picture]


def _text(spread: Spread) -> str:
    return f"{spread.mean:.2f}" if spread.std is None else f"{spread.mean:.2f} ± {spread.std:.2f}"
