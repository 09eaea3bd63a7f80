"""Reshape: the same elements in row-major order, with another shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, Node, Op, Quant, TensorType
from smelt.ir.channels import Bounds, ChannelRule, Mask, Narrowed, Narrowing, channels, narrowed
from smelt.ir.homogeneity import FactorLink, Homogeneity, together
from smelt.ops.case import Case, Data


class ReshapeChannels(ChannelRule["Reshape"]):
    """Channel rule of Reshape: the operand's channels repeat among those of the result."""

    @override
    def serves(self, node: Node[Reshape]) -> bool:
        x, y = node.input(0).type, node.output.type
        return channels(x) > 0 and channels(y) % channels(x) == 0

    @override
    def bounds(self, node: Node[Reshape], operands: Sequence[Bounds | None]) -> Bounds:
        given = operands[0]
        assert given is not None
        times = channels(node.output.type) // given.low.size
        return Bounds(np.tile(given.low, times), np.tile(given.high, times))

    @override
    def needs(
        self, node: Node[Reshape], wanted: Mask, operands: Sequence[Bounds | None]
    ) -> tuple[Mask, Sequence[Mask | None]]:
        needed: Mask = np.any(wanted.reshape(-1, channels(node.input(0).type)), axis=0)
        return np.tile(needed, wanted.size // needed.size), [needed]

    @override
    def result_channels(self, node: Node[Reshape], kept: Sequence[Mask | None]) -> Mask | bool:
        (mask,) = (m for m in kept if m is not None)
        return np.tile(mask, channels(node.output.type) // mask.size)

    @override
    def narrow(self, node: Node[Reshape], to: Narrowing) -> Narrowed:
        return Reshape(narrowed(node.output.type, to.result).shape), node.inputs


@dataclass(frozen=True)
class Reshape(Op):
    """`shape` is complete: no element is -1. Also used for squeeze and expand_dims."""

    shape: tuple[int, ...]

    moves_data = True
    is_view = True
    sixteen_bits = True
    channel_rule = ReshapeChannels()

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        (x,) = inputs
        if x is None or prod(self.shape) != x.size:
            raise ModelError(f"Reshape: {x} cannot be reshaped to {list(self.shape)}")
        return (TensorType(self.shape, x.dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the input."""
        return None if inputs[0] is None else inputs[0].quant

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = inputs
        if x is None:
            raise ModelError(f"{node.origin}: Reshape needs an input")
        return (x.reshape(self.shape),)

    def homogeneity(self, node: Node) -> Sequence[Homogeneity]:
        """Return how factors propagate.

        Element i in row-major order has channel i modulo the number of channels, before and after.
        """
        before, after = channels(node.input(0).type), channels(node.output.type)
        if not before or not after:
            return ()
        count = max(before, after)
        if count % before or count % after:
            return (Homogeneity(together(node)),)
        places = np.arange(count)
        return (Homogeneity([FactorLink(0, places % before, places % after)]),)

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return True; the caller knows which axes have rows."""
        return True

    def is_identity(self, node: Node) -> bool:
        """Return whether the shape does not change."""
        return node.input(0).type == node.output.type


CASES = (
    Case("flatten", Reshape((1, 24)), (Data((1, 2, 3, 4)),)),
    Case("expand", Reshape((1, 1, 5, 1)), (Data((5,)),)),
)
