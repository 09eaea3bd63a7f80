"""Tile: repeats a tensor along its axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, Node, Op, Quant, TensorType
from smelt.ir.axes import Axes, permuted, same_axes
from smelt.ir.onnx_form import OnnxForm
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, operands, same_quant


@dataclass(frozen=True)
class Tile(Op):
    """Axis `i` of the input, repeated `multiples[i]` times; each multiple is at least 1."""

    multiples: tuple[int, ...]

    moves_data = True

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        (x,) = operands(self, inputs, 1)
        if len(self.multiples) != len(x.shape) or min(self.multiples, default=1) < 1:
            raise ModelError(
                f"Tile of {x} has multiples {list(self.multiples)}; it needs {len(x.shape)} of "
                "them, each at least 1"
            )
        shape = tuple(n * times for n, times in zip(x.shape, self.multiples, strict=True))
        return (TensorType(shape, x.dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the input."""
        return operands(self, inputs, 1)[0].quant

    @override
    def check(self, node: Node) -> None:
        same_quant(node)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        return (np.tile(x, self.multiples),)

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return whether rows lie along an axis that is not repeated."""
        return axes[0] is not None and self.multiples[axes[0]] == 1

    def axes_rule(self, node: Node) -> Axes:
        """Return that operand and result have the same axes."""
        return same_axes(node, lambda order: Tile(permuted(self.multiples, order)))

    def onnx_form(self, node: Node) -> OnnxForm:
        """Return ONNX's Tile, which has the multiples as an operand."""
        return OnnxForm("Tile", constants={"repeats": np.asarray(self.multiples, np.int64)})


CASES = (
    Case("rows", Tile((1, 1, 2, 1, 1)), (Data((1, 3, 1, 4, 5)),)),
    Case("columns", Tile((1, 1, 1, 3, 1)), (Data((1, 2, 3, 1, 4)),)),
    Case("channels", Tile((1, 1, 1, 2)), (Data((1, 3, 2, 5)),)),
    Case("everywhere", Tile((2, 3, 2)), (Data((2, 3, 4)),)),
    Case("elements", Tile((1, 6)), (Data((5, 1)),)),
    Case("vector", Tile((3,)), (Data((7,)),)),
    Case("once", Tile((1, 1)), (Data((2, 3)),)),
)
