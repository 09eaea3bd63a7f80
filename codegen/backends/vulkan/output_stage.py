"""The output stage of sums of products: bias, scale, zero point, clamp; four sums at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from smelt.codegen.backends.vulkan.unary import float_bits
from smelt.codegen.lower.requantization import Requantization
from smelt.ir import Array, Node, Rounding
from smelt.ops.arithmetic.fixed_point import INT32_MAX, Activation


@dataclass(frozen=True)
class FinishParameters:
    """The fields of `ShaderFinish` that `backends/vulkan/output_stage.j2` prints."""

    arithmetic: str
    careful: bool


@dataclass(frozen=True)
class ShaderFinish:
    """How sums become outputs; `backends/vulkan/output_stage.j2` contains the GLSL.

    Attributes:
        arithmetic: `real`, `sums` (int32 outputs), `gemmlowp` (two roundings) or `onnx` (a float32
            product, ties to even).
        rows: `[quads, fields, 4]`, int32 or float32: constants of four channels at a time.
        constants: Further constants by name.
        careful: Whether adding the rounding offset of the shift could overflow int32.
    """

    arithmetic: str
    rows: Array
    constants: Mapping[str, int] = field(default_factory=dict[str, int])
    careful: bool = False

    @property
    def parameters(self) -> FinishParameters:
        """The fields that templates print."""
        return FinishParameters(self.arithmetic, self.careful)

    @property
    def fields(self) -> int:
        """Number of constants per channel."""
        return self.rows.shape[1]

    @staticmethod
    def of(
        node: Node,
        activation: Activation,
        bias: Array | None,
        channels: int,
        scales: Sequence[float] = (),
        range_: tuple[Array, Array] | None = None,
    ) -> ShaderFinish:
        """Return the output stage of a node.

        Args:
            node: Determines the output's type and the rounding.
            activation: The fused activation.
            bias: `[o]`, including the zero points' share; None if there is none.
            channels: Number of output channels.
            scales: Accumulator scales divided by the output scale, if quantized.
            range_: Smallest and largest sums, int64 `[o]` each, if quantized.
        """
        start = np.zeros(channels, np.int64) if bias is None else bias.ravel()
        if node.output.type.dtype.is_float:
            low, high = map(float_bits, activation.limits)
            return ShaderFinish(
                "real", _quads([start.astype(np.float32)]), {"LOW": low, "HIGH": high}
            )
        if range_ is None or node.output.type.quant is None:
            return ShaderFinish("sums", _quads([_wrapped(start)]))
        requantization = Requantization.of(node, scales, activation, range_)
        constants = {
            "LOW": requantization.low,
            "HIGH": requantization.high,
            "ZERO_POINT": requantization.zero_point,
        }
        bias32 = _wrapped(start)
        if node.rounding is Rounding.ONNX:
            reals = np.resize(np.asarray(requantization.reals, np.float32), channels)
            return ShaderFinish("onnx", _quads([bias32, reals.view(np.int32)]), constants)
        # A multiplier of 0 becomes 2^30 with the longest shift: without the bias, the result is 0.
        nothing = requantization.multipliers == 0
        twice = _wrapped(2 * np.where(nothing, 1 << 30, requantization.multipliers))
        shifts = np.where(nothing, -31, requantization.shifts)
        rows = _quads([np.where(nothing, 0, bias32), twice, shifts.astype(np.int32)])
        without = np.where(nothing, start.astype(np.int64), 0)
        highest, lowest = requantization.highest - without, requantization.lowest - without
        largest = np.maximum(highest, -lowest) << shifts.clip(0)
        careful = bool((largest + (1 << -shifts.clip(None, 0) >> 1) > INT32_MAX).any())
        return ShaderFinish("gemmlowp", rows, constants, careful)


def _wrapped(numbers: Array) -> Array:
    """Wrap integers to int32."""
    return (numbers.astype(np.int64) & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def _quads(fields: Sequence[Array]) -> Array:
    """Arrange fields `[o]` as `[quads, fields, 4]`, padded with zeros to whole quads."""
    channels = len(fields[0])
    padded = np.zeros((len(fields), -(-channels // 4) * 4), fields[0].dtype)
    padded[:, :channels] = np.stack(fields)
    return np.ascontiguousarray(padded.reshape(len(fields), -1, 4).transpose(1, 0, 2))
