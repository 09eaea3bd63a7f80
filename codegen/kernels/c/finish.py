"""The end of every sum of products: bias, scale, zero point, clamp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.codegen.kernels.base import Operand, Packed
from smelt.codegen.kernels.c.requantization import Requantization
from smelt.codegen.kernels.c.store import offset, stored
from smelt.ir import Array, Node
from smelt.ops.fixed_point import Activation


@dataclass(frozen=True)
class Finish:
    """How a sum becomes an output, as templates know it.

    Each output channel has a row of constants; C code calls a pointer to it `channel`.

    Attributes:
        text: C expression of the stored output; `%s` stands for the sum without its bias.
        rows: `[o, fields]` constants, int32 or float32; None where there are none.
        helpers: the shared C functions that `text` calls.
        note: how results are rounded, for the function's comment; empty for floats.
    """

    text: str
    rows: Array | None
    helpers: frozenset[str]
    note: str = ""

    @staticmethod
    def of(
        node: Node,
        activation: Activation,
        bias: Array | None,
        scales: Sequence[float] = (),
        bounds: Array | None = None,
    ) -> Finish:
        """The finish of a node.

        Args:
            node: gives the output's type and the rounding.
            activation: fused into the node.
            bias: `[o]` as the sum needs it (zero points folded or not); None where there is none.
            scales: accumulator scales over output scale, where quantized.
            bounds: of the sums, int64 `[o]`, where quantized.
        """
        y = node.output.type
        if y.quant is None or bounds is None:
            store = stored(activation, y)
            if bias is None or not bias.any():
                return Finish(store.text, None, store.helpers)
            rows = bias.astype(np.float32).reshape(-1, 1)
            return Finish(store.text % "%s + channel[0]", rows, store.helpers)
        bias = np.zeros(len(bounds), np.int64) if bias is None else bias.ravel()
        requantization = Requantization.of(node, scales, activation, bounds)
        return _quantized(node, activation, bias, requantization)

    @property
    def fields(self) -> int:
        """Constants a channel."""
        return 0 if self.rows is None else self.rows.shape[1]

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The parameter `channels`, where there are constants."""
        return () if self.rows is None else (Packed("channels", self.rows),)

    def output(self, total: str) -> str:
        """The C expression of the stored output, given that of the sum without its bias."""
        return self.text % total


def _quantized(
    node: Node, activation: Activation, bias: Array, requantization: Requantization
) -> Finish:
    """int8: one multiply-add and shift where that is proved to do, else gemmlowp's steps."""
    store = stored(activation, node.output.type, saturate=True)
    scaling = requantization.scaling
    columns: list[Array] = []

    def column(values: Array) -> str:
        if len(set(values.tolist())) == 1:
            return str(int(values[0]))
        columns.append(values)
        return f"channel[{len(columns) - 1}]"

    total = f"%s + {column(bias)}" if bias.any() else "%s"
    if scaling is not None:
        multiplier = column(scaling.multipliers)
        result = f"scale({total}, {multiplier}, INT64_C({scaling.offset}), {scaling.shift})"
        helper, note = "scale", "one rounding, proved equal to gemmlowp's two"
    elif requantization.shifts_right:
        multiplier = column(requantization.multipliers)
        shifts = np.where(requantization.multipliers == 0, 1, -requantization.shifts)
        result = f"scale_twice({total}, {multiplier}, {column(shifts)})"
        result = offset(result, requantization.zero_point)
        helper, note = "scale_twice", "gemmlowp's two roundings"
    else:
        multiplier = column(requantization.multipliers)
        result = f"requantize({total}, {multiplier}, {column(requantization.shifts)})"
        result = offset(result, requantization.zero_point)
        helper, note = "requantize", "gemmlowp's two roundings"
    rows = np.stack(columns, axis=1).astype(np.int32) if columns else None
    return Finish(store.text % result, rows, store.helpers | {helper}, note)
