"""Which tensors the file has as float16 or bfloat16, where the graph has float32."""

from __future__ import annotations

import onnx

from smelt.frontend.onnx.tensors import NARROWED


class ElementTypes:
    """The file's element types of a graph's tensors, by name, as far as rounding asks for them.

    Those of inputs, constants and what the file declares are known. Else an operator's results are
    taken for float16 or bfloat16 as the first such operand is.
    """

    def __init__(self, graph: onnx.GraphProto, outer: ElementTypes | None) -> None:
        declared = (*graph.input, *graph.value_info, *graph.output)
        self._outer = outer
        self._codes = {info.name: info.type.tensor_type.elem_type for info in declared}
        constants = (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer))
        self._codes |= {tensor.name: tensor.data_type for tensor in constants}

    def code(self, name: str) -> int:
        """ONNX's code of a tensor's element type; 0 where it is not known."""
        if name in self._codes or self._outer is None:
            return self._codes.get(name, onnx.TensorProto.UNDEFINED)
        return self._outer.code(name)

    def bind(self, name: str, code: int) -> None:
        """Say what a tensor's element type is."""
        self._codes[name] = code

    def follow(self, node: onnx.NodeProto) -> None:
        """Say what the results of an operator are, unless that is known."""
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
