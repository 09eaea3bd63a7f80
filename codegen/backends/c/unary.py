"""Unary: a table of 256 results for 8-bit data, an expression for float."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.c.unary_int16 import unary_int16
from smelt.codegen.backends.c.vector_loops import (
    fills_vectors,
    in_vectors,
    last_element,
    one_lane,
    without_branch,
)
from smelt.codegen.lower.c_expressions import in_precision_of
from smelt.codegen.lower.kernel import (
    WIDE_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.lower.lookup_tables import tabulate
from smelt.codegen.lower.nested_loops import ArrayLoop, index, nest, nested
from smelt.codegen.text.helpers import uses_in, when
from smelt.codegen.text.literals import c_float
from smelt.ir import Array, DType, Node, TensorType
from smelt.ops.core.unary import Unary

FLOAT: dict[str, str] = {
    "relu": "x < 0.0f ? 0.0f : x",
    "relu6": "clamp_float(x, 0.0f, 6.0f)",
    "relu_n1_to_1": "clamp_float(x, -1.0f, 1.0f)",
    "relu_0_to_1": "clamp_float(x, 0.0f, 1.0f)",
    "clamp": "clamp_float(x, {alpha}, {beta})",
    "leaky_relu": "(x > 0.0f ? 1.0f : {alpha}) * x",
    "thresholded_relu": "x > {alpha} ? x : 0.0f",
    "logistic": "logistic_float(x)",
    "tanh": "tanh_float(x)",
    "hard_sigmoid": "clamp_float({alpha} * x + {beta}, 0.0f, 1.0f)",
    "hard_swish": "x * clamp_float(x + 3.0f, 0.0f, 6.0f) * (1.0f / 6.0f)",
    "swish": "x / (1.0f + exp_float({minus_alpha} * x))",
    "mish": "mish_float(x)",
    "softplus": "softplus_float(x)",
    "softsign": "x / (1.0f + fabsf(x))",
    "shrink": "x < {minus_alpha} ? x + {beta} : (x > {alpha} ? x - {beta} : 0.0f)",
    "elu": "x < 0.0f ? {alpha} * expm1_float(x) : x",
    "celu": "x < 0.0f ? {alpha} * expm1_float(x / {alpha}) : x",
    "selu": "x < 0.0f ? {alpha_beta} * expm1_float(x) : {beta} * x",
    "gelu": "gelu_float(x)",
    "gelu_tanh": "0.5f * x * (1.0f + tanh_float(0.79788456f * (x + 0.044715f * x * x * x)))",
    "abs": "fabsf(x)",
    "neg": "-x",
    "sign": "x > 0.0f ? 1.0f : (x < 0.0f ? -1.0f : x)",
    "exp": "exp_float(x)",
    "log": "log_float(x)",
    "sqrt": "sqrtf(x)",
    "rsqrt": "1.0f / sqrtf(x)",
    "reciprocal": "1.0f / x",
    "square": "x * x",
    "erf": "erf_float(x)",
    "sin": "sinf(x)",
    "cos": "cosf(x)",
    "tan": "tanf(x)",
    "asin": "asinf(x)",
    "acos": "acosf(x)",
    "atan": "atanf(x)",
    "sinh": "sinhf(x)",
    "cosh": "coshf(x)",
    "asinh": "asinhf(x)",
    "acosh": "acoshf(x)",
    "atanh": "atanhf(x)",
    "floor": "floorf(x)",
    "ceil": "ceilf(x)",
    "round": "rintf(x)",
    "to_float16": "float16_as_float(x)",
    "to_bfloat16": "bfloat16_as_float(x)",
    "is_nan": "x != x",
    "is_infinite": "fabsf(x) == INFINITY",
    "is_positive_infinite": "x == INFINITY",
    "is_negative_infinite": "x == -INFINITY",
}
"""C expression of `x` for each kind; `{alpha}` and `{beta}` are the operator's constants."""

FLOAT64 = FLOAT | {
    "logistic": "1.0f / (1.0f + expf(-x))",
    "softplus": "(x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x)))",
}
"""The same for float64, before `in_precision_of` replaces functions by math.h's for double."""

_CALLS = re.compile(r"\b(?!\w+_float\b|either\b|at_least\b|fabsf\b)\w+\(")
"""Matches the call of a function that compilers cannot vectorize."""

SIGNED: dict[str, str] = {
    "abs": "x < 0 ? ({type})(0u - ({wide})x) : x",
    "neg": "({type})(0u - ({wide})x)",
    "sign": "({type})((x > 0) - (x < 0))",
    "bitwise_not": "({type})~x",
}
"""C expressions for signed integers; `{wide}` is an unsigned type, so that an overflow wraps."""

UNSIGNED = SIGNED | {"abs": "x", "sign": "x > 0", "not": "x == 0"}


@dataclass(frozen=True)
class TableParameters(Parameters):
    """Variables of `table.j2`.

    Attributes:
        title: text of the function's comment.
        size: number of elements.
        cast: C cast of an input to the index into the table; empty if it needs none.
    """

    title: str
    size: int
    cast: str


