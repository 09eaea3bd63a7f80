"""Converters of operators that sample an image at positions from grids, boxes or offsets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np

from smelt.frontend.onnx.operation import OnnxConverter, Operation
from smelt.frontend.onnx.windows import LARGEST, OnnxWindow
from smelt.ir import Array, Value
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import NO_PADDING, Conv2D
from smelt.ops.core.matmul import MatMul, swapped
from smelt.ops.tensor.grid_sample import PADDINGS, TAPS, GridSample
from smelt.ops.tensor.roi_align import RoiAlign

_OLD_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Names of modes before operator set 20."""

_EACH = 32
"""Elementary operations for each position, which is computed in Python."""


def _affine_grid(operation: Operation) -> Value:
    """Convert AffineGrid: homogeneous positions of pixels times the matrices."""
    theta, size = operation.value(0), operation.attribute_or_operand("", 1)
    rank = len(size or ()) - 2
    if size is None or rank not in (2, 3) or theta.type.shape != (size[0], rank, rank + 1):
        raise operation.wrong(
            f"matrices {theta.type} do not fit an image of size {size}: they must be "
            "[n, axes, axes + 1], for 2 or 3 spatial axes"
        )
    if not 1 <= prod(size) <= LARGEST:
        raise operation.refuse(
            f"an image of size {list(size)} is not supported: it must have from 1 to {LARGEST:,} "
            "elements"
        )
    operation.afford((*size[2:], rank + 1))
    axes = [_normalized(n, corners=operation.flag("align_corners")) for n in size[2:]]
    places = np.meshgrid(*axes, indexing="ij")
    homogeneous = np.stack([*reversed(places), np.ones(size[2:])], axis=-1).astype(np.float32)
    points = operation.literal(homogeneous.reshape(1, -1, rank + 1))
    grid = operation.emit(MatMul(right=swapped(3)), points, theta)
    return operation.reshape(grid, (size[0], *size[2:], rank))


def _normalized(size: int, *, corners: bool) -> Array:
    """Return the centers of pixels; -1 and 1 are the first and last center, or the outer edges."""
    if corners:
        return np.linspace(-1, 1, size) if size > 1 else np.zeros(1)
    return (2 * np.arange(size) + 1) / size - 1


def _grid_sample(operation: Operation) -> Value:
    mode = operation.text("mode", "linear")
    mode = _OLD_MODES.get(mode, mode)
    padding = operation.text("padding_mode", "zeros")
    for given, known in ((mode, TAPS), (padding, PADDINGS)):
        if given not in known:
            raise operation.wrong(f"'{given}' does not exist; use one of {', '.join(known)}")
    x, grid = operation.value(0), operation.value(1)
    if x.type.size == 0 or grid.type.size == 0:
        raise operation.refuse(f"there is nothing to sample: {x.type} or grid {grid.type} is empty")
    op = GridSample(mode, padding, "corners" if operation.flag("align_corners") else "edges")
    return operation.channels_first(operation.emit(op, operation.channels_last(x), grid))


def _roi_align(operation: Operation) -> Value:
    kind = {"avg": "average"}.get(mode := operation.text("mode", "avg"), mode)
    coordinates = operation.text(
        "coordinate_transformation_mode",
        "half_pixel" if operation.version >= 16 else "output_half_pixel",
    )
    op = RoiAlign(
        kind,
        (operation.integer("output_height", 1), operation.integer("output_width", 1)),
        operation.integer("sampling_ratio", 0),
        operation.real("spatial_scale", 1.0),
        coordinates == "half_pixel",
    )
    x = operation.channels_last(operation.image(0))
    return operation.channels_first(operation.emit(op, x, operation.value(1), operation.value(2)))


def _deform_conv(operation: Operation) -> Value:
    """Convert DeformConv: sample each tap's image at the offsets, then convolve over the taps."""
    x, weights, offsets = operation.image(0), operation.weights(1), operation.value(2)
    n, channels, *size = x.type.shape
    if len(weights.type.shape) != 4:
        raise operation.wrong(f"weights {weights.type} must have 4 dimensions")
    outputs, depth, *kernel = weights.type.shape
    if operation.integers("kernel_shape", tuple(kernel)) != tuple(kernel):
        raise operation.wrong(
            f"kernel_shape {list(operation.integers('kernel_shape'))} contradicts weights "
            f"{weights.type}"
        )
    groups, parts = operation.integer("group", 1), operation.integer("offset_group", 1)
    window, taps = OnnxWindow.of(operation, size, kernel), prod(kernel)
    height, width = window.outputs
    fits = min(groups, parts) > 0 and channels == depth * groups and outputs % groups == 0
    if not fits or channels % parts or 0 in x.type.shape:
        raise operation.wrong(
            f"weights {weights.type} do not fit input {x.type} with {groups} groups and {parts} "
            "groups of offsets"
        )
    if offsets.type.shape != (n, parts * taps * 2, height, width):
        raise operation.wrong(
            f"offsets are {offsets.type}; for windows {list(window.outputs)} their shape must be "
            f"{[n, parts * taps * 2, height, width]}"
        )
    grid = operation.reshape(offsets, (n * parts, taps, 2, height, width))
    grid = operation.transpose(grid, (0, 3, 4, 1, 2))
    grid = operation.emit(Binary("add"), grid, operation.literal(_tap_positions(operation, window)))
    image = operation.reshape(x, (n * parts, channels // parts, *size))
    taken = operation.emit(
        GridSample("linear", "zeros", "pixels"), operation.channels_last(image), grid
    )
    mask = operation.optional(4)
    if mask is not None:
        factors = operation.reshape(mask, (n * parts, taps, height, width, 1))
        factors = operation.transpose(factors, (0, 2, 3, 1, 4))
        taken = operation.emit(Binary("mul"), taken, factors)
    taken = operation.reshape(taken, (n, parts, height * width, taps, channels // parts))
    taken = operation.transpose(taken, (0, 2, 3, 1, 4))
    columns = operation.reshape(taken, (n, height * width, taps, channels))
    rows = operation.reshape(weights, (outputs, depth, 1, taps))
    rows = operation.transpose(rows, (0, 2, 3, 1))
    y = operation.emit(Conv2D((1, 1), NO_PADDING, groups=groups), columns, rows)
    bias = operation.optional(3)
    if bias is not None:
        y = operation.emit(Binary("add"), y, bias)
    return operation.channels_first(operation.reshape(y, (n, height, width, outputs)))


def _tap_positions(operation: Operation, window: OnnxWindow) -> Array:
    """Return row and column of each tap of each window: float32 `[1,h,w,taps,2]`."""

    def along(axis: int) -> Sequence[int]:
        return range(window.outputs[axis])

    operation.afford((*window.outputs, *window.kernel), 2 * _EACH)
    found = [
        [
            o * window.stride[axis] - window.padding[axis][0] + t * window.dilation[axis]
            for axis, (o, t) in enumerate(zip(place, tap, strict=True))
        ]
        for place in product(along(0), along(1))
        for tap in product(*map(range, window.kernel))
    ]
    return np.asarray(found, np.float32).reshape(1, *window.outputs, -1, 2)


CONVERTERS: dict[str, OnnxConverter] = {
    "AffineGrid": _affine_grid,
    "GridSample": _grid_sample,
    "RoiAlign": _roi_align,
    "DeformConv": _deform_conv,
}
