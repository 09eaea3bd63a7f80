"""The C functions and constant arrays of a network; equal ones are stored once."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from smelt.codegen.lower.device import DeviceCall, DeviceFunctions
from smelt.codegen.lower.function_names import FunctionNames, described, details
from smelt.codegen.lower.kernel import (
    WIDE_FLOATS,
    InnerFunction,
    Input,
    KernelCall,
    LayerStruct,
    Operand,
    Output,
    Packed,
    Scratch,
)
from smelt.codegen.schedule.steps import Function, StructType
from smelt.codegen.text.helpers import FLOAT, when
from smelt.codegen.text.literals import c_comment
from smelt.codegen.text.parameters import Parameters
from smelt.codegen.text.render import render_c
from smelt.ir import Array, DType, Node


class Functions:
    """Collects C functions; calls of equal template, signature and parameters share a function.

    `device` collects the code that an accelerator executes.
    """

    def __init__(self, prefix: str, device: DeviceFunctions[Any] | None = None) -> None:
        self.device = device
        self._prefix = prefix
        self._found: dict[Hashable, _SharedFunction] = {}
        self._inner: dict[Hashable, str] = {}
        self._names = FunctionNames()

    def add(self, node: Node, call: KernelCall) -> str:
        """Add the C function of a call, or the accelerator's code, and return its name."""
        if isinstance(call, DeviceCall) and self.device is not None:
            return self.device.add(str(node.origin), call)
        signature = _signature(node, call, self._prefix)
        key = signature, call.key
        found = self._found.get(key)
        if found is None:
            own_name = self._names.distinct(described(node, call), details(node, call))
            name = f"{self._prefix}_{own_name}"
            floats = any(_element(o, node) in WIDE_FLOATS for o in call.operands)
            types = [
                struct_type(self._prefix, operand).name
                for operand in call.operands
                if isinstance(operand, LayerStruct)
            ]
            inner, definitions = self._inner_functions(call.inner)
            own = _SharedFunction(
                name,
                call,
                signature,
                floats=floats,
                layer_type="".join(types),
                inner=inner,
                definitions=tuple(definitions),
            )
            found = self._found[key] = own
        shape = f"{node.input(0).type} -> {node.outputs[0].type}"
        found.users.setdefault(str(node.origin), {})[shape] = None
        return found.name

    def _inner_functions(
        self, functions: Sequence[InnerFunction]
    ) -> tuple[tuple[str, ...], list[_InnerDefinition]]:
        """Return the names of static functions, and the definitions that are still missing.

        Definitions of the functions that they call come first.
        """
        missing: list[_InnerDefinition] = []
        for inner in functions:
            if inner.key not in self._inner:
                called, definitions = self._inner_functions(inner.inner)
                name = f"{self._prefix}_{self._names.distinct(inner.stem, inner.details)}"
                self._inner[inner.key] = name
                layer = layer_type(self._prefix, inner.layer) if inner.layer else ""
                missing += [*definitions, _InnerDefinition(name, inner, layer, called)]
        return tuple(self._inner[inner.key] for inner in functions), missing

    def all(self) -> tuple[Function, ...]:
        """Return the distinct functions, rendered, in order of first use."""
        return tuple(found.function() for found in self._found.values())


@dataclass(frozen=True)
class FunctionParameters(Parameters):
    """Variables of every kernel's template, in addition to the call's parameters.

    Attributes:
        function: name of the function.
        signature: C parameters of the function.
        layers: lines of the function's comment: the layers that it computes.
        layer_type: C type of the function's `LayerStruct`; empty if it has none.
        inner: names of the static functions that it calls.
    """

    function: str
    signature: str
    layers: str
    layer_type: str
    inner: tuple[str, ...]


@dataclass(frozen=True)
class InnerParameters(Parameters):
    """Variables of every static function's template, in addition to the function's parameters.

    Attributes:
        function: name of the function.
        layer_type: C type of the `LayerStruct` that the function reads; empty if it reads none.
        inner: names of the static functions that it calls.
    """

    function: str
    layer_type: str
    inner: tuple[str, ...]


@dataclass(frozen=True)
class _InnerDefinition:
    """A static function, and the fields of `InnerParameters` for its template."""

    name: str
    inner: InnerFunction
    layer_type: str
    called: tuple[str, ...]

    @property
    def text(self) -> str:
        own = InnerParameters(self.name, self.layer_type, self.called)
        return render_c(self.inner.template, own, self.inner.parameters)


