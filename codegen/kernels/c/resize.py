"""Resize: nearest and bilinear interpolation of images."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from smelt.codegen.kernels.base import (
    STORED_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Packed,
    Refusal,
    Request,
)
from smelt.codegen.kernels.c.images import Frame
from smelt.ir import Array, DType, Node
from smelt.ops.resize import Resize

_EACH = 4
"""Entries of tables that a row or a column has, at most."""


class ResizeKernel(Kernel[Resize]):
    """Pixel by pixel; positions and weights of rows and columns are tables."""

    op = Resize
    floats = STORED_FLOATS

    @override
    def entries(self, node: Node) -> int:
        return _EACH * sum(node.output.type.shape[1:3])

    @override
    def offer(self, node: Node[Resize], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.output.type
        served = x.dtype is DType.FLOAT32 or (x.dtype is DType.INT8 and x.quant)
        if op.kind == "bilinear" and not served:
            return Refusal(
                f"{op.name} is served for f32 and quantized i8 data, not {x.dtype.value}."
            )
        place = Frame.of(node)
        parameters: dict[str, object] = {
            "frame": place,
            "op": op,
            "x": x,
            "y": y,
            "output_pixel": place.target.offset("y", "x"),
        }
        build = _nearest if op.kind == "nearest" else _bilinear
        own, tables = build(op, node)
        source = place.source
        own |= {name: source.offset(*at) for name, at in _pixels(op.kind, own).items()}
        return KernelCall(
            template=f"c/resize_{op.kind}.j2",
            stem=f"resize_{op.kind}",
            parameters=parameters | own,
            operands=(Input(0, "input"), *tables, Output(0, "output")),
            summary=f"{op.kind}, pixel by pixel",
        )


def _pixels(kind: str, own: dict[str, object]) -> dict[str, tuple[str, str]]:
    """Input pixels that make one output pixel: C expressions of row and column."""
    if kind == "nearest":
        return {"pixel": (str(own["row"]), str(own["column"]))}
    return {
        name: (row, column)
        for name, row, column in (
            ("top_left", "upper_row", "left"),
            ("top_right", "upper_row", "right"),
            ("bottom_left", "lower_row", "left"),
            ("bottom_right", "lower_row", "right"),
        )
    }


def _nearest(op: Resize, node: Node) -> tuple[dict[str, object], list[Packed]]:
    """Rows and columns by division where the size grows by a whole factor, else by table."""
    tables: list[Packed] = []
    expressions: list[str] = []
    for axis, name, sizes in zip(
        "yx", ("rows", "columns"), op.axes(node.input(0).type.shape), strict=True
    ):
        positions = op.nearest(*sizes)
        factor = max(sizes[1] // sizes[0], 1)
        if np.array_equal(positions, np.arange(sizes[1]) // factor):
            expressions.append(axis if factor == 1 else f"{axis} / {factor}")
        else:
            expressions.append(f"{name}[{axis}]")
            tables.append(Packed(name, _small(positions)))
    pixel_bytes = node.output.type.shape[3] * node.output.type.dtype.size
    return {"row": expressions[0], "column": expressions[1], "bytes": pixel_bytes}, tables


def _bilinear(op: Resize, node: Node) -> tuple[dict[str, object], list[Packed]]:
    """For each row and column its two neighbours, and the weight of the second one."""
    tables: list[Packed] = []
    real = node.input(0).type.dtype.is_float
    axes = op.axes(node.input(0).type.shape)
    for name, sizes in zip(("row", "column"), axes, strict=True):
        first, second, _, weight = (op.linear if real else op.linear_integer)(*sizes)
        tables.append(Packed(f"{name}s", _small(np.stack([first, second], axis=1))))
        kind = np.float32 if real else np.int16
        tables.append(Packed(f"{name}_weights", weight.astype(kind)))
    return {"real": real, "weight_type": "float" if real else "int32_t"}, tables


def _small(positions: Array) -> Array:
    """Positions in the smallest element type that holds them."""
    largest = int(positions.max())
    kind = np.uint8 if largest < 256 else np.int16 if largest < 32768 else np.int32
    return positions.astype(kind)


KERNELS = (ResizeKernel(),)
