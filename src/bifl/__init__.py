"""bifl: federated learning in which every client uploads about one bit per weight.

>>> import bifl
>>> for record in bifl.simulate(bifl.Experiment(algorithm="biml", rounds=1, clients=2, workers=1)):
...     print(record.round, record.clients)
1 2
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bifl.experiment import Choice, Experiment
    from bifl.model import Model, load
    from bifl.nn.binarize import binarize
    from bifl.runtime.record import Record
    from bifl.runtime.simulate import Simulation, simulate

__version__ = version("bifl")
__all__ = ["Choice", "Experiment", "Model", "Record", "Simulation", "binarize", "load", "simulate"]

_HOMES = {  # imported on first use: `import bifl` alone must not wait for torch
    "Choice": "bifl.experiment",
    "Experiment": "bifl.experiment",
    "Model": "bifl.model",
    "Record": "bifl.runtime.record",
    "Simulation": "bifl.runtime.simulate",
    "binarize": "bifl.nn.binarize",
    "load": "bifl.model",
    "simulate": "bifl.runtime.simulate",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    try:
        return import_module(f"bifl.{name}")  # bifl.mle, bifl.wire, … without a second import
    except ModuleNotFoundError as error:
        if error.name != f"bifl.{name}":
            raise
        raise AttributeError(f"module 'bifl' has no attribute '{name}'") from None
