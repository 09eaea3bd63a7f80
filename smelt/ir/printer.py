"""Printer of the text format; `smelt.ir.text` has the grammar."""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import MISSING, Field
from enum import Enum
from typing import Any, cast, get_args, get_origin

import numpy as np

from smelt.errors import GraphError
from smelt.ir.graph import Graph, Node, Op, Value
from smelt.ir.literal import (
    INLINE,
    VERSION,
    attributes,
    digest,
    enum_word,
    members,
    number,
    scale_number,
    value_name,
    word,
)
from smelt.ir.types import Array, DType, Quant, TensorType


def print_graph(graph: Graph, store: MutableMapping[str, Array] | None = None) -> str:
    """Return the text format of a graph.

    Args:
        graph: any graph; it need not be verified.
        store: receives the arrays that the text names by digest; None to drop them.

    Raises:
        GraphError: an operator has a field of a type that the text format cannot express.
    """
    lines = _Printer(store).graph(graph)
    return "\n".join([f"smelt-ir {VERSION}", *lines, ""])


class _Printer:
    def __init__(self, store: MutableMapping[str, Array] | None) -> None:
        self._store = store

    def graph(self, graph: Graph) -> Iterator[str]:
        yield f"graph {json.dumps(graph.name)} {{"
        yield from ("  " + line for line in self._body(graph))
        yield "}"

    def _body(self, graph: Graph) -> Iterator[str]:
        for value in graph.inputs:
            yield f"input {self._typed(value)}"
        for length in graph.lengths:
            for index, axis in length.axes:
                where = f"{value_name(graph.inputs[index].name)} {axis}"
                yield f"length {where} {json.dumps(length.name)} {length.minimum}"
        for state in graph.states:
            initial = self._array(state.initial, state.before.type)
            yield f"state {self._typed(state.before)} = {initial}"
        declared: set[Value] = set()
        for node in graph.nodes:
            yield from self._constants(node.inputs, declared)
            yield from self._node(node)
        yield from self._constants(graph.results, declared)
        for state in graph.states:
            yield f"next {value_name(state.before.name)} = {value_name(state.after.name)}"
        for value in graph.outputs:
            yield f"output {value_name(value.name)}"

    def _constants(self, values: Sequence[Value | None], declared: set[Value]) -> Iterator[str]:
        for value in values:
            if value is None or value.data is None or value in declared:
                continue
            declared.add(value)
            yield f"const {self._typed(value)} = {self._array(value.data, value.type)}"

    def _node(self, node: Node) -> Iterator[str]:
        results = ", ".join(map(self._typed, node.outputs))
        operands = ", ".join("_" if v is None else value_name(v.name) for v in node.inputs)
        origin = node.origin
        text = f"{results} = {type(node.op).__name__}({operands})"
        written = self._attributes(node.op)
        if written:
            text += f" {{{', '.join(written)}}}"
        if node.rounding is not None:
            text += f" rounding={enum_word(node.rounding)}"
        text += f" from {word(origin.kind)} #{origin.index}"
        if not node.outputs or origin.name != node.outputs[0].name:
            text += f" {json.dumps(origin.name)}"
        yield from text.split("\n")

    def _attributes(self, op: Op) -> list[str]:
        written: list[str] = []
        for item, hint in attributes(type(op)):
            text = self._attribute(getattr(op, item.name), hint, op)
            default = _default(item)
            if default is MISSING or text != self._attribute(default, hint, op):
                written.append(f"{item.name}={text}")
        return written

    def _attribute(self, value: object, hint: Any, op: Op) -> str:
        match value:
            case None:
                return "none"
            case Graph():
                return "\n".join(self.graph(value))
            case Enum():
                return enum_word(value)
            case str():
                return json.dumps(value)
            case tuple() | list():
                elements = cast("Sequence[object]", value)
                types = _element_types(hint, len(elements))
                if len(types) == len(elements):
                    items = zip(elements, types, strict=True)
                    return f"({', '.join(self._attribute(v, t, op) for v, t in items)})"
            case np.generic():
                return self._attribute(cast("object", value.item()), hint, op)
            case bool() | int():  # an int in a float field is printed as a float
                return number(hint(value) if hint in (int, float) else value)
            case float():
                return number(value)
            case _:
                pass
        raise GraphError(
            f"{op.name} has the value {value!r} in a field of type {hint}: the text format cannot "
            "express it"
        )

    def _typed(self, value: Value) -> str:
        quant = "" if value.type.quant is None else f" {self._quant(value.type.quant)}"
        return f"{value_name(value.name)}: {value.type}{quant}"

    def _quant(self, quant: Quant) -> str:
        if len(quant.scale) == 1 and quant.axis is None:
            scale = scale_number(quant.scale[0])
        elif len(quant.scale) <= INLINE:
            scale = f"[{', '.join(map(scale_number, quant.scale))}]"
        else:
            wide = np.asarray(quant.scale, np.float64)
            narrow = wide.astype(np.float32)
            scale = self._by_digest(narrow if np.array_equal(narrow, wide) else wide)
        points = quant.zero_point
        if len(points) == len(quant.scale) and len(set(points)) == 1:
            zero_point = str(points[0])
        elif len(points) <= INLINE:
            zero_point = f"[{', '.join(map(str, points))}]"
        else:
            zero_point = self._by_digest(np.asarray(points, np.int64))
        axis = "" if quant.axis is None else f", axis={quant.axis}"
        return f"q({scale}, {zero_point}{axis})"

    def _array(self, array: Array, type_: TensorType) -> str:
        odd_nan = array.dtype.kind == "f" and np.isnan(array).any() and not _plain_nans(array)
        if array.size > INLINE or odd_nan or array.dtype != type_.dtype.numpy:
            return self._by_digest(array)
        kind = type_.dtype.numpy.type
        return f"[{', '.join(number(item, kind) for item in array.ravel().tolist())}]"

    def _by_digest(self, array: Array) -> str:
        key = digest(array)
        if self._store is not None:
            self._store[key] = array
        return f"@{key}"


def _plain_nans(array: Array) -> bool:
    """Return whether every NaN has the bits that parsing `nan` gives."""
    nan = DType.of(array).numpy.type("nan")
    return all(item.tobytes() == nan.tobytes() for item in array[np.isnan(array)])


def _element_types(hint: Any, count: int) -> tuple[Any, ...]:
    """Return the types of a tuple's `count` elements; `hint` is a tuple type or a union."""
    for member in members(hint):
        if get_origin(member) is tuple:
            arguments = get_args(member)
            return (arguments[0],) * count if Ellipsis in arguments else arguments
    return ()


def _default(item: Field[Any]) -> object:
    if item.default_factory is not MISSING:
        return item.default_factory()
    return item.default
