"""`bifl export --c`: a trained model as a folder of C, and what it costs on a device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from bifl import __version__
from bifl.errors import DataError, printable
from bifl.export import c_program
from bifl.export.c_model import MARK, Code, generate, header, source
from bifl.export.c_stages import Normalisation
from bifl.export.graph import Unsupported, trace
from bifl.export.model import Model
from bifl.files import write_atomic, writing
from bifl.registry import without_folder

TESTS = 3  # vectors in main.c


def about(model: Model) -> str:
    """What a model is, in one line that is safe within a comment."""
    name = without_folder(model.network.name).replace("*/", "")
    trained = f"{model.forward.name} weights, {model.message.round} rounds of training"
    return printable(f"{name}, {model.classes} outputs, {trained}; bifl {__version__}")


def normalisation(model: Model) -> Normalisation:
    """What makes floats of the raw inputs: pixels/255 less the mean, by the deviation."""
    return Normalisation("uint8_t", 255.0, (model.mean,), (model.std,))


def generated(model: Model, module: nn.Module, shape: tuple[int, ...], path: str | Path) -> Code:
    """The C of a model.

    Raises:
        DataError: it has a layer that C has nothing for.
    """
    try:
        return generate(trace(module, shape), normalisation(model))
    except Unsupported as error:
        raise DataError(f"'{path}' cannot become C: {error}") from error


def raw_inputs(shape: tuple[int, ...], count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """(count, *shape) random inputs, the same every time: smooth ones, as the dataset's are, would need the dataset."""
    return np.random.default_rng(0).integers(0, 256, (count, *shape), np.uint8)


@torch.no_grad()
def outputs(model: Model, module: nn.Module, raw: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> torch.Tensor:
    """What PyTorch makes of raw inputs."""
    scores: torch.Tensor = module((torch.from_numpy(raw).float() / 255 - model.mean) / model.std)
    return scores


def files(model: Model, module: nn.Module, code: Code, shape: tuple[int, ...]) -> dict[str, str]:
    """The contents of the folder, by name."""
    raw = raw_inputs(shape, TESTS)
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
