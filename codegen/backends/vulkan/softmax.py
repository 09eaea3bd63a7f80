"""Shaders of Softmax, LogSoftmax and L2Normalization, which compute rows along the last axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from typing_extensions import override

from smelt.codegen.backends.vulkan.calls import ShaderCall
from smelt.codegen.backends.vulkan.elementwise import spread, view
from smelt.codegen.backends.vulkan.glsl_functions import definitions
from smelt.codegen.backends.vulkan.reduce import GROUP, grouped
from smelt.codegen.backends.vulkan.unary import float_bits
from smelt.codegen.lower.kernel import (
    NARROW_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Operand,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.lower.lookup_tables import exponentials
from smelt.ir import Array, DType, Node
from smelt.ops.arithmetic.fixed_point import quantize_multiplier
from smelt.ops.core.l2_normalization import L2Normalization
from smelt.ops.core.softmax import LogSoftmax, Softmax, difference_scaling

_SUM_LIMIT = 4095
"""Largest row for which the sum of exponentials, with 12 integer bits, is surely below 2^31."""

_CALLS = {
    "softmax": ({"exp_float"}, {"byte_of", "leading_zeros", "reciprocal", "requantize"}),
    "log_softmax": (
        {"exp_float", "log_float"},
        {"byte_of", "log_of_sum", "requantize", "rounding_shift_right"},
    ),
    "l2": (set[str](), {"byte_of", "inverse_sqrt", "requantize"}),
}
"""Shared functions that the shader of floats calls, and those that the shader of bytes calls."""


def _refuse(node: Node, longest: int | None = None) -> Refusal | None:
    x = node.input(0).type
    if not x.dtype.is_float and not (x.dtype is DType.INT8 and x.is_quantized):
        return Refusal(
            f"{node.op.name} is served on the GPU for floats and i8 data, not {x.dtype.value}."
        )
    if longest is not None and not x.dtype.is_float and x.shape[-1] > longest:
        return Refusal(
            f"{node.op.name} of i8 data is served on the GPU for at most {longest} elements per "
            "row."
        )
    return None


class SoftmaxShader(Kernel[Softmax]):
    """Computes each row's maximum, the sum of its exponentials, then the quotients."""

    op = Softmax
    floats = NARROW_FLOATS

    @override
    def offer(self, node: Node[Softmax], request: Request) -> KernelCall | Refusal:
        refusal = _refuse(node, _SUM_LIMIT)
        if refusal is not None:
            return refusal
        op, x = node.op, node.input(0).type
        if x.dtype.is_float:
            return _floats(node, "softmax", {"BETA": float_bits(op.beta)})
        return _bytes(node, "softmax", {}, exponentials(x.scale, op.beta))


class LogSoftmaxShader(Kernel[LogSoftmax]):
    """Computes each row's maximum, the sum of its exponentials, then the differences."""

    op = LogSoftmax
    floats = NARROW_FLOATS

    @override
    def offer(self, node: Node[LogSoftmax], request: Request) -> KernelCall | Refusal:
        refusal = _refuse(node, _SUM_LIMIT)
        if refusal is not None:
            return refusal
        x = node.input(0).type
        if x.dtype.is_float:
            return _floats(node, "log_softmax", {"BETA": float_bits(1.0)})
        scaling = difference_scaling(x.scale, 1.0)
        divisor = quantize_multiplier(2.0 ** (31 - scaling.shift) / scaling.multiplier)
        constants = {
            "MULTIPLIER": scaling.multiplier,
            "SHIFT": scaling.shift,
            "LOWEST": scaling.lowest,
            "DIVISOR": divisor[0],
            "DIVISOR_SHIFT": divisor[1],
        }
        return _bytes(node, "log_softmax", constants, exponentials(x.scale, 1.0))


class L2NormalizationShader(Kernel[L2Normalization]):
    """Sums the squares of each row, then multiplies its elements by the inverse square root."""

    op = L2Normalization
    floats = NARROW_FLOATS

    @override
    def offer(self, node: Node[L2Normalization], request: Request) -> KernelCall | Refusal:
        refusal = _refuse(node)
        if refusal is not None:
            return refusal
        op, x = node.op, node.input(0).type
        if x.dtype.is_float:
            return _floats(node, "l2", {"LEAST": float_bits(op.least)})
        return _bytes(node, "l2", {"ZERO": x.zero_point}, None)


@dataclass(frozen=True)
class FloatRowsShaderParameters(Parameters):
    """Parameters of the shader of rows of floats.

    Attributes:
        what: The operator's name.
        kind: A key of `_CALLS`.
        group: Whether a workgroup computes each row, instead of one invocation.
        functions: GLSL of shared functions.
    """

    what: str
    kind: str
    group: bool
    functions: str


def _floats(node: Node, kind: str, constants: Mapping[str, int]) -> ShaderCall:
    x = node.input(0).type
    size = x.shape[-1]
    rows = x.size // max(size, 1)
    group = grouped(rows, size)
    return ShaderCall(
        template="backends/vulkan/rows_float.comp.j2",
        stem=f"{kind}_{x.dtype.value}",
        parameters=FloatRowsShaderParameters(
            what=type(node.op).__name__,
            kind=kind,
            group=group,
            functions=definitions(_CALLS[kind][0]),
        ),
        operands=(Input(0, "input"), Output(0, "output")),
        in_place=((0, 0),),
        views={"input": view(x.dtype), "output": view(x.dtype)},
        constants={"ROWS": rows, "SIZE": size, **constants},
        invocations=(rows * GROUP, 1, 1) if group else spread(rows),
        local=(GROUP, 1, 1) if group else None,
        summary=f"one {'workgroup' if group else 'invocation'} per row",
        form="vulkan_rows",
        work={"calls": 1, "outputs": x.size},
    )


@dataclass(frozen=True)
class ByteRowsShaderParameters(Parameters):
    """Parameters of the shader of rows of int8: operator's name, key of `_CALLS`, functions."""

    what: str
    kind: str
    functions: str


def _bytes(node: Node, kind: str, constants: Mapping[str, int], table: Array | None) -> ShaderCall:
    x = node.input(0).type
    size = x.shape[-1]
    rows = x.size // max(size, 1)
    together = 1 if size % 4 == 0 else 2 if size % 2 == 0 else 4
    items = -(-rows // together)
    tables: list[Operand] = []
    entries: dict[str, int] = {}
    if table is not None:
        tables, entries = [Packed("exponentials", table)], {"ENTRIES": table.size}
    return ShaderCall(
        template="backends/vulkan/rows_int8.comp.j2",
        stem=f"{kind}_i8",
        parameters=ByteRowsShaderParameters(
            what=type(node.op).__name__,
            kind=kind,
            functions=definitions(_CALLS[kind][1]),
        ),
        operands=(Input(0, "input"), *tables, Output(0, "output")),
        in_place=((0, 0),),
        views={"input": "int", "exponentials": "int", "output": "int"},
        constants={
            "ITEMS": items,
            "ROWS": rows,
            "COUNT": x.size,
            "SIZE": size,
            "TOGETHER": together,
            **entries,
            **constants,
        },
        invocations=spread(items),
        summary=f"{together} rows per invocation",
        form="vulkan_rows",
        work={"calls": 1, "outputs": x.size},
    )


KERNELS = (SoftmaxShader(), LogSoftmaxShader(), L2NormalizationShader())
