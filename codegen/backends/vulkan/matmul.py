"""Shader of MatMul, which addresses its operands by strides.

It computes four products at a time as a vector: four terms of a sum if they are adjacent in both
operands, else one term of four adjacent outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.vulkan.calls import ShaderCall
from smelt.codegen.backends.vulkan.convolution_parameters import variants_of
from smelt.codegen.backends.vulkan.elementwise import (
    MAX_LOOPS,
    VECTORS,
    element,
    operand_of,
    quad,
    scalar,
    spread,
    view,
)
from smelt.codegen.backends.vulkan.glsl_functions import called_in, definitions
from smelt.codegen.backends.vulkan.output_stage import FinishParameters, ShaderFinish
from smelt.codegen.lower.kernel import (
    NARROW_FLOATS,
    Kernel,
    KernelCall,
    Operand,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.lower.matmul_strides import strides_of
from smelt.codegen.lower.nested_loops import dense_strides, nest
from smelt.codegen.text.helpers import when
from smelt.ir import DType, Node, Rounding
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.fully_connected import fully_connected_scales
from smelt.ops.core.matmul import MatMul

_PLAIN = (*NARROW_FLOATS, DType.INT32, DType.UINT32)

MatMulGrouping = Literal["deep", "across", "single"]
"""What is computed at a time.

