"""PRelu."""

from __future__ import annotations

from typing_extensions import override

from smelt.codegen.lower.c_expressions import quantizations, stored
from smelt.codegen.lower.kernel import Input, Kernel, KernelCall, Output, Refusal, Request
from smelt.codegen.lower.nested_loops import (
    LoopsParameters,
    broadcast_strides,
    dense_strides,
    depth,
    index,
    loops_call,
    nest,
    nested,
)
from smelt.codegen.text.expressions import offset
from smelt.ir import DType, Node
from smelt.ops.arithmetic.fixed_point import Activation, rescale_multiplier
from smelt.ops.core.prelu import PRelu


class PReluKernel(Kernel[PRelu]):
    """Computes each element in nested loops, as few as the broadcasting of alpha allows."""

    op = PRelu

    @override
    def offer(self, node: Node[PRelu], request: Request) -> KernelCall | Refusal:
        x, alpha, y = node.input(0).type, node.input(1).type, node.output.type
        if not x.is_quantized and x.dtype is not DType.FLOAT32:
            return Refusal(f"PRelu is served for f32 and quantized data, not {x.dtype.value}.")
        loops = nest(
            y.shape,
            dense_strides(x.shape),
            broadcast_strides(alpha.shape, y.shape),
            dense_strides(y.shape),
        )
        slope, lines, result = _formula(node, f"input[{index(loops, 0)}]")
        statements: list[list[str]] = [[] for _ in range(len(loops) + 1)]
        statements[depth(loops, 1)].append(slope % f"alpha[{index(loops, 1)}]")
        statements[-1] += [*lines, f"output[{index(loops, 2)}] = {result};"]
        return loops_call(
            stem="prelu",
            form="c_prelu",
            parameters=LoopsParameters(
                (f"PRelu of {x}, alpha {alpha}.", *quantizations(input=x, alpha=alpha, output=y)),
                nested([loop.head for loop in loops], statements),
            ),
            operands=(Input(0, "input"), Input(1, "alpha"), Output(0, "output")),
            in_place=((0, 0),),
            summary=f"{len(loops)} nested loops",
        )


def _formula(node: Node, element: str) -> tuple[str, list[str], str]:
    """Return C: the declaration of `slope`, statements after it, and the result's expression.

    `%s` in the declaration is the element of alpha.
    """
    x, alpha, y = node.input(0).type, node.input(1).type, node.output.type
    if y.quant is None:
        lines = [f"const float x = {element};"]
        return "const float slope = %s;", lines, "x < 0.0f ? slope * x : x"
    identity = rescale_multiplier(x.scale / y.scale)
    product = rescale_multiplier(x.scale * alpha.scale / y.scale)
    lines = [
        f"const int32_t x = {offset(element, -x.zero_point)};",
        f"const int32_t scaled = x < 0 ? requantize(x * slope, {product[0]}, {product[1]})",
        f"                             : requantize(x, {identity[0]}, {identity[1]});",
    ]
    result = stored(Activation.NONE, y, saturate=True)(offset("scaled", y.zero_point))
    return f"const int32_t slope = {offset('%s', -alpha.zero_point)};", lines, result


KERNELS = (PReluKernel(),)