def table_call(table: Array, x: TensorType, y: TensorType, function: str, stem: str) -> KernelCall:
    """Return a call that looks up every 8-bit element.

    Args:
        table: 256 results for the inputs in ascending order.
        x: type of the input.
        y: type of the output.
        function: name of the tabulated function, for the comment and the report.
        stem: stem of the C function's name.
    """
    signed = x.dtype is DType.INT8
    return KernelCall(
        template="backends/c/table.j2",
        stem=stem,
        parameters=TableParameters(
            f"{function.capitalize()}: {x} -> {y}.",
            x.size,
            "" if x.dtype.c_name == "uint8_t" else "(uint8_t)",
        ),
        operands=(
            Input(0, "input"),
            Packed("table", np.roll(table, -128) if signed else table),
            Output(0, "output"),
        ),
        in_place=((0, 0),) if x.dtype.size == y.dtype.size else (),
        summary=f"{function} by a table of 256 results",
    )


@dataclass(frozen=True)
class UnaryParameters(Parameters):
    """Variables of `unary.j2`.

    Attributes:
        kind: kind of the operator.
        x: type of the input.
        body: C lines of the function.
        vectors: whether the function is compiled for several widths of vectors.
    """

    kind: str
    x: str
    body: tuple[str, ...]
    vectors: bool


class UnaryKernel(Kernel[Unary]):
    """Computes the elements one by one, or several together with SIMD floats."""

    op = Unary
    floats = WIDE_FLOATS

    @override
    def offer(self, node: Node[Unary], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.output.type
        if x.dtype is DType.FLOAT64 and not _serves_float64(op):
            return Refusal(f"{op.name} is not served for f64 data: export the network in float32.")
        if x.is_quantized and x.dtype is DType.INT16:
            return unary_int16(node)
        if x.is_quantized and x.dtype not in (DType.INT8, DType.UINT8):
            return Refusal(f"{op.name} is served for quantized 8-bit data, not {x.dtype.value}.")
        if x.is_quantized:
            return table_call(tabulate(node), x, y, op.kind, "lookup")
        expression = _expression(op, x.dtype)
        loops = nest([x.size], [1], [1])
        statements: list[list[str]] = [[] for _ in loops]
        statements.append(_statements(loops, x, expression))
        around = loops
        vectors = (
            {x.dtype, y.dtype} == {DType.FLOAT32}
            and not _CALLS.search(expression)
            and fills_vectors(loops, request.target)
        )
        if vectors:
            expression = without_branch(expression)
            several, last = (
                _statements(found, x, expression)
                for found in (one_lane(loops), last_element(loops))
            )
            around, statements = loops[:-1], in_vectors(loops, statements, several, last)
        body = nested([loop.head for loop in around], statements)
        return KernelCall(
            template="backends/c/unary.j2",
            stem=op.kind,
            parameters=UnaryParameters(op.kind, str(x), body, vectors),
            operands=(Input(0, "input"), Output(0, "output")),
            in_place=((0, 0),) if x.bytes == y.bytes else (),
            uses=uses_in(body) | when(vectors, "SMELT_VECTORS"),
            summary=f"{op.kind}, {'several elements' if vectors else 'one element'} at a time",
        )


def _serves_float64(op: Unary) -> bool:
    """Return whether an operator can be computed in float64.

    It can if its expression has neither helper functions nor constants of the operator or with
    fractions: all of these have the precision of float32.
    """
    text = in_precision_of(DType.FLOAT64, FLOAT64[op.kind])
    return uses_in([text]) <= {"math.h"} and not re.search(r"{|\d\.\d*[1-9]|1\.0f / 6", text)


def _statements(loops: Sequence[ArrayLoop], x: TensorType, expression: str) -> list[str]:
    """Return the C lines that compute an element, inside all loops."""
    return [
        f"const {x.dtype.c_name} x = input[{index(loops, 0)}];",
        f"output[{index(loops, 1)}] = {expression};",
    ]


def _expression(op: Unary, dtype: DType) -> str:
    """Return the C expression of the result for element `x`."""
    if not dtype.is_float:
        table = SIGNED if dtype.is_integer and dtype.limits[0] < 0 else UNSIGNED
        wide = "uint64_t" if dtype.size == 8 else "uint32_t"
        return table[op.kind].format(type=dtype.c_name, wide=wide)
    if op.kind == "clamp" and math.isinf(op.beta):
        return f"at_least(x, {c_float(op.alpha)})"
    table = FLOAT64 if dtype is DType.FLOAT64 else FLOAT
    expression = table[op.kind].format(
        alpha=c_float(op.alpha),
        beta=c_float(op.beta),
        minus_alpha=c_float(-op.alpha),
        alpha_beta=c_float(op.alpha * op.beta),
    )
    return in_precision_of(dtype, expression)


KERNELS = (UnaryKernel(),)
