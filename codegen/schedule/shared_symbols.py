"""The C functions and constant arrays of a network: equal ones are one."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any

import numpy as np

from smelt.codegen.lower.device import DeviceCall, DeviceFunctions
from smelt.codegen.lower.kernel import (
    WIDE_FLOATS,
    Input,
    KernelCall,
    Operand,
    Output,
    Packed,
    Scratch,
)
from smelt.codegen.schedule.steps import Function
from smelt.codegen.text.helpers import FLOAT, when
from smelt.codegen.text.literals import c_comment
from smelt.codegen.text.parameters import Parameters
from smelt.codegen.text.render import render
from smelt.ir import Array, DType, Node


class Functions:
    """Collects C functions; those of one template, signature and parameters are one.

    What an accelerator executes is collected by `device`.
    """

    def __init__(self, prefix: str, device: DeviceFunctions[Any] | None = None) -> None:
        self.device = device
        self._prefix = prefix
        self._found: dict[Hashable, _SharedFunction] = {}
        self._taken: dict[str, int] = {}

    def add(self, node: Node, call: KernelCall) -> str:
        """The name of the C function, or of what an accelerator executes, for a call."""
        if isinstance(call, DeviceCall) and self.device is not None:
            return self.device.add(str(node.origin), call)
        signature = _signature(node, call)
        key = signature, call.key
        found = self._found.get(key)
        if found is None:
            count = self._taken[call.stem] = self._taken.get(call.stem, 0) + 1
            name = f"{self._prefix}_{call.stem}" + (f"_{count}" if count > 1 else "")
            floats = any(_element(o, node) in WIDE_FLOATS for o in call.operands)
            found = self._found[key] = _SharedFunction(name, call, signature, floats)
        found.users[str(node.origin)] = None
        return found.name

    def all(self) -> tuple[Function, ...]:
        """The distinct functions, rendered, in order of first use."""
        return tuple(found.function() for found in self._found.values())


@dataclass(frozen=True)
class FunctionParameters(Parameters):
    """Variables of every kernel's template, beside those of its call.

    Attributes:
        function: the function's name.
        signature: its parameters.
        layers: lines of its comment that say which layers it computes.
    """

    function: str
    signature: str
    layers: str


@dataclass(frozen=True)
class _SharedFunction:
    """A function: its name, the first call that needs it, and the origins of all that do.

    `floats`: whether an operand of it is a pointer to C's floating-point numbers.
    """

    name: str
    call: KernelCall
    signature: str
    floats: bool
    users: dict[str, None] = field(default_factory=dict[str, None])

    def function(self) -> Function:
        own = FunctionParameters(self.name, self.signature, _layers(self.users))
        text = render(self.call.template, own, self.call.parameters)
        uses = self.call.uses | when(self.floats, FLOAT)
        return Function(self.name, text, self.signature, uses, tuple(self.users))


def _layers(users: Iterable[str]) -> str:
    """The lines of a function's comment that say which layers it computes."""
    text = c_comment("Computes " + ", ".join(users))
    return "\n".join(f" * {line}" for line in wrap(text, 96))


class Constants:
    """Collects constant arrays; arrays of equal type and contents are stored once."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._names: dict[tuple[str, bytes], str] = {}
        self.arrays: dict[str, Array] = {}
        self.comments: dict[str, str] = {}

    def add(self, owner: str, role: str, origin: str, array: Array) -> str:
        """The C name of the array that holds these constants."""
        array = np.ascontiguousarray(array)
        key = array.dtype.str, hashlib.sha256(array.reshape(-1).data).digest()
        if key not in self._names:
            name = f"{self._prefix}_{owner}_{role}"
            self._names[key] = name
            self.arrays[name] = array
            self.comments[name] = f"{role} of {origin}"
        return self._names[key]


def _signature(node: Node, call: KernelCall) -> str:
    parameters = [_parameter(operand, node) for operand in call.operands]
    line = ", ".join(parameters) or "void"
    if len(line) <= _SIGNATURE_WIDTH:
        return line
    return "\n" + ",\n".join(f"    {parameter}" for parameter in parameters)


_SIGNATURE_WIDTH = 70
"""Columns of a parameter list that may stand on the line of the function's name."""


def _parameter(operand: Operand, node: Node) -> str:
    constant = "const " if isinstance(operand, Input | Packed) else ""
    return f"{constant}{_element(operand, node).c_name} *{operand.name}"


def _element(operand: Operand, node: Node) -> DType:
    """The type of what an operand points to."""
    match operand:
        case Input(index):
            return node.input(index).type.dtype
        case Output(index):
            return node.outputs[index].type.dtype
        case Packed(_, array):
            return DType.of(array)
        case Scratch(_, dtype):
            return dtype
