"""The table of attacks is what the kept runs say, and the rule that we advise keeps its promise in it."""

from __future__ import annotations

from argparse import Namespace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script that makes the table; it knows Flower's sums as rules."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return import_module("attacks")


def test_the_page_says_what_the_runs_say(table: Any) -> None:
    assert table.PAGE.read_text() == table.page(), "python benchmarks/attacks.py --page writes it anew"
    assert all(table.picture(clients).is_file() for clients in table.CLIENTS)


@pytest.mark.parametrize("clients", [10, 30])
@pytest.mark.parametrize(
    ("share", "most", "labels"), [(0.0, 0.5, 0.5), (0.1, 0.5, 0.5), (0.2, 0.5, 1.0), (0.3, 1.0, 1.5), (0.4, 1.5, 4.0)]
)
def test_the_advised_rule_loses_little(share: float, most: float, labels: float, clients: int, table: Any) -> None:
    """To any liars, whatever the algorithm; more to those who train on wrong labels. The mean of the seeds."""
    for algorithm in table.ALGORITHMS:
        for attack in table.ATTACKS:
            lost = table.lost(algorithm, clients, attack, share, "credibility")
            assert lost is not None
            assert lost < (labels if attack == "labels" else most), (algorithm, attack)


def test_the_table_is_whole(table: Any) -> None:
    """Every attack, rule and algorithm, with three seeds."""
    whole = Namespace(algorithms=(), clients=table.CLIENTS, shares=table.SHARES, attacks=table.ATTACKS, rules=table.RULES)
    assert not [case for case in table.cases(whole) if table.known(case).keys() < {0, 1, 2}]
