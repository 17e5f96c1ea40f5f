"""A study's numbers beside the paper's: as a table for the terminal and for a page, as a picture, and for the report."""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan
from pathlib import Path
from typing import NamedTuple

from bifl.experiment.settings import Experiment
from bifl.files import write_atomic, writing
from bifl.report import paper_values
from bifl.report.remarks import made_by, ordering, other_data, seldom, switches
from bifl.report.summary import Setting, about, idealised, megabytes, printed
from bifl.runs.results import LAST, Series, Spread, grouped
from bifl.show.plot import BITS, draw
from bifl.show.tables import NUMBER, SPREAD, TEXT, Column, Table
from studies.cells import STUDIES, Cell
from studies.cells import cells as cells_of
from studies.markdown import markdown
from studies.runner import Store

HEADINGS = {
    "": "",
    "split": "split",
    "rounds × seeds": "rounds\n×seeds",
    f"last {LAST} rounds, %": f"last\n{LAST}, %",
    "best round, %": "best,\n%",
    "paper, %": "paper,\n%",
    "difference, points": "diff.",
    "bit/param up": "bit\nup",
    "bit/param down": "bit\ndown",
}
"""On a page, and in a terminal, where there is less room."""
STAND_INS = {("unipen", "iid"): "femnist-iid", ("unipen", "by_user"): "femnist-noniid"}
"""Dataset and partition, and the preset of the paper's that they are nearest to: other data, so no more than a hint."""
WIDE_HEADINGS = ("MB a round, up / down", "as the paper counts")  # of pages only
_WORDS, _SPLIT = 2, 1  # columns before the numbers, and which of them is the split
_DEVIATE = (3, 4, 5)  # columns of means with a deviation


class Line(NamedTuple):
    """A cell with all of its seeds."""

    cell: Cell
    series: Series

    def texts(self) -> list[str]:
        """What stands below `HEADINGS`."""
        series = self.series
        of_paper, final = printed(series), series.final()
        difference = "–" if of_paper is None or isnan(final.mean) else f"{final.mean - of_paper.mean:+.2f}".replace("-", "−")
        paper = str(of_paper or "–")
        bits = [f"{series.average(way):.3f}" if series.sends else "–" for way in ("up_bpp", "down_bpp")]
        fewer = f" of {len(series.results)}" if len(series.runs) < len(series.results) else ""
        short = f" of {series.planned}" if series.rounds < series.planned else ""
        counts = f"{series.rounds}{short} × {len(series.runs)}{fewer}"
        return [self.cell.row, self.cell.column, counts, str(final), str(series.best()), paper, difference, *bits]

    def wide_texts(self) -> list[str]:
        """What stands below all headings of a page."""
        ways = [megabytes(self.series) if self.series.sends else None, idealised(self.series)]
        return self.texts() + ["–" if way is None else f"{way[0]:.2f} / {way[1]:.2f}" for way in ways]


