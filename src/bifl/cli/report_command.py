"""`bifl report`: a page of finished runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bifl.cli.parser import Commands, Parser, add_command
from bifl.errors import printable
from bifl.files import size


def add(commands: Commands[Parser]) -> None:
    """Declare it."""
    command = add_command(
        commands, "report", report, help="make a page of finished runs",
        description="Tables and interactive charts of runs, beside the paper's values, in one HTML file that needs no network.",
    )  # fmt: skip
    command.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="run folders, comparisons, or folders of such: runs")
    command.add_argument("-o", "--out", type=Path, metavar="FILE", default=Path("report.html"), help="default: report.html")


def report(options: argparse.Namespace) -> int:
    """Finished runs as one HTML file."""
    from bifl.report import page
    from bifl.report.summary import settings
    from bifl.runs.results import read
    from bifl.show.output import console, say

    runs = read(options.runs)
    for problem in runs.unreadable:
        print(f"bifl: left out: {printable(problem)}", file=sys.stderr)
    page.write(settings(runs.results), options.out)
    say(console(), f"report: {options.out} ({size(options.out.stat().st_size)})")
    return 0
