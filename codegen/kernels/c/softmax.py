"""Softmax, LogSoftmax and Hardmax.

Exponentials are by a table of differences for int8, by a function for float.
"""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from smelt.codegen.kernels.base import (
    WIDE_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Packed,
    Refusal,
    Request,
)
from smelt.codegen.kernels.c.store import helpers_in, in_precision_of
from smelt.codegen.kernels.c.vectors import vector_width
from smelt.ir import Array, DType, Node
from smelt.ops.fixed_point import quantize_multiplier
from smelt.ops.gemmlowp import exp_on_negative_values
from smelt.ops.softmax import (
    Hardmax,
    LogSoftmax,
    Softmax,
    difference_scaling,
    power_multiplier,
    tables16,
)

_SUM_LIMIT = 4095
"""Elements of a row whose exponentials, with 12 integer bits, surely sum to less than 2^31."""

_NARROW = 511
"""The same for a sum less than 2^28."""

_SHORT_SUM_LIMIT = 65535
"""The same of int16, of which no exponential exceeds 2^15."""

_LARGEST_SHIFT = 14
"""A difference of int16 can be shifted so far to the left within 32 bits."""

_LEAST_LANES = 4
"""Elements of a row of floats that are worth a vector."""


def _refuse(node: Node) -> Refusal | None:
    """What neither operator is served for."""
    name, x = node.op.name, node.input(0).type
    if x.dtype in WIDE_FLOATS:
        return None
    if x.dtype is not DType.INT8:
        return Refusal(f"{name} is served for f32, f64 and i8 data, not {x.dtype.value}.")
    if x.shape[-1] > _SUM_LIMIT:
        return Refusal(f"{name} of i8 rows is served for at most {_SUM_LIMIT} elements a row.")
    return None


