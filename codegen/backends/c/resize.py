"""Resize: nearest and bilinear interpolation of images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.lower.image_loops import Frame
from smelt.codegen.lower.kernel import (
    STORED_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.lower.nested_loops import total
from smelt.codegen.text.helpers import when
from smelt.ir import Array, DType, Node
from smelt.ops.tensor.resize import Resize

_MOST_ENTRIES = 4
"""Upper limit of a row's or column's entries in all tables."""


@dataclass(frozen=True)
class ResizeNearestParameters(Parameters):
    """Variables of `resize_nearest.j2`; texts are C.

    Attributes:
        x, y: types of the input and the output.
        frame: the images.
        output_pixel: offset of output pixel (y, x).
        pixel: offset of the input pixel that is copied to it.
        bytes: size of a pixel in bytes.
    """

    x: str
    y: str
    frame: Frame
    output_pixel: str
    pixel: str
    bytes: int


@dataclass(frozen=True)
class ResizeBilinearParameters(Parameters):
    """Variables of `resize_bilinear.j2`; texts are C.

    Attributes:
        x, y: types of the input and the output.
        frame: the images.
        real: whether elements are floats.
        type: type of the elements.
        weight_type: type of the weights.
        one: sum of the weights of a row's, or a column's, two neighbors.
        top_left, top_right, bottom_left, bottom_right: offsets of the four neighbors.
        output_pixel: address of output pixel (y, x).
        channels: channels of a pixel.
    """

    x: str
    y: str
    frame: Frame
    real: bool
    type: str
    weight_type: str
    one: str
    top_left: str
    top_right: str
    bottom_left: str
    bottom_right: str
    output_pixel: str
    channels: int


class ResizeKernel(Kernel[Resize]):
    """Computes pixel by pixel; tables have the positions and weights of rows and columns."""

    op = Resize
    floats = STORED_FLOATS

    @override
    def entries(self, node: Node) -> int:
        return _MOST_ENTRIES * sum(node.output.type.shape[1:3])

    @override
    def offer(self, node: Node[Resize], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.output.type
        served = x.dtype is DType.FLOAT32 or (x.dtype is DType.INT8 and x.quant)
        if op.kind == "bilinear" and not served:
            return Refusal(
                f"{op.name} is served for f32 and quantized i8 data, not {x.dtype.value}."
            )
        build = _nearest if op.kind == "nearest" else _bilinear
        parameters, tables = build(node)
        return KernelCall(
            template=f"backends/c/resize_{op.kind}.j2",
            stem=f"resize_{op.kind}",
            parameters=parameters,
            operands=(Input(0, "input"), *tables, Output(0, "output")),
            uses=when(op.kind == "nearest" and y.shape[3] * y.dtype.size > 1, "string.h"),
            summary=f"{op.kind}, pixel by pixel",
        )


def _nearest(node: Node[Resize]) -> tuple[Parameters, list[Packed]]:
    """Return the parameters and tables of a nearest-neighbor resize.

    Input rows and columns are found by division if the size grows by a whole factor, else by table.
    """
    op, x, y = node.op, node.input(0).type, node.output.type
    frame = Frame.of(node)
    tables: list[Packed] = []
    expressions: list[str] = []
    for axis, name, sizes in zip(
        (frame.row, frame.column), ("rows", "columns"), op.axes(x.shape), strict=True
    ):
        positions = op.nearest(*sizes)
        factor = max(sizes[1] // sizes[0], 1)
        if np.array_equal(positions, np.arange(sizes[1]) // factor):
            expressions.append(axis if factor == 1 or axis == "0" else f"{axis} / {factor}")
        else:
            expressions.append(f"{name}[{axis}]")
            tables.append(Packed(name, _small(positions)))
    row, column = expressions
    parameters = ResizeNearestParameters(
        x=str(x),
        y=str(y),
        frame=frame,
        output_pixel=frame.target.offset(frame.row, frame.column),
        pixel=frame.source.offset(row, column),
        bytes=y.shape[3] * y.dtype.size,
    )
    return parameters, tables


def _bilinear(node: Node[Resize]) -> tuple[Parameters, list[Packed]]:
    """Return the parameters and tables of a bilinear resize.

    The tables have each row's and column's two neighbors, and the weight of the second one.
    """
    op, x, y = node.op, node.input(0).type, node.output.type
    frame = Frame.of(node)
    tables: list[Packed] = []
    real = x.dtype.is_float
    for name, sizes in zip(("row", "column"), op.axes(x.shape), strict=True):
        first, second, _, weight = (op.linear if real else op.linear_integer)(*sizes)
        tables.append(Packed(f"{name}s", _small(np.stack([first, second], axis=1))))
        kind = np.float32 if real else np.int16
        tables.append(Packed(f"{name}_weights", weight.astype(kind)))
    parameters = ResizeBilinearParameters(
        x=str(x),
        y=str(y),
        frame=frame,
        real=real,
        type=x.dtype.c_name,
        weight_type="float" if real else "int32_t",
        one="1.0f" if real else "1024",
        top_left=frame.source.offset("upper_row", "left"),
        top_right=frame.source.offset("upper_row", "right"),
        bottom_left=frame.source.offset("lower_row", "left"),
        bottom_right=frame.source.offset("lower_row", "right"),
        output_pixel=total(("output", frame.target.offset(frame.row, frame.column))),
        channels=x.shape[3],
    )
    return parameters, tables


def _small(positions: Array) -> Array:
    """Return positions in the smallest element type that can hold them."""
    largest = int(positions.max())
    kind = np.uint8 if largest < 256 else np.int16 if largest < 32768 else np.int32
    return positions.astype(kind)


KERNELS = (ResizeKernel(),)
