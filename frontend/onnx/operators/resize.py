"""Converters of Resize and Upsample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.frontend.onnx.interpolation import (
    COORDINATES,
    MODES,
    NEAREST,
    SIMPLE,
    Interpolation,
    InterpolationTable,
)
from smelt.frontend.onnx.operation import OnnxConverter, Operation
from smelt.frontend.onnx.windows import LARGEST
from smelt.ir import Array, DType, Value
from smelt.ir.budget import affords
from smelt.ops.tensor.resample import Resample
from smelt.ops.tensor.resize import Resize

_FLAGS = ((False, False), (True, False), (False, True))
"""Values of `align_corners` and `half_pixel_centers` of a `Resize`."""


_EACH = 8
"""Elementary operations for each tap."""


@dataclass(frozen=True)
class _ResizedAxis:
    """An axis to resize, its input and output size, and their scale (output / input)."""

    axis: int
    size: int
    outputs: int
    scale: np.float32


def _resize(operation: Operation) -> Value:
    x, rank = operation.value(0), len(operation.value(0).type.shape)
    old = operation.version < 11
    mode = operation.text("mode", "nearest")
    coordinates = operation.text(
        "coordinate_transformation_mode", "asymmetric" if old else "half_pixel"
    )
    interpolation = Interpolation(
        _one_of(operation, "mode", mode, MODES),
        _one_of(operation, "coordinate_transformation_mode", coordinates, COORDINATES),
        _one_of(
            operation,
            "nearest_mode",
            operation.text("nearest_mode", SIMPLE if old else "round_prefer_floor"),
            (*NEAREST, SIMPLE) if old else NEAREST,
        ),
        operation.real("cubic_coeff_a", -0.75),
        operation.flag("exclude_outside"),
        operation.flag("antialias"),
    )
    axes = operation.axes(operation.integers("axes", tuple(range(rank))), rank)
    resized = _sizes(operation, x, axes, 1 if old else 2)
    roi = _roi(operation, axes) if coordinates == "tf_crop_and_resize" else {}
    if not roi and _keeps_shape(resized):
        return x
    tables = {
        a: _table(operation, interpolation, a, roi.get(a.axis, (0.0, 1.0)))
        for a in resized
        if a.size != a.outputs or a.scale != 1 or a.axis in roi
    }
    return _emit(operation, x, interpolation, tables)


def _upsample(operation: Operation) -> Value:
    x = operation.value(0)
    mode = operation.text("mode", "nearest").removeprefix("bi")
    _one_of(operation, "mode", mode, MODES[:2])
    interpolation = Interpolation(mode, "asymmetric", SIMPLE)
    if operation.has("scales"):
        scales = np.asarray(operation.reals("scales"), np.float32)
    else:
        scales = operation.constant(1, "scales")
    resized = _scaled(operation, x, tuple(range(len(x.type.shape))), scales)
    if _keeps_shape(resized):
        return x
    tables = {a: _table(operation, interpolation, a) for a in resized if a.scale != 1}
    return _emit(operation, x, interpolation, tables)


def _table(
    operation: Operation,
    interpolation: Interpolation,
    a: _ResizedAxis,
    roi: tuple[float, float] = (0, 1),
) -> InterpolationTable:
    operation.afford((a.outputs, interpolation.taps(float(a.scale))), _EACH)
    return interpolation.table(a.size, a.outputs, a.scale, roi)


def _one_of(operation: Operation, name: str, given: str, known: Sequence[str]) -> str:
    if given not in known:
        raise operation.wrong(f"{name} '{given}' does not exist; use one of {', '.join(known)}")
    return given


def _sizes(
    operation: Operation, x: Value, axes: Sequence[int], scales: int
) -> tuple[_ResizedAxis, ...]:
    """Return the axes to resize, from the operand `scales` or, if it is empty, from sizes."""
    given = operation.optional(scales)
    if given is not None and given.type.size:
        return _scaled(operation, x, axes, operation.constant(scales, "scales"))
    sizes = operation.attribute_or_operand("", scales + 1)
    if sizes is None or len(sizes) != len(axes) or min(sizes, default=1) < 1:
        raise operation.wrong(
            f"its sizes {sizes} must be at least 1, one for each of {len(axes)} axes of {x.type}"
        )
    shape = [x.type.shape[axis] for axis in axes]
    policy = operation.text("keep_aspect_ratio_policy", "stretch")
    _one_of(
        operation,
        "keep_aspect_ratio_policy",
        policy,
        ("stretch", "not_larger", "not_smaller"),
    )
    _refuse_empty(operation, x)
    if policy == "stretch":
        factors = [outputs / size for outputs, size in zip(sizes, shape, strict=True)]
    else:
        choose = min if policy == "not_larger" else max
        factors = [choose(o / n for o, n in zip(sizes, shape, strict=True))] * len(axes)
        sizes = tuple(int(factors[0] * n + 0.5) for n in shape)
    found = tuple(
        _ResizedAxis(axis, size, outputs, np.float32(factor))
        for axis, size, outputs, factor in zip(axes, shape, sizes, factors, strict=True)
    )
    return _limited(operation, found)


def _scaled(
    operation: Operation, x: Value, axes: Sequence[int], scales: Array
) -> tuple[_ResizedAxis, ...]:
    factors = np.asarray(scales, np.float32).ravel()
    if len(factors) != len(axes) or not (np.isfinite(factors) & (factors > 0)).all():
        raise operation.wrong(
            f"its scales {factors.tolist()} must be positive and finite, one for each of "
            f"{len(axes)} axes of {x.type}"
        )
    _refuse_empty(operation, x)
    sizes = [x.type.shape[axis] for axis in axes]
    # Compute in float64, because a float32 product, which gives the sizes, may be infinite.
    for factor, size in zip(factors.tolist(), sizes, strict=True):
        if factor * size > LARGEST:
            raise operation.refuse(f"scale {factor:.6g} makes an axis of {size} too large")
    found = tuple(
        _ResizedAxis(axis, size, int(factor * np.float32(size)), factor)
        for axis, size, factor in zip(axes, sizes, factors, strict=True)
    )
    if any(a.outputs < 1 for a in found):
        raise operation.wrong(f"scales {factors.tolist()} give {x.type} a size of 0")
    return _limited(operation, found)


def _keeps_shape(axes: tuple[_ResizedAxis, ...]) -> bool:
    """Return whether no axis is resized; onnxruntime then copies, even if a scale is not 1."""
    return all(a.size == a.outputs for a in axes)


def _limited(operation: Operation, axes: tuple[_ResizedAxis, ...]) -> tuple[_ResizedAxis, ...]:
    largest = max((a.outputs for a in axes), default=0)
    if largest > LARGEST:
        raise operation.refuse(
            f"an axis of {largest:,} elements is not supported; at most {LARGEST:,} are"
        )
    return axes


def _refuse_empty(operation: Operation, x: Value) -> None:
    if x.type.size == 0:
        raise operation.refuse(f"there is nothing to resize: '{x.name}' {x.type} is empty")


def _roi(operation: Operation, axes: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Return begin and end of the region of interest along each axis."""
    given = operation.constant(1, "region of interest").ravel()
    if len(given) != 2 * len(axes) or not np.isfinite(given).all():
        raise operation.wrong(
            f"its region of interest {given.tolist()} must be finite, with two numbers for each of "
            f"{len(axes)} axes"
        )
    halves = given[: len(axes)].tolist(), given[len(axes) :].tolist()
    return dict(zip(axes, zip(*halves, strict=True), strict=True))