@dataclass(frozen=True)
class _SharedFunction:
    """A function that one or more calls need.

    Attributes:
        name: name of the function.
        call: the first call that needs the function.
        signature: C parameters of the function.
        floats: whether an operand is a pointer to `float` or `double`.
        layer_type: see `FunctionParameters`.
        inner: names of the static functions that it calls.
        definitions: static functions to define before it: those that no earlier function needed.
        users: origins of all nodes that need the function, in order of first use, and the shapes of
            each. A layer that is computed a few rows at a time may have several.
    """

    name: str
    call: KernelCall
    signature: str
    floats: bool
    layer_type: str
    inner: tuple[str, ...]
    definitions: tuple[_InnerDefinition, ...]
    users: dict[str, dict[str, None]] = field(default_factory=dict[str, dict[str, None]])

    def function(self) -> Function:
        layers = _layers(self.users, shapes=bool(self.layer_type))
        own = FunctionParameters(self.name, self.signature, layers, self.layer_type, self.inner)
        text = render_c(self.call.template, own, self.call.parameters)
        needed = (definition.inner.uses for definition in self.definitions)
        uses = frozenset[str]().union(self.call.uses, when(self.floats, FLOAT), *needed)
        text = "\n\n".join((*_texts(self.definitions), text.lstrip("\n")))
        return Function(self.name, text, self.signature, uses, tuple(self.users))


def _texts(definitions: Iterable[_InnerDefinition]) -> Iterator[str]:
    """Yield the texts of static functions, those with the same condition in one `#if`."""
    for condition, group in groupby(definitions, lambda each: each.inner.condition):
        text = "\n\n".join(each.text.strip("\n") for each in group)
        yield f"#if {condition}\n{text}\n#endif" if condition else text


def _layers(users: Mapping[str, Iterable[str]], *, shapes: bool) -> str:
    """Return the lines of a function's comment that name the layers that it computes.

    Args:
        users: The shapes of each layer by its origin.
        shapes: Whether to name the shapes too, because the function reads them from a struct.
    """
    if not shapes:
        return c_comment(" * Computes " + ", ".join(users))
    found = (c_comment(f"{user}: {'; '.join(own)}") for user, own in users.items())
    return " * Computes " + ",\n * ".join(found)


def struct_type(prefix: str, struct: LayerStruct) -> StructType:
    """Return the C type of a struct in a network with the given prefix."""
    meanings = tuple(struct.meanings.get(field, "") for field in struct.numbers)
    return StructType(layer_type(prefix, struct.kind), tuple(struct.numbers), meanings)


def layer_type(prefix: str, kind: str) -> str:
    """Return the name of the C type of structs of a kind."""
    return f"{prefix}_{kind}_layer_t"


class Constants:
    """Collects constant arrays; arrays of equal type and contents are stored once.

    Attributes:
        arrays: the arrays by C name; structs are arrays of int32.
        comments: comments by C name.
        structs: types of those arrays that are structs, by C name.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._names: dict[tuple[str, bytes], str] = {}
        self.arrays: dict[str, Array] = {}
        self.comments: dict[str, str] = {}
        self.structs: dict[str, StructType] = {}

    def add_struct(self, owner: str, origin: str, struct: LayerStruct) -> str:
        """Add a struct unless an equal one exists; return its C name.

        Raises:
            ValueError: An earlier struct of this kind has other fields.
        """
        kind = struct_type(self._prefix, struct)
        if any(t.name == kind.name and t != kind for t in self.structs.values()):
            raise ValueError(f"structs of kind '{struct.kind}' have different fields")
        name = self._add(owner, struct.name, f"parameters of {origin}", struct.array, kind.name)
        self.structs[name] = kind
        return name

    def add(self, owner: str, role: str, origin: str, array: Array) -> str:
        """Add an array of constants unless an equal one exists; return its C name."""
        return self._add(owner, role, f"{role} of {origin}", array, "")

    def _add(self, owner: str, role: str, comment: str, array: Array, type_: str) -> str:
        array = np.ascontiguousarray(array)
        key = type_ or array.dtype.str, hashlib.sha256(array.reshape(-1).data).digest()
        if key not in self._names:
            name = f"{self._prefix}_{owner}_{role}"
            self._names[key] = name
            self.arrays[name] = array
            self.comments[name] = comment
        return self._names[key]


def _signature(node: Node, call: KernelCall, prefix: str) -> str:
    parameters = [_parameter(operand, node, prefix) for operand in call.operands]
    return ", ".join(parameters) or "void"


def _parameter(operand: Operand, node: Node, prefix: str) -> str:
    if isinstance(operand, LayerStruct):
        return f"const {struct_type(prefix, operand).name} *{operand.name}"
    constant = "const " if isinstance(operand, Input | Packed) else ""
    return f"{constant}{_element(operand, node).c_name} *{operand.name}"


def _element(operand: Operand, node: Node) -> DType:
    """Return the type of the elements that an operand points to."""
    match operand:
        case Input(index):
            return node.input(index).type.dtype
        case Output(index):
            return node.outputs[index].type.dtype
        case Packed(_, array):
            return DType.of(array)
        case Scratch(_, dtype):
            return dtype
        case LayerStruct():
            return DType.INT32
