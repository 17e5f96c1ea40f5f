"""Records that a test made up, as an experiment with seeds."""

from __future__ import annotations

from bifl.experiment.settings import Experiment
from bifl.runs.folder import Result
from bifl.runs.record import Record
from bifl.runs.results import Series


def series(label: str, *runs: list[Record], algorithm: str = "biml") -> Series:
    """One seed a run."""
    return Series(label, [Result(f"s{n}", Experiment(algorithm=algorithm, seed=n), records) for n, records in enumerate(runs)])
