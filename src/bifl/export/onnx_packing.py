"""Constants of two or three values a row as bytes, and the standard operators that unpack them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from bifl.export.onnx_folding import put
from bifl.export.operations import Floats

LEAST = 64  # weights that are worth unpacking: the operators take some hundred bytes
MASKS = np.array([1, 2, 4, 8, 16, 32, 64, 128], np.uint8)
POWERS = np.array([1, 3, 9, 27, 81], np.int32)


def pack(graph: onnx.GraphProto) -> None:
    """Replace every constant whose rows are ±s or ±s and 0 by its packed signs; s is a number for each row."""
    nodes: list[onnx.NodeProto] = []
    for tensor in list(graph.initializer):
        if tensor.data_type != TensorProto.FLOAT:
            continue
        weight = numpy_helper.to_array(tensor)
        found = rows_of(weight) if weight.ndim > 1 and weight.size >= LEAST else None
        if found is not None:
            graph.initializer.remove(tensor)
            nodes += _Unpacking(graph, tensor.name, weight.shape).nodes(*found)
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *rest])


def rows_of(weight: Floats) -> tuple[npt.NDArray[np.int8], Floats] | None:
    """Signs −1, 0 or 1 and a size for each row of weights; None where a row has several sizes.

    >>> rows_of(np.array([[2, -2], [0.5, 0]], np.float32))
    (array([[ 1, -1],
           [ 1,  0]], dtype=int8), array([2. , 0.5], dtype=float32))
    """
    sizes = np.abs(weight.reshape(len(weight), -1))
    largest = sizes.max(1)
    if not np.isfinite(largest).all() or not ((sizes == largest[:, None]) | (sizes == 0)).all():
        return None
    return np.sign(weight).astype(np.int8), largest


class _Unpacking:
    """The operators that make one constant of bytes."""

    def __init__(self, graph: onnx.GraphProto, name: str, shape: tuple[int, ...]) -> None:
        self._graph, self._name, self._shape = graph, name, shape
        self._nodes: list[onnx.NodeProto] = []

    def nodes(self, signs: npt.NDArray[np.int8], sizes: Floats) -> list[onnx.NodeProto]:
        """Bytes → signs → the constant's shape → times the size of each row."""
        made = self._binary(signs) if signs.all() else self._ternary(signs)
        if signs.size % (8 if signs.all() else 5):
            ends = [self._put("start", np.array([0])), self._put("end", np.array([signs.size]))]
            made = self._add("Slice", self._add("Reshape", made, self._put("line", np.array([-1]))), *ends)
        made = self._add("Reshape", made, self._put("shape", np.array(self._shape)))
        one = sizes[:1] if (sizes == sizes[0]).all() else sizes.reshape(-1, *[1] * (len(self._shape) - 1))
        self._add("Mul", made, self._put("scale", one), to=self._name)
        return self._nodes

    def _binary(self, signs: npt.NDArray[np.int8]) -> str:
        packed = np.packbits(signs.ravel() > 0, bitorder="little")[:, None]
        bits = self._add("BitwiseAnd", self._put("bits", packed), put(self._graph, "bit_masks", MASKS))
        ones = (put(self._graph, "plus", np.ones(1, np.float32)), put(self._graph, "minus", -np.ones(1, np.float32)))
        return self._add("Where", self._add("Cast", bits, kind=TensorProto.BOOL), *ones)

    def _ternary(self, signs: npt.NDArray[np.int8]) -> str:
        """Five of them in a byte, as digits of base three."""
        digits = np.pad(signs.ravel() + 1, (0, -signs.size % 5)).reshape(-1, 5)
        packed = (digits.astype(np.int32) @ POWERS).astype(np.uint8)[:, None]
        whole = self._add("Cast", self._put("trits", packed), kind=TensorProto.INT32)
        shifted = self._add("Div", whole, put(self._graph, "trit_powers", POWERS))
        digit = self._add("Mod", shifted, put(self._graph, "three", np.array([3], np.int32)))
        return self._add("Sub", self._add("Cast", digit, kind=TensorProto.FLOAT), put(self._graph, "plus", np.ones(1, np.float32)))

    def _put(self, what: str, values: npt.NDArray[np.generic]) -> str:
        return put(self._graph, f"{self._name}.{what}", values)

    def _add(self, operator: str, *inputs: str, kind: int | None = None, to: str | None = None) -> str:
        output = to or f"{self._name}.{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [output]))
        if kind is not None:
            self._nodes[-1].attribute.append(helper.make_attribute("to", kind))
        return output
