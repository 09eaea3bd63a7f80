"""Converters of operators that select elements: by bounds, by indices, or by order."""

from __future__ import annotations

from itertools import accumulate
from math import prod

import numpy as np
import tflite

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.tflite.operation import ANY_TYPE, ARITHMETIC, Converter, TfliteOperation
from smelt.ir import DType, Value
from smelt.ops.core.arg_reduce import ArgReduce
from smelt.ops.sequence.reverse_sequence import ReverseSequence
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.gather import Gather, GatherND
from smelt.ops.tensor.indices import positions
from smelt.ops.tensor.one_hot import OneHot
from smelt.ops.tensor.pad import Pad
from smelt.ops.tensor.reshape import Reshape
from smelt.ops.tensor.slice import Slice
from smelt.ops.tensor.tile import Tile
from smelt.ops.tensor.top_k import TopK
from smelt.ops.tensor.transpose import Transpose
from smelt.ops.tensor.update_slice import UpdateSlice


def _slice(operation: TfliteOperation) -> None:
    x = operation.input(0)
    shape = x.type.shape
    starts, sizes = operation.integers(1, "begin"), operation.integers(2, "size")
    if not len(starts) == len(sizes) == len(shape):
        raise ModelError(
            f"{operation}: begin {list(starts)} and size {list(sizes)} need an entry for each of "
            f"the {len(shape)} axes of {x.type}"
        )
    rest = [n - start for n, start in zip(shape, starts, strict=True)]
    sizes = tuple(r if size == -1 else size for r, size in zip(rest, sizes, strict=True))
    operation.emit(Slice(starts, sizes, (1,) * len(shape)), x, moves_data=True)


def _strided_slice(operation: TfliteOperation) -> None:
    """Convert Python-style slices; bits of the masks mark omitted bounds and single indices."""
    x, options = operation.input(0), operation.options(tflite.StridedSliceOptions)
    if any(options.integer(mask) for mask in ("EllipsisMask", "NewAxisMask", "Offset")):
        raise UnsupportedError(f"{operation}: ellipses, new axes and offsets are not supported")
    begins, ends, strides = (
        operation.integers(i, role) for i, role in enumerate(("begin", "end", "strides"), 1)
    )
    shape = x.type.shape
    if not len(begins) == len(ends) == len(strides) <= len(shape) or 0 in strides:
        raise ModelError(
            f"{operation}: begin {list(begins)}, end {list(ends)} and strides {list(strides)} need "
            f"equally many entries, at most the {len(shape)} of {x.type}, and no stride may be 0"
        )
    masks = [options.integer(mask) for mask in ("BeginMask", "EndMask", "ShrinkAxisMask")]
    chosen = [range(n) for n in shape]
    dropped: set[int] = set()
    for axis, (begin, end, stride) in enumerate(zip(begins, ends, strides, strict=True)):
        open_begin, open_end, single = (bool(mask >> axis & 1) for mask in masks)
        if not single:
            bounds = slice(None if open_begin else begin, None if open_end else end, stride)
            chosen[axis] = range(shape[axis])[bounds]
            continue
        if not -shape[axis] <= begin < shape[axis]:
            raise ModelError(
                f"{operation}: index {begin} is out of range for axis {axis} of {x.type}"
            )
        chosen[axis] = range(begin % shape[axis], begin % shape[axis] + 1)
        dropped.add(axis)
    op = Slice(
        tuple(r.start if r else 0 for r in chosen),
        tuple(len(r) for r in chosen),
        tuple(r.step if len(r) > 1 else 1 for r in chosen),
    )
    if not dropped:
        operation.emit(op, x, moves_data=True)
        return
    kept = tuple(len(r) for axis, r in enumerate(chosen) if axis not in dropped)
    operation.emit(Reshape(kept), operation.step(op, x, name="slice"), moves_data=True)