`deep`: four terms of a sum; `across`: one term of four adjacent outputs; `single`: one product.
"""


@dataclass(frozen=True)
class _Walk:
    """Sizes and strides of the loops, in elements.

    Attributes:
        sizes: Sizes of the output's axes, in memory order.
        strides: Strides of the left and the right operand along each of them.
        depth: Terms of each sum.
        steps: Strides of both operands from one term of a sum to the next.
    """

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, int], ...]
    depth: int
    steps: tuple[int, int]

    @staticmethod
    def of(node: Node[MatMul]) -> _Walk:
        """Return the loops of a MatMul."""
        op = node.op
        shape, left, right, steps = strides_of(node)
        order = op.result or range(len(shape))
        loops = nest(
            [shape[axis] for axis in order],
            [left[axis] for axis in order],
            [right[axis] for axis in order],
            dense_strides(node.output.type.shape),
            names="x" * len(shape),
        )
        strides = tuple((loop.strides[0], loop.strides[1]) for loop in loops)
        return _Walk(
            tuple(loop.size for loop in loops), strides, op.depth(node.input(0).type), steps
        )

    @property
    def grouping(self) -> MatMulGrouping:
        """What can be computed at a time."""
        deep = self.depth > 0 and self.depth % 4 == 0 and self.steps == (1, 1)
        if deep and not any(stride % 4 for pair in self.strides for stride in pair):
            return "deep"
        return "across" if self.sizes and self.sizes[-1] % 4 == 0 else "single"

    def vector(self, operand: int) -> bool:
        """Return whether four elements of the operand (0 or 1) are loaded as a vector."""
        if self.grouping != "across":
            return self.grouping == "deep"
        others = [self.steps[operand], *(pair[operand] for pair in self.strides[:-1])]
        return self.strides[-1][operand] == 1 and not any(stride % 4 for stride in others)

    @property
    def loads_vectors(self) -> bool:
        """Whether four products take one load of each operand."""
        return self.grouping != "single" and all(
            self.vector(i) or self.strides[-1][i] == 0 for i in range(2)
        )


@dataclass(frozen=True)
class MatMulShaderParameters(Parameters):
    """Parameters of the shader of MatMul.

    Attributes:
        grouping: What is computed at a time; see `MatMulGrouping`.
        functions: GLSL of shared functions.
        finish: How sums become outputs; None for data that is not quantized.
        vector: GLSL type of the products of an iteration.
        result: GLSL type of the sums.
        factors: GLSL of both operands in an iteration.
        loops: Indices of the output's axes.
    """

    grouping: str
    functions: str
    finish: FinishParameters | None
    vector: str
    result: str
    factors: tuple[str, ...]
    loops: tuple[int, ...]


class MatMulShader(Kernel[MatMul]):
    """Multiplies matrices, both of which may be computed at run time."""

    op = MatMul
    floats = NARROW_FLOATS

    @override
    def offer(self, node: Node[MatMul], request: Request) -> KernelCall | Refusal:
        y, walk = node.output.type, _Walk.of(node)
        if not y.is_quantized and y.dtype not in _PLAIN:
            return Refusal(f"{node.op.name} of {y.dtype.value} data is not served on the GPU.")
        if y.is_quantized and node.rounding not in (Rounding.TFLM, Rounding.ONNX):
            return Refusal(
                f"{node.op.name} with rounding '{node.rounding}' is not served on the GPU."
            )
        if len(walk.sizes) > MAX_LOOPS:
            return Refusal(
                f"{node.op.name} over more than {MAX_LOOPS} axes is not served on the GPU."
            )
        grouping, kind, bytes_ = walk.grouping, scalar(y.dtype), y.is_quantized
        factors = [_factor(node, walk, i) for i in range(2)]
        finish = _finish(node, walk.depth) if bytes_ else None
        items = -(-y.size // 4) if grouping == "across" or bytes_ else y.size
        tables: list[Operand] = [] if finish is None else [Packed("channels", finish.rows)]
        return ShaderCall(
            template="backends/vulkan/matmul.comp.j2",
            stem=f"matmul_{y.dtype.value}",
            parameters=MatMulShaderParameters(
                grouping=grouping,
                functions=definitions(called_in(*factors), when(bytes_, "packed")),
                finish=None if finish is None else finish.parameters,
                vector=kind if grouping == "single" else VECTORS[kind],
                result=VECTORS[kind] if grouping == "across" else kind,
                factors=tuple(factors),
                loops=tuple(range(len(walk.sizes))),
            ),
            operands=(
                operand_of(node, 0, "a"),
                operand_of(node, 1, "b"),
                *tables,
                Output(0, "output"),
            ),
            views={
                "a": view(y.dtype, walk.vector(0)),
                "b": view(y.dtype, walk.vector(1)),
                "channels": "ivec4",
                "output": view(y.dtype, grouping == "across"),
            },
            constants={
                "ITEMS": items,
                "COUNT": y.size,
                **_constants(node, walk),
                **({} if finish is None else finish.constants),
            },
            invocations=spread(items),
            summary=f"{_SUMMARY[grouping]}, {-(-y.size // max(items, 1))} elements per invocation",
            form="vulkan_matmul",
            work={"calls": 1, "products": node.macs},
            variants=variants_of(y.dtype) if walk.loads_vectors else ("",),
        )


_SUMMARY = {
    "deep": "four terms of a sum at a time",
    "across": "four adjacent outputs at a time",
    "single": "one product at a time",
}


def _factor(node: Node, walk: _Walk, operand: int) -> str:
    """Return GLSL of what one iteration loads of an operand, without its zero point."""
    name, dtype = "ab"[operand], node.output.type.dtype
    accessor, at = name.upper(), f"{name}_at"
    if walk.vector(operand):
        factor = quad(dtype, accessor, f"{at} >> 2")
    elif walk.grouping == "single" or walk.strides[-1][operand] == 0:
        factor = element(dtype, accessor, at)
    else:
        places = (at, *(f"({at} + {i} * {accessor}_STEP)" for i in range(1, 4)))
        parts = ", ".join(element(dtype, accessor, place) for place in places)
        factor = f"{VECTORS[scalar(dtype)]}({parts})"
    return f"({factor} - {accessor}_ZERO)" if node.output.type.is_quantized else factor


def _constants(node: Node, walk: _Walk) -> dict[str, int]:
    """Return specialization constants of sizes and strides.

    If four outputs are computed at a time, the index along the last axis counts groups of four.
    """
    unrolled = 4 if walk.grouping == "deep" else 1
    sizes, strides = list(walk.sizes), list(walk.strides)
    found = {"ITERATIONS": walk.depth // unrolled}
    if walk.grouping == "across":
        sizes[-1] //= 4
        strides[-1] = strides[-1][0] * 4, strides[-1][1] * 4
    for level, size in enumerate(sizes):
        found[f"SIZE_{level}"] = size
    for operand, name in enumerate("AB"):
        found[f"{name}_FACTOR"] = walk.steps[operand] * unrolled
        found[f"{name}_STEP"] = walk.strides[-1][operand] if walk.strides else 0
        found |= _numbered(name, [pair[operand] for pair in strides])
        if node.output.type.is_quantized:
            found[f"{name}_ZERO"] = node.input(operand).type.zero_point
    return found


def _numbered(name: str, values: Sequence[int]) -> dict[str, int]:
    return {f"{name}_{level}": value for level, value in enumerate(values)}


def _finish(node: Node, depth: int) -> ShaderFinish:
    """Return how four sums become outputs; all four have the same constants."""
    a, b, y = node.input(0).type, node.input(1).type, node.output.type
    ends = [[limit - type_.zero_point for limit in type_.dtype.limits] for type_ in (a, b)]
    products = [depth * first * second for first in ends[0] for second in ends[1]]
    range_ = np.full(4, min(products), np.int64), np.full(4, max(products), np.int64)
    scales = fully_connected_scales(a, b, y, node.rounding)
    return ShaderFinish.of(node, Activation.NONE, None, 4, scales, range_)


KERNELS = (MatMulShader(),)
