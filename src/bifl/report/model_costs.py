"""What the models of runs cost on a device, as C: for those whose folders hold the trained model."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bifl.errors import BiflError
from bifl.experiment.model import Model
from bifl.export.c_folder import code_of
from bifl.export.c_model import Cost
from bifl.runs.results import Series

MODEL = "model"  # in a run's folder


class ModelCost(NamedTuple):
    """A row of the table."""

    series: Series
    file: int  # bytes of the packed model
    cost: Cost | None = None
    reason: str = ""  # why there is no C


def model_costs(series: list[Series]) -> list[ModelCost]:
    """A row for every experiment with a model; a network that is Python code of somebody's is not run for it."""
    paths = [(one, Path(one.furthest[0].name) / MODEL) for one in series]
    return [_cost(one, path) for one, path in paths if path.is_file()]


def _cost(series: Series, path: Path) -> ModelCost:
    size = path.stat().st_size
    try:
        model = Model.read(path)
        if not model.shape:
            return ModelCost(series, size, reason="its file does not say what one input looks like")
        return ModelCost(series, size, code_of(model, model.module().eval(), model.shape, MODEL).cost)
    except BiflError as error:
        reason = str(error).partition("cannot become C: ")[2]  # the rest of a sentence may name folders of this machine
        return ModelCost(series, size, reason=reason or "its file cannot be read, or not without running Python code")
