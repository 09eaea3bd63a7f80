"""Converter of Pad, which also crops."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.frontend.onnx.operation import OnnxConverter, Operation
from smelt.frontend.onnx.operators.shape import require_size
from smelt.ir import Value
from smelt.ops.tensor.pad import Pad
from smelt.ops.tensor.slice import Slice

_MODES = ("constant", "reflect", "edge", "wrap")


def _pad(operation: Operation) -> Value:
    x = operation.value(0)
    mode = operation.text("mode", "constant")
    if mode not in _MODES:
        raise operation.wrong(f"mode '{mode}' does not exist; use one of {', '.join(_MODES)}")
    pads = _pads(operation, len(x.type.shape))
    x = _cropped(operation, x, pads)
    padding = tuple((max(before, 0), max(after, 0)) for before, after in pads)
    if not any(any(pair) for pair in padding):
        return x
    require_size(operation, [n + sum(p) for n, p in zip(x.type.shape, padding, strict=True)])
    quant = x.type.quant
    if mode != "constant":
        return operation.emit(Pad(padding, mode=mode), x, quant=quant)
    value = operation.optional(2)
    if value is not None and value.data is None:
        return operation.emit(Pad(padding), x, value, quant=quant)
    return operation.emit(Pad(padding, _number(operation, x, value)), x, quant=quant)


def _pads(operation: Operation, rank: int) -> list[tuple[int, int]]:
    """Return the elements to add before and after each axis; negative numbers remove some."""
    given = operation.attribute_or_operand("pads", 1)
    axes = operation.attribute_or_operand("", 3)
    own = operation.axes(range(rank) if axes is None else axes, rank) if rank else ()
    if given is None or len(given) != 2 * len(own) or len(set(own)) != len(own):
        raise operation.wrong(
            f"pads {given} must have two entries for each of the axes {list(own)}, which must "
            "differ"
        )
    pads = [(0, 0)] * rank
    for i, axis in enumerate(own):
        pads[axis] = given[i], given[i + len(own)]
    return pads


def _cropped(operation: Operation, x: Value, pads: Sequence[tuple[int, int]]) -> Value:
    starts = [max(-before, 0) for before, _ in pads]
    sizes = [
        n - start - max(-after, 0)
        for n, start, (_, after) in zip(x.type.shape, starts, pads, strict=True)
    ]
    if sizes == list(x.type.shape):
        return x
    if min(sizes) < 0:
        raise operation.wrong(f"pads {list(pads)} remove more elements than {x.type} has")
    op = Slice(tuple(starts), tuple(sizes), (1,) * len(sizes))
    return operation.emit(op, x, quant=x.type.quant)


def _number(operation: Operation, x: Value, value: Value | None) -> float | int | None:
    """Return the stored element of the border; None for (real) zero."""
    if value is None:
        number: float = operation.real("value", 0.0)
        return number if number and x.type.dtype.is_float else int(number) if number else None
    element = operation.number(2, "value")
    return float(element) if x.type.dtype.is_float else int(element)


CONVERTERS: dict[str, OnnxConverter] = {"Pad": _pad}
