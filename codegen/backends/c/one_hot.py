"""OneHot."""

from __future__ import annotations

from math import prod

from typing_extensions import override

from smelt.codegen.lower.kernel import (
    STORED_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Refusal,
    Request,
)
from smelt.codegen.lower.nested_loops import (
    ALL_NAMES,
    LoopsParameters,
    in_loops,
    index,
    loops_call,
    nest,
    total,
)
from smelt.codegen.text.expressions import offset, times
from smelt.ir import DType, Node
from smelt.ops.tensor.one_hot import OneHot


class OneHotKernel(Kernel[OneHot]):
    """Fills the output with the "off" value, then writes the "on" value for each index."""

    op = OneHot
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[OneHot], request: Request) -> KernelCall | Refusal:
        op, indices, y = node.op, node.input(1).type, node.output.type
        if indices.dtype.is_float and op.depth >= _EXACT:
            return Refusal(f"OneHot of depth {op.depth} is not served for real indices.")
        inner = prod(indices.shape[op.axis :])
        shape = [prod(indices.shape[: op.axis]), inner]
        loops = nest(shape, [op.depth * inner, 1], [inner, 1], names=ALL_NAMES)
        read = f"indices[{index(loops, 1)}]"
        lines, at = _lines(indices.dtype, read, op.depth)
        place = total((index(loops, 0), times(at, inner)))
        return loops_call(
            stem="one_hot",
            form="c_one_hot",
            parameters=LoopsParameters(
                (
                    f"OneHot: {indices} -> {y}: along axis {op.axis}, "
                    "values[1] at each index, values[0] elsewhere.",
                    "A negative index counts from the end; an index outside the axis is ignored.",
                ),
                (
                    f"for (int32_t f = 0; f < {y.size}; ++f) {{",
                    "    output[f] = values[0];",
                    "}",
                    *in_loops(loops, (*lines, f"    output[{place}] = values[1];", "}")),
                ),
            ),
            operands=(Input(0, "values"), Input(1, "indices"), Output(0, "output")),
            summary=f"depth {op.depth}, one element per index",
        )


_EXACT = 2**24
"""float32 represents every integer up to this number."""


def _lines(dtype: DType, read: str, depth: int) -> tuple[list[str], str]:
    """Return C lines that open a block if the index is inside the axis, and its position there."""
    low = 0 if not dtype.is_integer else dtype.limits[0]
    if dtype.is_integer and low == 0:
        kind = "uint64_t" if dtype is DType.UINT64 else "uint32_t"
        return [f"const {kind} at = {read};", f"if (at < {depth}u) {{"], "(int32_t)at"
    if dtype.is_float:
        suffix = ".0f" if dtype is DType.FLOAT32 else ".0"
        return [
            f"if ({read} > -{depth + 1}{suffix} && {read} < {depth}{suffix}) {{",
            f"    const int32_t index = (int32_t){read};",
            f"    const int32_t at = index < 0 ? {offset('index', depth)} : index;",
        ], "at"
    kind = "int64_t" if dtype is DType.INT64 else "int32_t"
    return [
        f"const {kind} index = {read};",
        f"const {kind} at = index < 0 ? {offset('index', depth)} : index;",
        f"if (at >= 0 && at < {depth}) {{",
    ], "at" if kind == "int32_t" else "(int32_t)at"


KERNELS = (OneHotKernel(),)
