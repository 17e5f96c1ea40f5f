"""What a person sees in the terminal: the progress bar and the tables."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from types import MappingProxyType

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from bifl.attacks import attack, liars
from bifl.data.fingerprint import Loaded, sentence
from bifl.experiment.settings import Experiment
from bifl.files import size
from bifl.registry import short
from bifl.robust.credibility import credit
from bifl.runs.folder import CLIENTS
from bifl.runs.record import Record, tested
from bifl.runs.results import TARGETS, Series
from bifl.show.output import counted, say
from bifl.show.tables import NAME, SPREAD, Column, Table, facts


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


_BAR = 36  # letters of a progress bar beside its label and its numbers: the bar itself, rounds, time left


class Meter:
    """Live progress over the rounds of one or more runs; on something that is no terminal, a line now and then."""

    def __init__(self, out: Console, total: int) -> None:
        self._out, self._done, self._up, self._down = out, 0, 0, 0
        self._bar = bar(out, TextColumn("{task.fields[numbers]}", markup=False))
        self._task = self._bar.add_task("starting", total=total, numbers="")
        self._label = ""
        self._tested: Record | None = None  # the last round that was evaluated

    @contextmanager
    def running(self) -> Iterator[Meter]:
        """Show it."""
        with self._bar:
            yield self

    def begin(self, label: str, past: list[Record]) -> None:
        """A run begins, or goes on after its past rounds; bytes count per run."""
        self._label = label
        self._tested = next((record for record in reversed(past) if record.evaluated), None)
        self._up, self._down = sum(r.up_bytes for r in past), sum(r.down_bytes for r in past)
        self._done += len(past)
        change = self._bar.reset if past else self._bar.update  # past rounds took no time now: they must not count for what is left
        change(self._task, completed=self._done, description=label, numbers="")

    def show(self, record: Record, rounds: int) -> None:
        """A round is done."""
        self._up, self._down = self._up + record.up_bytes, self._down + record.down_bytes
        self._tested = record if record.evaluated else self._tested
        score, loss = _tested(self._tested, record.round)
        sent = f"↑ {size(self._up)}  ↓ {size(self._down)}"
        numbers = f"{score}{loss}  {sent}{_people(record)}"
        self._done += 1
        room = self._out.width - _BAR - len(self._label)
        shown = next((text for text in (numbers, f"{score}  {sent}") if len(text) <= room), score)
        self._bar.update(self._task, completed=self._done, numbers=shown)
        if not self._out.is_terminal and (record.round == rounds or record.round % max(1, rounds // 10) == 0):
            line = f"{self._label}  round {record.round}/{rounds}  {numbers}  {record.seconds:.1f} s"
            self._out.print(line, soft_wrap=True)  # a line is a round, for those who read them with a program

    def note(self, text: str) -> None:
        """Something happened between two rounds."""
        say(self._out, text)


def data_line(experiment: Experiment, loaded: Loaded) -> str:
    """What a run is on, at its beginning."""
    return f"data: {short(experiment.dataset.name)}, {sentence(loaded)}"


def _tested(record: Record | None, round: int) -> tuple[str, str]:
    """Score and loss of the last evaluation, which was in an earlier round perhaps; a dash before the first."""
    if record is None:
        return "–", ""
    measure = "" if record.named == "accuracy" else f"{record.named} "
    when = "" if record.round == round else f" in round {record.round}"
    return f"{measure}{record.score:6.2%}{when}", f"  loss {record.loss:.3f}"


def _delta(record: Record) -> str:
    """δ of its ε; records of earlier versions do not tell."""
    return "" if record.delta is None else f" (δ {record.delta:g})"


def _people(record: Record) -> str:
    """ε so far and how the clients fare, where these are known, and what was wrong with them, if anything was."""
    text = "" if record.epsilon is None else f"  ε {record.epsilon:.3g}{_delta(record)}"
    shares = [share for share in (record.clients_mean, record.clients_p10, record.clients_worst) if share is not None]
    text += "  clients " + " / ".join(f"{share:.1%}" for share in shares) if len(shares) == 3 else ""
    return text + "".join(f"  {count} {what}" for what in ("refused", "missing") if (count := getattr(record, what)))


def run_table(records: list[Record], model: Path, also: Mapping[str, str] = MappingProxyType({})) -> RichTable:
    """What a run achieved and cost; `also` are further rows."""
    known = tested(records)
    last, best, trained = known[-1], max(known, key=lambda record: record.score), records[-1].train_loss
    rows = [(last.named, f"{last.score:.2%} after round {last.round} (best {best.score:.2%}, round {best.round})")]
    others = {name: value for name, value in (last.metrics or {}).items() if name != last.measure}
    rows.append(("also", ", ".join(f"{name} {value:.4g}" for name, value in others.items())))
    if last.clients_mean is not None and last.clients_p10 is not None and last.clients_worst is not None:
        share = f"mean {last.clients_mean:.2%}, 10th percentile {last.clients_p10:.2%}, worst {last.clients_worst:.2%}"
        rows.append(("clients", f"{share} on their held-out samples"))
    samples = "test" if last.validated is None else "validation"
    rows.append(("loss", f"{last.loss:.4f} {samples}" + ("" if math.isnan(trained) else f", {trained:.4f} train")))
    if records[-1].epsilon is not None:
        rows.append(("privacy", f"ε = {records[-1].epsilon:.3g}{_delta(records[-1])}, told of any one client's data"))
    rows += also.items()
    rows.append(("uploaded", _traffic([(r.up_bytes, r.up_bpp, r.up_ideal_bpp) for r in records])))
    rows.append(("downloaded", _traffic([(r.down_bytes, r.down_bpp, r.down_ideal_bpp) for r in records])))
    rows.append(("time", f"{sum(r.seconds for r in records):.1f} s in {counted(len(records), 'round')}"))
    refused, missing, catch_up = (sum(getattr(r, name) for r in records) for name in ("refused", "missing", "catch_up_bytes"))
    if refused or missing:
        rows.append(("left out", f"{counted(refused, 'upload')} refused, {missing} missing"))
    if catch_up:
        rows.append(("caught up", f"{size(catch_up)} sent to clients that lacked the weights of a round"))
    rows.append(("model", f"{model} ({size(model.stat().st_size)})"))
    return facts((name, text) for name, text in rows if text)


def _traffic(rounds: list[tuple[int, float, float | None]]) -> str:
    sizes, bits, ideals = zip(*rounds, strict=True)
    beside = "" if None in ideals else f", {mean(ideals):.3f} if coded ideally"
    return f"{size(sum(sizes))} by all clients; per round and parameter {mean(bits):.3f} bit{beside}"


def comparison_table(series: list[Series]) -> Table:
    """One row per algorithm."""
    seeds = max(len(one.runs) for one in series)
    over = f", mean ± std of {seeds} seeds" if seeds > 1 else ""
    columns = [Column("algorithm", NAME), Column(f"{series[0].measure}\n%", SPREAD)]
    columns += map(Column, ("best\n%", "bytes\nup", "bytes\ndown", "bit/param\nup", "bit/param\ndown", "time\ns"))
    rows = []
    for one in series:
        numbers = [f"{one.best().mean:.2f}", *(size(one.total(name)) for name in ("up_bytes", "down_bytes"))]
        numbers += [*(f"{one.average(name):.3f}" for name in ("up_bpp", "down_bpp")), f"{one.total('seconds'):.1f}"]
        rows.append([short(one.label), str(one.last()), *numbers])
    return Table(columns, rows, f"after {counted(max(one.rounds for one in series), 'round')}{over}")


def client_table(series: list[Series]) -> Table:
    """What one client sends and is sent: one row per algorithm, with what accuracies cost, as far as anybody reached them."""
    columns = [Column("algorithm", NAME), Column("a round\nkB up"), Column("\nkB down")]
    rows = [[short(one.label), _digits(one.up_per_client() / 1000), _digits(one.down_per_client() / 1000)] for one in series]
    for target in TARGETS:
        prices = [one.until(target) for one in series]
        if any(prices):
            columns += [Column(f"{target} %\nup"), Column(f"{target} %\nup + down")]
            for row, price in zip(rows, prices, strict=True):
                row.extend(["–", "–"] if price is None else [_digits(price.up_bpp), _digits(price.up_bpp + price.down_bpp)])
    about = "of one client: kB a round"
    if len(columns) > 3:
        seldom = any(one.averaged is not None for one in series)
        what = "a validation accuracy" if series[0].experiment.validation else "an accuracy"
        about += f", bits per parameter to reach {what}{' in a round that was evaluated' * seldom}"
    return Table(columns, rows, about)


def _digits(number: float) -> str:
    """In three digits."""
    return f"{number:.{max(0, 2 - math.floor(math.log10(number)))}f}" if number > 0 else "0"


_MANY = 20  # clients that are named


def attack_and_defence(experiment: Experiment, folder: Path | None = None) -> dict[str, str]:
    """Who lies, and the rule against it, as far as there are any.

    In the folder of a run liars are named, and those whom the rule believes no more; of a comparison each seed has others.
    """
    found = {}
    by = experiment.attack.made(attack)
    if by is not None:
        who = liars(experiment.seed, experiment.clients, by.share)
        numbers = f" ({_listed(who)})" if folder and who else ""
        found["attack"] = f"{short(experiment.attack.name)}, {len(who)} of {counted(experiment.clients, 'client')}{numbers}"
    if experiment.robust.name != "none":
        parameters = "".join(f", {key} {value}" for key, value in experiment.robust.parameters.items())
        found["robust"] = short(experiment.robust.name) + (f"{parameters}{_credit(experiment, folder)}" if folder else "")
    return found


def _credit(experiment: Experiment, folder: Path) -> str:
    """Who has no credit now, with a rule that remembers whom it trusts."""
    if experiment.robust.name != "credibility":
        return ""
    lines = (folder / CLIENTS).read_text().splitlines() if (folder / CLIENTS).is_file() else []
    rows = [row for line in lines for row in json.loads(line)["clients"]]
    trust = {row["client"]: row["trust"] for row in rows if "trust" in row}  # that was last written down
    without = [client for client, value in trust.items() if not credit(np.array([value]))[0]]
    if not without:
        return "; nobody is without credit"
    return f"; {len(without)} of {counted(len(trust), 'client')} without credit now ({_listed(without)})"


def _listed(who: Collection[int]) -> str:
    """Clients by number, as far as there is room."""
    first = ", ".join(map(str, sorted(who)[:_MANY]))
    return f"{first}, …" if len(who) > _MANY else first
