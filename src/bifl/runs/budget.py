"""Why a run has fewer rounds than it was to have, where `privacy.budget` ended it."""

from __future__ import annotations

from collections.abc import Sequence

from bifl.experiment.settings import Experiment
from bifl.runs.record import Record


def ended_early(experiment: Experiment, records: Sequence[Record]) -> str | None:
    """The sentence that tells so; None if the budget did not end the run, as far as its records say."""
    budget = experiment.privacy.parameters.get("budget", 0.0)
    if not records or not budget or len(records) >= experiment.rounds or records[-1].epsilon is None:
        return None
    spent = f"ε = {records[-1].epsilon:.3g} is spent, and another round could exceed privacy.budget={budget:g}"
    return f"the run ends after round {len(records)} of {experiment.rounds}: {spent}"
