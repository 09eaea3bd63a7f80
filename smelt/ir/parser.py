"""Parser of the text format; `smelt.ir.text` has the grammar."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, replace
from difflib import get_close_matches
from enum import Enum
from itertools import repeat
from types import NoneType
from typing import Any, get_args, get_origin

import numpy as np

from smelt.errors import GraphError, ModelError, UnsupportedError
from smelt.ir.cursor import Cursor
from smelt.ir.graph import Graph, Length, Node, Op, Origin, Rounding, State, Value
from smelt.ir.literal import VERSION, attributes, digest, members, value_name
from smelt.ir.types import Array, DType, Quant, TensorType

_DEPTH = 32  # of nested graphs: far above any model's depth, far below Python's recursion limit


def parse_graph(text: str, store: Mapping[str, Array] | None = None) -> Graph:
    """Return the graph that a text describes; `print_graph` prints the same text again.

    Syntax, names and constants are checked here. `verify` checks the operators' requirements.

    Args:
        text: a graph in the text format.
        store: arrays by digest, for the constants that the text names by digest.

    Raises:
        ModelError: the text is wrong; the message has line, column and what was expected there.
        UnsupportedError: neither Smelt nor a loaded plugin defines an operator of the text.
    """
    head = re.match(r"smelt-ir (\d{1,9})\n", text)
    if head is None:
        raise ModelError("line 1, column 1: expected 'smelt-ir' and a version")
    if int(head[1]) != VERSION:
        raise ModelError(
            f"line 1, column 1: the text format has version {head[1]}, but this release of Smelt "
            f"reads version {VERSION}. Use the release that wrote it, or write the file again"
        )
    with np.errstate(over="ignore"):  # a decimal above float32's range becomes infinite
        parser = _Parser(text, head.end(), store or {})
        graph = parser.graph()
    parser.expect("end", "the end of the text")
    return graph


@dataclass
class _ParsedGraph:
    """The parsed parts of one graph."""

    values: dict[str, Value] = field(default_factory=dict[str, Value])
    inputs: list[Value] = field(default_factory=list[Value])
    outputs: list[Value] = field(default_factory=list[Value])
    nodes: list[Node] = field(default_factory=list[Node])
    states: dict[Value, Array] = field(default_factory=dict[Value, Array])
    next: dict[Value, Value] = field(default_factory=dict[Value, Value])
    lengths: dict[str, Length] = field(default_factory=dict[str, Length])


class _Parser(Cursor):
    def __init__(self, text: str, offset: int, store: Mapping[str, Array]) -> None:
        super().__init__(text, offset)
        self._store = store
        self._depth = 0

    def graph(self) -> Graph:
        """Parse a graph; its names are separate from those of the graph around it."""
        self.require("graph")
        self._depth += 1
        if self._depth > _DEPTH:
            self.fail(f"graphs are nested more than {_DEPTH} deep")
        name, body = self.string(), _ParsedGraph()
        self.require("{")
        while self.token.text != "}":
            self._statement(body)
        for before in body.states:
            if before not in body.next:
                self.unexpected(f"'next {value_name(before.name)} = ...'")
        self.require("}")
        self._depth -= 1
        states = tuple(State(b, body.next[b], initial) for b, initial in body.states.items())
        lengths = tuple(body.lengths.values())
        return Graph(
            name, tuple(body.inputs), tuple(body.outputs), tuple(body.nodes), states, lengths
        )

    def _statement(self, body: _ParsedGraph) -> None:
        if self.accept("input"):
            body.inputs.append(self._define(body))
        elif self.accept("output"):
            body.outputs.append(self._use(body))
        elif self.accept("const"):
            self._define(body, constant=True)
        elif self.accept("state"):
            before = self._define(body)
            self.require("=")
            body.states[before] = self._array(before.type)
        elif self.accept("length"):
            self._length(body)
        elif self.accept("next"):
            offset = self.token.offset
            before = self._use(body)
            if before not in body.states or before in body.next:
                self.fail("expected a state that has no 'next' yet", offset)
            self.require("=")
            body.next[before] = self._use(body)
        elif self.token.kind == "name":
            body.nodes.append(self._node(body))
        else:
            self.unexpected("'input', 'length', 'state', 'const', a value, 'next', 'output' or '}'")

    def _length(self, body: _ParsedGraph) -> None:
        offset = self.token.offset
        value, axis, name, minimum = self._use(body), self.integer(), self.string(), self.integer()
        if value not in body.inputs or not 0 <= axis < len(value.type.shape):
            self.fail("expected an input and one of its axes", offset)
        maximum, place = value.type.shape[axis], (body.inputs.index(value), axis)
        known = body.lengths.get(name, Length(name, minimum, maximum, ()))
        if (known.minimum, known.maximum) != (minimum, maximum):
            self.fail(
                f"length '{name}' is from {minimum} to {maximum} here, but from {known.minimum} "
                f"to {known.maximum} elsewhere",
                offset,
            )
        body.lengths[name] = replace(known, axes=(*known.axes, place))

    def _define(self, body: _ParsedGraph, *, constant: bool = False) -> Value:
        offset = self.token.offset
        name = self.name()
        if name in body.values:
            self.fail(f"{value_name(name)} is defined a second time", offset)
        type_ = self._type()
        data = None
        if constant:
            self.require("=")
            data = self._array(type_)
        value = body.values[name] = Value(name, type_, data)
        return value

    def _use(self, body: _ParsedGraph) -> Value:
        offset = self.token.offset
        name = self.name()
        if name not in body.values:
            self.fail(f"{value_name(name)} is not defined above", offset)
        return body.values[name]

    def _operand(self, body: _ParsedGraph) -> Value | None:
        return None if self.accept("_") else self._use(body)

    def _type(self) -> TensorType:
        self.require(":")
        dtype = self.member(DType)
        shape = tuple(self.items("[", "]", self._size))
        return TensorType(shape, dtype, self._quant() if self.accept("q") else None)

    def _size(self) -> int:
        offset = self.token.offset
        size = self.integer()
        if size < 0:
            self.fail(f"expected a size, found {size}", offset)
        return size

    def _quant(self) -> Quant:
        self.require("(")
        if self.token.kind == "number":
            scales = (self._scale(),)
        else:
            scales = tuple(map(float, self._vector(self._scale, "f")))
        self.require(",")
        if self.token.kind == "number":
            points = (self.integer(),) * len(scales)
        else:
            points = tuple(map(int, self._vector(self.integer, "i")))
        axis = None
        if self.accept(","):
            self.require("axis", "=")
            axis = self.integer()
        self.require(")")
        return Quant(scales, points, axis)

    def _scale(self) -> float:
        hexadecimal = "x" in self.token.text
        scale = self.real()
        return scale if hexadecimal else float(np.float32(scale))

    def _vector(self, parse: Callable[[], float], kind: str) -> Sequence[float]:
        if self.token.kind != "digest":
            return self.items("[", "]", parse)
        offset = self.token.offset
        array = self._stored()
        if array.ndim != 1 or array.dtype.kind != kind:
            self.fail("the stored array is not a vector of scales or zero points", offset)
        return array.tolist()

    def _array(self, type_: TensorType) -> Array:
        offset = self.token.offset
        if self.token.kind == "digest":
            array = self._stored()
        else:
            elements = self.items("[", "]", lambda: self._element(type_.dtype))
            flat = np.array(elements, type_.dtype.numpy)
            if flat.size != type_.size:
                self.fail(f"expected {type_.size} elements for {type_}, found {flat.size}", offset)
            array = flat.reshape(type_.shape)
        if (array.shape, array.dtype) != (type_.shape, type_.dtype.numpy):
            self.fail(f"expected {type_}, found {array.dtype}{list(array.shape)}", offset)
        return array

    def _element(self, dtype: DType) -> float:
        if dtype is DType.BOOL:
            return self.boolean()
        if dtype.is_float:
            return self.real()
        offset = self.token.offset
        value = self.integer()
        low, high = dtype.limits
        if not low <= value <= high:
            self.fail(f"expected an integer from {low} to {high}, found {value}", offset)
        return value

    def _stored(self) -> Array:
        offset = self.token.offset
        key = self.expect("digest", "a digest")[1:]
        if key not in self._store:
            self.fail(f"constant @{key} is missing from the constants of this text", offset)
        array = self._store[key]
        if digest(array) != key:
            self.fail(f"constant @{key} is damaged: its stored array has another digest", offset)
        return array

    def _node(self, body: _ParsedGraph) -> Node:
        results = [self._define(body)]
        while self.accept(","):
            results.append(self._define(body))
        self.require("=")
        kind = self._operator()
        operands = self.items("(", ")", lambda: self._operand(body))
        op = self._fields(kind)
        rounding = None
        if self.accept("rounding"):
            self.require("=")
            rounding = self.member(Rounding)
        origin = self._origin(results[0].name)
        return Node(op, tuple(operands), tuple(results), origin, rounding)

    def _origin(self, result: str) -> Origin:
        self.require("from")
        kind = self.string() if self.token.kind == "string" else self.expect("word", "a kind")
        self.require("#")
        index = self.integer()
        return Origin(kind, index, self.string() if self.token.kind == "string" else result)

    def _operator(self) -> type[Op]:
        where = self.where()
        name = self.expect("word", "an operator")
        found = Op.registry.get(name)
        if found is None:
            near = get_close_matches(name, Op.registry)
            hint = f" (did you mean {' or '.join(near)}?)" if near else ""
            raise UnsupportedError(
                f"{where}: operator '{name}' is unknown{hint}. If a plugin defines it, load the "
                "plugin: --plugin file.py"
            )
        return found

    def _fields(self, kind: type[Op]) -> Op:
        offset = self.token.offset
        known = {item.name: (item, hint) for item, hint in attributes(kind)}
        given: dict[str, object] = {}

        def read() -> None:
            name = self.token.text
            if name not in known or name in given:
                self.unexpected(f"a field of {kind.__name__} ({', '.join(known)}), each once")
            self.require(name, "=")
            given[name] = self._attribute(known[name][1])

        if self.token.text == "{":
            self.items("{", "}", read)
        for name, (item, _) in known.items():
            required = item.default is MISSING and item.default_factory is MISSING
            if required and name not in given:
                self.fail(f"{kind.__name__} needs its field '{name}'", offset)
        try:
            return kind(**given)
        except (TypeError, ValueError) as error:
            self.fail(f"{kind.__name__} cannot be built from these fields: {error}", offset)

    def _attribute(self, hint: Any) -> object:
        alternatives = members(hint)
        if len(alternatives) == 1:
            return self._one(alternatives[0])
        # An integer also parses as a float, so float is tried last.
        for alternative in sorted(alternatives, key=lambda member: member is float):
            found = self.attempt(lambda chosen=alternative: self._one(chosen))
            if not isinstance(found, ModelError):
                return found
        names = [getattr(member, "__name__", str(member)) for member in alternatives]
        return self.unexpected(f"an attribute of type {' or '.join(names)}")

    def _one(self, hint: Any) -> object:
        if get_origin(hint) is tuple:
            return self._tuple(hint)
        if hint is NoneType:
            return self.require("none")
        simple: dict[object, Callable[[], object]] = {
            bool: self.boolean,
            int: self.integer,
            float: self.real,
            str: self.string,
        }
        if hint in simple:
            return simple[hint]()
        if hint is Graph:
            return self.graph()
        if isinstance(hint, type) and issubclass(hint, Enum):
            return self.member(hint)
        raise GraphError(f"the text format has no fields of type {hint}")

    def _tuple(self, hint: Any) -> tuple[object, ...]:
        offset = self.token.offset
        arguments = get_args(hint)
        variadic = Ellipsis in arguments
        kinds = repeat(arguments[0]) if variadic else iter(arguments)

        def element() -> object:
            kind = next(kinds, None)
            return self.unexpected("')'") if kind is None else self._attribute(kind)

        found = tuple(self.items("(", ")", element))
        if not variadic and len(found) < len(arguments):
            self.fail(f"expected {len(arguments)} elements, found {len(found)}", offset)
        return found
