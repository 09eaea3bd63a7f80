"""Transpose: permutes axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, Node, Op, Quant, TensorType
from smelt.ir.axes import Axes
from smelt.ir.homogeneity import Homogeneity, in_place
from smelt.ir.onnx_form import OnnxForm
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, operands, same_quant


@dataclass(frozen=True)
class Transpose(Op):
    """Output axis `i` is input axis `permutation[i]`."""

    permutation: tuple[int, ...]

    moves_data = True
    sixteen_bits = True

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        (x,) = operands(self, inputs, 1)
        if sorted(self.permutation) != list(range(len(x.shape))):
            raise ModelError(
                f"Transpose: {list(self.permutation)} is not a permutation of the "
                f"{len(x.shape)} axes of {x}"
            )
        return (TensorType(tuple(x.shape[axis] for axis in self.permutation), x.dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the input, with its axis permuted."""
        quant = operands(self, inputs, 1)[0].quant
        if quant is None or quant.axis is None:
            return quant
        return Quant(quant.scale, quant.zero_point, self.permutation.index(quant.axis))

    @override
    def check(self, node: Node) -> None:
        quant = node.input(0).type.quant
        if quant is None or quant.is_per_tensor:
            same_quant(node)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        return (x.transpose(self.permutation).copy(),)

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return True; the caller knows where the axis of rows goes."""
        return True

    def axes_rule(self, node: Node) -> Axes:
        """Return the correspondence of axes; a layout permutes them, and no operator remains."""
        names = tuple(range(len(node.input(0).type.shape)))
        return Axes(self.permutation, (names,), (self.permutation,), lambda _: None)

    def homogeneity(self, node: Node) -> Sequence[Homogeneity]:
        """Return that channels keep their factors, if the last axis stays last."""
        kept = self.permutation[-1:] == (len(self.permutation) - 1,)
        return (Homogeneity(in_place(node)),) if kept else ()

    def onnx_form(self, node: Node) -> OnnxForm:
        """Return ONNX's Transpose."""
        return OnnxForm("Transpose", {"perm": self.permutation})

    def is_identity(self, node: Node) -> bool:
        """Return whether no axis moves."""
        return list(self.permutation) == sorted(self.permutation)


CASES = (
    Case("matrix", Transpose((1, 0)), (Data((3, 5)),)),
    Case("nhwc_to_nchw", Transpose((0, 3, 1, 2)), (Data((1, 4, 3, 5)),)),
    Case("nchw_to_nhwc", Transpose((0, 2, 3, 1)), (Data((1, 5, 4, 3)),)),
    Case("rows_columns", Transpose((0, 2, 1, 3)), (Data((2, 3, 4, 2)),)),
    Case("reversed", Transpose((3, 2, 1, 0)), (Data((2, 3, 4, 5)),)),
    Case("rotated", Transpose((2, 0, 1)), (Data((3, 1, 7)),)),
    Case("five_axes", Transpose((0, 3, 1, 4, 2)), (Data((1, 2, 3, 2, 3)),)),
    Case("identity", Transpose((0, 1)), (Data((2, 3)),)),
    Case("vector", Transpose((0,)), (Data((4,)),)),
)
