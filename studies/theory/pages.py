"""The findings and the misprints, on a terminal and on a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from bifl.files import write_atomic, writing
from bifl.show.tables import NAME, NUMBER, TEXT, Column, Table
from studies.markdown import markdown
from studies.theory.findings import Finding
from studies.theory.misprints import MISPRINTS

_COUNTS = ("claim", "cases", "conditions met", "violations", "verdict")
_STATEMENTS = ("claim", "says", "broken by")
_MISPRINTS = ("where", "printed", "meant", "seen by")
PAGE = "theory.md"


def table(findings: Iterable[Finding]) -> Table:
    """One row per claim."""
    kinds = {"claim": NAME, "verdict": TEXT}
    return Table([Column(word.replace(" ", "\n"), kinds.get(word, NUMBER)) for word in _COUNTS], _counted(findings))


def statement_table(findings: Iterable[Finding]) -> Table:
    """What the claims say, and what breaks those that are false."""
    return _words(_STATEMENTS, _stated(findings))


def misprint_table() -> Table:
    """Where the paper says something else than it means."""
    return _words(_MISPRINTS, MISPRINTS, "misprints")


def _words(headings: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> Table:
    return Table([Column(heading, TEXT) for heading in headings], rows, title)


def write(findings: list[Finding], about: str, pictures: list[Path], folder: Path) -> Path:
    """The same tables as a page, with the pictures that lie beside it."""
    parts = [
        "# The paper's theory on random quadratics",
        about,
        markdown(_words(_COUNTS, _counted(findings))),
        markdown(statement_table(findings)),
        "## Misprints",
        markdown(misprint_table()),
        "## Pictures",
        *(f"![{picture.stem}]({picture.name})" for picture in pictures),
    ]
    with writing(folder):
        write_atomic(folder / PAGE, "\n\n".join(parts) + "\n")
    return folder / PAGE


def _counted(findings: Iterable[Finding]) -> list[list[str]]:
    return [[one.claim, *(f"{count:,}" for count in (one.cases, one.applicable, one.violations)), one.verdict] for one in findings]


def _stated(findings: Iterable[Finding]) -> list[list[str]]:
    rows: list[list[str]] = []
    before = ""
    for one in findings:
        rows.append([one.claim, one.statement, "as above" if one.counterexample == before != "" else one.counterexample])
        before = one.counterexample
    return rows
