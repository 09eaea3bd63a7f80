"""Shaders of Unary and Table: 8-bit data by a table of 256 results, floats by expressions."""

from __future__ import annotations

import re

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.vulkan.calls import ShaderCall
from smelt.codegen.backends.vulkan.elementwise import ElementBody, Read, elementwise, refuse_types
from smelt.codegen.lower.kernel import NARROW_FLOATS, Kernel, KernelCall, Packed, Refusal, Request
from smelt.codegen.lower.lookup_tables import tabulate
from smelt.ir import Array, DType, Node
from smelt.ops.core.table import Table
from smelt.ops.core.unary import Unary

FLOAT = {
    "relu": "x < 0.0 ? 0.0 : x",
    "relu6": "bounded(x, 0.0, 6.0)",
    "relu_n1_to_1": "bounded(x, -1.0, 1.0)",
    "relu_0_to_1": "bounded(x, 0.0, 1.0)",
    "clamp": "bounded(x, ALPHA, BETA)",
    "leaky_relu": "(x > 0.0 ? 1.0 : ALPHA) * x",
    "thresholded_relu": "x > ALPHA ? x : 0.0",
    "logistic": "logistic_float(x)",
    "tanh": "tanh_float(x)",
    "hard_sigmoid": "bounded(ALPHA * x + BETA, 0.0, 1.0)",
    "hard_swish": "x * bounded(x + 3.0, 0.0, 6.0) * (1.0 / 6.0)",
    "swish": "x / (1.0 + exp_float(-ALPHA * x))",
    "mish": "mish_float(x)",
    "softplus": "softplus_float(x)",
    "softsign": "x / (1.0 + abs(x))",
    "shrink": "x < -ALPHA ? x + BETA : x > ALPHA ? x - BETA : 0.0",
    "elu": "x < 0.0 ? ALPHA * expm1_float(x) : x",
    "celu": "x < 0.0 ? ALPHA * expm1_float(x / ALPHA) : x",
    "selu": "BETA * (x < 0.0 ? ALPHA * expm1_float(x) : x)",
    "gelu": "gelu_float(x)",
    "gelu_tanh": "0.5 * x * (1.0 + tanh_float(0.79788456 * (x + 0.044715 * x * x * x)))",
    "abs": "abs(x)",
    "neg": "-x",
    "sign": "x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : x",
    "exp": "exp_float(x)",
    "log": "log_float(x)",
    "sqrt": "sqrt(x)",
    "rsqrt": "1.0 / sqrt(x)",
    "reciprocal": "1.0 / x",
    "square": "x * x",
    "erf": "erf_float(x)",
    "sin": "sine(x, 0)",
    "cos": "sine(x, 1)",
    "tan": "sine(x, 0) / sine(x, 1)",
    "asin": "asin_float(x)",
    "acos": "acos_float(x)",
    "atan": "atan_float(x)",
    "sinh": "sinh_float(x)",
    "cosh": "cosh_float(x)",
    "asinh": "asinh_float(x)",
    "acosh": "acosh_float(x)",
    "atanh": "atanh_float(x)",
    "floor": "floor(x)",
    "ceil": "ceil(x)",
    "round": "roundEven(x)",
    "to_float16": "float16_as_float(x)",
    "to_bfloat16": "bfloat16_as_float(x)",
    "is_nan": "int((floatBitsToInt(x) & 0x7FFFFFFF) > 0x7F800000)",
    "is_infinite": "int((floatBitsToInt(x) & 0x7FFFFFFF) == 0x7F800000)",
    "is_positive_infinite": "int(floatBitsToInt(x) == 0x7F800000)",
    "is_negative_infinite": "int(floatBitsToUint(x) == 0xFF800000u)",
}
"""GLSL of each kind, as a function of `x`; ALPHA and BETA are the operator's attributes."""

_INTEGER = {
    "abs": "x < 0 ? -x : x",
    "neg": "-x",
    "sign": "sign(x)",
    "bitwise_not": "~x",
    "not": "int(x == 0)",
}
_UNSIGNED = {
    "abs": "x",
    "neg": "0u - x",
    "sign": "min(x, 1u)",
    "bitwise_not": "~x",
}


def float_bits(value: float) -> int:
    """Return the bits of a float32 as an int32, because specialization constants are integers."""
    return int(np.float32(value).view(np.int32))


def looked_up(node: Node, table: Array, what: str) -> ShaderCall:
    """Return the call that looks up every 8-bit element.

    Args:
        node: The node.
        table: 256 results, in ascending order of inputs.
        what: The operation, for comments.
    """
    x = node.input(0).type
    stored = np.roll(table, -128) if x.dtype is DType.INT8 else table
    tables = ((Packed("table", stored), "int"),)
    unsigned = table.dtype != np.int8
    function = "unsigned_byte_of" if unsigned else "byte_of"
    body = ElementBody(f"{function}(TABLE((x & 255) >> 2), x)", tables=tables)
    return elementwise(node, "lookup", what, [Read.of(node, 0, "x")], body)


class UnaryShader(Kernel[Unary]):
    """Applies a function to each element."""

    op = Unary
    floats = NARROW_FLOATS

    @override
    def offer(self, node: Node[Unary], request: Request) -> KernelCall | Refusal:
        op, x = node.op, node.input(0).type
        if x.dtype.is_float and op.kind not in FLOAT:
            return Refusal(f"{op.name} of floats is not served on the GPU: it has no shader.")
        refusal = refuse_types(node)
        if refusal is not None:
            return refusal
        if x.is_quantized:
            return looked_up(node, tabulate(node), "A function by a table of 256 results")
        if not x.dtype.is_float:
            served = _UNSIGNED if x.dtype is DType.UINT32 else _INTEGER
            if op.kind not in served:
                return Refusal(f"{op.name} of {x} is not served on the GPU: there is no shader.")
            body = ElementBody(served[op.kind])
            return elementwise(node, op.kind, op.name, [Read.of(node, 0, "x")], body)
        text = FLOAT[op.kind]
        constants: dict[str, int] = {}
        for name, value in (("ALPHA", op.alpha), ("BETA", op.beta)):
            if re.search(rf"\b{name}\b", text):
                constants[f"{name}_BITS"] = float_bits(value)
                text = re.sub(rf"\b{name}\b", f"intBitsToFloat({name}_BITS)", text)
        body = ElementBody(text, constants=constants)
        return elementwise(node, op.kind, op.name, [Read.of(node, 0, "x")], body)


class TableShader(Kernel[Table]):
    """Looks up each element in a table."""

    op = Table

    @override
    def offer(self, node: Node[Table], request: Request) -> KernelCall | Refusal:
        if node.output.type.dtype.size != 1:
            return Refusal(
                f"Table is served on the GPU for 8-bit results, not {node.output.type.dtype}."
            )
        refusal = refuse_types(node)
        if refusal is not None:
            return refusal
        return looked_up(node, node.input(1).array, "A function by a table of 256 results")


KERNELS = (UnaryShader(), TableShader())
