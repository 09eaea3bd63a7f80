"""Copy: a copy of a tensor in a buffer of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, Node, Op, Quant, TensorType
from smelt.ir.homogeneity import Homogeneity, in_place
from smelt.ops.case import Case, Data
from smelt.ops.core.channel_rules import MonotonicChannels


@dataclass(frozen=True)
class Copy(Op):
    """The input, unchanged. It puts a constant in a buffer that the caller can read.

    The quantization of the output may differ from that of the input; the stored integers are
    copied unchanged.
    """

    elementwise = True
    moves_data = True
    sixteen_bits = True
    channel_rule = MonotonicChannels()

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        (x,) = inputs
        if x is None:
            raise ModelError("Copy needs an input")
        return (TensorType(x.shape, x.dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the input."""
        return None if inputs[0] is None else inputs[0].quant

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = inputs
        if x is None:
            raise ModelError(f"{node.origin}: Copy needs an input")
        return (x.copy(),)

    def homogeneity(self, node: Node) -> Sequence[Homogeneity]:
        """Return that each channel keeps its factor."""
        return (Homogeneity(in_place(node)),)


CASES = (Case("vector", Copy(), (Data((3, 5)),)),)
