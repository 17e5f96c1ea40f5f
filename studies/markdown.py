r"""Tables on a page.

>>> from bifl.show.tables import TEXT, Column
>>> print(markdown(Table([Column("", TEXT), Column("|x|")], [["2 * 3", "6"]])))
|  | \|x\| |
| --- | ---: |
| 2 \* 3 | 6 |
"""

from __future__ import annotations

from bifl.show.tables import Table


def markdown(table: Table) -> str:
    """A table in Markdown, without its title, caption and footers."""
    headings = [" ".join(column.heading.split("\n")) for column in table.columns]
    rule = ["---" if column.words else "---:" for column in table.columns]
    rows = [[cell.replace("|", "\\|").replace("*", "\\*") for cell in row] for row in [headings, rule, *table.rows]]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
