"""Triangle: sets elements above or below a diagonal of matrices to zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError, UnsupportedError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType
from smelt.ir.axes import Axes, along_last
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, operands, same_quant


@dataclass(frozen=True)
class Triangle(Op):
    """Elements on and above diagonal `k` of the last two axes, or on and below it if not `upper`.

    Diagonal 0 is the main diagonal; larger numbers are above it. All other elements are stored as
    0.
    """

    upper: bool = True
    k: int = 0

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        (x,) = operands(self, inputs, 1)
        if len(x.shape) < 2:
            raise ModelError(f"Triangle needs a tensor of at least 2 dimensions, got {x}")
        return (TensorType(x.shape, x.dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the input."""
        return operands(self, inputs, 1)[0].quant

    @override
    def check(self, node: Node) -> None:
        same_quant(node)
        quant = node.output.type.quant
        if quant is not None and any(quant.zero_point):
            raise UnsupportedError(
                f"{node.origin}: Triangle of quantized data needs zero point 0, but it is "
                f"{quant.zero_point[0]}; keep this operator in float"
            )

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        return (np.triu(x, self.k) if self.upper else np.tril(x, self.k),)

    def axes_rule(self, node: Node) -> Axes:
        """Return that all axes but the last two may be permuted."""
        return along_last(node, 2)


_TYPES = (DType.FLOAT32, DType.INT8, DType.BOOL, DType.INT64)

CASES = (
    Case("upper", Triangle(), (Data((4, 5)),), _TYPES, plain=True),
    Case("lower", Triangle(False), (Data((2, 4, 3)),), _TYPES, plain=True),
    Case("above", Triangle(True, 2), (Data((4, 5)),), _TYPES, plain=True),
    Case("below", Triangle(False, -1), (Data((5, 4)),), _TYPES, plain=True),
    Case("nothing", Triangle(True, 9), (Data((3, 4)),), _TYPES, plain=True),
    Case("everything", Triangle(True, -9), (Data((3, 4)),), _TYPES, plain=True),
    Case("empty_lower", Triangle(False, -9), (Data((3, 4)),), _TYPES, plain=True),
)
