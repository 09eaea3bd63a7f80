"""Words that the printer and the parser of the text form share: names, numbers, digests."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import Field, fields
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from smelt.ir.graph import Op
from smelt.ir.types import Array

VERSION = 1
"""Version of the text form, on its first line: `smelt-ir 1`."""

INLINE = 8
"""Arrays and per-channel vectors of at most so many elements are printed inline."""

BARE_NAME = r"[A-Za-z0-9_./;\-]+"
"""Value names that stand without quotes."""

WORD = r"[A-Za-z_][A-Za-z0-9_]*"
"""Operators, fields and members of enumerations."""

_BARE_NAME = re.compile(BARE_NAME)
_WORD = re.compile(WORD)


def value_name(name: str) -> str:
    """`%name`, or `%"name"` with JSON's escapes where it holds other characters."""
    return "%" + (name if _BARE_NAME.fullmatch(name) else json.dumps(name))


def word(text: str) -> str:
    """The text as it is if a word, else in JSON's quotes."""
    return text if _WORD.fullmatch(text) else json.dumps(text)


def enum_word(member: Enum) -> str:
    """The word for a member of an enumeration: its value where that is a word, else its name."""
    value: object = member.value
    return value if isinstance(value, str) and _WORD.fullmatch(value) else member.name.lower()


def digest(array: Array) -> str:
    """64 bits of SHA-256 over element type, shape and contents, in hexadecimal."""
    head = f"{array.dtype.name}{list(array.shape)}".encode()
    return hashlib.sha256(head + array.tobytes()).hexdigest()[:16]


def number(value: float, kind: Callable[[float], Any] = float) -> str:
    """A bool, int or float as text that is read back exactly.

    `kind` is the numpy type that the float came from: its shortest decimal is printed.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) or not math.isfinite(value):
        return str(value)
    text = str(kind(value))
    # Reading a decimal rounds it to a double and then to `kind`: rarely, to another number.
    return text if float(kind(float(text))) == value else repr(value)


def scale_number(scale: float) -> str:
    """A scale: the shortest float32 decimal; a double that no float32 equals, in hexadecimal."""
    return number(scale, np.float32) if float(np.float32(scale)) == scale else scale.hex()


@cache
def attributes(op: type[Op]) -> tuple[tuple[Field[Any], Any], ...]:
    """The fields of an operator, in order, each with its type."""
    hints = get_type_hints(op)
    return tuple((item, hints[item.name]) for item in fields(op) if item.init)


def members(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union type, or the type alone."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
