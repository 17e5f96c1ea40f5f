"""What a person who set `attack=` or `robust=` wants to see of a run: who lied, and who has no credit with the server."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import numpy as np

from bifl.attacks import attack, liars
from bifl.experiment.settings import Experiment
from bifl.registry import short
from bifl.robust.credibility import credit
from bifl.runs.folder import CLIENTS
from bifl.show.output import counted

_MANY = 20  # clients that are named


def attack_text(experiment: Experiment, *, named: bool = True) -> str | None:
    """The attack, and how many lie, by number if they are to be named; None where nobody does."""
    by = attack.make(experiment.attack.name, experiment.attack.parameters)
    if by is None:
        return None
    who = liars(experiment.seed, experiment.clients, by.share)
    numbers = f" ({_numbers(who)})" if named and who else ""
    return f"{short(experiment.attack.name)}, {len(who)} of {counted(experiment.clients, 'client')}{numbers}"


def robust_text(experiment: Experiment, folder: Path) -> str | None:
    """The rule, and, where it remembers whom it trusts, who has no credit now; None where there is no rule."""
    if experiment.robust.name == "none":
        return None
    parameters = "".join(f", {key} {value}" for key, value in experiment.robust.parameters.items())
    if experiment.robust.name != "credibility":
        return f"{short(experiment.robust.name)}{parameters}"
    trust = _trust(folder)
    without = [number for number, own in trust.items() if not credit(np.array([own]))[0]]
    if not without:
        return f"credibility{parameters}; nobody is without credit"
    return f"credibility{parameters}; {len(without)} of {counted(len(trust), 'client')} without credit now ({_numbers(without)})"


def comparison_text(experiment: Experiment) -> str | None:
    """The attack and the rule of a comparison, whose seeds draw other liars; None where there is neither."""
    parts = {"attack": attack_text(experiment, named=False), "robust": None}
    if experiment.robust.name != "none":
        parts["robust"] = short(experiment.robust.name)
    told = [f"{key}: {text}" for key, text in parts.items() if text]
    return "; ".join(told) or None


def _numbers(who: Collection[int]) -> str:
    """Clients by number, as far as there is room."""
    first = ", ".join(map(str, sorted(who)[:_MANY]))
    return f"{first}, …" if len(who) > _MANY else first


def _trust(folder: Path) -> dict[int, float]:
    """By client: the trust that was last written down."""
    found: dict[int, float] = {}
    lines = (folder / CLIENTS).read_text().splitlines() if (folder / CLIENTS).is_file() else []
    for line in lines:
        found |= {row["client"]: row["trust"] for row in json.loads(line)["clients"] if "trust" in row}
    return found
