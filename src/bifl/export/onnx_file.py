"""`bifl export --onnx`: a trained model in standard operators, its binary and ternary weights as packed bytes.

PyTorch's exporter takes the network, with batch-norm folded where it can be traced. Then every tensor of two or three values a row
is replaced by bytes and the few operators that unpack them: a runtime does that once, at load.
"""

from __future__ import annotations

import io
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from bifl import __version__
from bifl.errors import DataError
from bifl.experiment.model import Model
from bifl.export.raw import raw_inputs
from bifl.export.weights import Rows, Unsupported, fold, rows_of
from bifl.nn.batch import normalise
from bifl.registry import without_folder

OPSET = 18
LEAST = 64  # weights that are worth unpacking: the operators take some hundred bytes
MASKS = np.array([1, 2, 4, 8, 16, 32, 64, 128], np.uint8)
POWERS = np.array([1, 3, 9, 27, 81], np.int32)


class _Normalised(nn.Module):
    """A network that takes raw inputs."""

    def __init__(self, network: nn.Module, model: Model) -> None:
        super().__init__()
        self.network, self._model = network, model

    def forward(self, raw: Tensor) -> Any:
        """Scores of raw inputs."""
        return self.network(normalise(raw, self._model.mean, self._model.std))


def contents(model: Model, module: nn.Module, shape: tuple[int, ...], path: str | Path) -> bytes:
    """The ONNX file of a model for inputs of one shape and batches of any size."""
    packed = float_model(model, module, shape, path)
    _pack(packed.graph)
    _describe(packed, model)
    onnx.checker.check_model(packed, full_check=True)
    return bytes(packed.SerializeToString())


def float_model(model: Model, module: nn.Module, shape: tuple[int, ...], path: str | Path) -> onnx.ModelProto:
    """As PyTorch exports it, with batch-norm folded and weights as floats."""
    raw = torch.from_numpy(raw_inputs(model, shape, 2))
    with suppress(Unsupported):  # code that only PyTorch's exporter can trace keeps its batch-norm
        module, _ = fold(module, normalise(raw[:1], model.mean, model.std))
    file, batch = io.BytesIO(), {0: "batch"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter's own future
            torch.onnx.export(
                _Normalised(module, model).eval(), (raw,), file, dynamo=False,  # type: ignore[arg-type]
                opset_version=OPSET, input_names=["input"], output_names=["scores"],
                dynamic_axes={"input": batch, "scores": batch}, do_constant_folding=False,
                training=torch.onnx.TrainingMode.PRESERVE,
            )  # fmt: skip
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise DataError(f"'{path}' cannot become ONNX: {type(error).__name__}: {reason}") from error
    exported = onnx.load_from_string(file.getvalue())
    _tidy(exported.graph)
    return exported


def _tidy(graph: onnx.GraphProto) -> None:
    """Let nodes read a constant itself where the exporter put an Identity between, and leave out constants that nobody reads."""
    constants = {tensor.name for tensor in graph.initializer}
    same = {}
    for node in list(graph.node):
        if node.op_type == "Identity" and node.input[0] in constants:
            same[node.output[0]] = node.input[0]
            graph.node.remove(node)
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = same.get(name, name)
    read = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _describe(packed: onnx.ModelProto, model: Model) -> None:
    """Who made it and from what, without the exporter's remarks on every node."""
    for number, node in enumerate(packed.graph.node):
        node.name, node.doc_string = f"n{number}", ""
    del packed.graph.value_info[:]
    packed.graph.name = without_folder(model.network.name)
    packed.producer_name, packed.producer_version = "bifl", __version__
    facts = {
        "network": without_folder(model.network.name), "weights": model.forward.name, "rounds": str(model.message.round),
        "classes": ",".join(map(str, range(model.classes))), "input": f"raw {model.inputs}",
        "mean": repr(model.mean), "std": repr(model.std),
    }  # fmt: skip
    helper.set_model_props(packed, facts)


def _pack(graph: onnx.GraphProto) -> None:
    """Replace every constant whose rows are ±s or ±s and 0 by its packed signs; s is a number for each row."""
    nodes: list[onnx.NodeProto] = []
    for tensor in list(graph.initializer):
        if tensor.data_type != TensorProto.FLOAT:
            continue
        weight = numpy_helper.to_array(tensor)
        rows = rows_of(weight) if weight.ndim > 1 and weight.size >= LEAST else None
        if rows is not None:
            graph.initializer.remove(tensor)
            nodes += _Unpacking(graph, tensor.name).nodes(rows)
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *rest])


class _Unpacking:
    """The operators that make one constant of bytes."""

    def __init__(self, graph: onnx.GraphProto, name: str) -> None:
        self._graph, self._name = graph, name
        self._nodes: list[onnx.NodeProto] = []

    def nodes(self, rows: Rows) -> list[onnx.NodeProto]:
        """Bytes → signs → the constant's shape → times the size of each row."""
        signs, sizes = rows
        made, each = (self._binary(signs), 8) if rows.binary else (self._ternary(signs), 5)
        if signs.size % each:
            ends = [self._put("start", np.array([0])), self._put("end", np.array([signs.size]))]
            made = self._add("Slice", self._add("Reshape", made, self._put("line", np.array([-1]))), *ends)
        made = self._add("Reshape", made, self._put("shape", np.array(signs.shape)))
        one = sizes[:1] if (sizes == sizes[0]).all() else sizes.reshape(-1, *[1] * (signs.ndim - 1))
        self._add("Mul", made, self._put("scale", one), to=self._name)
        return self._nodes

    def _binary(self, signs: npt.NDArray[np.int8]) -> str:
        packed = np.packbits(signs.ravel() > 0, bitorder="little")[:, None]
        bits = self._add("BitwiseAnd", self._put("bits", packed), self._share("bit_masks", MASKS))
        ones = (self._share("plus", np.ones(1, np.float32)), self._share("minus", -np.ones(1, np.float32)))
        return self._add("Where", self._add("Cast", bits, kind=TensorProto.BOOL), *ones)

    def _ternary(self, signs: npt.NDArray[np.int8]) -> str:
        """Five of them in a byte, as digits of base three."""
        digits = np.pad(signs.ravel() + 1, (0, -signs.size % 5)).reshape(-1, 5)
        packed = (digits.astype(np.int32) @ POWERS).astype(np.uint8)[:, None]
        whole = self._add("Cast", self._put("trits", packed), kind=TensorProto.INT32)
        shifted = self._add("Div", whole, self._share("trit_powers", POWERS))
        digit = self._add("Mod", shifted, self._share("three", np.array([3], np.int32)))
        return self._add("Sub", self._add("Cast", digit, kind=TensorProto.FLOAT), self._share("plus", np.ones(1, np.float32)))

    def _put(self, what: str, values: npt.NDArray[np.generic]) -> str:
        """A constant of this one's own."""
        return self._share(f"{self._name}.{what}", values)

    def _share(self, name: str, values: npt.NDArray[np.generic]) -> str:
        """A constant that others of this name are equal to."""
        if all(tensor.name != name for tensor in self._graph.initializer):
            self._graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def _add(self, operator: str, *inputs: str, kind: int | None = None, to: str | None = None) -> str:
        output = to or f"{self._name}.{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [output]))
        if kind is not None:
            self._nodes[-1].attribute.append(helper.make_attribute("to", kind))
        return output
