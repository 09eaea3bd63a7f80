"""Converters of sequences and optionals, which exist only at compile time.

The number of tensors in a sequence, and which one is selected, is known at import, so the graph has
no sequences. An optional is replaced by its content.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from smelt.frontend.onnx.checks import require_size
from smelt.frontend.onnx.operation import OnnxConverter, Operation
from smelt.frontend.onnx.operators.shape import axis_of, joined, slice_along
from smelt.frontend.onnx.scope import OnnxValue, TensorSequence
from smelt.frontend.onnx.tensors import dtype_of
from smelt.ir import DType, Value


def _empty(operation: Operation) -> TensorSequence:
    code = operation.integer("dtype", None)
    dtype = DType.FLOAT32 if code is None else dtype_of(code, f"the output of {operation}")
    return TensorSequence(dtype, ())


def _construct(operation: Operation) -> TensorSequence:
    values = operation.values()
    if not values:
        raise operation.wrong("it has no inputs, but a sequence needs at least one tensor")
    return _sequence_of(operation, values[0].type.dtype, values)


def _sequence_of(operation: Operation, dtype: DType, items: Sequence[Value]) -> TensorSequence:
    other = next((v for v in items if v.type.dtype is not dtype), None)
    if other is not None:
        raise operation.wrong(
            f"'{other.name}' is {other.type}, but the elements of the sequence are {dtype.value}"
        )
    return TensorSequence(dtype, tuple(items))


def _at(operation: Operation) -> Value:
    sequence = operation.sequence(0)
    return sequence.items[_position(operation, 1, len(sequence.items))]


def _insert(operation: Operation) -> TensorSequence:
    sequence = operation.sequence(0)
    items, position = list(sequence.items), len(sequence.items)
    if operation.has_operand(2):
        position = _position(operation, 2, len(items), last=len(items))
    items.insert(position, operation.value(1))
    return _sequence_of(operation, sequence.dtype, items)


def _erase(operation: Operation) -> TensorSequence:
    sequence = operation.sequence(0)
    items, position = list(sequence.items), len(sequence.items) - 1
    if operation.has_operand(1) or not items:
        position = _position(operation, 1, len(items))
    del items[position]
    return TensorSequence(sequence.dtype, tuple(items))


def _position(operation: Operation, index: int, length: int, last: int | None = None) -> int:
    """Return the position that an operand gives, counted from 0; it is at most `last`.

    Raises:
        UnsupportedError: it is computed at run time.
    """
    position = operation.whole_number(index, "position in a sequence")
    last = length - 1 if last is None else last
    if not -length <= position <= last:
        raise operation.wrong(
            f"position {position} does not exist in a sequence of {length} tensors"
        )
    return position + length if position < 0 else position


def _length(operation: Operation) -> Value:
    return operation.literal(np.asarray(len(operation.sequence(0).items), np.int64))


def _concat(operation: Operation) -> Value:
    sequence = operation.sequence(0)
    if not sequence.items:
        raise operation.wrong("its sequence is empty: it must have at least one tensor to join")
    values, axis = list(sequence.items), operation.integer("axis")
    if operation.flag("new_axis"):
        axis = operation.axis(axis, len(values[0].type.shape) + 1)
        values = [_with_axis(operation, value, axis) for value in values]
    return joined(operation, values, axis_of(operation, values[0], 0))


def _with_axis(operation: Operation, value: Value, axis: int) -> Value:
    shape = value.type.shape
    return operation.reshape(value, (*shape[:axis], 1, *shape[axis:]))


def _split(operation: Operation) -> TensorSequence:
    x = operation.value(0)
    axis = axis_of(operation, x, 0)
    sizes = _sizes(operation, x.type.shape[axis])
    starts = accumulate(sizes, initial=0)
    parts = [
        slice_along(operation, x, axis, start, size)
        for start, size in zip(starts, sizes, strict=False)
    ]
    if not operation.has_operand(1) and not operation.flag("keepdims", default=True):
        shape = x.type.shape
        parts = [operation.reshape(part, (*shape[:axis], *shape[axis + 1 :])) for part in parts]
    return TensorSequence(x.type.dtype, tuple(parts))


def _sizes(operation: Operation, size: int) -> tuple[int, ...]:
    """Return the sizes of the parts: from a vector, or from a number (the last may be smaller).

    The default is 1 for each.
    """
    given = operation.attribute_or_operand("", 1)
    if given is None:
        require_size(size)
        return (1,) * size
    if not operation.value(1).type.shape:
        (part,) = given
        if part < 1:
            raise operation.wrong(f"its parts have {part} elements; they must have at least 1")
        require_size(-(-size // part))
        return tuple(min(part, size - start) for start in range(0, size, part))
    if min(given, default=0) < 0 or sum(given) != size:
        raise operation.wrong(f"{size} elements cannot be split into {list(given)}")
    return given


def _optional(operation: Operation) -> OnnxValue:
    """Return the content of an optional; an empty one is refused."""
    if not operation.has_operand(0):
        raise operation.refuse("an empty optional is not supported: leave it out of the network")
    return operation.operand(0)


def _has_element(operation: Operation) -> Value:
    return operation.literal(np.asarray(operation.has_operand(0)))


CONVERTERS: dict[str, OnnxConverter] = {
    "SequenceEmpty": _empty,
    "SequenceConstruct": _construct,
    "SequenceAt": _at,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceLength": _length,
    "ConcatFromSequence": _concat,
    "SplitToSequence": _split,
    "Optional": _optional,
    "OptionalGetElement": _optional,
    "OptionalHasElement": _has_element,
}
"""Converter of each operator, by name."""