def _call(
    node: Node,
    request: Request,
    stem: str,
    helpers: frozenset[str],
    beta: float,
    extra: dict[str, object],
) -> KernelCall:
    x = node.input(0).type
    size = x.shape[-1]
    if x.quant is None:
        return _float_call(node, request, stem, beta)
    parameters = {"x": x, "size": size, "rows": x.size // size, "beta": beta, **extra}
    operands = Input(0, "input"), Output(0, "output")
    table = exponentials(x.scale, beta)
    return KernelCall(
        template=f"c/{stem}_int8.j2",
        stem=stem,
        parameters={**parameters, "entries": table.size},
        operands=(operands[0], Packed("exponentials", table), operands[1]),
        in_place=((0, 0),),
        helpers=helpers,
        summary=f"int8, a table of {table.size} exponentials",
    )


def _float_call(node: Node, request: Request, stem: str, beta: float) -> KernelCall:
    x = node.input(0).type
    size = x.shape[-1]
    logarithmic = stem == "log_softmax"
    called = ("exp", "log") if logarithmic else ("exp",)
    names = {name: in_precision_of(x.dtype, f"{name}_float(")[:-1] for name in called}
    lanes = vector_width(size)
    vectors = x.dtype is DType.FLOAT32 and "simd_float" in request.target.features
    whole = size - size % lanes if vectors and lanes >= _LEAST_LANES else 0
    return KernelCall(
        template="c/softmax_float.j2",
        stem=stem,
        parameters={
            "x": x,
            "size": size,
            "rows": x.size // size,
            "beta": beta,
            "logarithmic": logarithmic,
            **names,
            "lanes": lanes,
            "whole": whole,
        },
        operands=(Input(0, "input"), Output(0, "output")),
        in_place=((0, 0),),
        helpers=helpers_in(f"{name}(" for name in names.values()),
        summary="float, three passes a row",
    )


def _int16_call(node: Node[Softmax]) -> KernelCall | Refusal:
    op, x = node.op, node.input(0).type
    size = x.shape[-1]
    if size > _SHORT_SUM_LIMIT:
        return Refusal(
            f"{op.name} of i16 rows is served for at most {_SHORT_SUM_LIMIT} elements a row."
        )
    multiplier, shift = power_multiplier(x.scale, op.beta)
    if shift > _LARGEST_SHIFT:
        return Refusal(
            f"{op.name} of i16 data is not served for so large an input scale as {x.scale}."
        )
    position = f"requantize(input[i] - max, {multiplier}, {shift}) + 32767"
    powers, inverses = (table.astype(np.int16) for table in tables16())
    exponential = f"interpolated(exponentials, clamp({position}, -32768, 32767))"
    return KernelCall(
        template="c/softmax_int16.j2",
        stem="softmax",
        parameters={
            "x": x,
            "size": size,
            "rows": x.size // size,
            "beta": op.beta,
            "exponential": exponential,
        },
        operands=(
            Input(0, "input"),
            Packed("exponentials", powers),
            Packed("inverses", inverses),
            Output(0, "output"),
        ),
        in_place=((0, 0),),
        helpers=frozenset({"clamp", "interpolated", "leading_zeros", "requantize"}),
        summary="int16, tables of 513 samples",
    )


class SoftmaxKernel(Kernel[Softmax]):
    """Three passes over each row: its maximum, the sum of the exponentials, the quotients."""

    op = Softmax
    floats = WIDE_FLOATS

    @override
    def offer(self, node: Node[Softmax], request: Request) -> KernelCall | Refusal:
        op, x = node.op, node.input(0).type
        if x.dtype is DType.INT16:
            return _int16_call(node)
        if refusal := _refuse(node):
            return refusal
        helpers = frozenset({"leading_zeros", "reciprocal", "requantize"})
        wide = x.shape[-1] > _NARROW
        return _call(node, request, "softmax", helpers, op.beta, {"wide": wide})


class LogSoftmaxKernel(Kernel[LogSoftmax]):
    """Three passes over each row: its maximum, the sum of the exponentials, the differences."""

    op = LogSoftmax
    floats = WIDE_FLOATS

    @override
    def offer(self, node: Node[LogSoftmax], request: Request) -> KernelCall | Refusal:
        if refusal := _refuse(node):
            return refusal
        x = node.input(0).type
        extra: dict[str, object] = {}
        if x.quant is not None:
            scaling = difference_scaling(x.scale, 1.0)
            divisor = quantize_multiplier(2.0 ** (31 - scaling.shift) / scaling.multiplier)
            extra = {"scaling": scaling, "divisor": divisor}
        helpers = frozenset({"log_of_sum", "requantize", "rounding_shift_right"})
        return _call(node, request, "log_softmax", helpers, 1.0, extra)


def exponentials(scale: float, beta: float) -> Array:
    """exp of `-beta · scale · difference` for stored differences 0, 1, … as Q0 (int32).

    The table ends where the exponentials are negligible, after at most 256 entries.
    """
    scaling = difference_scaling(scale, beta)
    differences = np.arange(0, -min(256, 1 - scaling.lowest), -1, dtype=np.int64)
    return exp_on_negative_values(scaling(differences), 5).astype(np.int32)


class HardmaxKernel(Kernel[Hardmax]):
    """Two passes over each row: where its greatest element is, the result."""

    op = Hardmax

    @override
    def offer(self, node: Node[Hardmax], request: Request) -> KernelCall | Refusal:
        x = node.input(0).type
        if x.dtype is not DType.FLOAT32:
            return Refusal(f"Hardmax is served for f32 data, not {x}.")
        size = x.shape[-1]
        return KernelCall(
            template="c/hardmax.j2",
            stem="hardmax",
            parameters={"x": x, "size": size, "rows": x.size // size},
            operands=(Input(0, "input"), Output(0, "output")),
            in_place=((0, 0),),
            summary="two passes a row",
        )


KERNELS = (SoftmaxKernel(), LogSoftmaxKernel(), HardmaxKernel())
