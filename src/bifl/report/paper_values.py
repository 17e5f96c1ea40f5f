"""What the paper prints: accuracies of Tables I and II, mean ± standard deviation over 5 partitions, in %.

>>> value(Experiment.of("mnist-iid", ["algorithm=biml", "seed=3", "rounds=60"]))
Spread(mean=97.17, std=0.21)
>>> value(Experiment.of("mnist-iid", ["algorithm=up_down", "algorithm.beta=1"]))
Spread(mean=89.41, std=0.55)
>>> value(Experiment.of("mnist-iid", ["algorithm.alpha=3"]))  # only drawn, not printed
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from math import log2
from typing import NamedTuple

from bifl.experiment.settings import Choice, Experiment, but_for
from bifl.runs.results import Spread


class Cell(NamedTuple):
    """Where a value stands."""

    preset: str  # that runs it
    algorithm: str
    parameter: str = ""  # that is not the preset's: beta=1


def _read(table: str) -> dict[Cell, Spread]:
    """The values that a table has."""
    cells = {}
    for row in csv.DictReader(table.splitlines()):
        name, _, parameter = row.pop("algorithm").partition("+")
        for preset, text in row.items():
            if text:
                mean, std = text.split(" ± ")
                cells[Cell(preset, name, parameter)] = Spread(float(mean), float(std))
    return cells


CELLS = _read((files("bifl.report") / "paper_values.csv").read_text(encoding="utf-8"))
"""Tables I and II."""

ORDER = (("fedavg",), ("full",), ("biml",), ("up_only", "fttq", "up_down"))
"""The paper's ordering, FA > Full > BiML ≫ UpOnly ≈ FTTQ ≈ UpDown: the best first, those that are about equal together."""

_BITS: dict[str, Callable[[int], tuple[float, float]]] = {
    "fedavg": lambda voters: (32, 32),
    "full": lambda voters: (32, 32),
    "biml": lambda voters: (1, log2(voters + 1)),
    "up_only": lambda voters: (1, log2(voters + 1)),
    "fttq": lambda voters: (log2(3), log2(3)),
    "up_down": lambda voters: (1, 1),
}
"""Table I's bits per parameter, up and down."""

FITTED = {"biml_fit": "biml"}
"""The authors' script updates by the fit, so the printed BiML is the fit's as much as the exact maximum's."""

_FREE = ("algorithm", "seed", "batchnorm", "wire", "reals", "evaluate_every")
"""What a run of a cell may choose for itself, beside the number of rounds: what the paper does not speak of."""


def value(experiment: Experiment) -> Spread | None:
    """The paper's accuracy for an experiment, if that is one of its tables' cells."""
    cell = cell_of(experiment)
    return None if cell is None else CELLS[cell]


def megabytes(algorithm: str, parameters: int, voters: int, clients: int) -> tuple[float, float] | None:
    """What a round takes up and down by the paper's account: every parameter at its table's bits, nothing else.

    >>> [round(way, 1) for way in megabytes("biml", parameters=82_242, voters=100, clients=100)]
    [1.0, 6.8]
    >>> megabytes("biml", parameters=1_000_000, voters=3, clients=8)  # three vote, eight hear of it
    (0.375, 2.0)
    """
    bits = _BITS.get(FITTED.get(algorithm, algorithm))
    if bits is None:
        return None
    up, down = (parameters * way / 8e6 for way in bits(voters))
    return voters * up, clients * down


def cell_of(experiment: Experiment) -> Cell | None:
    """The cell of Table I or II that an experiment is, if any."""
    algorithm, setting = as_printed(experiment), but_for(experiment, *_FREE)
    for cell in CELLS:
        if cell.algorithm == algorithm.name and experiment_of(cell).algorithm == algorithm and _printed_setting(cell) == setting:
            return cell
    return None


def as_printed(experiment: Experiment) -> Choice:
    """Its algorithm, by the name that the tables have for it."""
    return Choice(FITTED.get(experiment.algorithm.name, experiment.algorithm.name), experiment.algorithm.parameters)


@cache
def experiment_of(cell: Cell) -> Experiment:
    """What runs a cell."""
    parameters = [f"algorithm.{cell.parameter}"] if cell.parameter else []
    return Experiment.of(cell.preset, [f"algorithm={cell.algorithm}", *parameters])


@cache
def _printed_setting(cell: Cell) -> str:
    return but_for(experiment_of(cell), *_FREE)
