"""Shaders of Normalization and LocalResponse."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from smelt.codegen.backends.vulkan.calls import ShaderCall
from smelt.codegen.backends.vulkan.elementwise import operand_of, spread, view
from smelt.codegen.backends.vulkan.glsl_functions import definitions
from smelt.codegen.backends.vulkan.reduce import GROUP, grouped, loop_constants
from smelt.codegen.backends.vulkan.unary import float_bits
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
from smelt.codegen.lower.nested_loops import ArrayLoop, broadcast_strides, dense_strides, nest
from smelt.ir import Node
from smelt.ops.core.normalization import LocalResponse, Normalization

_MOST_LOOPS = 5
"""Largest number of loops over means and over a mean's elements together.

Each loop takes specialization constants for its size and up to three strides.
"""


@dataclass(frozen=True)
class NormalizationShaderParameters(Parameters):
    """Parameters of the shader of Normalization.

    Attributes:
        group: Whether a workgroup computes each mean, instead of one invocation.
        names: Names of the operands.
        outer: Indices of the loops over means.
        inner: Indices of the loops over the elements of a mean.
        measures: Whether the mean is computed.
        centered: Whether the mean is subtracted.
        statistics: Whether means and inverse deviations are outputs too.
    """

    group: bool
    names: tuple[str, ...]
    outer: tuple[int, ...]
    inner: tuple[int, ...]
    measures: bool
    centered: bool
    statistics: bool


class NormalizationShader(Kernel[Normalization]):
    """Computes in three passes: the mean, the variance, the result."""

    op = Normalization
    floats = NARROW_FLOATS

    @override
    def offer(self, node: Node[Normalization], request: Request) -> KernelCall | Refusal:
        op, x = node.op, node.input(0).type
        outer, inner = _loops(node)
        if len(outer) + len(inner) > _MOST_LOOPS:
            return Refusal(
                f"{node.op.name} over {len(outer) + len(inner)} loops is not served on the GPU: at "
                f"most {_MOST_LOOPS} are."
            )
        operands = [
            operand_of(node, i, name) for i, name in _OPTIONAL if node.optional(i) is not None
        ]
        names = ["input", *(operand.name for operand in operands)]
        count = op.count(x)
        items = x.size // max(count, 1)
        group = grouped(items, count)
        outputs = [Output(0, "output"), Output(1, "means"), Output(2, "inverses")]
        outputs = outputs[: len(node.outputs)]
        accessors = [name.upper() for name in names]
        return ShaderCall(
            template="backends/vulkan/normalization.comp.j2",
            stem="normalize",
            parameters=NormalizationShaderParameters(
                group=group,
                names=tuple(names),
                outer=tuple(range(len(outer))),
                inner=tuple(range(len(inner))),
                measures=op.centered or op.statistics,
                centered=op.centered,
                statistics=len(outputs) > 1,
            ),
            operands=(Input(0, "input"), *operands, *outputs),
            in_place=((0, 0),),
            views=dict.fromkeys([*names, *(output.name for output in outputs)], view(x.dtype)),
            constants={
                "ITEMS": items,
                "INNER": count,
                "EPSILON": float_bits(op.epsilon),
                **loop_constants("OUTER_", outer, accessors),
                **loop_constants("INNER_", inner, accessors),
            },
            invocations=(items * GROUP, 1, 1) if group else spread(items),
            local=(GROUP, 1, 1) if group else None,
            summary=f"{count} elements per {'workgroup' if group else 'invocation'}",
            form="vulkan_rows",
            work={"calls": 1, "outputs": x.size},
        )


_OPTIONAL = ((1, "scale"), (2, "bias"))


def _loops(node: Node[Normalization]) -> tuple[tuple[ArrayLoop, ...], tuple[ArrayLoop, ...]]:
    """Return the loops over the means, and those over the elements of one.

    Their strides are those of the data, then of the scale and the bias.
    """
    op, x = node.op, node.input(0).type
    strides = [dense_strides(x.shape)]
    for index, _ in _OPTIONAL:
        value = node.optional(index)
        if value is not None:
            strides.append(broadcast_strides(value.type.shape, x.shape))
    kept = [axis for axis in range(len(x.shape)) if axis not in op.axes]

    def over(axes: list[int], *more: tuple[int, ...]) -> tuple[ArrayLoop, ...]:
        own = [[stride[axis] for axis in axes] for stride in strides]
        return nest([x.shape[axis] for axis in axes], *own, *more, names="x" * len(axes))

    # Means are dense: include their strides, so that only axes contiguous for them are merged.
    return over(kept, dense_strides([x.shape[axis] for axis in kept])), over(list(op.axes))


@dataclass(frozen=True)
class LocalResponseShaderParameters(Parameters):
    """Parameters of the shader of LocalResponse: GLSL of the functions that it calls."""

    functions: str


class LocalResponseShader(Kernel[LocalResponse]):
    """Sums the squares near each element; sums are not shared between elements."""

    op = LocalResponse
    floats = NARROW_FLOATS

    @override
    def offer(self, node: Node[LocalResponse], request: Request) -> KernelCall | Refusal:
        op, x = node.op, node.input(0).type
        before, behind = op.reach
        return ShaderCall(
            template="backends/vulkan/local_response.comp.j2",
            stem="local_response",
            parameters=LocalResponseShaderParameters(
                functions=definitions({"exp_float", "log_float"})
            ),
            operands=(Input(0, "input"), Output(0, "output")),
            views={"input": view(x.dtype), "output": view(x.dtype)},
            constants={
                "ITEMS": x.size,
                "CHANNELS": max(x.shape[-1], 1),
                "BEFORE": before,
                "BEHIND": behind,
                "FACTOR": float_bits(op.alpha / op.size),
                "BETA": float_bits(op.beta),
                "BIAS": float_bits(op.bias),
            },
            invocations=spread(x.size),
            summary=f"sums of {op.size} squares",
            form="vulkan_rows",
            work={"calls": 1, "outputs": x.size},
        )


KERNELS = (NormalizationShader(), LocalResponseShader())