class Shown(NamedTuple):
    """What is known of a study on a dataset."""

    study: str
    dataset: str
    rounds: int | None  # instead of the study's own
    lines: list[Line]
    cells: int  # that the study has; lines there are of those of which something is known

    @classmethod
    def of(cls, store: Store, study: str, dataset: str, rounds: int | None, seeds: Iterable[int]) -> Shown:
        """Of these seeds, and of all that are kept."""
        found = cells_of(study, dataset, rounds)
        return cls(study, dataset, rounds, _collect(store, found, seeds), len(found))

    @property
    def title(self) -> str:
        """For people."""
        return f"{STUDIES[self.study].title} ({self.dataset})"

    @property
    def name(self) -> str:
        """For files: studies of a length of their own do not replace the others."""
        return "-".join([self.study, self.dataset, *([f"{self.rounds}-rounds"] if self.rounds else [])])

    @property
    def command(self) -> str:
        """What makes it."""
        seeds = sorted({result.experiment.seed for line in self.lines for result in line.series.results})
        words = ["bifl reproduce", self.study, f"dataset={self.dataset}"]
        words += [f"seeds={','.join(map(str, seeds))}"] if seeds != [0] else []
        return " ".join([*words, *([f"rounds={self.rounds}"] if self.rounds else [])])

    def columns(self) -> dict[str, list[Series]]:
        """The experiments of each split."""
        columns = grouped(self.lines, lambda line: line.cell.column)
        return {column: [line.series for line in lines] for column, lines in columns.items()}

    def settings(self) -> list[Setting]:
        """For the report: one per split."""
        columns = self.columns()
        return [
            Setting(
                f"{self.title}: {column}" if len(columns) > 1 else self.title, about([one.experiment for one in series]), series
            )
            for column, series in columns.items()
        ]

    def remarks(self) -> list[str]:
        """What the table does not show."""
        missing = self.cells - len(self.lines)
        unknown = [f"Yet to be run: {missing} of {self.cells} rows."] if missing else []
        every = [line.series for line in self.lines]
        by_column = [
            f"{column}: {remark}"
            for column, series in self.columns().items()
            for remark in (ordering(series), *switches(series))
            if remark
        ]
        return [*other_data(every), *unknown, *seldom(every), *by_column, *_stand_in(every), *([made_by(every)] if every else [])]

    def table(self) -> Table:
        """For the terminal."""
        rows = [[text.replace(" × ", "×") for text in line.texts()] for line in self.lines]
        told = [number for number in range(len(HEADINGS)) if number != _SPLIT or len(self.columns()) > 1]
        headings = list(HEADINGS.values())
        kinds = [TEXT if number < _WORDS else SPREAD if number in _DEVIATE else NUMBER for number in told]
        columns = [Column(headings[number], kind) for number, kind in zip(told, kinds, strict=True)]
        some = ", as far as they were evaluated" * any(line.series.averaged is not None for line in self.lines)
        caption = f"last {LAST}: mean of the last {LAST} rounds, or of all{some}; bit: per parameter"
        return Table(columns, [[row[number] for number in told] for row in rows], self.title, caption)

    def page(self) -> str:
        """In Markdown, with the picture that `write` puts beside it."""
        columns = [Column(heading, TEXT if n < _WORDS else NUMBER) for n, heading in enumerate([*HEADINGS, *WIDE_HEADINGS])]
        numbers = markdown(Table(columns, [line.wide_texts() for line in self.lines]))
        lines = [f"# {self.title}", "", f"`{self.command}`", "", numbers, ""]
        lines += [f"- {remark}" for remark in self.remarks()]
        pictures = [f"![accuracy against rounds and megabytes]({self.name}.png)"]
        pictures += [] if STUDIES[self.study].of_paper else ["", f"![accuracy against bits per parameter]({self.name}-bits.png)"]
        return "\n".join([*lines, "", *pictures]) + "\n"

    def write(self, folder: Path) -> list[Path]:
        """The page and its picture, `table1-mnist.md` and `table1-mnist.png`; another of bits where we go beyond the paper."""
        page, picture = folder / f"{self.name}.md", folder / f"{self.name}.png"
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(page, self.page())
        draw(self.columns(), picture, self.title)
        if STUDIES[self.study].of_paper:
            return [page, picture]
        draw(self.columns(), bits := folder / f"{self.name}-bits.png", self.title, BITS)
        return [page, picture, bits]


def _collect(store: Store, study: list[Cell], seeds: Iterable[int]) -> list[Line]:
    """What is known of a study's cells, for these seeds and all that are kept; cells of which nothing is are left out."""
    lines = []
    for cell in study:
        wanted = sorted({*seeds, *store.seeds(cell.experiment)})
        experiments = [cell.experiment.changed({"seed": seed}) for seed in wanted]
        results = [known for one in experiments if (known := store.result(one)).records]
        if results:
            lines.append(Line(cell, Series(cell.row, results)))
    return lines


def _stand_in(series: list[Series]) -> list[str]:
    """What the paper has where it used other data of the same kind."""
    known = {one.label: value for one in series if (value := _beside(one.experiment))}
    figures = ", ".join(f"{label} {value}" for label, value in known.items())
    return [f"This is not FEMNIST, on which the paper has after 100 rounds: {figures} %."] if known else []


def _beside(experiment: Experiment) -> Spread | None:
    """The paper's accuracy on the dataset that an experiment's own stands in for; None if it stands in for none.

    >>> _beside(Experiment.of("unipen-iid", ["algorithm=biml", "algorithm.alpha=1.75", "rounds=25"]))
    Spread(mean=66.19, std=2.83)
    """
    preset = STAND_INS.get((experiment.dataset.name, experiment.partition.name))
    algorithm = paper_values.as_printed(experiment)
    for cell, value in paper_values.CELLS.items():
        if cell.preset == preset and paper_values.experiment_of(cell).algorithm == algorithm:
            return value
    return None
