"""Inlines a model's own functions, after computing how large the result would be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

import onnx
import onnx.inliner

from smelt.errors import ModelError, UnsupportedError
from smelt.formatting import number
from smelt.frontend.onnx.checks import messages, require_size

LEAST_BYTES = 1 << 25
"""Bytes that inlined functions may take in a model of any size."""

MOST_FUNCTIONS = 4096
"""Largest number of functions of a model that are called."""

MOST_DEPTH = 64
"""Deepest nesting of calls of functions; ONNX's own inliner supports a hundred levels."""

_LARGER = 2
"""Inlined functions may take this many times the model's own size, plus `LEAST_BYTES`."""

_NOTES = ("doc_string", "metadata_props")
"""Fields that are not read, and that each call would copy."""

_FunctionKey = tuple[str, str, str]
"""Domain, name and overload of a function."""

_FunctionProtos = Mapping[_FunctionKey, onnx.FunctionProto]


@dataclass
class _Extent:
    """Size of a list of nodes after the functions that they call are inlined.

    Attributes:
        operators: number of operators.
        growth: bytes that inlining adds to those of the nodes.
        names: number of names of values in the nodes.
        copies: how often each attribute of the function around the nodes is copied into them.
    """

    operators: int = 0
    growth: int = 0
    names: int = 0
    copies: Counter[str] = field(default_factory=Counter[str])


@dataclass(frozen=True)
class _FunctionExtent:
    """The extent of a function's body, and the bytes of its nodes after inlining."""

    extent: _Extent
    size: int


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the calls of its own functions replaced by their bodies.

    Raises:
        ModelError: functions call each other in a cycle, or cannot be inlined.
        UnsupportedError: the result would have more operators than `checks.LARGEST_NETWORK`, or
            many more bytes than the model.
    """
    functions = _called(model)
    del model.functions[:]
    for function in functions.values():
        for message in messages(function):
            for name in _NOTES:
                if name in message.DESCRIPTOR.fields_by_name:
                    message.ClearField(name)
    _inherit_defaults(functions)
    # Compute the size before anything is copied: if each of several functions calls the next one
    # twice, only the file is small.
    _require_small(model, functions)
    for nodes in (model.graph.node, *(f.node for f in functions.values())):
        _fill_defaults(nodes, functions)
    model.functions.extend(functions.values())
    try:
        return onnx.inliner.inline_local_functions(model, convert_version=True)
    except Exception as error:
        raise ModelError(f"the model's local functions cannot be inlined: {error}") from error


def _called(model: onnx.ModelProto) -> dict[_FunctionKey, onnx.FunctionProto]:
    """Return copies of the functions that the graph needs, each after those that it calls."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    calls: dict[_FunctionKey, set[_FunctionKey]] = {}
    waiting = _keys(model.graph.node) & functions.keys()
    while waiting:
        key = waiting.pop()
        calls[key] = _keys(functions[key].node) & functions.keys()
        waiting |= calls[key] - calls.keys()
    try:
        order = list(TopologicalSorter(calls).static_order())
    except CycleError as error:
        names = " calls ".join(f"'{key[1]}'" for key in error.args[1][::-1])
        raise ModelError(f"the model's local functions never end: {names}") from error
    _require_shallow(order, calls)
    copies: dict[_FunctionKey, onnx.FunctionProto] = {}
    for key in order:
        copies[key] = onnx.FunctionProto()
        copies[key].CopyFrom(functions[key])
    return copies


def _require_shallow(
    order: Iterable[_FunctionKey], calls: Mapping[_FunctionKey, set[_FunctionKey]]
) -> None:
    """Raise `UnsupportedError` for calls that are too many or too deep for ONNX's own inliner."""
    depth: dict[_FunctionKey, int] = {}
    for key in order:
        depth[key] = 1 + max((depth[called] for called in calls[key]), default=0)
    deepest = max(depth, key=lambda key: depth[key], default=None)
    if deepest is not None and (depth[deepest] > MOST_DEPTH or len(depth) > MOST_FUNCTIONS):
        raise UnsupportedError(
            f"the model has {len(depth):,} functions, with calls nested {depth[deepest]:,} levels "
            f"deep (from '{deepest[1]}'); Smelt supports at most {MOST_FUNCTIONS:,} functions and "
            f"{MOST_DEPTH} levels: export the model without functions"
        )


