"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Iterable[str]], *, left: int | None = None) -> str:
    r"""The first `left` columns, usually all, are aligned to the left and the others to the right.

    >>> print(table(["", "|x|"], [["2 * 3", "6"]], left=1))
    |  | \|x\| |
    | --- | ---: |
    | 2 \* 3 | 6 |
    """
    left = len(headings) if left is None else left
    rule = ["---" if number < left else "---:" for number in range(len(headings))]
    return "\n".join("| " + " | ".join(map(_escaped, row)) + " |" for row in [headings, rule, *rows])


def _escaped(text: str) -> str:
    """Signs that Markdown would take for its own."""
    return text.replace("|", "\\|").replace("*", "\\*")
