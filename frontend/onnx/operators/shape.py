"""Converters of operators that reshape, transpose, join, split and repeat tensors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import ceil, inf, isfinite, prod

import numpy as np

from smelt.formatting import number
from smelt.frontend.onnx.operation import OnnxConverter, Operation
from smelt.frontend.onnx.tensors import dtype_of
from smelt.ir import DType, Value
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.pad import Pad
from smelt.ops.tensor.slice import Slice
from smelt.ops.tensor.tile import Tile


def _reshape(operation: Operation) -> Value:
    x = operation.value(0)
    wanted = operation.attribute_or_operand("shape", 1)
    if wanted is None:
        raise operation.wrong("it has no shape")
    return operation.reshape(x, _completed(operation, x, wanted))


def _completed(operation: Operation, x: Value, wanted: Sequence[int]) -> tuple[int, ...]:
    """Return the shape with 0 replaced by the input's dimension, and -1 by the remaining size."""
    shape = list(wanted)
    if not operation.flag("allowzero"):
        for axis, size in enumerate(wanted):
            if size == 0 and axis >= len(x.type.shape):
                raise operation.wrong(
                    f"shape {list(wanted)} copies dimension {axis}, which {x.type} does not have"
                )
            shape[axis] = size or x.type.shape[axis]
    if shape.count(-1) == 1:
        known = prod(size for size in shape if size != -1)
        if known > 0 and x.type.size % known == 0:
            shape[shape.index(-1)] = x.type.size // known
    if min(shape, default=0) < 0 or prod(shape) != x.type.size:
        raise operation.wrong(
            f"'{x.name}' {x.type} cannot be reshaped to {list(wanted)}: the number of elements "
            "differs"
        )
    return tuple(shape)


def _flatten(operation: Operation) -> Value:
    x = operation.value(0)
    shape, axis = x.type.shape, operation.integer("axis", 1)
    if axis != len(shape):
        axis = operation.axis(axis, len(shape))
    return operation.reshape(x, (prod(shape[:axis]), prod(shape[axis:])))


def _squeeze(operation: Operation) -> Value:
    x = operation.value(0)
    shape = x.type.shape
    given = operation.attribute_or_operand("axes", 1)
    axes = [i for i, n in enumerate(shape) if n == 1] if given is None else given
    dropped = set(operation.axes(axes, len(shape))) if shape else set[int]()
    if any(shape[axis] != 1 for axis in dropped):
        raise operation.wrong(f"axes {list(axes)} of '{x.name}' {x.type} are not all of size 1")
    return operation.reshape(x, [n for i, n in enumerate(shape) if i not in dropped])


def _unsqueeze(operation: Operation) -> Value:
    x = operation.value(0)
    given = operation.attribute_or_operand("axes", 1)
    if given is None:
        raise operation.wrong("it has no axes")
    rank = len(x.type.shape) + len(given)
    added = set(operation.axes(given, rank))
    if len(added) != len(given):
        raise operation.wrong(f"axes {list(given)} contain one of the {rank} axes twice")
    own = iter(x.type.shape)
    return operation.reshape(x, [1 if i in added else next(own) for i in range(rank)])


def _transpose(operation: Operation) -> Value:
    x = operation.value(0)
    rank = len(x.type.shape)
    permutation = operation.integers("perm", None)
    if permutation is None:
        permutation = tuple(reversed(range(rank)))
    elif sorted(permutation) != list(range(rank)):
        raise operation.wrong(
            f"perm {list(permutation)} is not a permutation of the axes of {x.type}"
        )
    return operation.transpose(x, permutation)


def _concat(operation: Operation) -> Value:
    values = operation.values()
    if not values:
        raise operation.wrong("it has no inputs, but needs at least one tensor to join")
    return joined(operation, values, axis_of(operation, values[0], 1))


def joined(operation: Operation, values: Sequence[Value], axis: int) -> Value:
    """Join one or more tensors along an axis."""
    # Skip empty tensors, which shape arithmetic makes: they have no array in C.
    values = [value for value in values if value.type.size] or values[:1]
    if len(values) == 1:
        return values[0]
    return operation.emit(Concat(axis), *values, quant=values[0].type.quant)


