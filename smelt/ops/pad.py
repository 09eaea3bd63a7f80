"""Pad: a constant border."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, operands, same_quant


@dataclass(frozen=True)
class Pad(Op):
    """`padding` is `(before, after)` for each axis, in elements, none negative.

    `value` is the element as it is stored; None stands for real zero, which is the zero point
    of a quantized tensor.
    """

    padding: tuple[tuple[int, int], ...]
    value: float | int | None = None

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """See `Op.infer`."""
        (x,) = operands(self, inputs, 1)
        if len(self.padding) != len(x.shape):
            raise ModelError(f"Pad of {x} has {len(self.padding)} pairs of padding")
        if any(before < 0 or after < 0 for before, after in self.padding):
            raise ModelError(f"Pad of {x} has negative padding {self.padding}")
        if self.value is not None and x.dtype.is_integer:
            low, high = x.dtype.limits
            if self.value != int(self.value) or not low <= self.value <= high:
                raise ModelError(f"Pad of {x} cannot store the value {self.value}")
        shape = tuple(n + sum(pair) for n, pair in zip(x.shape, self.padding, strict=True))
        return (TensorType(shape, x.dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """The input's."""
        return operands(self, inputs, 1)[0].quant

    def check(self, node: Node) -> None:
        """See `Op.check`."""
        same_quant(node)

    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        """See `Op.reference`."""
        (x,) = arrays(node, inputs, 1)
        return (np.pad(x, self.padding, constant_values=self.stored_value(node.output.type)),)

    def stored_value(self, y: TensorType) -> float | int:
        """The element of the border of an output of type `y`."""
        if self.value is not None:
            return self.value if y.dtype.is_float else int(self.value)
        return 0 if y.quant is None else y.zero_point


CASES = (
    Case("image", Pad(((0, 0), (1, 1), (1, 1), (0, 0))), (Data((1, 4, 3, 5)),)),
    Case("one_sided", Pad(((0, 0), (0, 1), (0, 1), (0, 0))), (Data((1, 4, 4, 2), 0.0, 6.0),)),
    Case("asymmetric", Pad(((0, 0), (2, 1), (0, 3), (0, 0))), (Data((1, 2, 3, 3)),)),
    Case("channels", Pad(((0, 0), (0, 0), (0, 0), (1, 2))), (Data((1, 3, 2, 4), -3.0, 1.0),)),
    Case("everywhere", Pad(((1, 0), (0, 1), (2, 2), (1, 1))), (Data((1, 2, 2, 3)),)),
    Case("matrix", Pad(((1, 2), (0, 1))), (Data((2, 3)),)),
    Case("vector", Pad(((3, 1),)), (Data((5,)),)),
    Case("nothing", Pad(((0, 0), (0, 0))), (Data((2, 3)),)),
    Case("lowest", Pad(((0, 0), (1, 1), (1, 1), (0, 0)), -128), (Data((1, 3, 3, 2)),)),
    Case("value", Pad(((1, 1),), 0.5), (Data((4,)),), (DType.FLOAT32,)),
)
