"""Tables in a terminal, where no number is cut off: where columns do not fit side by side words wrap, then they go on below.

>>> from rich.console import Console
>>> table = Table([Column("algorithm", NAME), Column("up"), Column("down")], [["a long name", "49.3 MB", "12.3 MB"]])
>>> with (screen := Console(width=24)).capture() as shown:
...     screen.print(table)
>>> [line.strip() for line in shown.get().splitlines() if "MB" in line]
['a long name  49.3 MB', 'a long name  12.3 MB']
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rich import box, table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod
from rich.text import Text

NAME, TEXT, NUMBER, SPREAD = "name", "text", "number", "spread"
"""A name folds behind its joints, a text between words, a number not at all, a spread such as 97.75 ±0.08 before its deviation."""
_LONGEST_PIECE = 18  # letters of a name without a joint that stay together
_PIECE = re.compile(r"[^\s._+=:/-]*[\s._+=:/-]*")  # of a name: letters, and the joints behind them


class Column(NamedTuple):
    """A column: what stands above it, how its cells may wrap, what stands below it."""

    heading: str
    kind: str = NUMBER
    footer: str = ""

    @property
    def words(self) -> bool:
        """Whether cells are aligned to the left."""
        return self.kind in (NAME, TEXT)


@dataclass(frozen=True)
class Table:
    """A table. In a terminal the first column is repeated wherever the others go on below."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    title: str = ""
    caption: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[table.Table | Text]:
        """What rich prints."""
        if self.title:
            yield Text(self.title, style="bold")
        every = list(range(len(self.columns)))
        if sum(map(self._natural, every)) + 3 * len(every) + 1 <= options.max_width:
            yield self._table({place: self._natural(place) for place in every})
        else:
            near = replace(self, rows=[[cell.replace("± ", "±") for cell in row] for row in self.rows])
            yield from (near._close(group, options.max_width) for group in near._groups(options.max_width))
        if self.caption:
            yield Text(self.caption, style="dim")

    def _cells(self, place: int) -> list[str]:
        column = self.columns[place]
        return [column.heading, column.footer, *(row[place] for row in self.rows)]

    def _natural(self, place: int) -> int:
        return max(cell_len(line) for cell in self._cells(place) for line in cell.split("\n"))

    def _least(self, place: int) -> int:
        """The width below which a column would be cut."""
        kind = self.columns[place].kind
        if kind == NUMBER:
            return self._natural(place)
        if kind == NAME:
            pieces = [piece.rstrip() for cell in self._cells(place) for piece in _PIECE.findall(cell)]
            return min(max(map(cell_len, pieces)), _LONGEST_PIECE)
        return max(cell_len(word) for cell in self._cells(place) for word in (cell.split() or [""]))

    def _groups(self, width: int) -> list[list[int]]:
        """Columns that stand side by side."""
        groups = [[0]]
        for place in range(1, len(self.columns)):
            if len(groups[-1]) > 1 and _wide(self._least(each) for each in (*groups[-1], place)) > width:
                groups.append([0])
            groups[-1].append(place)
        return groups

    def _close(self, group: list[int], width: int) -> table.Table:
        """Some columns, as near to each other as can be, the widest first made narrower until all fit."""
        widths = {place: self._natural(place) for place in group}
        while _wide(widths.values()) > width and (flexible := [place for place in group if widths[place] > self._least(place)]):
            widths[max(flexible, key=widths.__getitem__)] -= 1
        columns = self._table(widths)
        columns.collapse_padding, columns.pad_edge = True, False
        return columns

    def _table(self, widths: dict[int, int]) -> table.Table:
        columns = table.Table(box=box.SIMPLE_HEAD, show_footer=any(column.footer for column in self.columns))
        for place, width in widths.items():
            column = self.columns[place]
            side: JustifyMethod = "left" if column.words else "right"
            columns.add_column(Text(column.heading), Text(column.footer), justify=side, width=width, overflow="fold")
        for row in self.rows:
            columns.add_row(*(Text(self._folded(row[place], place, width)) for place, width in widths.items()))
        return columns

    def _folded(self, cell: str, place: int, width: int) -> str:
        """A cell in lines that break where its kind may."""
        return "\n".join(folded(cell, width)) if self.columns[place].kind == NAME else cell


def folded(name: str, width: int) -> list[str]:
    """The lines of a name in a narrow column.

    >>> folded("murmur_momentum+group=32", 16)
    ['murmur_momentum+', 'group=32']
    """
    lines = [""]
    for piece in _PIECE.findall(name):
        if lines[-1] and cell_len((lines[-1] + piece).rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]


def _wide(widths: Iterable[int]) -> int:
    """The width of a table of such columns: a letter at either edge, two between columns."""
    every = list(widths)
    return sum(every) + 2 * len(every)


def facts(rows: Iterable[tuple[str, str]], title: str = "") -> table.Table:
    """Names, and what there is to say of each."""
    columns = table.Table(box=box.SIMPLE, show_header=False, title=title or None, title_justify="left", title_style="bold")
    columns.add_column(no_wrap=True)
    columns.add_column(overflow="fold")
    for row in rows:
        columns.add_row(*row)
    return columns