def _emit(
    operation: Operation,
    x: Value,
    interpolation: Interpolation,
    tables: dict[_ResizedAxis, InterpolationTable],
) -> Value:
    """Resize an image by one `Resize` if that gives the same result, else axis by axis."""
    nearest = interpolation.mode == "nearest"
    if not nearest and x.type.dtype is not DType.FLOAT32:
        raise operation.refuse(f"{x.type} can be resized only with mode 'nearest'")
    if not tables:
        return x
    image = len(x.type.shape) > 2 and min(a.axis for a in tables) >= 2
    if image:
        x = operation.channels_last(x)
        tables = {_moved(a): table for a, table in tables.items()}
    y = _at_once(operation, x, interpolation, tables)
    if y is None:
        y = x
        # Begin with the axis that shrinks most, so that intermediate results are small.
        for a, table in sorted(tables.items(), key=lambda item: item[0].outputs / item[0].size):
            op = Resample(a.axis, operation.real("extrapolation_value", 0.0))
            operands = [operation.literal(table.positions.astype(np.int32))]
            if not nearest:
                operands.append(operation.literal(table.weights.astype(np.float32)))
            y = operation.emit(op, y, *operands, quant=x.type.quant)
    return operation.channels_first(y) if image else y


def _moved(a: _ResizedAxis) -> _ResizedAxis:
    """Return the axis after channels were moved last."""
    return _ResizedAxis(a.axis - 1, a.size, a.outputs, a.scale)


def _at_once(
    operation: Operation,
    x: Value,
    interpolation: Interpolation,
    tables: dict[_ResizedAxis, InterpolationTable],
) -> Value | None:
    """Resize rows and columns of an image by one operator; None if its tables differ."""
    axes = {a.axis: (a, table) for a, table in tables.items()}
    if len(x.type.shape) != 4 or not axes.keys() <= {1, 2} or interpolation.mode == "cubic":
        return None
    nearest = interpolation.mode == "nearest"
    sizes = tuple(axes[i][0].outputs if i in axes else x.type.shape[i] for i in (1, 2))
    for flags in _FLAGS:
        op = Resize("nearest" if nearest else "bilinear", (sizes[0], sizes[1]), *flags)
        if all(_agrees(op, a, table) for a, table in axes.values()):
            return operation.emit(op, x, quant=x.type.quant)
    return None


def _agrees(op: Resize, a: _ResizedAxis, table: InterpolationTable) -> bool:
    """Return whether the operator has the same table, up to the rounding of coordinates."""
    if (table.positions < 0).any():
        return False
    if op.kind == "nearest":
        return np.array_equal(op.nearest(a.size, a.outputs), table.positions[:, 0])
    lower, upper, lower_weight, upper_weight = op.linear(a.size, a.outputs)
    if not affords(2 * a.size * a.outputs):
        return False
    ours = _matrix(table.positions, table.weights, a.size)
    theirs = _matrix(
        np.stack([lower, upper], axis=1), np.stack([lower_weight, upper_weight], axis=1), a.size
    )
    return bool(np.abs(ours - theirs).max() <= 4 * np.finfo(np.float32).eps * a.size)


def _matrix(positions: Array, weights: Array, size: int) -> Array:
    """Return the table as a matrix `[o,size]`."""
    matrix = np.zeros((len(positions), size))
    np.add.at(matrix, (np.arange(len(positions))[:, None], positions), weights)
    return matrix


CONVERTERS: dict[str, OnnxConverter] = {"Resize": _resize, "Upsample": _upsample}
