"""`bifl export --c`: a trained model as a folder of C, and what it costs on a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from bifl import __version__
from bifl.data.inputs import BYTES, TOKENS
from bifl.errors import DataError, printable
from bifl.experiment.model import Model
from bifl.export import c_program
from bifl.export.c_model import MARK, Code, generate, header, source
from bifl.export.c_stages import Normalisation
from bifl.export.graph import Unsupported, trace
from bifl.files import write_atomic, writing
from bifl.registry import without_folder

TESTS = 3  # vectors in main.c


def about(model: Model) -> str:
    """What a model is, in one line that is safe within a comment."""
    name = without_folder(model.network.name).replace("*/", "")
    trained = f"{model.forward.name} weights, {model.message.round} rounds of training"
    return printable(f"{name}, {model.classes} outputs, {trained}; bifl {__version__}")


def takes_bytes(model: Model) -> bool:
    """Whether raw inputs are pixels, from 0 to 255; otherwise they are floats."""
    return model.inputs == BYTES


def classifies(model: Model) -> bool:
    """Whether the outputs are scores of classes; otherwise they are the answer."""
    return model.task.name == "classification"


def normalisation(model: Model) -> Normalisation:
    """What makes floats of the raw inputs: pixels/255, or floats, less the mean, by the deviation; for all or by channel."""
    mean, std = (np.atleast_1d(np.asarray(scale, np.float64)) for scale in (model.mean, model.std))
    both = np.broadcast_arrays(mean, std)
    kind, divisor = ("uint8_t", 255.0) if takes_bytes(model) else ("float", 1.0)
    return Normalisation(kind, divisor, tuple(both[0].tolist()), tuple(both[1].tolist()))


def normalised(model: Model, raw: torch.Tensor) -> torch.Tensor:
    """Raw inputs as the network takes them; tokens stay as they are."""
    if model.inputs == TOKENS:
        return raw
    how = normalisation(model)
    column = (-1, *[1] * (raw.dim() - 2))
    mean, std = (torch.tensor(scale, dtype=torch.float32).view(column) for scale in (how.mean, how.std))
    return (raw.float() / how.divisor - mean) / std if how.divisor != 1 else (raw.float() - mean) / std


def generated(model: Model, module: nn.Module, shape: tuple[int, ...], path: str | Path) -> Code:
    """The C of a model.

    Raises:
        DataError: it has a layer that C has nothing for.
    """
    if model.inputs == TOKENS:
        raise DataError(f"'{path}' cannot become C: its inputs are tokens, C takes bytes and floats")
    try:
        return generate(trace(module, shape), normalisation(model), classifies(model))
    except Unsupported as error:
        raise DataError(f"'{path}' cannot become C: {error}") from error


def cost(model: Model, path: str | Path) -> Code | str:
    """The C of a model for what it costs, or why there is none."""
    if not model.shape:
        return "the file does not say what one input looks like, so what it costs on a device is not known"
    try:
        return generated(model, model.module().eval(), model.shape, path)
    except DataError as error:
        return str(error)


def raw_inputs(model: Model, shape: tuple[int, ...], count: int) -> npt.NDArray[Any]:
    """(count, *shape) random inputs, the same every time."""
    draw = np.random.default_rng(0)
    if model.inputs == TOKENS:
        return np.zeros((count, *shape), np.int64)  # a token that every network knows
    if takes_bytes(model):
        return draw.integers(0, 256, (count, *shape), np.uint8)
    how = normalisation(model)
    mean, std = (np.array(scale).reshape(-1, *[1] * (len(shape) - 1)) for scale in (how.mean, how.std))
    raw: npt.NDArray[Any] = (draw.normal(size=(count, *shape)) * std + mean).astype(np.float32)
    return raw


@torch.no_grad()
def outputs(model: Model, module: nn.Module, raw: npt.NDArray[Any]) -> torch.Tensor:
    """What PyTorch makes of raw inputs."""
    scores: torch.Tensor = module(normalised(model, torch.from_numpy(raw)))
    return scores


def files(model: Model, module: nn.Module, code: Code, shape: tuple[int, ...]) -> dict[str, str]:
    """The contents of the folder, by name."""
    raw = raw_inputs(model, shape, TESTS)
    vectors = c_program.Vectors(raw.reshape(TESTS, -1), outputs(model, module, raw).float().numpy())
    libraries = ["-lm"] if any("gelu" in function.kernels for function in code.functions) else []
    said = about(model)
    return {
        "model.h": header(code, said), "model.c": source(code, said), "main.c": c_program.main(code, vectors, said),
        "Makefile": c_program.makefile(libraries), "board.c": c_program.BOARD, "board.ld": c_program.LINKER,
    }  # fmt: skip


def write(contents: dict[str, str], folder: Path) -> None:
    """Write a folder; only what an earlier export wrote is replaced.

    Raises:
        DataError: something else is in the way.
    """
    for name in contents:
        found = folder / name
        if found.exists() and not (found.is_file() and MARK in found.read_text(errors="replace")[:1000]):
            raise DataError(f"'{found}' is in the way and not a file that an export wrote: choose another folder")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            write_atomic(folder / name, text)