def _gather(operation: TfliteOperation) -> None:
    x, indices = operation.input(0), operation.input(1)
    options = operation.options(tflite.GatherOptions, optional=True)
    axis = operation.axis([options.integer("Axis")], len(x.type.shape))
    batch = options.integer("BatchDims")
    batch += len(indices.type.shape) if batch < 0 else 0
    size = x.type.shape[axis]
    if indices.data is None or batch:
        operation.emit(Gather(axis, batch), x, indices, moves_data=True)
        return
    if indices.data.size and not 0 <= indices.data.min() <= indices.data.max() < size:
        raise ModelError(
            f"{operation}: indices from {indices.data.min()} to {indices.data.max()} are out of "
            f"range for axis {axis} of {x.type}"
        )
    where = positions(indices.data, size).ravel()
    steps = {int(step) for step in np.diff(where)}
    if not where.size or len(steps) > 1 or steps == {0}:
        operation.emit(Gather(axis), x, indices, moves_data=True)
        return
    # Evenly spaced elements are a slice.
    step = steps.pop() if steps else 1
    part = Slice.along(axis, int(where[0]), where.size, x.type.shape, step)
    shape = (*x.type.shape[:axis], *indices.type.shape, *x.type.shape[axis + 1 :])
    operation.emit(Reshape(shape), operation.step(part, x, name="slice"), moves_data=True)


def _embedding_lookup(operation: TfliteOperation) -> None:
    """Convert EMBEDDING_LOOKUP, which gathers rows of a table; 8-bit rows may become floats."""
    table = operation.input(1)
    if table.is_constant and operation.output_type.dtype is DType.FLOAT32:
        table = operation.as_float(1)
    operation.emit(Gather(0), table, operation.input(0), moves_data=True)


def _gather_nd(operation: TfliteOperation) -> None:
    operation.emit(GatherND(), operation.input(0), operation.input(1), moves_data=True)