def axis_of(operation: Operation, x: Value, default: int) -> int:
    """Return the attribute `axis`, an axis of `x`, counted from 0."""
    if not x.type.shape:
        raise operation.wrong(f"'{x.name}' is {x.type}, which has no axes")
    return operation.axis(operation.integer("axis", default), len(x.type.shape))


def _split(operation: Operation) -> list[Value]:
    x = operation.value(0)
    axis = axis_of(operation, x, 0)
    size = x.type.shape[axis]
    sizes = operation.attribute_or_operand("split", 1)
    if sizes is None:
        count = operation.integer("num_outputs", len(operation.outputs))
        if not 0 < count == len(operation.outputs):
            raise operation.wrong(
                f"num_outputs is {count}, but it has {len(operation.outputs)} outputs"
            )
        part = -(-size // count)
        sizes = tuple(max(0, min(part, size - i * part)) for i in range(count))
    if min(sizes, default=0) < 0 or sum(sizes) != size or len(sizes) != len(operation.outputs):
        raise operation.wrong(
            f"axis {axis} of {x.type} cannot be split into {list(sizes)} for "
            f"{len(operation.outputs)} outputs"
        )
    starts = accumulate(sizes, initial=0)
    return [
        x if part == size else slice_along(operation, x, axis, start, part)
        for start, part in zip(starts, sizes, strict=False)
    ]


def slice_along(
    operation: Operation, x: Value, axis: int, start: int, size: int, step: int = 1
) -> Value:
    """Return `size` elements along one axis, and all along the others."""
    start = start if size else 0
    op = Slice.along(axis, start, size, x.type.shape, step)
    return operation.emit(op, x, quant=x.type.quant)


def _expand(operation: Operation) -> Value:
    shape = operation.attribute_or_operand("", 1)
    if shape is None or min(shape, default=0) < 0:
        raise operation.wrong(f"its shape is {shape}; dimensions must be at least 0")
    return expanded(operation, operation.value(0), shape)


def expanded(operation: Operation, x: Value, shape: Sequence[int]) -> Value:
    """Repeat the value to the shape that numpy would broadcast its shape and `shape` to."""
    try:
        target = np.broadcast_shapes(x.type.shape, tuple(shape))
    except ValueError as error:
        raise operation.wrong(f"{x.type} cannot be expanded to {list(shape)}") from error
    own = (*[1] * (len(target) - len(x.type.shape)), *x.type.shape)
    return tiled(
        operation,
        operation.reshape(x, own),
        tuple(size // n if n else 1 for n, size in zip(own, target, strict=True)),
    )


def _tile(operation: Operation) -> Value:
    x = operation.value(0)
    repeats = operation.attribute_or_operand("", 1)
    if repeats is None or len(repeats) != len(x.type.shape) or min(repeats, default=0) < 0:
        raise operation.wrong(
            f"repeats {repeats} must be at least 0, one for each of the "
            f"{len(x.type.shape)} dimensions of {x.type}"
        )
    return tiled(operation, x, repeats)


def tiled(operation: Operation, x: Value, multiples: Sequence[int]) -> Value:
    """Repeat the value along each axis; 0 makes it empty."""
    if all(times == 1 for times in multiples):
        return x
    shape = [n * times for n, times in zip(x.type.shape, multiples, strict=True)]
    require_size(operation, shape)
    if 0 in multiples:
        return operation.filled(shape, 0, x.type.dtype, x.type.quant)
    return operation.emit(Tile(tuple(multiples)), x, quant=x.type.quant)


def require_size(operation: Operation, shape: Sequence[int]) -> None:
    """Refuse a result that is too large for any device, before it is computed."""
    if prod(shape) > _MOST_ELEMENTS:
        raise operation.refuse(
            f"its result of shape {list(shape)} has {number(prod(shape))} elements; at most "
            f"{_MOST_ELEMENTS:,} are supported"
        )


_MOST_ELEMENTS = 2**28


def _space_to_depth(operation: Operation) -> Value:
    """Convert SpaceToDepth: `[n, c, h, w]` to `[n, block * block * c, h / block, w / block]`."""
    x = operation.image(0)
    block, (n, c, h, w) = _block(operation), x.type.shape
    if h % block or w % block:
        raise operation.wrong(
            f"height and width of {x.type} are not multiples of blocksize {block}"
        )
    split = operation.reshape(x, (n, c, h // block, block, w // block, block))
    order = (0, 1, 3, 5, 2, 4) if operation.text("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    shape = (n, c * block * block, h // block, w // block)
    return operation.reshape(operation.transpose(split, order), shape)


def _depth_to_space(operation: Operation) -> Value:
    """Convert DepthToSpace: `[n, block * block * c, h, w]` to `[n, c, block * h, block * w]`."""
    x = operation.image(0)
    block, (n, depth, h, w) = _block(operation), x.type.shape
    if depth % (block * block):
        raise operation.wrong(
            f"the {depth} channels of {x.type} are not a multiple of blocksize {block} squared"
        )
    c = depth // (block * block)
    if operation.text("mode", "DCR") == "CRD":
        split, order = (n, c, block, block, h, w), (0, 1, 4, 2, 5, 3)
    else:
        split, order = (n, block, block, c, h, w), (0, 3, 4, 1, 5, 2)
    moved = operation.transpose(operation.reshape(x, split), order)
    return operation.reshape(moved, (n, c, h * block, w * block))


def _block(operation: Operation) -> int:
    block = operation.integer("blocksize")
    if block < 1:
        raise operation.wrong(f"attribute 'blocksize' is {block}; it must be at least 1")
    return block


def _center_crop_pad(operation: Operation) -> Value:
    x = operation.value(0)
    rank = len(x.type.shape)
    axes = operation.axes(operation.integers("axes", tuple(range(rank))), rank)
    wanted = operation.attribute_or_operand("", 1)
    if wanted is None or len(wanted) != len(axes) or min(wanted, default=0) < 0:
        raise operation.wrong(
            f"shape {wanted} must have a size of at least 0 for each of the axes {list(axes)}"
        )
    starts, sizes, padding = [0] * rank, list(x.type.shape), [(0, 0)] * rank
    for axis, size in zip(axes, wanted, strict=True):
        more = size - x.type.shape[axis]
        if more < 0:
            starts[axis], sizes[axis] = -more // 2, size
        else:
            padding[axis] = more // 2, more - more // 2
    require_size(operation, [n + sum(pair) for n, pair in zip(sizes, padding, strict=True)])
    cropped = operation.emit(Slice(tuple(starts), tuple(sizes), (1,) * rank), x, quant=x.type.quant)
    return operation.emit(Pad(tuple(padding)), cropped, quant=x.type.quant)


def _constant_of_shape(operation: Operation) -> Value:
    shape = operation.attribute_or_operand("", 0)
    if shape is None or min(shape, default=0) < 0:
        raise operation.wrong(f"its shape is {shape}; dimensions must be at least 0")
    fill = operation.tensor("value") if operation.has("value") else np.zeros(1, np.float32)
    if fill.size != 1:
        raise operation.wrong(f"its value has {fill.size} elements, but must have one")
    return operation.filled(shape, fill.reshape(()).item(), DType.of(fill))


def _eye_like(operation: Operation) -> Value:
    x = operation.image(0, 2)
    code = operation.integer("dtype", None)
    dtype = x.type.dtype if code is None else dtype_of(code, f"the output of {operation}")
    rows, columns = x.type.shape
    operation.afford(x.type.shape)
    k = max(-rows, min(operation.integer("k", 0), columns))
    return operation.literal(np.eye(rows, columns, k, dtype.numpy))


def _range(operation: Operation) -> Value:
    roles = ("start", "limit", "delta")
    start, limit, delta = (operation.number(index, role) for index, role in enumerate(roles))
    steps = (limit - start) / delta if delta else inf
    if not isfinite(steps):
        raise operation.wrong(f"a range from {start} to {limit} in steps of {delta} is not finite")
    count = max(0, ceil(steps))
    operation.afford((count,))
    values = start + np.arange(count) * delta
    return operation.literal(values.astype(operation.value(0).type.dtype.numpy))


CONVERTERS: dict[str, OnnxConverter] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Concat": _concat,
    "Split": _split,
    "Expand": _expand,
    "Tile": _tile,
    "SpaceToDepth": _space_to_depth,
    "DepthToSpace": _depth_to_space,
    "CenterCropPad": _center_crop_pad,
    "ConstantOfShape": _constant_of_shape,
    "EyeLike": _eye_like,
    "Range": _range,
}
