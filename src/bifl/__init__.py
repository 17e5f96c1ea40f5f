"""bifl: federated learning in which every client uploads a fraction of a bit per weight.

>>> import bifl
>>> for record in bifl.simulate(bifl.Experiment(algorithm="biml", rounds=1, clients=2, workers=1)):
...     print(record.round, record.clients)
1 2
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bifl.engine.simulator import Simulation, simulate
    from bifl.engine.tuning import tune
    from bifl.errors import BiflError
    from bifl.experiment.model import Model, load
    from bifl.experiment.settings import Choice, Experiment
    from bifl.nn.binarize import binarize
    from bifl.runs.record import Record
    from bifl.runs.results import read_runs

__version__ = "0.2.0"  # pyproject.toml reads it from here; another version's unfinished runs are not continued
__all__ = [
    "BiflError",
    "Choice",
    "Experiment",
    "Model",
    "Record",
    "Simulation",
    "binarize",
    "load",
    "read_runs",
    "simulate",
    "tune",
]

_HOMES = {  # imported on first use: `import bifl` alone must not wait for torch
    "BiflError": "bifl.errors",
    "Choice": "bifl.experiment.settings",
    "Experiment": "bifl.experiment.settings",
    "Model": "bifl.experiment.model",
    "Record": "bifl.runs.record",
    "Simulation": "bifl.engine.simulator",
    "binarize": "bifl.nn.binarize",
    "load": "bifl.experiment.model",
    "read_runs": "bifl.runs.results",
    "simulate": "bifl.engine.simulator",
    "tune": "bifl.engine.tuning",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    try:
        return import_module(f"bifl.{name}")  # bifl.core.rules, bifl.codec, … without a second import
    except ModuleNotFoundError as error:
        if error.name != f"bifl.{name}":
            raise
        raise AttributeError(f"module 'bifl' has no attribute '{name}'") from None
