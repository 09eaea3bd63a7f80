"""Reduce: mean, sum, maximum, minimum, product or norm over some axes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from smelt.codegen.lower.c_expressions import in_precision_of, stored
from smelt.codegen.lower.kernel import (
    WIDE_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Refusal,
    Request,
)
from smelt.codegen.lower.nested_loops import (
    LANES,
    ArrayLoop,
    LaneBlock,
    LoopsParameters,
    dense_strides,
    in_blocks,
    in_loops,
    index,
    lane_blocks,
    loops_call,
    nest,
    total,
)
from smelt.codegen.lower.output_stage import OutputStage
from smelt.codegen.text.expressions import offset
from smelt.codegen.text.literals import c_float
from smelt.ir import DType, Node, Rounding, TensorType
from smelt.ops.arithmetic.fixed_point import INT32_MAX, Activation
from smelt.ops.core.reduce import REDUCE, Reduce, reduce_multiplier, reduce_scale


@dataclass(frozen=True)
class _Formula:
    """The C of a reduction, in which `{acc}`, `{x}` and `{lane}` are replaced.

    They are the accumulator, the element, and the number of the lane.

    Attributes:
        acc_type: type of the accumulator.
        first: its initial value.
        step: statement that accumulates an element.
        result: expression of the output.
        second: declarations before a second pass over the elements, and its statement; or None.
    """

    acc_type: str
    first: str
    step: str
    result: str
    second: tuple[str, str] | None = None


_SUM_OF, _SUM_OF_SQUARES = (
    "{acc} += sum_of(&{x}, %d);",
    "{acc} += sum_of_squares(&{x}, %d, 0.0f);",
)
_ROWS = {
    "mean": _SUM_OF,
    "sum": _SUM_OF,
    "log_sum": _SUM_OF,
    "l2": _SUM_OF_SQUARES,
    "sum_square": _SUM_OF_SQUARES,
}
"""Statements that accumulate a contiguous row of floats by a function that compilers vectorize."""


class ReduceKernel(Kernel[Reduce]):
    """Accumulates in registers, for four neighboring outputs at a time."""

    op = Reduce
    floats = WIDE_FLOATS

    @override
    def offer(self, node: Node[Reduce], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.output.type
        if op.kind == "mean" and x.dtype in (DType.INT64, DType.UINT64):
            return Refusal(
                f"{op.name} of {x.dtype.value} data is not served: its sum may exceed 64 bits."
            )
        if x.is_quantized and op.kind in ("mean", "sum"):
            low, high = x.dtype.limits
            if op.count(x) * (high - low) > INT32_MAX:
                return Refusal(f"{op.name} of {op.count(x)} elements may overflow 32 bits.")
        strides = dense_strides(x.shape)
        kept = [axis for axis in range(len(x.shape)) if axis not in op.axes]
        kept_shape = [x.shape[axis] for axis in kept]
        outer = nest(kept_shape, [strides[axis] for axis in kept], dense_strides(kept_shape))
        inner = nest(
            [x.shape[axis] for axis in sorted(op.axes)],
            [strides[axis] for axis in sorted(op.axes)],
            names="rstuvw",
        )
        blocks = (LaneBlock(0, 1, 1),)
        if outer and outer[-1].strides[0] == 1:
            blocks, outer = lane_blocks(outer[-1].size), outer[:-1]
        formula = _onnx(node) or _formula(op, x, y)
        row = inner[-1] if x.dtype is DType.FLOAT32 and inner else None
        if row is not None and row.strides[0] == 1 and row.size >= LANES and op.kind in _ROWS:
            formula, inner = replace(formula, step=_ROWS[op.kind] % row.size), inner[:-1]
        body = [_block(block, formula, x.dtype, outer, inner) for block in blocks]
        unread = ["(void)input;"] if op.count(x) == 0 else []
        return loops_call(
            stem=f"reduce_{op.kind}",
            form="c_reduce",
            parameters=LoopsParameters(
                f"{op.kind.capitalize()} over axes {', '.join(map(str, op.axes))}: {x} -> {y}.",
                (*unread, *in_loops(outer, in_blocks(blocks, body))),
            ),
            operands=(Input(0, "input"), Output(0, "output")),
            summary=f"{op.kind} of {op.count(x)} elements, {blocks[0].lanes} at a time",
        )


def _block(
    block: LaneBlock,
    formula: _Formula,
    dtype: DType,
    outer: tuple[ArrayLoop, ...],
    inner: tuple[ArrayLoop, ...],
) -> list[str]:
    """Return the C lines that compute a block of outputs."""
    lanes = range(block.lanes)
    passes = [(f"{formula.acc_type} {{acc}} = {formula.first};", formula.step)]
    if formula.second is not None:
        passes.append(formula.second)

    def filled(text: str, lane: int) -> str:
        x = f"in[{total((index(inner, 0), str(lane)))}]"
        return text.format(acc=f"acc{lane}", x=x, lane=lane)

    if any(loop.size == 0 for loop in inner):
        passes, lines = [(first, "") for first, _ in passes], []
    else:
        start = total(("input", index(outer, 0), block.position))
        lines = [f"const {dtype.c_name} *in = {start};"]
    for first, step in passes:
        lines += [line for lane in lanes for line in filled(first, lane).splitlines()]
        lines += in_loops(inner, [filled(step, lane) for lane in lanes]) if step else []
    for lane in lanes:
        at = total((index(outer, 1), block.lane(lane)))
        lines.append(f"output[{at}] = {filled(formula.result, lane)};")
    return lines


def _formula(op: Reduce, x: TensorType, y: TensorType) -> _Formula:
    if op.kind in ("max", "min"):
        return _extremum(op.kind, y.dtype)
    if y.quant is not None:
        return _quantized(op, x, y)
    if y.dtype.is_float:
        return _real(op, x)
    name = y.dtype.c_name
    if op.kind == "mean":
        return _Formula("int64_t", "0", "{acc} += {x};", f"({name})({{acc}} / {op.count(x)})")
    # Unsigned, so that results of more than 64 bits wrap.
    first, step = {
        "prod": ("1", "{acc} *= (uint64_t){x};"),
        "l1": ("0", "{acc} += {x} < 0 ? 0u - (uint64_t){x} : (uint64_t){x};"),
        "sum_square": ("0", "{acc} += (uint64_t){x} * (uint64_t){x};"),
    }.get(op.kind, ("0", "{acc} += (uint64_t){x};"))
    if op.kind == "l1" and x.dtype.limits[0] == 0:
        step = "{acc} += {x};"
    return _Formula("uint64_t", first, step, f"({name}){{acc}}")


def _real(op: Reduce, x: TensorType) -> _Formula:
    def real(step: str, result: str = "{acc}", first: str = "0.0f") -> _Formula:
        first, step, result = (in_precision_of(x.dtype, text) for text in (first, step, result))
        return _Formula(x.dtype.c_name, first, step, result)

    match op.kind:
        case "mean":
            return real("{acc} += {x};", f"{{acc}} / {c_float(op.count(x))}")
        case "prod":
            return real("{acc} *= {x};", first="1.0f")
        case "l1":
            return real("{acc} += fabsf({x});")
        case "l2":
            return real("{acc} += {x} * {x};", "sqrtf({acc})")
        case "sum_square":
            return real("{acc} += {x} * {x};")
        case "log_sum":
            return real("{acc} += {x};", "log_float({acc})")
        case "log_sum_exp":
            return _log_sum_exp(x.dtype)
        case _:
            return real("{acc} += {x};")


def _log_sum_exp(dtype: DType) -> _Formula:
    """Return the C of log(sum(exp(x))); the maximum, if finite, is subtracted to avoid overflow."""
    greatest = _extremum("max", dtype)
    pivot = f"const {dtype.c_name} pivot{{lane}} = fabsf({{acc}}) < INFINITY ? {{acc}} : 0.0f;"
    second = (
        f"{pivot}\n{dtype.c_name} sum{{lane}} = 0.0f;",
        "sum{lane} += exp_float({x} - pivot{lane});",
    )
    return _Formula(
        dtype.c_name,
        greatest.first,
        greatest.step,
        in_precision_of(dtype, "log_float(sum{lane}) + pivot{lane}"),
        (in_precision_of(dtype, second[0]), in_precision_of(dtype, second[1])),
    )


def _extremum(kind: str, dtype: DType) -> _Formula:
    sign = "<" if kind == "min" else ">"
    step = f"{{acc}} = {{x}} {sign} {{acc}} ? {{x}} : {{acc}};"
    name = dtype.c_name
    if dtype.is_float:
        first = in_precision_of(dtype, "INFINITY" if kind == "min" else "-INFINITY")
        return _Formula(name, first, step, "{acc}")
    least, greatest = (0, 1) if dtype is DType.BOOL else dtype.limits
    macro = name.removesuffix("_t").upper()
    if kind == "min":
        first = f"{macro}_MAX" if greatest > 1 else "1"
    else:
        first = f"{macro}_MIN" if least else "0"
    if dtype.size >= 4:
        return _Formula(name, first, step, "{acc}")
    return _Formula("int32_t", first, step, f"({name}){{acc}}")


def _onnx(node: Node[Reduce]) -> _Formula | None:
    """Return the C of a quantized sum or mean with ONNX's rounding; None for any other node."""
    op, x, y = node.op, node.input(0).type, node.output.type
    if node.rounding is not Rounding.ONNX or not y.is_quantized or not REDUCE[op.kind].rescales:
        return None
    count = op.count(x)
    center = x.zero_point * count
    low, high = (np.asarray([limit * count - center], np.int64) for limit in x.dtype.limits)
    scale = reduce_scale(op.kind, x, y, count)
    finish = OutputStage.of(node, Activation.NONE, None, (scale,), (low, high))
    return _Formula("int32_t", str(-center), "{acc} += {x};", finish.output("{acc}"))


def _quantized(op: Reduce, x: TensorType, y: TensorType) -> _Formula:
    multiplier, shift = reduce_multiplier(op.kind, x, y, op.count(x))
    store = stored(Activation.NONE, y, saturate=True)
    return _Formula(
        "int32_t",
        str(-x.zero_point * op.count(x)),
        "{acc} += {x};",
        store(offset(f"requantize({{acc}}, {multiplier}, {shift})", y.zero_point)),
    )


KERNELS = (ReduceKernel(),)
