"""The findings and the misprints on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.table import Table

from bifl.theory.findings import Finding
from bifl.theory.misprints import MISPRINTS


def table(findings: Iterable[Finding]) -> Table:
    """One row per claim."""
    shown = Table(box=box.SIMPLE_HEAD)
    for heading in ("claim", "cases", "conditions\nmet", "violations", "verdict"):
        shown.add_column(heading, justify="left" if heading in {"claim", "verdict"} else "right", no_wrap=True)
    for finding in findings:
        counts = (f"{count:,}" for count in (finding.cases, finding.applicable, finding.violations))
        shown.add_row(finding.claim, *counts, finding.verdict)
    return shown


def statement_table(findings: Iterable[Finding]) -> Table:
    """What the claims say, and what breaks those that are false."""
    shown = Table("claim", "says", "broken by", box=box.SIMPLE_HEAD)
    before = ""
    for finding in findings:
        shown.add_row(
            finding.claim, finding.statement, "as above" if finding.counterexample == before != "" else finding.counterexample
        )
        before = finding.counterexample
    return shown


def misprint_table() -> Table:
    """Where the paper says something else than it means."""
    shown = Table(
        "where", "printed", "meant", "seen by", box=box.SIMPLE_HEAD, title="misprints", title_justify="left", title_style="bold"
    )
    for misprint in MISPRINTS:
        shown.add_row(*misprint)
    return shown
