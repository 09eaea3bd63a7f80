"""The shader of ArgReduce."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from typing_extensions import override

from smelt.codegen.backends.vulkan.calls import ShaderCall
from smelt.codegen.backends.vulkan.elementwise import SERVED, element, scalar, spread, view
from smelt.codegen.backends.vulkan.glsl_functions import called_in, definitions
from smelt.codegen.lower.kernel import (
    NARROW_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Parameters,
    Refusal,
    Request,
)
from smelt.ir import DType, Node
from smelt.ops.core.arg_reduce import ArgReduce


@dataclass(frozen=True)
class ArgReduceShaderParameters(Parameters):
    """Parameters of the shader of ArgReduce.

    Attributes:
        which: `first` or `last`: which of several equal elements is the result.
        functions: GLSL of the shared functions that `load` calls.
        type: GLSL type of an element.
        load: GLSL expression that loads the element at index `at`.
        better: GLSL condition: whether element `x` replaces the best one so far, `best`.
        wide: Whether the output is int64.
    """

    which: str
    functions: str
    type: str
    load: str
    better: str
    wide: bool


class ArgReduceShader(Kernel[ArgReduce]):
    """Each invocation computes one output element, in one pass over the reduced axis."""

    op = ArgReduce
    floats = NARROW_FLOATS

    @override
    def offer(self, node: Node[ArgReduce], request: Request) -> KernelCall | Refusal:
        x = node.input(0).type
        if x.dtype not in SERVED:
            return Refusal(f"{node.op.name} of {x.dtype.value} data is not served on the GPU.")
        op, y = node.op, node.output.type
        load, wide = element(x.dtype, "INPUT", "at"), y.dtype.size > 4
        return ShaderCall(
            template="backends/vulkan/arg_reduce.comp.j2",
            stem=f"arg_{op.kind}_{x.dtype.value}",
            parameters=ArgReduceShaderParameters(
                which="last" if op.last else "first",
                functions=definitions(called_in(load)),
                type=scalar(x.dtype),
                load=load,
                better=_better(op, x.dtype),
                wide=wide,
            ),
            operands=(Input(0, "input"), Output(0, "output")),
            views={"input": view(x.dtype), "output": "ivec2" if wide else "int"},
            constants={
                "ITEMS": y.size,
                "SIZE": x.shape[op.axis],
                "STRIDE": prod(x.shape[op.axis + 1 :]),
            },
            invocations=spread(y.size),
            summary=f"{x.shape[op.axis]} elements per result",
            form="vulkan_reduce",
            work={"calls": 1, "inputs": x.size, "outputs": y.size},
        )


def _better(op: ArgReduce, dtype: DType) -> str:
    """Return the GLSL condition for `x` to replace `best`; NaN is better than any number."""
    sign = ">" if op.kind == "max" else "<"
    if op.last:
        return f"x {sign}= best || isnan(x)" if dtype.is_float else f"x {sign}= best"
    return f"(x {sign} best || isnan(x)) && !isnan(best)" if dtype.is_float else f"x {sign} best"


KERNELS = (ArgReduceShader(),)
