"""`bifl export --onnx`: a trained model in standard operators, its binary and ternary weights as packed bytes.

PyTorch's exporter traces the network, whatever it is made of. Then batch-norm is folded into the layer before it, and every
tensor of two or three values is replaced by bytes and the few operators that unpack them: a runtime does that once, at load.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import onnx
import torch
from onnx import helper
from torch import Tensor, nn

from bifl import __version__
from bifl.errors import DataError
from bifl.experiment.model import Model
from bifl.export.device import normalised, raw_inputs
from bifl.export.onnx_folding import fold
from bifl.export.onnx_packing import pack
from bifl.registry import without_folder

OPSET = 18


class _Normalised(nn.Module):
    """A network that takes raw inputs."""

    def __init__(self, network: nn.Module, model: Model) -> None:
        super().__init__()
        self.network, self._model = network, model

    def forward(self, raw: Tensor) -> Tensor:
        """Scores of raw inputs."""
        scores: Tensor = self.network(normalised(self._model, raw))
        return scores


def contents(model: Model, module: nn.Module, shape: tuple[int, ...], path: str | Path) -> bytes:
    """The ONNX file of a model for inputs of one shape and batches of any size.

    Raises:
        DataError: PyTorch cannot export the network.
    """
    traced = _traced(_Normalised(module, model).eval(), torch.from_numpy(raw_inputs(model, shape, 2)), path)
    _share_constants(traced.graph)
    fold(traced.graph)
    pack(traced.graph)
    _drop_unread(traced.graph)
    _describe(traced, model)
    onnx.checker.check_model(traced, full_check=True)
    return bytes(traced.SerializeToString())


def float_contents(model: Model, module: nn.Module, shape: tuple[int, ...], path: str | Path) -> bytes:
    """The same network with weights as floats: what others export, to compare with."""
    traced = _traced(_Normalised(module, model).eval(), torch.from_numpy(raw_inputs(model, shape, 2)), path)
    _share_constants(traced.graph)
    fold(traced.graph)
    _drop_unread(traced.graph)
    return bytes(traced.SerializeToString())


def _traced(module: nn.Module, example: Tensor, path: str | Path) -> onnx.ModelProto:
    """As PyTorch exports it, with nothing folded."""
    file = io.BytesIO()
    batch = {0: "batch"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter's own future
            torch.onnx.export(
                module, (example,), file, dynamo=False,  # type: ignore[arg-type]
                opset_version=OPSET, input_names=["input"], output_names=["scores"],
                dynamic_axes={"input": batch, "scores": batch}, do_constant_folding=False,
                training=torch.onnx.TrainingMode.PRESERVE,
            )  # fmt: skip
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise DataError(f"'{path}' cannot become ONNX: {type(error).__name__}: {reason}") from error
    return onnx.load_from_string(file.getvalue())


def _share_constants(graph: onnx.GraphProto) -> None:
    """Let nodes read a constant itself where the exporter found it equal to another and put an Identity between."""
    known = {tensor.name for tensor in graph.initializer}
    same = {}
    for node in list(graph.node):
        if node.op_type == "Identity" and node.input[0] in known:
            same[node.output[0]] = node.input[0]
            graph.node.remove(node)
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = same.get(name, name)


def _drop_unread(graph: onnx.GraphProto) -> None:
    """Leave out constants that nobody reads any more."""
    read = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _describe(traced: onnx.ModelProto, model: Model) -> None:
    """Who made it and from what, without the exporter's remarks on every node."""
    for number, node in enumerate(traced.graph.node):
        node.name, node.doc_string = f"n{number}", ""
    del traced.graph.value_info[:]
    traced.graph.name = without_folder(model.network.name)
    traced.producer_name, traced.producer_version = "bifl", __version__
    facts = {
        "network": without_folder(model.network.name), "weights": model.forward.name, "rounds": str(model.message.round),
        "classes": ",".join(map(str, range(model.classes))), "input": f"raw {model.inputs}",
        "mean": repr(model.mean), "std": repr(model.std),
    }  # fmt: skip
    helper.set_model_props(traced, facts)