def _split(operation: TfliteOperation) -> None:
    """Convert SPLIT; its axis is the first operand."""
    x, count = operation.input(1), operation.output_count
    axis = operation.axis(operation.integers(0, "axis"), len(x.type.shape))
    if x.type.shape[axis] % count:
        raise ModelError(
            f"{operation}: axis {axis} of {x.type} cannot be split into {count} equal parts"
        )
    _parts(operation, x, axis, [x.type.shape[axis] // count] * count)


def _split_v(operation: TfliteOperation) -> None:
    x, sizes = operation.input(0), list(operation.integers(1, "sizes"))
    axis = operation.axis(operation.integers(2, "axis"), len(x.type.shape))
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = x.type.shape[axis] - sum(sizes) - 1
    if len(sizes) != operation.output_count or sum(sizes) != x.type.shape[axis]:
        raise ModelError(f"{operation}: {x.type} cannot be split into {sizes} along axis {axis}")
    _parts(operation, x, axis, sizes)


def _parts(operation: TfliteOperation, x: Value, axis: int, sizes: list[int]) -> None:
    for i, (start, size) in enumerate(zip(accumulate(sizes, initial=0), sizes, strict=False)):
        op = Slice.along(axis, start, size, x.type.shape)
        operation.emit(op, x, moves_data=True, output=i)


def _pack(operation: TfliteOperation) -> None:
    """Convert PACK, which joins its operands along a new axis."""
    values = operation.inputs()
    if not values:
        raise ModelError(f"{operation} has no operands: the file is corrupted")
    shape = values[0].type.shape
    options = operation.options(tflite.PackOptions)
    axis = operation.axis([options.integer("Axis")], len(shape) + 1)
    layer = Reshape((*shape[:axis], 1, *shape[axis:]))
    layers = [operation.step(layer, v, name=f"layer{i}") for i, v in enumerate(values)]
    operation.emit(Concat(axis), *layers, moves_data=True)


def _unpack(operation: TfliteOperation) -> None:
    """Convert UNPACK, whose results are the slices along an axis."""
    x = operation.input(0)
    shape = x.type.shape
    options = operation.options(tflite.UnpackOptions)
    axis = operation.axis([options.integer("Axis")], len(shape))
    if operation.output_count != shape[axis]:
        raise ModelError(
            f"{operation} has {operation.output_count} outputs, but axis {axis} of {x.type} has "
            f"{shape[axis]} slices"
        )
    for i in range(shape[axis]):
        layer = operation.step(Slice.along(axis, i, 1, shape), x, name=f"layer{i}")
        kept = Reshape((*shape[:axis], *shape[axis + 1 :]))
        operation.emit(kept, layer, moves_data=True, output=i)


def _one_hot(operation: TfliteOperation) -> None:
    indices = operation.input(0)
    depth = operation.integers(1, "depth")
    if len(depth) != 1 or operation.input(2).type.size != 1 or operation.input(3).type.size != 1:
        raise ModelError(f"{operation}: depth and values must have one element each")
    options = operation.options(tflite.OneHotOptions, optional=True)
    axis = operation.axis([options.integer("Axis")], len(indices.type.shape) + 1)
    hot, cold = (
        operation.step(Reshape((1,)), operation.input(i), name=f"value{i}") for i in (2, 3)
    )
    values = operation.step(Concat(0), cold, hot, name="values")
    operation.emit(OneHot(depth[0], axis), values, indices, moves_data=True)


def _top_k(operation: TfliteOperation) -> None:
    x, k = operation.input(0), operation.integers(1, "k")
    if len(k) != 1 or not x.type.shape:
        raise ModelError(
            f"{operation}: k must be a single number, is {list(k)}; its input {x.type} must have "
            "at least one axis"
        )
    op = TopK(k[0], len(x.type.shape) - 1, index=DType.INT32)
    operation.emit(op, x, moves_data=True)


def _arg(kind: str) -> Converter:
    def convert(operation: TfliteOperation) -> None:
        x = operation.input(0)
        axis = operation.axis(operation.integers(1, "axis"), len(x.type.shape))
        op = ArgReduce(kind, axis, keep_dims=False, index=operation.output_type.dtype)
        operation.emit(op, x, moves_data=True)

    return Converter(convert, ANY_TYPE)


def _reverse(operation: TfliteOperation) -> None:
    x = operation.input(0)
    axes = operation.axes(operation.integers(1, "axes"), len(x.type.shape))
    shape = x.type.shape
    op = Slice(
        tuple(max(n - 1, 0) if axis in axes else 0 for axis, n in enumerate(shape)),
        shape,
        tuple(-1 if axis in axes else 1 for axis in range(len(shape))),
    )
    operation.emit(op, x, moves_data=True)


def _reverse_sequence(operation: TfliteOperation) -> None:
    options = operation.options(tflite.ReverseSequenceOptions)
    op = ReverseSequence(options.integer("BatchDim"), options.integer("SeqDim"))
    operation.emit(op, operation.input(0), operation.input(1), moves_data=True)


def _mirror_pad(operation: TfliteOperation) -> None:
    counts = operation.integers(1, "paddings")
    rank = len(operation.input(0).type.shape)
    if len(counts) != 2 * rank or min(counts, default=0) < 0:
        raise ModelError(
            f"{operation}: paddings {list(counts)} need two numbers, at least 0, for each of the "
            f"{rank} dimensions of its input"
        )
    reflect = operation.options(tflite.MirrorPadOptions).integer("Mode") == 0
    padding = tuple(zip(counts[::2], counts[1::2], strict=True))
    op = Pad(padding, mode="reflect" if reflect else "symmetric")
    operation.emit(op, operation.input(0), moves_data=True)


def _blocks(operation: TfliteOperation, table: type) -> tuple[Value, int]:
    """Return the image, and the option with the side of a block."""
    x = operation.input(0)
    size = operation.options(table).integer("BlockSize")
    if len(x.type.shape) != 4 or size < 1:
        raise ModelError(
            f"{operation}: input {x.type} must be 4-D, and block size {size} at least 1"
        )
    return x, size


def _space_to_depth(operation: TfliteOperation) -> None:
    x, size = _blocks(operation, tflite.SpaceToDepthOptions)
    n, h, w, c = x.type.shape
    if h % size or w % size:
        raise ModelError(
            f"{operation}: height and width of {x.type} are not multiples of block size {size}"
        )
    split = operation.step(Reshape((n, h // size, size, w // size, size, c)), x, name="blocks")
    moved = operation.step(Transpose((0, 1, 3, 2, 4, 5)), split, name="moved")
    shape = (n, h // size, w // size, size * size * c)
    operation.emit(Reshape(shape), moved, moves_data=True)


def _depth_to_space(operation: TfliteOperation) -> None:
    x, size = _blocks(operation, tflite.DepthToSpaceOptions)
    n, h, w, depth = x.type.shape
    if depth % (size * size):
        raise ModelError(
            f"{operation}: the {depth} channels of {x.type} are not a multiple of block size "
            f"{size} squared"
        )
    c = depth // (size * size)
    split = operation.step(Reshape((n, h, w, size, size, c)), x, name="blocks")
    moved = operation.step(Transpose((0, 1, 3, 2, 4, 5)), split, name="moved")
    operation.emit(Reshape((n, h * size, w * size, c)), moved, moves_data=True)


def _update_slice(operation: TfliteOperation) -> None:
    x, update, starts = map(operation.input, range(3))
    operation.emit(UpdateSlice(), x, update, starts, moves_data=True)


def broadcast(operation: TfliteOperation, x: Value, shape: tuple[int, ...]) -> None:
    """Emit `x`, broadcast to a shape, as the operator's output.

    Raises:
        ModelError: `x` cannot be broadcast to the shape.
        UnsupportedError: the result is empty or too large.
    """
    own = (*[1] * (len(shape) - len(x.type.shape)), *x.type.shape)
    if len(own) != len(shape) or any(n not in (1, s) for n, s in zip(own, shape, strict=True)):
        raise ModelError(f"{operation}: {x.type} cannot be broadcast to {list(shape)}")
    if min(shape, default=1) < 1 or prod(shape) >= 2**31:
        raise UnsupportedError(
            f"{operation}: a result of shape {list(shape)} is not supported: it is empty or larger "
            "than 2 GiB"
        )
    multiples = tuple(s // n for n, s in zip(own, shape, strict=True))
    operation.emit(Tile(multiples), operation.step(Reshape(own), x, name="axes"), moves_data=True)


def _broadcast_to(operation: TfliteOperation) -> None:
    broadcast(operation, operation.input(0), operation.integers(1, "shape"))


CONVERTERS = {
    "SLICE": Converter(_slice, ANY_TYPE),
    "STRIDED_SLICE": Converter(_strided_slice, ANY_TYPE),
    "GATHER": Converter(_gather, ANY_TYPE),
    "EMBEDDING_LOOKUP": Converter(_embedding_lookup, ANY_TYPE, data=1),
    "GATHER_ND": Converter(_gather_nd, ANY_TYPE),
    "SPLIT": Converter(_split, ANY_TYPE),
    "SPLIT_V": Converter(_split_v, ANY_TYPE),
    "PACK": Converter(_pack, ANY_TYPE),
    "UNPACK": Converter(_unpack, ANY_TYPE),
    "ONE_HOT": Converter(_one_hot, ANY_TYPE),
    "TOPK_V2": Converter(_top_k, ANY_TYPE),
    "ARG_MAX": _arg("max"),
    "ARG_MIN": _arg("min"),
    "REVERSE_V2": Converter(_reverse, ANY_TYPE),
    "REVERSE_SEQUENCE": Converter(_reverse_sequence, ANY_TYPE),
    "MIRROR_PAD": Converter(_mirror_pad, ARITHMETIC),
    "SPACE_TO_DEPTH": Converter(_space_to_depth, ANY_TYPE),
    "DEPTH_TO_SPACE": Converter(_depth_to_space, ANY_TYPE),
    "DYNAMIC_UPDATE_SLICE": Converter(_update_slice, ANY_TYPE),
    "BROADCAST_TO": Converter(_broadcast_to, ANY_TYPE),
}