def _inherit_defaults(functions: _FunctionProtos) -> None:
    """Give attributes that a function only passes on the defaults of the functions it passes to.

    If a call omits such an attribute, the function's own calls omit it too, so that the default of
    the called function applies. The inliner does not implement this.

    Raises:
        UnsupportedError: an attribute is passed to several operators with different defaults.
    """
    for key, function in functions.items():
        known = {attribute.name for attribute in function.attribute_proto}
        found: dict[str, dict[bytes, onnx.AttributeProto]] = {}
        bare: set[str] = set()
        for node in _nodes(function.node):
            called = functions.get(_key(node))
            defaults = {} if called is None else {a.name: a for a in called.attribute_proto}
            for attribute in node.attribute:
                name = attribute.ref_attr_name
                if not name or name in known:
                    continue
                if attribute.name in defaults:
                    default = onnx.AttributeProto()
                    default.CopyFrom(defaults[attribute.name])
                    default.name = name
                    content = default.SerializeToString(deterministic=True)
                    found.setdefault(name, {})[content] = default
                else:
                    bare.add(name)
        for name, defaults in found.items():
            if len(defaults) > 1 or name in bare:
                raise UnsupportedError(
                    f"attribute '{name}' of the model's function '{key[1]}' has no default, and is "
                    "passed to operators with different defaults: give it a default, or export "
                    "the model without functions"
                )
            function.attribute_proto.append(*defaults.values())
            rest = [own for own in function.attribute if own != name]
            del function.attribute[:]
            function.attribute.extend(rest)


def _require_small(model: onnx.ModelProto, functions: _FunctionProtos) -> None:
    most = LEAST_BYTES + _LARGER * (
        model.ByteSize() + sum(function.ByteSize() for function in functions.values())
    )
    bodies: dict[_FunctionKey, _FunctionExtent] = {}
    for key, function in functions.items():
        extent = _extent(function.node, functions, bodies)
        bodies[key] = _FunctionExtent(extent, _bytes(function.node) + extent.growth)
    whole = _extent(model.graph.node, functions, bodies)
    require_size(whole.operators)
    if whole.growth > most:
        key = max(functions, key=lambda key: bodies[key].size)
        raise UnsupportedError(
            f"the model's functions take {number(whole.growth)} bytes after each call is replaced "
            f"by the function's body (a call of '{key[1]}' takes "
            f"{number(bodies[key].size)}); Smelt accepts at most {number(most)} for a model "
            "of this size: pass large constants to the functions as inputs, or export the model "
            "without functions"
        )


def _extent(
    nodes: Iterable[onnx.NodeProto],
    functions: _FunctionProtos,
    bodies: Mapping[_FunctionKey, _FunctionExtent],
) -> _Extent:
    """Return the extent of nodes; `bodies` has those of all functions that they call."""
    found = _Extent()
    for node in nodes:
        key = _key(node)
        body = bodies.get(key)
        found.operators += 1 if body is None else body.extent.operators
        found.names += len(node.input) + len(node.output)
        if body is not None:
            # Names in the body are replaced by those that are passed, which may be longer.
            longest = max((len(name.encode()) for name in (*node.input, *node.output)), default=0)
            found.growth += body.size + body.extent.names * longest
            found.names += body.extent.names
        attributes = list(node.attribute)
        if body is not None:
            attributes += _defaults(node, functions[key])
        for attribute in attributes:
            times = 1 if body is None else max(body.extent.copies[attribute.name], 1)
            if attribute.ref_attr_name:
                found.copies[attribute.ref_attr_name] += times
            elif body is not None:
                found.growth += times * attribute.ByteSize()
            for graph in _graphs(attribute):
                inner = _extent(graph.node, functions, bodies)
                found.operators += times * inner.operators
                found.growth += times * inner.growth
                found.names += times * (inner.names + len(graph.output))
                for name, count in inner.copies.items():
                    found.copies[name] += times * count
    return found


def _defaults(node: onnx.NodeProto, function: onnx.FunctionProto) -> list[onnx.AttributeProto]:
    """Return the function's attributes that a call omits and that have a default."""
    given = {attribute.name for attribute in node.attribute}
    return [a for a in function.attribute_proto if a.name not in given]


def _fill_defaults(nodes: Iterable[onnx.NodeProto], functions: _FunctionProtos) -> None:
    """Add the attributes that calls omit, because the inliner ignores defaults."""
    for node in _nodes(nodes):
        function = functions.get(_key(node))
        if function is not None:
            node.attribute.extend(_defaults(node, function))


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes, and those of the graphs nested in them."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in _graphs(attribute):
                yield from _nodes(graph.node)


def _graphs(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def _keys(nodes: Iterable[onnx.NodeProto]) -> set[_FunctionKey]:
    return {_key(node) for node in _nodes(nodes)}


def _key(node: onnx.NodeProto) -> _FunctionKey:
    return node.domain, node.op_type, node.overload


def _bytes(nodes: Iterable[onnx.NodeProto]) -> int:
    return sum(node.ByteSize() for node in nodes)
