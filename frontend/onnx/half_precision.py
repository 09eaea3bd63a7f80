"""Tracks which tensors are float16 or bfloat16 in the file, where the graph has float32."""

from __future__ import annotations

import onnx

from smelt.frontend.onnx.tensors import NARROWED


class ElementTypes:
    """The file's element types of a graph's tensors, by name, as far as rounding needs them.

    The types of inputs, constants and declared tensors are known. Other results are assumed to have
    the type of the first operand that is float16 or bfloat16.
    """

    def __init__(self, graph: onnx.GraphProto, outer: ElementTypes | None) -> None:
        declared = (*graph.input, *graph.value_info, *graph.output)
        self._outer = outer
        self._codes = {info.name: info.type.tensor_type.elem_type for info in declared}
        constants = (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer))
        self._codes |= {tensor.name: tensor.data_type for tensor in constants}

    def code(self, name: str) -> int:
        """Return ONNX's code of a tensor's element type; 0 if it is unknown."""
        if name in self._codes or self._outer is None:
            return self._codes.get(name, onnx.TensorProto.UNDEFINED)
        return self._outer.code(name)

    def bind(self, name: str, code: int) -> None:
        """Set a tensor's element type."""
        self._codes[name] = code

    def infer(self, node: onnx.NodeProto) -> None:
        """Derive the types of an operator's results, unless they are known."""
        code = self._result(node)
        for name in node.output:
            if not self._codes.get(name):
                self._codes[name] = code

    def _result(self, node: onnx.NodeProto) -> int:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to":
                return attribute.i
            if attribute.type == onnx.AttributeProto.TENSOR:
                return attribute.t.data_type
        operands = node.input[1:] if node.op_type == "CastLike" else node.input
        codes = (self.code(name) for name in operands)
        return next((code for code in codes if code in NARROWED), onnx.TensorProto.UNDEFINED)
