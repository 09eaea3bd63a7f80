"""Shaders of interpolation: bilinear Resize, and weighted Resample along an axis."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.vulkan.calls import ShaderCall
from smelt.codegen.backends.vulkan.elementwise import Lanes, spread, view
from smelt.codegen.backends.vulkan.unary import float_bits
from smelt.codegen.lower.kernel import (
    NARROW_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
)
from smelt.ir import DType, Node
from smelt.ops.tensor.resample import Resample
from smelt.ops.tensor.resize import Resize


@dataclass(frozen=True)
class BilinearShaderParameters(Parameters):
    """Parameters of the shader of bilinear Resize; texts are GLSL.

    Attributes:
        real: Whether the data is in floating point.
        lanes: How elements are loaded and stored, one or four at a time.
        scalar: The type of weights.
        one: The number that a pair of weights adds up to.
        load: An expression that loads the elements at `at`.
        functions: Definitions of the functions that load and store elements.
    """

    real: bool
    lanes: Lanes
    scalar: str
    one: str
    load: str
    functions: str


class ResizeBilinearShader(Kernel[Resize]):
    """Interpolates with tables of positions and weights of rows and columns."""

    op = Resize
    floats = NARROW_FLOATS

    @override
    def entries(self, node: Node[Resize]) -> int:
        # At most two positions and two weights per row and per column.
        return 4 * sum(node.output.type.shape[1:3])

    @override
    def offer(self, node: Node[Resize], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.output.type
        if op.kind != "bilinear":
            return Refusal("Resize of kind 'nearest' is computed by another kernel.")
        if not x.dtype.is_float and not (x.dtype is DType.INT8 and x.is_quantized):
            return Refusal(
                f"{op.name} is served on the GPU for floats and quantized i8 data, not "
                f"{x.dtype.value}."
            )
        real, lanes = x.dtype.is_float, Lanes.of(x.dtype, quads=x.shape[3] % 4 == 0)
        weights = "float" if real else "int"
        items, load = lanes.items(y.size), lanes.load(x.dtype, "INPUT", "at")
        return ShaderCall(
            template="backends/vulkan/resize_bilinear.comp.j2",
            stem=f"resize_bilinear_{x.dtype.value}",
            parameters=BilinearShaderParameters(
                real=real,
                lanes=lanes,
                scalar=weights,
                one="1.0" if real else "1024",
                load=load,
                functions=lanes.functions(load),
            ),
            operands=(Input(0, "input"), *_tables(node, real=real), Output(0, "output")),
            views={
                "input": view(x.dtype, lanes.quads),
                "rows": "int",
                "columns": "int",
                "row_weights": weights,
                "column_weights": weights,
                "output": view(y.dtype, lanes.quads),
            },
            constants={
                "ITEMS": items,
                "COUNT": y.size,
                "CHANNELS": x.shape[3] // lanes.width,
                "OUT_HEIGHT": y.shape[1],
                "OUT_WIDTH": y.shape[2],
                "IN_HEIGHT": x.shape[1],
                "IN_WIDTH": x.shape[2],
            },
            invocations=spread(items),
            summary=f"bilinear, {lanes.width} channels at a time",
            form="vulkan_elements",
            work={"calls": 1, "outputs": y.size},
        )


def _tables(node: Node[Resize], *, real: bool) -> list[Packed]:
    """Return tables of positions and weights of rows and columns."""
    tables: list[Packed] = []
    for name, sizes in zip(("row", "column"), node.op.axes(node.input(0).type.shape), strict=True):
        first, second, _, weight = (node.op.linear if real else node.op.linear_integer)(*sizes)
        places = np.stack([first, second], axis=1).astype(np.int32)
        tables.append(Packed(f"{name}s", places))
        kind = np.float32 if real else np.int32
        tables.append(Packed(f"{name}_weights", weight.astype(kind)))
    return tables


@dataclass(frozen=True)
class ResampleShaderParameters(Parameters):
    """Parameters of the shader of weighted Resample.

    Attributes:
        quads: Whether an invocation computes four adjacent elements.
        type: GLSL type of what it computes.
    """

    quads: bool
    type: str


class ResampleWeightedShader(Kernel[Resample]):
    """Interpolates along an axis with tables of positions and weights."""

    op = Resample

    @override
    def offer(self, node: Node[Resample], request: Request) -> KernelCall | Refusal:
        if node.optional(2) is None:
            return Refusal("Resample without weights is computed by another kernel.")
        if not all(v.is_constant for v in node.inputs[1:] if v is not None):
            return Refusal(
                f"{node.op.name} is served on the GPU only for constant positions and weights."
            )
        op, x, y = node.op, node.input(0).type, node.output.type
        positions, width = node.input(1).array, prod(x.shape[op.axis + 1 :])
        quads = width % 4 == 0
        items = y.size // 4 if quads else y.size
        return ShaderCall(
            template="backends/vulkan/resample.comp.j2",
            stem="resample_f32",
            parameters=ResampleShaderParameters(quads=quads, type="vec4" if quads else "float"),
            operands=(
                Input(0, "input"),
                Packed("positions", positions.astype(np.int32)),
                Packed("weights", node.input(2).array),
                Output(0, "output"),
            ),
            views={
                "input": view(x.dtype, quads),
                "positions": "int",
                "weights": "float",
                "output": view(y.dtype, quads),
            },
            constants={
                "ITEMS": items,
                "WIDTH": width // 4 if quads else width,
                "OUT_SIZE": positions.shape[0],
                "IN_SIZE": x.shape[op.axis],
                "TAPS": positions.shape[1],
                "FILL": float_bits(op.fill),
            },
            invocations=spread(items),
            summary=f"{4 if quads else 1} elements per invocation, {positions.shape[1]} taps each",
            form="vulkan_elements",
            work={"calls": 1, "outputs": y.size},
        )


KERNELS = (ResizeBilinearShader(), ResampleWeightedShader())
