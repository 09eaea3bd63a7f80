"""Converters of reshapes, transposes, tiling, padding, concatenation and resizing."""

from __future__ import annotations

from math import prod
from typing import Any

import tflite

from smelt.errors import ModelError
from smelt.frontend.tflite.operation import ANY_TYPE, Converter, TfliteOperation
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.pad import Pad
from smelt.ops.tensor.reshape import Reshape
from smelt.ops.tensor.resize import Resize
from smelt.ops.tensor.tile import Tile
from smelt.ops.tensor.transpose import Transpose


def _reshape(operation: TfliteOperation) -> None:
    """Convert RESHAPE and SQUEEZE; the file declares the output's shape.

    One unknown dimension follows from the number of elements. If there are more, the shape must be
    an operand.
    """
    x, shape = operation.input(0), operation.output_shape
    if shape.count(-1) > 1:
        if not operation.has(1) or not operation.input(1).is_constant:
            operation.refuse_open_shapes()
        shape = operation.integers(1, "shape")
    operation.emit(Reshape(_completed(shape, x.type.size)), x, moves_data=True)


def _completed(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return a shape of `size` elements, with the unknown dimension (-1), if any, computed."""
    known = prod(n for n in shape if n != -1)
    return tuple(size // max(known, 1) if n == -1 else n for n in shape)


def _expand_dims(operation: TfliteOperation) -> None:
    x, shape = operation.input(0), operation.output_shape
    if shape.count(-1) > 1:
        rank = len(x.type.shape) + 1
        axis = operation.axis(operation.integers(1, "axis"), rank)
        shape = (*x.type.shape[:axis], 1, *x.type.shape[axis:])
    operation.emit(Reshape(_completed(shape, x.type.size)), x, moves_data=True)


def _tile(operation: TfliteOperation) -> None:
    multiples = operation.integers(1, "multiples")
    operation.emit(Tile(multiples), operation.input(0), moves_data=True)


def _transpose(operation: TfliteOperation) -> None:
    x, permutation = operation.input(0), operation.integers(1, "permutation")
    rank = len(x.type.shape)
    positive = tuple(axis + rank if axis < 0 else axis for axis in permutation)
    if sorted(positive) != list(range(rank)):
        raise ModelError(f"{operation}: {list(permutation)} is not a permutation of {rank} axes")
    operation.emit(Transpose(positive), x, moves_data=True)


def _concatenation(operation: TfliteOperation) -> None:
    options = operation.options(tflite.ConcatenationOptions)
    if options.activation() is not Activation.NONE:
        raise ModelError(
            f"{operation} has a fused activation, which CONCATENATION does not support; make the "
            "activation an operator of its own"
        )
    rank = len(operation.output_type.shape)
    axis = operation.axis([options.integer("Axis")], rank)
    operation.emit(Concat(axis), *operation.inputs())


def _paddings(operation: TfliteOperation) -> tuple[tuple[int, int], ...]:
    counts = operation.integers(1, "paddings")
    rank = len(operation.input(0).type.shape)
    if len(counts) != 2 * rank or min(counts, default=0) < 0:
        raise ModelError(
            f"{operation}: paddings {list(counts)} need two numbers, at least 0, for each of the "
            f"{rank} dimensions of its input"
        )
    return tuple(zip(counts[::2], counts[1::2], strict=True))


def _pad(operation: TfliteOperation) -> None:
    operation.emit(Pad(_paddings(operation)), operation.input(0), moves_data=True)


def _pad_v2(operation: TfliteOperation) -> None:
    x = operation.input(0)
    fill: int | float | None = None
    if operation.has(2):
        constant = operation.constant(2, "padding value")
        if constant.type.size != 1 or constant.type.dtype is not x.type.dtype:
            raise ModelError(
                f"{operation}: padding value {constant.type} must be one element of type "
                f"{x.type.dtype.value}"
            )
        if constant.type.quant != operation.output_type.quant:
            raise ModelError(
                f"{operation}: the padding value must have the quantization of the output"
            )
        fill = constant.array.item()
    operation.emit(Pad(_paddings(operation), fill), x, moves_data=True)


def _resize(kind: str, options_class: Any) -> Converter:
    def convert(operation: TfliteOperation) -> None:
        options = operation.options(options_class, optional=True)
        size = operation.integers(1, "size")
        if len(size) != 2 or min(size) < 1:
            raise ModelError(
                f"{operation}: size {list(size)} must be height and width, both at least 1"
            )
        centers = options.flag("HalfPixelCenters")
        op = Resize(kind, (size[0], size[1]), options.flag("AlignCorners"), centers)
        operation.emit(op, operation.input(0), moves_data=kind == "nearest")

    return Converter(convert)


CONVERTERS = {
    "RESHAPE": Converter(_reshape, ANY_TYPE, shape_operands=frozenset({1})),
    "SQUEEZE": Converter(_reshape, ANY_TYPE),
    "EXPAND_DIMS": Converter(_expand_dims, ANY_TYPE, shape_operands=frozenset({1})),
    "TRANSPOSE": Converter(_transpose, ANY_TYPE),
    "TILE": Converter(_tile, ANY_TYPE),
    "CONCATENATION": Converter(_concatenation, ANY_TYPE),
    "PAD": Converter(_pad, ANY_TYPE),
    "PADV2": Converter(_pad_v2, ANY_TYPE),
    "RESIZE_NEAREST_NEIGHBOR": _resize("nearest", tflite.ResizeNearestNeighborOptions),
    "RESIZE_BILINEAR": _resize("bilinear", tflite.ResizeBilinearOptions),
}
