"""Reduce: mean, sum, extremum or product over some axes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.codegen.kernels.base import Input, Kernel, KernelCall, Output, Request
from smelt.codegen.kernels.c.loops import (
    Block,
    Loop,
    dense_strides,
    index,
    lane_blocks,
    nest,
    total,
)
from smelt.codegen.kernels.c.store import helpers_in, offset, stored
from smelt.codegen.render import c_float
from smelt.ir import DType, Node, TensorType
from smelt.ops.fixed_point import INT32_MAX, Activation
from smelt.ops.reduce import Reduce, reduce_multiplier
from smelt.targets import Target


@dataclass(frozen=True)
class _Formula:
    """C of one reduction: the accumulator, its first value, one step, the result.

    `{acc}` stands for the accumulator, `{x}` for the element.
    """

    acc_type: str
    first: str
    step: str
    result: str


class ReduceKernel(Kernel):
    """Accumulates in registers, four neighbouring outputs at a time where the last axis stays."""

    op = Reduce

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        op, x = node.op, node.input(0).type
        if x.dtype is DType.FLOAT16:
            return f"{op.name} is not served for f16 data."
        if not isinstance(op, Reduce):
            raise TypeError(f"{op.name} is no Reduce")
        if op.kind == "mean" and x.dtype is DType.INT64:
            return f"{op.name} of i64 data is not served: its sum may exceed 64 bits."
        if x.is_quantized and op.kind in ("mean", "sum"):
            low, high = x.dtype.limits
            if op.count(x) * (high - low) > INT32_MAX:
                return f"{op.name} of {op.count(x)} elements may overflow 32 bits."
        return None

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        op, x, y = node.op, node.input(0).type, node.output.type
        if not isinstance(op, Reduce):
            raise TypeError(f"{op.name} is no Reduce")
        strides = dense_strides(x.shape)
        kept = [axis for axis in range(len(x.shape)) if axis not in op.axes]
        kept_shape = [x.shape[axis] for axis in kept]
        outer = nest(kept_shape, [strides[axis] for axis in kept], dense_strides(kept_shape))
        inner = nest(
            [x.shape[axis] for axis in sorted(op.axes)],
            [strides[axis] for axis in sorted(op.axes)],
            names="rstuvw",
        )
        blocks = (Block(0, 1, 1),)
        if outer and outer[-1].strides[0] == 1:
            blocks, outer = lane_blocks(outer[-1].size), outer[:-1]
        formula = _formula(op, x, y)
        return KernelCall(
            template="c/reduce.j2",
            stem=f"reduce_{op.kind}",
            parameters={
                "kind": op.kind,
                "axes": op.axes,
                "x": x,
                "y": y,
                "formula": formula,
                "outer": outer,
                "inner": inner,
                "blocks": [_block(block, formula, outer, inner) for block in blocks],
            },
            operands=(Input(0, "input"), Output(0, "output")),
            helpers=helpers_in([formula.result]),
            summary=f"{op.kind} of {op.count(x)} elements, {blocks[0].lanes} at a time",
        )


def _block(
    block: Block, formula: _Formula, outer: tuple[Loop, ...], inner: tuple[Loop, ...]
) -> dict[str, object]:
    """The C statements of a block, lane by lane."""
    lanes = range(block.lanes)
    return {
        "block": block,
        "input": total(("input", index(outer, 0), block.position)),
        "firsts": [f"{formula.acc_type} acc{lane} = {formula.first};" for lane in lanes],
        "steps": [
            formula.step.format(acc=f"acc{lane}", x=f"in[{total((index(inner, 0), str(lane)))}]")
            for lane in lanes
        ],
        "results": [
            f"output[{total((index(outer, 1), block.lane(lane)))}] = "
            f"{formula.result.format(acc=f'acc{lane}')};"
            for lane in lanes
        ],
    }


def _formula(op: Reduce, x: TensorType, y: TensorType) -> _Formula:
    if op.kind in ("max", "min"):
        return _extremum(op.kind, y.dtype)
    if y.quant is not None:
        return _quantized(op, x, y)
    product, name = op.kind == "prod", y.dtype.c_name
    first, operator = ("1", "*=") if product else ("0", "+=")
    step = f"{{acc}} {operator} {{x}};"
    if y.dtype.is_float:
        result = f"{{acc}} / {c_float(op.count(x))}" if op.kind == "mean" else "{acc}"
        return _Formula("float", f"{first}.0f", step, result)
    if op.kind == "mean":
        return _Formula("int64_t", first, step, f"({name})({{acc}} / {op.count(x)})")
    # Without a sign, so that what exceeds 64 bits wraps.
    step = f"{{acc}} {operator} (uint64_t){{x}};"
    return _Formula("uint64_t", first, step, f"({name}){{acc}}")


def _extremum(kind: str, dtype: DType) -> _Formula:
    sign = "<" if kind == "min" else ">"
    step = f"{{acc}} = {{x}} {sign} {{acc}} ? {{x}} : {{acc}};"
    if dtype.is_float:
        bound = np.finfo(np.float32).max if kind == "min" else np.finfo(np.float32).min
        return _Formula("float", c_float(float(bound)), step, "{acc}")
    if dtype is DType.INT64:
        return _Formula("int64_t", "INT64_MAX" if kind == "min" else "INT64_MIN", step, "{acc}")
    first = "INT32_MAX" if kind == "min" else "INT32_MIN"
    return _Formula("int32_t", first, step, f"({dtype.c_name}){{acc}}")


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
