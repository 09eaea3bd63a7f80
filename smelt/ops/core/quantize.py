"""Quantize and Dequantize: conversions between real numbers and stored integers.

Scales and zero points are those of the operands' types; the operators have none. With rounding
`onnx`, they are ONNX's QuantizeLinear and DequantizeLinear. Quantize from integers to integers is
DequantizeLinear followed by QuantizeLinear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError, UnsupportedError
from smelt.ir import Array, DType, Node, Op, Rounding, TensorType
from smelt.ops.arithmetic.fixed_point import (
    dequantize_onnx,
    multiply_by_quantized_multiplier,
    quantize_onnx,
    rescale_multiplier,
    round_half_away,
    wrap_int32,
)
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, operands, requantizing_rounding
from smelt.ops.core.channel_rules import ChannelFunction

_SERVED = {
    DType.FLOAT32: (DType.INT8, DType.UINT8, DType.INT16),
    DType.INT8: (DType.INT8, DType.UINT8, DType.INT16, DType.INT32),
    DType.UINT8: (DType.INT8,),
    DType.INT16: (DType.INT8, DType.INT16, DType.INT32),
    DType.INT32: (DType.INT8, DType.INT16),
}
"""For each element type, the types that it can be quantized to: as in TensorFlow Lite Micro."""

_STORED = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)
"""Element types of the results of ONNX's QuantizeLinear."""


@dataclass(frozen=True)
class Quantize(Op):
    """Stored integers of type `dtype`, from floats or from integers quantized otherwise."""

    dtype: DType

    elementwise = True
    converts = True
    channel_rule = ChannelFunction()

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        (x,) = operands(self, inputs, 1)
        if not self.dtype.is_integer or x.dtype is DType.BOOL:
            raise ModelError(f"Quantize cannot convert {x} to {self.dtype.value}")
        return (TensorType(x.shape, self.dtype),)

    @override
    def check(self, node: Node) -> None:
        x, y = node.input(0).type, node.output.type
        if y.quant is None:
            raise ModelError(f"{node.origin}: the output of Quantize must be quantized")
        if node.rounding is Rounding.ONNX:
            if y.dtype not in _STORED or (not x.dtype.is_float and x.quant is None):
                raise ModelError(f"{node.origin}: Quantize cannot convert {x} to {y.dtype.value}")
            return
        if not y.quant.is_per_tensor:
            raise ModelError(f"{node.origin}: the output of Quantize must be quantized per tensor")
        if y.dtype not in _SERVED.get(x.dtype, ()):
            raise UnsupportedError(
                f"{node.origin}: Quantize from {x.dtype.value} to {y.dtype.value} is not "
                "supported, because TensorFlow Lite Micro does not support it"
            )
        if x.dtype.is_float:
            return
        if x.quant is None or not x.quant.is_per_tensor:
            raise ModelError(f"{node.origin}: input {x} of Quantize must be quantized per tensor")
        requantizing_rounding(node)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        y, given = node.output.type, node.input(0).type.quant
        if node.rounding is Rounding.ONNX and y.quant is not None:
            real = x if given is None else dequantize_onnx(x, given)
            return (quantize_onnx(real, y.quant, y),)
        if x.dtype.kind == "f":
            scaled = round_half_away(x.astype(np.float32) / np.float32(y.scale))
            # Wide enough for every element type, and exact in float32.
            stored = np.clip(scaled, -(2.0**30), 2.0**30).astype(np.int64)
        else:
            multiplier = requantize_multiplier(node.input(0).type, y)
            centered = wrap_int32(x.astype(np.int64) - node.input(0).type.zero_point)
            stored = multiply_by_quantized_multiplier(centered, *multiplier)
        clamped = np.clip(stored + y.zero_point, *y.dtype.limits)
        return (np.asarray(clamped, y.dtype.numpy),)

    def is_identity(self, node: Node) -> bool:
        """Return whether input and output have the same type and quantization."""
        return node.input(0).type == node.output.type


def requantize_multiplier(x: TensorType, y: TensorType) -> tuple[int, int]:
    """Return multiplier and left shift between two quantizations, in double precision."""
    return rescale_multiplier(x.scale / y.scale)


@dataclass(frozen=True)
class Dequantize(Op):
    """Real numbers (float32) from stored integers or from float16."""

    elementwise = True
    converts = True
    exact = True

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        (x,) = operands(self, inputs, 1)
        if x.dtype is DType.BOOL:
            raise ModelError(f"Dequantize does not support {x}")
        return (TensorType(x.shape, DType.FLOAT32),)

    @override
    def check(self, node: Node) -> None:
        x, y = node.input(0).type, node.output.type
        if x.dtype.is_integer and x.quant is None:
            raise ModelError(f"{node.origin}: input {x} of Dequantize is not quantized")
        if y.quant is not None:
            raise ModelError(f"{node.origin}: the output of Dequantize cannot be quantized")

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        quant = node.input(0).type.quant
        if quant is None:
            return (x.astype(np.float32),)
        return (dequantize_onnx(x, quant),)


_ONE_WAY = (DType.INT8,)
CASES = (
    Case("image", Quantize(DType.INT8), (Data((1, 3, 4, 5), -2.0, 1.0),), output=(-1.5, 1.0)),
    Case("vector", Quantize(DType.INT8), (Data((7,), 0.0, 1e-3),), output=(0.0, 2e-3)),
    Case("finer", Quantize(DType.INT8), (Data((2, 33), -8.0, 8.0),), output=(-0.1, 0.3)),
    Case("coarser", Quantize(DType.INT8), (Data((2, 33), -0.1, 0.3),), output=(-900.0, 8.0)),
    Case("same", Quantize(DType.INT8), (Data((9,), -1.0, 1.0),), output=(-1.0, 1.0)),
    *(
        Case(
            f"onnx_{name}",
            Quantize(target),
            (Data((2, 33), -8.0, 8.0),),
            (source,),
            Rounding.ONNX,
            output=range_,
        )
        for source, target in (
            (DType.INT8, DType.INT8),
            (DType.UINT8, DType.INT8),
            (DType.INT8, DType.UINT8),
            (DType.INT16, DType.INT8),
        )
        for name, range_ in (
            (f"{source.value}_{target.value}_finer", (-0.1, 0.3)),
            (f"{source.value}_{target.value}_coarser", (-31.0, 9.0)),
            (f"{source.value}_{target.value}_same", (-8.0, 8.0)),
        )
    ),
    Case("image", Dequantize(), (Data((1, 3, 4, 5), -2.0, 1.0),), _ONE_WAY),
    Case("vector", Dequantize(), (Data((7,), 0.0, 1e-3),), _ONE_WAY),
)
