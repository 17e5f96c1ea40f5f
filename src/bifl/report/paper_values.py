"""What the paper prints: accuracies of Tables I and II, mean ± standard deviation over 5 partitions, in %.

>>> value(Experiment.of("mnist-iid", ["algorithm=biml", "seed=3", "rounds=60"]))
Value(mean=97.17, std=0.21)
>>> value(Experiment.of("mnist-iid", ["algorithm=up_down", "algorithm.beta=1"]))
Value(mean=89.41, std=0.55)
>>> value(Experiment.of("mnist-iid", ["algorithm.alpha=3"]))  # only drawn, not printed
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from math import log2
from typing import NamedTuple

from bifl.experiment.identity import but_for
from bifl.experiment.settings import Choice, Experiment


class Value(NamedTuple):
    """An accuracy in %."""

    mean: float
    std: float


class Row(NamedTuple):
    """An algorithm of the tables, with those of its parameters that are not the preset's."""

    algorithm: str
    parameters: tuple[tuple[str, float], ...] = ()


class Cell(NamedTuple):
    """Where a value stands."""

    preset: str
    row: Row


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

_IID = ("mnist-iid", "femnist-iid", "celeba-iid")
_SKEWED = ("mnist-nc5", "mnist-nc3", "femnist-noniid", "celeba-noniid")
_TABLES: tuple[tuple[tuple[str, ...], dict[Row, tuple[Value, ...]]], ...] = (
    (
        _IID,
        {
            Row("baseline"): (Value(99.25, 0.04), Value(84.01, 1.59), Value(92.27, 0.23)),
            Row("fedavg"): (Value(98.88, 0.35), Value(76.65, 0.15), Value(89.19, 0.84)),
            Row("bnn"): (Value(99.03, 0.08), Value(78.53, 2.99), Value(92.34, 0.23)),
            Row("full"): (Value(98.24, 0.07), Value(71.61, 4.16), Value(91.25, 0.33)),
            Row("biml"): (Value(97.17, 0.21), Value(66.19, 2.83), Value(88.97, 0.39)),
            Row("up_only"): (Value(90.51, 0.36), Value(46.12, 1.94), Value(87.20, 0.33)),
            Row("fttq"): (Value(89.99, 0.28), Value(48.81, 1.99), Value(84.50, 1.05)),
            Row("up_down"): (Value(90.09, 1.48), Value(47.27, 2.44), Value(76.38, 1.01)),
            Row("up_down", (("beta", 1.0),)): (Value(89.41, 0.55), Value(46.65, 1.98), Value(76.02, 2.86)),
        },
    ),
    (
        _SKEWED,
        {
            Row("fedavg"): (Value(95.50, 0.61), Value(93.08, 4.61), Value(72.05, 1.22), Value(82.91, 0.15)),
            Row("biml"): (Value(86.00, 1.87), Value(90.05, 3.87), Value(60.38, 2.38), Value(81.09, 0.20)),
            Row("fttq"): (Value(72.32, 2.66), Value(73.10, 1.19), Value(45.11, 2.04), Value(76.36, 0.92)),
            Row("up_down"): (Value(73.39, 2.13), Value(73.26, 4.28), Value(44.19, 3.22), Value(68.51, 1.14)),
        },
    ),
)

CELLS: Mapping[Cell, Value] = {
    Cell(preset, row): number
    for presets, rows in _TABLES
    for row, numbers in rows.items()
    for preset, number in zip(presets, numbers, strict=True)
}
"""Tables I and II, keyed by the preset that runs the cell and the algorithm."""

STAND_INS = {("unipen", "iid"): "femnist-iid", ("unipen", "by_user"): "femnist-noniid"}
"""Dataset and partition, and the preset of the paper's that they are nearest to: other data, so no more than a hint."""

_FREE = ("algorithm", "seed", "batchnorm", "wire", "reals", "evaluate_every")
"""What a run of a cell may choose for itself, beside the number of rounds: what the paper does not speak of."""


def value(experiment: Experiment) -> Value | None:
    """The paper's accuracy for an experiment, if that is one of its tables' cells."""
    cell = cell_of(experiment)
    return None if cell is None else CELLS[cell]


def beside(experiment: Experiment) -> Value | None:
    """The paper's accuracy on the dataset that an experiment's own stands in for; None if it stands in for none.

    >>> beside(Experiment.of("unipen-iid", ["algorithm=biml", "algorithm.alpha=1.75", "rounds=25"]))
    Value(mean=66.19, std=2.83)
    """
    preset = STAND_INS.get((experiment.dataset.name, experiment.partition.name))
    name = FITTED.get(experiment.algorithm.name, experiment.algorithm.name)
    return next(
        (
            CELLS[cell]
            for cell in CELLS
            if cell.preset == preset and experiment_of(cell).algorithm == Choice(name, experiment.algorithm.parameters)
        ),
        None,
    )


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
    name = FITTED.get(experiment.algorithm.name, experiment.algorithm.name)
    algorithm = Choice(name, experiment.algorithm.parameters)
    setting = but_for(experiment, *_FREE)
    for cell in CELLS:
        if cell.row.algorithm == name and experiment_of(cell).algorithm == algorithm and _printed_setting(cell) == setting:
            return cell
    return None


@cache
def experiment_of(cell: Cell) -> Experiment:
    """What runs a cell."""
    return Experiment.of(cell.preset, algorithm={"name": cell.row.algorithm, **dict(cell.row.parameters)})


@cache
def _printed_setting(cell: Cell) -> str:
    return but_for(experiment_of(cell), *_FREE)
