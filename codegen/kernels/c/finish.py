"""The end of every sum of products: bias, scale, zero point, clamp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.codegen.kernels.base import Operand, Packed
from smelt.codegen.kernels.c.requantization import Requantization
from smelt.codegen.render import c_float
from smelt.ir import Array, Node
from smelt.ops.fixed_point import Activation


@dataclass(frozen=True)
class Finish:
    """How a sum becomes an output, as templates know it.

    Attributes:
        is_float: whether float32, else int8.
        low, high: clamps as C constants; None where a float needs none.
        bias: `[o]`, int64 or float32; None where a float has none.
        requantization: of int8.
    """

    is_float: bool
    low: str | None
    high: str | None
    bias: Array | None
    requantization: Requantization | None

    @staticmethod
    def of(
        node: Node,
        scales: Sequence[float],
        activation: Activation,
        bias: Array | None,
        channels: int,
    ) -> Finish:
        """The finish of a node.

        Args:
            node: gives the output's type and the rounding.
            scales: accumulator scales over output scale; unused for floats.
            activation: fused into the node.
            bias: as the sum needs it (zero points folded or not); None where there is none.
            channels: number of output channels.
        """
        if node.output.type.quant is None:
            low, high = activation.limits
            return Finish(
                True,
                c_float(low) if math.isfinite(low) else None,
                c_float(high) if math.isfinite(high) else None,
                bias,
                None,
            )
        requantization = Requantization.of(node, scales, activation, channels)
        bias = np.zeros(channels, np.int64) if bias is None else bias
        return Finish(
            False, str(requantization.low), str(requantization.high), bias, requantization
        )

    @property
    def has_bias(self) -> bool:
        """Whether any bias differs from zero."""
        return self.bias is not None and bool(self.bias.any())

    @property
    def fields(self) -> int:
        """int32 a channel in `channels`: 3 with multiplier and shift, 1 with the bias alone."""
        return 1 if self.requantization is None or self.requantization.is_uniform else 3

    @property
    def multiplier(self) -> int:
        """The multiplier of all channels, where they have one."""
        return 0 if self.requantization is None else self.requantization.multipliers[0]

    @property
    def shift(self) -> int:
        """The shift of all channels, where they have one."""
        return 0 if self.requantization is None else self.requantization.shifts[0]

    @property
    def plus_zero_point(self) -> str:
        """The C text that adds the output's zero point, as ` + 3`."""
        zero_point = 0 if self.requantization is None else self.requantization.zero_point
        return "" if zero_point == 0 else f" {'+' if zero_point > 0 else '-'} {abs(zero_point)}"

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The constants that the C function needs; none where there are none."""
        if self.requantization is not None:
            if self.fields == 1 and not self.has_bias:
                return ()
            assert self.bias is not None
            return (Packed("channels", self.requantization.rows(self.bias)),)
        if not self.has_bias or self.bias is None:
            return ()
        return (Packed("bias", self.bias.astype(np.float32)),)

    @property
    def helpers(self) -> frozenset[str]:
        """The shared C functions that it calls."""
        return frozenset[str]() if self.is_float else frozenset({"requantize", "clamp"})
