"""Concat: tensors joined along one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, Node, Op, Quant, TensorType
from smelt.ir.axes import Axes, same_axes
from smelt.ir.channels import Bounds, Mask, channels
from smelt.ir.homogeneity import FactorLink, Homogeneity, in_place
from smelt.ops.case import Case, Constant, Data
from smelt.ops.constraints import arrays, axis_in_range, operands, same_dtype, same_quant
from smelt.ops.core.channel_rules import MonotonicChannels


class ConcatChannels(MonotonicChannels["Concat"]):
    """Channel rule of Concat: along the last axis, the operands' channels follow each other."""

    @override
    def needs(
        self, node: Node[Concat], wanted: Mask, operands: Sequence[Bounds | None]
    ) -> tuple[Mask, Sequence[Mask | None]]:
        if node.op.axis != len(node.output.type.shape) - 1:
            return super().needs(node, wanted, operands)
        counts = [0 if v is None else channels(v.type) for v in node.inputs]
        parts = np.split(wanted.copy(), np.cumsum(counts)[:-1])
        for part in parts:
            part[:1] |= not part.any()  # An operand must keep at least one channel.
        return np.concatenate(parts), parts

    @override
    def result_channels(self, node: Node[Concat], kept: Sequence[Mask | None]) -> Mask | bool:
        if node.op.axis != len(node.output.type.shape) - 1:
            return super().result_channels(node, kept)
        return np.concatenate([mask for mask in kept if mask is not None])


@dataclass(frozen=True)
class Concat(Op):
    """Any number of tensors, joined along `axis` (not negative).

    Quantized inputs must have the output's quantization, as in TensorFlow Lite Micro.
    """

    axis: int

    moves_data = True
    sixteen_bits = True
    channel_rule = ConcatChannels()

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        types = operands(self, inputs, max(len(inputs), 1))
        axis_in_range(self, self.axis, len(types[0].shape))
        others = {(*t.shape[: self.axis], 0, *t.shape[self.axis + 1 :]) for t in types}
        if len(others) != 1 or len({len(t.shape) for t in types}) != 1:
            raise ModelError(
                f"Concat along axis {self.axis} cannot join {', '.join(map(str, types))}: all "
                "other axes must have equal sizes"
            )
        total = sum(t.shape[self.axis] for t in types)
        shape = (*types[0].shape[: self.axis], total, *types[0].shape[self.axis + 1 :])
        return (TensorType(shape, same_dtype(self, types)),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the inputs, which all have the same."""
        return operands(self, inputs, 1)[0].quant

    @override
    def check(self, node: Node) -> None:
        same_quant(node, len(node.inputs))

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        return (np.concatenate(arrays(node, inputs, len(inputs)), axis=self.axis),)

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return whether rows lie along another axis than the joined one."""
        return axes[0] != self.axis

    def axes_rule(self, node: Node) -> Axes:
        """Return that operands and result have the same axes."""
        return same_axes(node, lambda order: Concat(order.index(self.axis)))

    def homogeneity(self, node: Node) -> Sequence[Homogeneity]:
        """Return how factors propagate, if no operand is constant."""
        if any(v is None or v.data is not None for v in node.inputs):
            return ()
        if self.axis != len(node.output.type.shape) - 1:
            return (Homogeneity(in_place(node, range(len(node.inputs)))),)
        links: list[FactorLink] = []
        first = 0
        for index in range(len(node.inputs)):
            own = np.arange(channels(node.input(index).type))
            links.append(FactorLink(index, own, first + own))
            first += own.size
        return (Homogeneity(links),)

    def is_identity(self, node: Node) -> bool:
        """Return whether there is a single operand of the result's type."""
        return len(node.inputs) == 1 and node.input(0).type == node.output.type


CASES = (
    Case("channels", Concat(3), (Data((1, 3, 4, 5)), Data((1, 3, 4, 2))), same_scale=True),
    Case("rows", Concat(1), (Data((1, 2, 4, 3)), Data((1, 3, 4, 3))), same_scale=True),
    Case("columns", Concat(2), (Data((1, 2, 4, 3)), Data((1, 2, 1, 3))), same_scale=True),
    Case("batch", Concat(0), (Data((1, 3)), Data((2, 3))), same_scale=True),
    Case("vectors", Concat(0), (Data((3,)), Data((1,)), Data((5,))), same_scale=True),
    Case("matrices", Concat(1), (Data((3, 2)), Data((3, 4))), same_scale=True),
    Case("one_input", Concat(1), (Data((2, 3)),)),
    Case("constant", Concat(0), (Data((3,)), Constant((0.5, -0.5), (2,))), same_scale=True),
    Case("many", Concat(3), tuple(Data((1, 2, 1, n)) for n in range(1, 6)), same_scale=True),
)
