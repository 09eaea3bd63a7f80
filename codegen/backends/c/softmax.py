"""Softmax, LogSoftmax and Hardmax.

For int8, a table has the exponential of each difference to the maximum. For int16, exponentials are
interpolated between samples. For floats, a function computes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.c.vector_loops import vector_width
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
from smelt.codegen.lower.lookup_tables import exponentials
from smelt.codegen.text.helpers import uses_in, when
from smelt.codegen.text.literals import c_float
from smelt.ir import Array, DType, Node, TensorType
from smelt.ops.arithmetic.fixed_point import quantize_multiplier
from smelt.ops.core.softmax import (
    Hardmax,
    LogSoftmax,
    Softmax,
    difference_scaling,
    power_multiplier,
    tables16,
)

_SUM_LIMIT = 4095
"""Maximum size of an int8 row: the sum of its exponentials, with 12 integer bits, is below 2^31."""

_NARROW_SUM_LIMIT = 511
"""Maximum size of an int8 row with a sum of exponentials below 2^28."""

_SHORT_SUM_LIMIT = 65535
"""Maximum size of an int16 row: its exponentials, at most 2^15 each, have a sum below 2^31."""

_LARGEST_SHIFT = 14
"""Maximum shift to the left of a difference of two int16 numbers, so that it fits in 32 bits."""

_LEAST_LANES = 4
"""Minimum number of lanes for which float rows are computed in vectors."""


def _refuse(node: Node) -> Refusal | None:
    """Return why neither a Softmax nor a LogSoftmax with this input is served; None if it is."""
    name, x = node.op.name, node.input(0).type
    if x.dtype in WIDE_FLOATS:
        return None
    if x.dtype is not DType.INT8:
        return Refusal(f"{name} is served for f32, f64 and i8 data, not {x.dtype.value}.")
    if x.shape[-1] > _SUM_LIMIT:
        return Refusal(f"{name} of i8 rows is served for at most {_SUM_LIMIT} elements per row.")
    return None


@dataclass(frozen=True)
class SoftmaxFloatParameters(Parameters):
    """Variables of `softmax_float.j2`; texts are C.

    Attributes:
        title: text of the function's comment.
        type: type of the elements.
        zero, one: the numbers 0 and 1 in this type.
        rows: number of rows.
        size: elements of a row.
        lanes: number of partial sums of the powers.
        whole: elements of a row that are computed `lanes` at a time.
        power: power of element `i`, or of the only element after the first `whole`.
        power_of_lane: power of element `i + lane`; empty if `whole` is 0.
        rest: partial sum to which the power of element `i` after the first `whole` is added.
        log: function for the logarithm; empty for a softmax without a logarithm.
    """

    title: str
    type: str
    zero: str
    one: str
    rows: int
    size: int
    lanes: int
    whole: int
    power: str
    power_of_lane: str
    rest: str
    log: str


@dataclass(frozen=True)
class SoftmaxInt8Parameters(Parameters):
    """Variables of `softmax_int8.j2`.

    Attributes:
        x: type of the input.
        scale: scale of the exponents: beta * scale of the input.
        rows: number of rows.
        size: elements of a row.
        exponential: C expression of element `i`'s exponential.
        wide: whether the sum of a row can reach 2^28.
    """

    x: str
    scale: str
    rows: int
    size: int
    exponential: str
    wide: bool


@dataclass(frozen=True)
class LogSoftmaxInt8Parameters(Parameters):
    """Variables of `log_softmax_int8.j2`.

    Attributes:
        x: type of the input.
        scale: scale of the exponents: that of the input.
        rows: number of rows.
        size: elements of a row.
        exponential: C expression of element `i`'s exponential.
        limit: C expression of the difference above which the logarithm can be subtracted.
        lowest: least difference with an exponential above 0.
        scaled: C expression of a difference in the units of the logarithm.
    """

    x: str
    scale: str
    rows: int
    size: int
    exponential: str
    limit: str
    lowest: int
    scaled: str


@dataclass(frozen=True)
class SoftmaxInt16Parameters(Parameters):
    """Variables of `softmax_int16.j2`; see `SoftmaxInt8Parameters`."""

    x: str
    scale: str
    rows: int
    size: int
    exponential: str


@dataclass(frozen=True)
class HardmaxParameters(Parameters):
    """Variables of `hardmax.j2`: the type of the input, the number and the size of its rows."""

    x: str
    rows: int
    size: int


def _float_call(
    x: TensorType, request: Request, title: str, beta: float, *, logarithmic: bool
) -> KernelCall:
    size, lanes = x.shape[-1], vector_width(x.shape[-1])
    called = ("exp", "log") if logarithmic else ("exp",)
    exp, *log = (in_precision_of(x.dtype, f"{name}_float(")[:-1] for name in called)
    vectors = x.dtype is DType.FLOAT32 and "simd_float" in request.target.features
    whole = size - size % lanes if vectors and lanes >= _LEAST_LANES else 0

    def power(element: str) -> str:
        difference, cast = f"input[{element}] - max", "(double)" * (x.dtype is DType.FLOAT64)
        return f"{exp}({difference if beta == 1 else f'{cast}{c_float(beta)} * ({difference})'})"

    return KernelCall(
        template="backends/c/softmax_float.j2",
        stem="log_softmax" if logarithmic else "softmax",
        parameters=SoftmaxFloatParameters(
            title=f"{title} over the last axis of {x}"
            + ("" if beta == 1 else f", beta {c_float(beta)}"),
            type=x.dtype.c_name,
            zero=in_precision_of(x.dtype, "0.0f"),
            one=in_precision_of(x.dtype, "1.0f"),
            rows=x.size // size,
            size=size,
            lanes=lanes,
            whole=whole,
            power=power("i" if size - whole > 1 else str(whole)),
            power_of_lane=power("i + lane" if whole > lanes else "lane") if whole else "",
            rest="sums[0]" if size - whole == 1 else f"sums[i - {whole}]",
            log="".join(log),
        ),
        operands=(Input(0, "input"), Output(0, "output")),
        in_place=((0, 0),),
        uses=uses_in(f"{name}(" for name in (exp, *log))
        | when(whole, "SMELT_ARRAY", "SMELT_VECTORS"),
        summary="float, three passes per row",
    )


def _int8_call(stem: str, parameters: Parameters, table: Array, *uses: str) -> KernelCall:
    return KernelCall(
        template=f"backends/c/{stem}_int8.j2",
        stem=stem,
        parameters=parameters,
        operands=(Input(0, "input"), Packed("exponentials", table), Output(0, "output")),
        in_place=((0, 0),),
        uses=frozenset(uses),
        summary=f"int8, a table of {table.size} exponentials",
    )


def _exponential(table: Array, size: int) -> str:
    """Return the C expression of the exponential of element `i` of `size`, or of the only one."""
    difference = f"max - input[{'i' if size > 1 else 0}]"
    found = f"exponentials[{difference}]"
    return found if table.size == 256 else f"{difference} < {table.size} ? {found} : 0"


def _int16_call(node: Node[Softmax]) -> KernelCall | Refusal:
    op, x = node.op, node.input(0).type
    size = x.shape[-1]
    if size > _SHORT_SUM_LIMIT:
        return Refusal(
            f"{op.name} of i16 rows is served for at most {_SHORT_SUM_LIMIT} elements per row."
        )
    multiplier, shift = power_multiplier(x.scale, op.beta)
    if shift > _LARGEST_SHIFT:
        return Refusal(
            f"{op.name} of i16 data is not served for so large an input scale as {x.scale}."
        )
    difference = f"input[{'i' if size > 1 else 0}] - max"
    position = f"requantize({difference}, {multiplier}, {shift}) + 32767"
    powers, inverses = (table.astype(np.int16) for table in tables16())
    exponential = f"interpolated(exponentials, clamp({position}, -32768, 32767))"
    return KernelCall(
        template="backends/c/softmax_int16.j2",
        stem="softmax",
        parameters=SoftmaxInt16Parameters(
            x=str(x),
            scale=c_float(op.beta * x.scale),
            rows=x.size // size,
            size=size,
            exponential=exponential,
        ),
        operands=(
            Input(0, "input"),
            Packed("exponentials", powers),
            Packed("inverses", inverses),
            Output(0, "output"),
        ),
        in_place=((0, 0),),
        uses={"clamp", "interpolated", "leading_zeros", "requantize"},
        summary="int16, tables of 513 samples",
    )


class SoftmaxKernel(Kernel[Softmax]):
    """Computes each row in three passes: maximum, sum of the exponentials, quotients."""

    op = Softmax
    floats = WIDE_FLOATS

    @override
    def offer(self, node: Node[Softmax], request: Request) -> KernelCall | Refusal:
        op, x = node.op, node.input(0).type
        if x.dtype is DType.INT16:
            return _int16_call(node)
        if refusal := _refuse(node):
            return refusal
        if x.quant is None:
            return _float_call(x, request, "Softmax", op.beta, logarithmic=False)
        size, table = x.shape[-1], exponentials(x.scale, op.beta)
        parameters = SoftmaxInt8Parameters(
            x=str(x),
            scale=c_float(op.beta * x.scale),
            rows=x.size // size,
            size=size,
            exponential=_exponential(table, size),
            wide=size > _NARROW_SUM_LIMIT,
        )
        uses = "leading_zeros", "reciprocal", "requantize"
        return _int8_call("softmax", parameters, table, *uses)


class LogSoftmaxKernel(Kernel[LogSoftmax]):
    """Computes each row in three passes: maximum, sum of the exponentials, differences."""

    op = LogSoftmax
    floats = WIDE_FLOATS

    @override
    def offer(self, node: Node[LogSoftmax], request: Request) -> KernelCall | Refusal:
        if refusal := _refuse(node):
            return refusal
        x = node.input(0).type
        if x.quant is None:
            return _float_call(x, request, "Logarithm of the softmax", 1.0, logarithmic=True)
        size, table = x.shape[-1], exponentials(x.scale, 1.0)
        scaling = difference_scaling(x.scale, 1.0)
        divisor = quantize_multiplier(2.0 ** (31 - scaling.shift) / scaling.multiplier)
        parameters = LogSoftmaxInt8Parameters(
            x=str(x),
            scale=c_float(x.scale),
            rows=x.size // size,
            size=size,
            exponential=_exponential(table, size),
            limit=f"requantize(log_sum + INT32_MIN, {divisor[0]}, {divisor[1]})",
            lowest=scaling.lowest,
            scaled=f"requantize(difference, {scaling.multiplier}, {scaling.shift})",
        )
        uses = "log_of_sum", "requantize", "rounding_shift_right"
        return _int8_call("log_softmax", parameters, table, *uses)


class HardmaxKernel(Kernel[Hardmax]):
    """Computes each row in two passes: the index of its maximum, the result."""

    op = Hardmax

    @override
    def offer(self, node: Node[Hardmax], request: Request) -> KernelCall | Refusal:
        x = node.input(0).type
        if x.dtype is not DType.FLOAT32:
            return Refusal(f"Hardmax is served for f32 data, not {x}.")
        size = x.shape[-1]
        return KernelCall(
            template="backends/c/hardmax.j2",
            stem="hardmax",
            parameters=HardmaxParameters(str(x), x.size // size, size),
            operands=(Input(0, "input"), Output(0, "output")),
            in_place=((0, 0),),
            summary="two passes per row",
        )


KERNELS = (SoftmaxKernel(), LogSoftmaxKernel(), HardmaxKernel())
