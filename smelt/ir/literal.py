"""Names, numbers and digests in the text format, shared by the printer and the parser."""

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
"""Version of the text format. It is on the first line: `smelt-ir 1`."""

INLINE = 8
"""Largest number of elements of arrays and per-channel vectors that are printed inline."""

BARE_NAME = r"[A-Za-z0-9_./;\-]+"
"""Value names that need no quotes."""

WORD = r"[A-Za-z_][A-Za-z0-9_]*"
"""Names of operators, fields and members of enumerations."""

_BARE_NAME = re.compile(BARE_NAME)
_WORD = re.compile(WORD)


def value_name(name: str) -> str:
    """Return `%name`, or `%"name"` with JSON's escapes if it has other characters."""
    return "%" + (name if _BARE_NAME.fullmatch(name) else json.dumps(name))


def word(text: str) -> str:
    """Return the text unchanged if it is a word, else in JSON's quotes."""
    return text if _WORD.fullmatch(text) else json.dumps(text)


def enum_word(member: Enum) -> str:
    """Return the word for an enumeration's member: its value if that is a word, else its name."""
    value: object = member.value
    return value if isinstance(value, str) and _WORD.fullmatch(value) else member.name.lower()


def digest(array: Array) -> str:
    """Return 64 bits of the SHA-256 of element type, shape and contents, in hexadecimal."""
    head = f"{array.dtype.name}{list(array.shape)}".encode()
    return hashlib.sha256(head + array.tobytes()).hexdigest()[:16]


def number(value: float, kind: Callable[[float], Any] = float) -> str:
    """Return a bool, int or float as text that is parsed to exactly the same value.

    `kind` is the numpy type of the float: its shortest decimal is printed.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) or not math.isfinite(value):
        return str(value)
    text = str(kind(value))
    # Parsing rounds the decimal to a double, then to `kind`: in rare cases to another number.
    return text if float(kind(float(text))) == value else repr(value)


def scale_number(scale: float) -> str:
    """Return a scale as text: the shortest float32 decimal, or hexadecimal if it needs a double."""
    return number(scale, np.float32) if float(np.float32(scale)) == scale else scale.hex()


@cache
def attributes(op: type[Op]) -> tuple[tuple[Field[Any], Any], ...]:
    """Return the fields of an operator's class in order, each with its type."""
    hints = get_type_hints(op)
    return tuple((item, hints[item.name]) for item in fields(op) if item.init)


def members(hint: Any) -> tuple[Any, ...]:
    """Return the alternatives of a union type, or a tuple of the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
