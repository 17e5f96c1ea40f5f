"""The findings and the misprints on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.table import Table

from bifl.theory.findings import Finding
from bifl.theory.misprints import MISPRINTS


def table(findings: Iterable[Finding]) -> Table:
    """One row per claim; below it, what it says and what breaks it."""
    shown = Table(box=box.SIMPLE_HEAD)
    for heading in ("claim", "cases", "conditions met", "violations", "verdict"):
        number = heading in ("cases", "conditions met", "violations")
        shown.add_column(heading.replace(" ", "\n"), justify="right" if number else "left", no_wrap=number)
    for finding in findings:
        lines = [finding.claim, f"  {finding.statement}"]
        if finding.counterexample:
            lines.append(f"  ✗ {finding.counterexample}")
        counts = (f"{count:,}" for count in (finding.cases, finding.applicable, finding.violations))
        shown.add_row("\n".join(lines), *counts, finding.verdict)
    return shown


def misprint_table() -> Table:
    """Where the paper says something else than it means."""
    shown = Table(
        "where", "printed", "meant", "seen by", box=box.SIMPLE_HEAD, title="misprints", title_justify="left", title_style="bold"
    )
    for misprint in MISPRINTS:
        shown.add_row(*misprint)
    return shown
