"""What a person sees in the terminal: the progress bar and the tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from bifl.registry import short
from bifl.runs.comparison import Summary
from bifl.runs.record import Record
from bifl.show.inspect import FileContents

PLAIN_WIDTH = 100  # where there is no terminal to ask


def console() -> Console:
    """Standard output; wide enough for the tables where it is a file or a pipe."""
    return _Output(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)


class _Output(Console):
    def on_broken_pipe(self) -> None:
        """The reader (head, less) has seen enough: go on in silence, a training is not thrown away for that."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def size(count: float) -> str:
    """Bytes for people, in powers of ten as links are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}" if count < 1000 else f"{count:.0f} {unit}"


def bar(out: Console, *columns: TextColumn) -> Progress:
    """Progress over rounds, on a terminal only; `columns` stand before the time that is left."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        *columns,
        TimeRemainingColumn(),
        TextColumn("left"),
        console=out,
        disable=not out.is_terminal,
        speed_estimate_period=24 * 3600,  # rounds may take minutes
        transient=True,
    )


class Meter:
    """Live progress over the rounds of one or more runs; on something that is no terminal, a line now and then."""

    def __init__(self, out: Console, total: int) -> None:
        self._out, self._done, self._up, self._down = out, 0, 0, 0
        self._bar = bar(out, TextColumn("{task.fields[numbers]}", markup=False))
        self._task = self._bar.add_task("starting", total=total, numbers="")

    @contextmanager
    def running(self) -> Iterator[Meter]:
        """Show it."""
        with self._bar:
            yield self

    def begin(self, label: str, past: list[Record]) -> None:
        """A run begins, or goes on after its past rounds; bytes count per run."""
        self._label = label
        self._up, self._down = sum(r.up_bytes for r in past), sum(r.down_bytes for r in past)
        self._done += len(past)
        if past:  # they took no time now, so they must not count for the time left
            self._bar.reset(self._task, completed=self._done, description=label, numbers="")
        else:
            self._bar.update(self._task, description=label, numbers="")

    def show(self, record: Record, rounds: int) -> None:
        """A round is done."""
        self._up, self._down = self._up + record.up_bytes, self._down + record.down_bytes
        sent = f"↑ {size(self._up)}  ↓ {size(self._down)}"
        numbers = f"{_named(record)}{record.score:6.2%}  loss {record.loss:.3f}  {sent}{_people(record)}"
        self._done += 1
        self._bar.update(self._task, completed=self._done, numbers=numbers)
        if not self._out.is_terminal and (record.round == rounds or record.round % max(1, rounds // 10) == 0):
            self._out.print(f"{self._label}  round {record.round}/{rounds}  {numbers}  {record.seconds:.1f} s")

    def note(self, text: str) -> None:
        """Something happened between two rounds."""
        self._out.print(text, soft_wrap=True)


def _named(record: Record) -> str:
    """The metric's name where it is not accuracy."""
    return "" if record.measure == "accuracy" else f"{record.measure} "


def _people(record: Record) -> str:
    """How the clients fare, where that is known, and what was wrong with them, if anything was."""
    shares = [record.clients_mean, record.clients_p10, record.clients_worst]
    text = "" if None in shares else "  clients " + " / ".join(f"{share:.1%}" for share in shares if share is not None)
    return text + "".join(f"  {count} {what}" for what in ("refused", "missing") if (count := getattr(record, what)))


def run_table(records: list[Record], model: Path) -> Table:
    """What a run achieved and cost."""
    last, best = records[-1], max(records, key=lambda record: record.score)
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_row(last.measure, f"{last.score:.2%} after round {last.round} (best {best.score:.2%}, round {best.round})")
    others = {name: value for name, value in (last.metrics or {}).items() if name != last.measure}
    if others:
        table.add_row("also", ", ".join(f"{name} {value:.4g}" for name, value in others.items()))
    if last.clients_mean is not None and last.clients_p10 is not None and last.clients_worst is not None:
        share = f"mean {last.clients_mean:.2%}, 10th percentile {last.clients_p10:.2%}, worst {last.clients_worst:.2%}"
        table.add_row("clients", f"{share} on their held-out samples")
    table.add_row("loss", f"{last.loss:.4f} test, {last.train_loss:.4f} train")
    table.add_row("uploaded", _traffic([(r.up_bytes, r.up_bpp, r.up_ideal_bpp) for r in records]))
    table.add_row("downloaded", _traffic([(r.down_bytes, r.down_bpp, r.down_ideal_bpp) for r in records]))
    table.add_row("time", f"{sum(r.seconds for r in records):.1f} s in {len(records)} rounds")
    refused, missing, catch_up = (sum(getattr(r, name) for r in records) for name in ("refused", "missing", "catch_up_bytes"))
    if refused or missing or catch_up:
        table.add_row("left out", f"{refused} uploads refused, {missing} missing; {size(catch_up)} sent to catch up")
    table.add_row("model", f"{model} ({size(model.stat().st_size)})")
    return table


def _traffic(rounds: list[tuple[int, float, float | None]]) -> str:
    sizes, bits, ideals = zip(*rounds, strict=True)
    beside = "" if None in ideals else f", {mean(ideals):.3f} if coded ideally"
    return f"{size(sum(sizes))} by all clients; per round and parameter {mean(bits):.3f} bit{beside}"


def comparison_table(summaries: list[Summary], rounds: int, seeds: int) -> Table:
    """One row per algorithm."""
    over = f", mean ± std of {seeds} seeds" if seeds > 1 else ""
    table = Table(box=box.SIMPLE_HEAD, title=f"after {rounds} rounds{over}", title_justify="left", title_style="bold")
    measure = summaries[0].measure if summaries else "accuracy"
    headings = (
        "algorithm", f"{measure}\n%", "best\n%", "bytes\nup", "bytes\ndown", "bit/param\nup", "bit/param\ndown", "time\ns",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "algorithm" else "right", no_wrap=True)
    for row in summaries:
        deviation = "" if row.deviation is None else f" ± {100 * row.deviation:.2f}"
        table.add_row(
            short(row.label),
            f"{100 * row.accuracy:.2f}{deviation}",
            f"{100 * row.best:.2f}",
            size(row.up_bytes),
            size(row.down_bytes),
            f"{row.up_bpp:.3f}",
            f"{row.down_bpp:.3f}",
            f"{row.seconds:.1f}",
        )
    return table


def contents_tables(contents: FileContents, name: str) -> Iterator[Table]:
    """What a message or a model file says: facts, sections, layers."""
    facts = Table(box=box.SIMPLE, show_header=False, title=name, title_justify="left", title_style="bold")
    for key, value in contents.facts.items():
        facts.add_row(key, value)
    yield facts
    sections = Table("section", box=box.SIMPLE_HEAD)
    for heading in ("bytes", "share", *(["bit/param"] if contents.parameters else [])):
        sections.add_column(heading, justify="right")
    whole = sum(contents.sections.values())
    for key, count in (contents.sections | {"whole file": whole}).items():
        bits = [f"{8 * count / contents.parameters:.4f}"] if contents.parameters else []
        sections.add_row(key, f"{count:,}", f"{count / whole:.1%}", *bits)
    yield sections
    if not contents.layers:
        return
    layers = Table("weights of", box=box.SIMPLE_HEAD)
    for heading in ("shape", "weights", "bytes", "bit/weight"):
        layers.add_column(heading, justify="right")
    for layer in contents.layers:
        shape = "×".join(map(str, layer.shape))
        layers.add_row(layer.name, shape, f"{layer.weights:,}", f"{layer.bits / 8:,.0f}", f"{layer.bits / layer.weights:.4f}")
    yield layers


def choices_table(kind: str, rows: Mapping[str, tuple[Mapping[str, Any], str]]) -> Table:
    """Everything a key can be set to: name, parameters with their defaults, what it is."""
    table = Table(box=box.SIMPLE, show_header=False, title=kind, title_style="bold", padding=(0, 1), expand=True)
    table.title_justify = "left"
    for heading in ("name", "parameters", "about"):
        table.add_column(heading, no_wrap=heading == "name", overflow="fold", ratio={"about": 3, "parameters": 2}.get(heading))
    for name, (parameters, about) in rows.items():
        table.add_row(name, " ".join(f"{key}={value}" for key, value in parameters.items()), about)
    return table
