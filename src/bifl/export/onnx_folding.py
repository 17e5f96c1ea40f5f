"""Batch-norm folded into the convolution or matrix product before it, as a scale of the weights and a bias."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
from onnx import numpy_helper

from bifl.export.operations import Doubles, Floats


def fold(graph: onnx.GraphProto) -> None:
    """Fold every batch-norm whose only reader is a layer with constant weights. A scale stays beside binary weights as a node."""
    readers = Counter(name for node in graph.node for name in node.input)
    readers.update(output.name for output in graph.output)
    makers = {node.output[0]: node for node in graph.node}
    for norm in [node for node in graph.node if node.op_type == "BatchNormalization"]:
        layer = makers.get(norm.input[0])
        if layer is not None and readers[norm.input[0]] == 1 and _takes(graph, layer, readers):
            _fold_one(graph, layer, norm)


def array(graph: onnx.GraphProto, name: str) -> Floats | None:
    """A constant of the graph."""
    found = next((tensor for tensor in graph.initializer if tensor.name == name), None)
    return None if found is None else numpy_helper.to_array(found)


def put(graph: onnx.GraphProto, name: str, values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> str:
    """Add a constant, or replace the one of that name."""
    for tensor in graph.initializer:
        if tensor.name == name:
            graph.initializer.remove(tensor)
            break
    graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
    return name


def _takes(graph: onnx.GraphProto, layer: onnx.NodeProto, readers: Counter[str]) -> bool:
    """Whether a layer's outputs are a product with a constant of its own, one row for each."""
    if layer.op_type == "Gemm":
        plain = {attribute.name: helper_value(attribute) for attribute in layer.attribute}
        if plain.get("transB") != 1 or plain.get("transA", 0) or plain.get("alpha", 1.0) != 1 or plain.get("beta", 1.0) != 1:
            return False
    elif layer.op_type != "Conv":
        return False
    constant = all(array(graph, name) is not None for name in layer.input[1:])
    return constant and readers[layer.input[1]] == 1


def helper_value(attribute: onnx.AttributeProto) -> float:
    """A number among a node's attributes."""
    return float(attribute.i or attribute.f)


def _fold_one(graph: onnx.GraphProto, layer: onnx.NodeProto, norm: onnx.NodeProto) -> None:
    epsilon = next((attribute.f for attribute in norm.attribute if attribute.name == "epsilon"), 1e-5)
    parts = [array(graph, name) for name in norm.input[1:5]]
    gamma, beta, mean, variance = (np.asarray(part, np.float64) for part in parts)
    scale: Doubles = gamma / np.sqrt(variance + epsilon)
    bias = array(graph, layer.input[2]) if len(layer.input) > 2 else np.zeros(len(scale), np.float32)
    shift = (np.asarray(bias, np.float64) - mean) * scale + beta
    weight = array(graph, layer.input[1])
    assert weight is not None
    name = layer.input[1]
    _scale_rows(graph, name, weight, scale)
    del layer.input[2:]
    layer.input.append(put(graph, f"{name}.shift", shift.astype(np.float32)))
    layer.output[0] = norm.output[0]
    graph.node.remove(norm)


def _scale_rows(graph: onnx.GraphProto, name: str, weight: Floats, scale: Doubles) -> None:
    """Rows of weights times a number each."""
    put(graph, name, (weight * scale.reshape(-1, *[1] * (weight.ndim - 1))).astype(np.float32))
