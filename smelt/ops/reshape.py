"""Reshape: the same elements in row-major order under another shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from smelt.errors import ModelError
from smelt.ir import Array, Node, Op, Quant, TensorType
from smelt.ops.case import Case, Data


@dataclass(frozen=True)
class Reshape(Op):
    """`shape` is complete: no element is -1. Also squeeze and expand_dims."""

    shape: tuple[int, ...]

    moves_data = True
    sixteen_bits = True

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """See `Op.infer`."""
        (x,) = inputs
        if x is None or prod(self.shape) != x.size:
            raise ModelError(f"{x} cannot be reshaped to {list(self.shape)}")
        return (TensorType(self.shape, x.dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """The input's."""
        return None if inputs[0] is None else inputs[0].quant

    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        """See `Op.reference`."""
        (x,) = inputs
        if x is None:
            raise ModelError(f"{node.origin}: the input is missing")
        return (x.reshape(self.shape),)

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Whatever they are called."""
        del node, axes
        return True


CASES = (
    Case("flatten", Reshape((1, 24)), (Data((1, 2, 3, 4)),)),
    Case("expand", Reshape((1, 1, 5, 1)), (Data((5,)),)),
)
