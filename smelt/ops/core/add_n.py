"""AddN: the sum of any number of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, TensorType
from smelt.ir.onnx_form import OnnxForm
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, operands, quantized, same_dtype


@dataclass(frozen=True)
class AddN(Op):
    """Element-by-element sum of tensors with one shape and element type. Integers wrap."""

    elementwise = True

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the type of the operands, which all have the same shape and element type."""
        given = operands(self, inputs, len(inputs))
        if not given:
            raise ModelError("AddN needs at least one operand")
        dtype = same_dtype(self, given)
        if dtype is DType.BOOL:
            raise ModelError("AddN cannot add bool tensors")
        shapes = {x.shape for x in given}
        if len(shapes) > 1:
            raise ModelError(f"AddN needs tensors of one shape, got shapes {sorted(shapes)}")
        return (TensorType(given[0].shape, dtype),)

    def check(self, node: Node) -> None:
        """Check that nothing is quantized: AddN does not requantize."""
        quantized(node, (), len(node.inputs))

    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        """Return the sum; floats are added in double precision."""
        dtype = node.output.type.dtype
        wide = np.float64 if dtype.is_float else dtype.numpy
        terms = [x.astype(wide) for x in arrays(node, inputs, len(inputs))]
        with np.errstate(over="ignore"):
            return (np.asarray(reduce(np.add, terms)).astype(dtype.numpy),)

    def onnx_form(self, node: Node) -> OnnxForm | None:
        """Return ONNX's Sum, which adds floats only."""
        return OnnxForm("Sum") if node.output.type.dtype.is_float else None

    def is_identity(self, node: Node) -> bool:
        """Return whether there is a single operand."""
        return len(node.inputs) == 1


_FLOATS = (DType.FLOAT32, DType.FLOAT64)
_INTEGERS = (DType.INT8, DType.UINT16, DType.INT32, DType.UINT32, DType.INT64)
_ANY = Data((3, 5), -(2.0**63), 2.0**63)

CASES = (
    Case("image", AddN(), (Data((1, 4, 3, 5)),) * 3, _FLOATS, plain=True),
    Case("two", AddN(), (Data((7,)),) * 2, (DType.FLOAT32,)),
    Case("one", AddN(), (Data((2, 3)),), (DType.FLOAT32,)),
    Case("wrapping", AddN(), (_ANY,) * 4, _INTEGERS, plain=True),
)
