"""Unary: a table of 256 results for 8-bit data, an expression for float."""

from __future__ import annotations

import numpy as np

from smelt.codegen.kernels.base import Input, Kernel, KernelCall, Output, Packed, Request
from smelt.codegen.kernels.c.store import helpers_in
from smelt.codegen.render import c_float
from smelt.ir import Array, DType, Node, TensorType
from smelt.ops.unary import Unary
from smelt.targets import Target

FLOAT: dict[str, str] = {
    "relu": "x > 0.0f ? x : 0.0f",
    "relu6": "clamp_float(x, 0.0f, 6.0f)",
    "relu_n1_to_1": "clamp_float(x, -1.0f, 1.0f)",
    "relu_0_to_1": "clamp_float(x, 0.0f, 1.0f)",
    "leaky_relu": "x > 0.0f ? x : {alpha} * x",
    "logistic": "1.0f / (1.0f + expf(-x))",
    "tanh": "tanhf(x)",
    "hard_swish": "x * clamp_float(x + 3.0f, 0.0f, 6.0f) * (1.0f / 6.0f)",
    "elu": "x < 0.0f ? {alpha} * expm1f(x) : x",
    "gelu": "0.5f * x * erfcf(x * -0.70710678f)",
    "gelu_tanh": "0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)))",
    "abs": "fabsf(x)",
    "neg": "-x",
    "exp": "expf(x)",
    "log": "logf(x)",
    "sqrt": "sqrtf(x)",
    "rsqrt": "1.0f / sqrtf(x)",
    "square": "x * x",
    "sin": "sinf(x)",
    "cos": "cosf(x)",
    "floor": "floorf(x)",
    "ceil": "ceilf(x)",
    "round": "rintf(x)",
}
"""C expressions of `x`, one a kind; `{alpha}` is the operator's constant."""


def table_call(table: Array, x: TensorType, y: TensorType, what: str, stem: str) -> KernelCall:
    """A call that looks up every 8-bit element.

    Args:
        table: 256 results for the inputs in ascending order.
        x: type of the input.
        y: type of the output.
        what: the function, for the comment and the report.
        stem: of the C function's name.
    """
    signed = x.dtype is DType.INT8
    return KernelCall(
        template="c/table.j2",
        stem=stem,
        parameters={"x": x, "y": y, "what": what},
        operands=(
            Input(0, "input"),
            Packed("table", np.roll(table, -128) if signed else table),
            Output(0, "output"),
        ),
        in_place=((0, 0),) if x.dtype.size == y.dtype.size else (),
        summary=f"{what} by a table of 256 results",
    )


class UnaryKernel(Kernel):
    """One pass over the elements, in any order."""

    op = Unary

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        x = node.input(0).type
        if x.dtype is DType.FLOAT32 and not x.is_quantized:
            if isinstance(node.op, Unary) and node.op.kind in FLOAT:
                return None
            return f"{node.op.name} has no float form."
        if x.dtype in (DType.INT8, DType.UINT8) and x.is_quantized:
            return None
        return f"{node.op.name} is served for f32 and quantized 8-bit data, not {x.dtype.value}."

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        op = node.op
        if not isinstance(op, Unary):
            raise TypeError(f"{op.name} is no Unary")
        x, y = node.input(0).type, node.output.type
        if x.is_quantized:
            return table_call(tabulate(node), x, y, op.kind, "lookup")
        expression = FLOAT[op.kind].format(alpha=c_float(op.alpha))
        return KernelCall(
            template="c/unary.j2",
            stem=op.kind,
            parameters={"kind": op.kind, "x": x, "expression": expression},
            operands=(Input(0, "input"), Output(0, "output")),
            in_place=((0, 0),),
            helpers=helpers_in([expression]),
            summary=f"{op.kind}, one element at a time",
        )


def tabulate(node: Node) -> Array:
    """What the operator's reference computes for all 256 stored inputs, in ascending order."""
    low, high = node.input(0).type.dtype.limits
    inputs = np.arange(low, high + 1, dtype=node.input(0).type.dtype.numpy)
    return node.op.reference(node, [inputs])[0]


KERNELS = (UnaryKernel(),)
