"""`bifl export --c`: a trained model as a folder of C, with a program around it and a board to try it on without hardware."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from bifl import __version__
from bifl.data.inputs import TOKENS
from bifl.errors import DataError, printable
from bifl.experiment.model import Model
from bifl.export.c_functions import Array
from bifl.export.c_model import MARK, Code, generate
from bifl.export.operations import Unsupported
from bifl.export.raw import normalisation, outputs, raw_inputs
from bifl.files import write_atomic, writing
from bifl.registry import without_folder

TESTS = 3  # vectors in main.c
TOLERANCE = 1e-3  # of a test vector's outputs, relative to the largest


def code_of(model: Model, module: nn.Module, shape: tuple[int, ...], path: str | Path) -> Code:
    """The C of a model.

    Raises:
        DataError: it has a layer that C has nothing for.
    """
    if model.inputs == TOKENS:
        raise DataError(f"'{path}' cannot become C: its inputs are tokens, C takes bytes and floats")
    try:
        return generate(module, shape, normalisation(model), classifies=model.task.name == "classification")
    except Unsupported as error:
        raise DataError(f"'{path}' cannot become C: {error}") from error


def folder_of(model: Model, module: nn.Module, code: Code, shape: tuple[int, ...]) -> dict[str, str]:
    """The contents of the folder, by name."""
    raw = raw_inputs(model, shape, TESTS)
    name = without_folder(model.network.name).replace("*/", "")  # in a comment
    trained = f"{model.forward.name} weights, {model.message.round} rounds of training"
    about = printable(f"{name}, {model.classes} outputs, {trained}; bifl {__version__}")
    return contents(code, raw, outputs(model, module, raw).float().numpy(), about)


def contents(code: Code, raw: npt.NDArray[Any], wanted: npt.NDArray[np.float32], about: str) -> dict[str, str]:
    """A folder's contents, with test vectors: raw inputs and what PyTorch makes of them."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in (files("bifl.export") / "c").iterdir()}
    return {
        "model.h": code.header(about), "model.c": code.source(about), "main.c": _vectors(raw, wanted, about) + texts["main.c"],
        **{name: texts[name] for name in ("Makefile", "board.c", "board.ld")},
    }  # fmt: skip


def _vectors(raw: npt.NDArray[Any], wanted: npt.NDArray[np.float32], about: str) -> str:
    """The head of main.c, up to its functions."""
    allowed = max(float(np.abs(wanted).max()) * TOLERANCE, TOLERANCE)
    return f"""\
/* {about}
   {MARK}. Reads raw inputs from standard input, one array of MODEL_INPUT_SIZE values after the other, and prints one class a
   line, or all outputs where they are no scores of classes. With --test it computes the test vectors below and compares. */
#include <stdio.h>
#include <string.h>

#include "model.h"

#define TESTS {len(raw)}
#define ALLOWED {allowed:.6g}f /* difference from PyTorch's outputs */

{Array("test_inputs", raw).text}
{Array("test_outputs", wanted).text}
"""


def write(texts: dict[str, str], folder: Path) -> None:
    """Write a folder; only what an earlier export wrote is replaced.

    Raises:
        DataError: something else is in the way.
    """
    for name in texts:
        old = folder / name
        if old.exists() and not (old.is_file() and MARK in old.read_text(errors="replace")[:1000]):
            raise DataError(f"'{old}' is in the way and not a file that an export wrote: choose another folder")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_atomic(folder / name, text)
