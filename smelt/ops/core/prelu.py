"""PRelu: a slope for negative elements, one for each channel or each element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError, UnsupportedError
from smelt.ir import Array, DType, Node, Op, TensorType
from smelt.ir.homogeneity import Homogeneity, in_place
from smelt.ir.onnx_form import OnnxForm
from smelt.ops.arithmetic.fixed_point import multiply_by_quantized_multiplier, rescale_multiplier
from smelt.ops.case import Case, Constant, Data
from smelt.ops.constraints import arrays, operands, quantized, symmetric_int16, tflm_rounding


@dataclass(frozen=True)
class PRelu(Op):
    """`x` if it is not negative, else `x · alpha`; alpha is broadcast to x's shape.

    Quantized data may be int8 with int8 alpha, or int16 with symmetric int8 alpha.
    """

    elementwise = True

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, alpha = operands(self, inputs, 2)
        try:
            shape = np.broadcast_shapes(x.shape, alpha.shape)
        except ValueError:
            shape = None
        if shape != x.shape:
            raise ModelError(f"PRelu cannot broadcast alpha {alpha} to {x}")
        if x.dtype.is_float != alpha.dtype.is_float:
            raise ModelError(
                f"PRelu of {x} cannot use alpha {alpha}: both must be floats, or neither"
            )
        return (TensorType(x.shape, x.dtype),)

    @override
    def check(self, node: Node) -> None:
        alpha = node.input(1).type
        if not quantized(node, (DType.INT8, DType.INT16)):
            return
        if alpha.quant is None or not alpha.quant.is_per_tensor:
            raise ModelError(f"{node.origin}: PRelu's alpha {alpha} must be quantized per tensor")
        if alpha.dtype is not DType.INT8:
            raise UnsupportedError(
                f"{node.origin}: PRelu of quantized data does not support alpha {alpha}; "
                "quantize it to int8"
            )
        symmetric_int16(node)
        tflm_rounding(node)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        x, alpha = arrays(node, inputs, 2)
        source, slope, y = node.input(0).type, node.input(1).type, node.output.type
        if y.quant is None:
            real = x.astype(np.float64)
            result = np.where(real >= 0, real, real * alpha)
            return (np.asarray(result, y.dtype.numpy),)
        identity = rescale_multiplier(source.scale / y.scale)
        product = rescale_multiplier(source.scale * slope.scale / y.scale)
        centered = x.astype(np.int64) - source.zero_point
        sloped = centered * (alpha.astype(np.int64) - slope.zero_point)
        result = y.zero_point + np.where(
            centered >= 0,
            multiply_by_quantized_multiplier(centered, *identity),
            multiply_by_quantized_multiplier(sloped, *product),
        )
        return (np.asarray(np.clip(result, *y.dtype.limits), y.dtype.numpy),)

    def homogeneity(self, node: Node) -> Sequence[Homogeneity]:
        """Return that each channel keeps its factor, if the slopes are constant."""
        return (Homogeneity(in_place(node)),) if node.input(1).is_constant else ()

    def onnx_form(self, node: Node) -> OnnxForm:
        """Return ONNX's PRelu, which broadcasts slopes too."""
        return OnnxForm("PRelu")


CASES = (
    Case("channels", PRelu(), (Data((1, 4, 3, 3)), Constant((0.25, -0.1, 1.5), (3,)))),
    Case("kept_axes", PRelu(), (Data((1, 4, 3, 2)), Constant((0.1, 0.2), (1, 1, 2)))),
    Case("scalar", PRelu(), (Data((7,), -3.0, 1.0), Constant((0.01,), (1,)))),
    Case("positive_alpha", PRelu(), (Data((2, 5), -9.0, 0.0), Constant((2.0,) * 5, (1, 5)))),
    Case("elements", PRelu(), (Data((1, 2, 3)), Constant((0.1, 0.2, 0.3, -0.4, 5.0, 0.0), (2, 3)))),
    Case("scales_apart", PRelu(), (Data((1, 33), -100.0, 0.01), Constant((1e-3,), ()))),
)
