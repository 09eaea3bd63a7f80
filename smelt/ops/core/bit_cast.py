"""BitCast: reinterprets the bits of each element as another type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, TensorType
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, operands


@dataclass(frozen=True)
class BitCast(Op):
    """The bits of each element as one of type `to`, which has the same size; not quantized."""

    to: DType

    converts = True

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        (x,) = operands(self, inputs, 1)
        if x.quant is not None or x.dtype.size != self.to.size:
            raise ModelError(
                f"BitCast cannot reinterpret {x} as {self.to.value}: the input must not be "
                "quantized, and both types must have the same size"
            )
        if self.to is DType.BOOL:
            raise ModelError(
                "BitCast cannot reinterpret bits as bool, which has only two valid bit patterns"
            )
        return (TensorType(x.shape, self.to),)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        stored = np.ascontiguousarray(x, node.input(0).type.dtype.numpy)
        return (stored.view(self.to.numpy).reshape(x.shape),)


CASES = (
    Case("word", BitCast(DType.INT32), (Data((3, 5)),), (DType.FLOAT32,), plain=True),
    Case("long", BitCast(DType.UINT64), (Data((7,)),), (DType.FLOAT64,), plain=True),
    Case("byte", BitCast(DType.INT8), (Data((2, 3)),), (DType.UINT8,), plain=True),
    Case("scalar", BitCast(DType.FLOAT32), (Data(()),), (DType.INT32,), plain=True),
)
