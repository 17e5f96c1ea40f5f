"""What accuracies cost: bits per parameter until they were first reached."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bifl.experiment.settings import Experiment
from bifl.runs.record import Record
from bifl.show.plot import BITS, draw
from bifl.show.terminal import client_table
from studies import keeping
from tests.support.series import series


def records(*accuracies: float, up: float = 0.1, down: float = 1.0) -> list[Record]:
    return [Record(n, accuracy, 1.0, 1.0, 1, 10, 20, 20, up, down, 0.1, 1.0) for n, accuracy in enumerate(accuracies, start=1)]


def test_a_price_is_what_was_sent_until_the_accuracy_was_first_reached() -> None:
    sent = series("biml", records(0.9, 0.96, 0.94, 0.97), records(0.95, 0.9, 0.9, 0.9)).until(95)
    assert sent is not None
    assert (sent.rounds, sent.up_bpp, sent.up_bpp + sent.down_bpp) == pytest.approx((1.5, 0.15, 1.65))
    assert (sent.up_bytes, sent.down_bytes) == (15, 30)


def test_an_accuracy_that_a_seed_did_not_reach_has_no_price() -> None:
    assert series("biml", records(0.99, 0.99), records(0.9, 0.94)).until(95) is None


def test_the_table_fits_60_columns_and_leaves_out_what_nobody_reached() -> None:
    screen = Console(width=64, file=StringIO())
    table = client_table([series("fedavg", records(0.96, 0.975, up=32, down=32)), series("murmur", records(0.9, 0.96))])
    screen.print(table)
    assert isinstance(screen.file, StringIO)
    text = screen.file.getvalue()
    assert "…" not in text
    assert "97 %" in text
    assert "98 %" not in text
    rows = {
        line.split()[0]: line.split()[1:] for line in text.splitlines() if line.split() and line.split()[0] in ("fedavg", "murmur")
    }
    assert rows == {
        "fedavg": ["0.0100", "0.0100", "32.0", "64.0", "64.0", "128"],
        "murmur": ["0.0100", "0.100", "0.200", "2.20", "–", "–"],
    }


def test_no_accuracy_has_a_column_where_nobody_reached_any() -> None:
    assert [column.heading for column in client_table([series("up_down", records(0.5))]).columns] == [
        "algorithm", "a round\nkB up", "\nkB down",
    ]  # fmt: skip


def test_the_picture_is_drawn_also_of_one_round_and_of_training_that_sends_nothing(tmp_path: Path) -> None:
    curves = [series("murmur", records(0.9)), series("baseline", records(0.9, 0.95, up=0, down=0))]
    draw({"": [*curves, series("biml", records(0.9), records(0.8))]}, tmp_path / "bits.png", "title", BITS)
    assert (tmp_path / "bits.png").read_bytes().startswith(b"\x89PNG")


def test_kept_runs_are_named_after_words_too() -> None:
    experiment = Experiment.of("mnist-iid", ["algorithm=murmur", "algorithm.down=1of8", "algorithm.forward=binary"])
    assert keeping.name(experiment).startswith("mnist-iid-m100-murmur-forward-binary-down-1of8-s0-")
