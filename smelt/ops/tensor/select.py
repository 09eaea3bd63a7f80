"""Select: elements of one of two tensors, chosen by a condition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType
from smelt.ops.case import Case, Constant, Data
from smelt.ops.constraints import arrays, operands, same_dtype


@dataclass(frozen=True)
class Select(Op):
    """The second operand where the first, a bool, is true; elsewhere the third.

    All three are broadcast to each other. Stored integers are copied unchanged, so that both
    operands and the result must have the same quantization.
    """

    elementwise = True
    moves_data = True
    chooses_by = (0,)

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        condition, a, b = operands(self, inputs, 3)
        if condition.dtype is not DType.BOOL:
            raise ModelError(f"Select needs a condition of type bool, got {condition}")
        dtype = same_dtype(self, (a, b))
        try:
            shape = np.broadcast_shapes(condition.shape, a.shape, b.shape)
        except ValueError as error:
            raise ModelError(f"Select cannot broadcast {condition}, {a} and {b}") from error
        return (TensorType(shape, dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the operands."""
        return operands(self, inputs, 3)[1].quant

    @override
    def check(self, node: Node) -> None:
        _, a, b = (value.type.quant for value in map(node.input, range(3)))
        if not a == b == node.output.type.quant:
            raise ModelError(
                f"{node.origin}: Select copies stored integers, so its operands and its result "
                f"must have the same quantization; but they have {a}, {b} and "
                f"{node.output.type.quant}"
            )

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        condition, a, b = arrays(node, inputs, 3)
        return (np.asarray(np.where(condition, a, b)),)


def _condition(*shape: int) -> Data:
    return Data(shape, dtype=DType.BOOL)


def _case(name: str, *arguments: Data | Constant) -> Case:
    return Case(name, Select(), arguments, same_scale=True)


def _plain_case(name: str, x: Data, dtypes: tuple[DType, ...]) -> Case:
    return Case(name, Select(), (_condition(9), x, x), dtypes, plain=True)


_IMAGE = Data((1, 4, 3, 5))
_NO_FLOATS = tuple(d for d in DType if not d.is_float)
CASES = (
    _case("image", _condition(1, 4, 3, 5), _IMAGE, _IMAGE),
    _case("masked", _condition(1, 4, 3, 1), _IMAGE, Constant((-9.0,), ())),
    _case("all_ways", _condition(4, 1, 1), Data((1, 3, 1)), Data((2, 1, 1, 5))),
    _case("scalar", _condition(), Data((3, 2)), Data((3, 2))),
    _plain_case("plain", Data((9,), -(2.0**63), 2.0**64), _NO_FLOATS),
    _plain_case("float", Data((9,)), (DType.FLOAT64,)),
)
