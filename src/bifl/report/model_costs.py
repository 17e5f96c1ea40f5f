"""What the models of runs cost on a device, as C: for those whose folders hold the trained model."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bifl.errors import BiflError
from bifl.experiment.model import Model
from bifl.export import device
from bifl.runs.results import Series
from bifl.show.device_costs import costs

MODEL = "model"  # in a run's folder


class ModelCost(NamedTuple):
    """A row of the table; numbers are 0 where `reason` says why there is no C."""

    series: Series
    file: int  # bytes of the packed model
    flash: int = 0
    ram: int = 0
    additions: int = 0
    multiplications: int = 0
    reason: str = ""


def model_costs(series: list[Series]) -> list[ModelCost]:
    """A row for every experiment with a model; a network that is Python code of somebody's is not run for it."""
    found = [(one, Path(one.furthest[0].name) / MODEL) for one in series]
    return [_cost(one, path) for one, path in found if path.is_file()]


def _cost(series: Series, path: Path) -> ModelCost:
    size = path.stat().st_size
    try:
        model = Model.read(path)
        if not model.shape:
            return ModelCost(series, size, reason="its file does not say what one input looks like")
        code = device.generated(model, model.module().eval(), model.shape, MODEL)
    except BiflError as error:
        said = str(error).partition("cannot become C: ")[2]  # the rest of a sentence may name folders of this machine
        return ModelCost(series, size, reason=said or "its file cannot be read, or not without running Python code")
    rows = costs(code)
    additions, multiplications = sum(row.additions for row in rows), sum(row.multiplications for row in rows)
    return ModelCost(series, size, code.flash, code.ram, additions, multiplications)
