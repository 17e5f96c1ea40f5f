"""`bifl export`: a trained model as ONNX, and as C."""

from __future__ import annotations

import argparse
from math import prod
from pathlib import Path

from torch import nn

from bifl.errors import ConfigError, DataError
from bifl.experiment.model import MOST_VALUES, Model
from bifl.export import device
from bifl.export.c_model import Code
from bifl.files import size, write_atomic, writing
from bifl.registry import without_folder
from bifl.show.output import console, say


def export(options: argparse.Namespace) -> int:
    """Write a model as ONNX, as C, or both; whatever is refused is refused before anything is written."""
    if not (options.onnx or options.c):
        raise ConfigError("bifl export needs --onnx FILE, --c DIR, or both")
    model = Model.read(options.model, options.trust)
    module = model.module().eval()
    shape = _shape(model, options)
    if reason := _misfit(model, module, shape):
        raise DataError(f"{without_folder(model.network.name)} does not take inputs of shape {_spelled(shape)}: {reason}")
    code = device.generated(model, module, shape, options.model) if options.c else None
    onnx = _onnx(model, module, shape, options.model) if options.onnx else None
    out = console()
    if code is not None:
        device.write(device.files(model, module, code, shape), options.c)
        say(out, _costs(options.c, code))
    if onnx is not None:
        _write(options.onnx, onnx)
        say(out, f"{options.onnx}: {size(len(onnx))}, input {_spelled(shape)}, {model.classes} outputs")
    return 0


def _shape(model: Model, options: argparse.Namespace) -> tuple[int, ...]:
    """Of one input: as typed, or as the model's file says."""
    if options.input is None:
        if model.shape:
            return model.shape
        raise ConfigError(f"'{options.model}' does not say what its inputs look like: say it, as in --input 1x28x28")
    words = options.input.replace("×", "x").split("x")
    if not all(word.isdecimal() and len(word) < 9 and int(word) for word in words) or len(words) > 4:
        raise ConfigError(f"--input must be sizes such as 1x28x28, not '{options.input}'")
    shape = tuple(map(int, words))
    if prod(shape) > MOST_VALUES:
        raise ConfigError(f"--input {options.input} has more than {MOST_VALUES:,} values")
    return shape


def _misfit(model: Model, module: nn.Module, shape: tuple[int, ...]) -> str | None:
    try:
        scores = device.outputs(model, module, device.raw_inputs(model, shape, 1))
    except (RuntimeError, ValueError, IndexError) as error:
        return str(error).partition("\n")[0]
    found = tuple(getattr(scores, "shape", ()))
    return None if found == (1, model.classes) else f"it gives {found} for one input instead of {(1, model.classes)}"


def _onnx(model: Model, module: nn.Module, shape: tuple[int, ...], path: Path) -> bytes:
    try:
        from bifl.export import onnx_file
    except ModuleNotFoundError as error:
        raise ConfigError(f"--onnx needs the package {error.name}: pip install 'bifl[export]'") from error
    return onnx_file.contents(model, module, shape, path)


def _write(path: Path, data: bytes) -> None:
    with writing(path.parent):
        write_atomic(path, data)


def _costs(folder: Path, code: Code) -> str:
    """What a device must have."""
    work = 4 * code.memory.size
    return (
        f"{folder}: flash {size(code.flash)} of weights, RAM {size(code.ram)} "
        f"(input {size(code.ram - work - 4 * code.outputs)}, work {size(work)}, output {size(4 * code.outputs)})"
    )


def _spelled(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
