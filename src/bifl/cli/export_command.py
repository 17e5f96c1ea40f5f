"""`bifl export`: a trained model as ONNX, and as C."""

from __future__ import annotations

import argparse

from bifl.errors import ConfigError, DataError
from bifl.experiment.model import Model
from bifl.export.c_model import code_of, folder_of, write
from bifl.export.raw import input_shape, outputs, raw_inputs
from bifl.files import size, write_atomic, writing
from bifl.registry import without_folder
from bifl.show.output import console, say


def export(options: argparse.Namespace) -> int:
    """Write a model as ONNX, as C, or both; whatever is refused is refused before anything is written."""
    if not (options.onnx or options.c):
        raise ConfigError("bifl export needs --onnx FILE, --c DIR, or both")
    model = Model.read(options.model, options.trust)
    module = model.module().eval()
    shape = input_shape(options.input, "--input") if options.input is not None else model.shape
    if not shape:
        raise ConfigError(f"'{options.model}' does not say what its inputs look like: say it, as in --input 1x28x28")
    spelled = "×".join(map(str, shape))
    try:
        given = tuple(getattr(outputs(model, module, raw_inputs(model, shape, 1)), "shape", ()))
        reason = "" if given == (1, model.classes) else f"it gives {given} for one input instead of {(1, model.classes)}"
    except (RuntimeError, ValueError, IndexError) as error:
        reason = str(error).partition("\n")[0]
    if reason:
        raise DataError(f"{without_folder(model.network.name)} does not take inputs of shape {spelled}: {reason}")
    code = code_of(model, module, shape, options.model) if options.c else None
    onnx = b""
    if options.onnx:
        try:
            from bifl.export import onnx_file
        except ModuleNotFoundError as error:
            raise ConfigError(f"--onnx needs the package {error.name}: pip install 'bifl[export]'") from error
        onnx = onnx_file.contents(model, module, shape, options.model)
    out = console()
    if code is not None:
        write(folder_of(model, module, code, shape), options.c)
        work, output = 4 * code.memory.size, 4 * code.outputs
        parts = f"input {size(code.ram - work - output)}, work {size(work)}, output {size(output)}"
        say(out, f"{options.c}: flash {size(code.flash)} of weights, RAM {size(code.ram)} ({parts})")
    if options.onnx:
        with writing(options.onnx.parent):
            write_atomic(options.onnx, onnx)
        say(out, f"{options.onnx}: {size(len(onnx))}, input {spelled}, {model.classes} outputs")
    return 0
