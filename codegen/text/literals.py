"""How constants, names and comments are written in C."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import isinf, isnan
from typing import Any

import numpy as np

from smelt.errors import ModelError
from smelt.ir import Array, DType

_COLUMNS = 96
"""The longest line of an array's elements."""


def c_float(value: float) -> str:
    """A float32 constant: shortest decimal that reads back as the same float32."""
    number = np.float32(value)
    if isnan(number):
        raise ModelError("a NaN cannot be written as a C constant")
    if isinf(number):
        return "INFINITY" if number > 0 else "-INFINITY"
    text = str(number)
    return f"{text}f" if any(c in text for c in ".e") else f"{text}.0f"


def c_double(value: float) -> str:
    """A double constant: shortest decimal that reads back as the same number."""
    if isnan(value):
        raise ModelError("a NaN cannot be written as a C constant")
    if isinf(value):
        return "(double)INFINITY" if value > 0 else "-(double)INFINITY"
    return repr(float(value))


def c_int(value: int) -> str:
    """An int32 constant; INT32_MIN has no literal of its own in C."""
    return "INT32_MIN" if int(value) == -(2**31) else str(int(value))


def c_comment(text: str) -> str:
    """Text made safe inside a C comment: printable ASCII that cannot open or close one."""
    text = text.replace("…", "...")
    printable = "".join(c if " " <= c <= "~" else "_" for c in text)
    return re.sub(r"\?(?=\?)", "? ", printable.replace("*/", "* /").replace("/*", "/ *"))


def grouped(number: int) -> str:
    """A number for people: its digits in groups of three."""
    return f"{number:,}"


def code_span(text: str) -> str:
    """Text made safe between the backticks of Markdown, where nothing but these has a meaning."""
    return c_comment(text).replace("`", "'")


def c_elements(array: Array) -> list[str]:
    """Every element of an array, flattened, as a C initializer."""
    flat: list[Any] = array.reshape(-1).tolist()
    dtype = DType.of(array)
    if dtype is DType.FLOAT32:
        if np.isfinite(array).all():
            return [f"{text}f" for text in map(str, array.reshape(-1))]
        return [c_float(x) for x in array.reshape(-1)]
    if dtype is DType.FLOAT64:
        return [c_double(x) for x in flat]
    if dtype is DType.FLOAT16:
        return [str(x) for x in array.reshape(-1).view(np.uint16).tolist()]
    if dtype in (DType.INT32, DType.INT64):
        return [_wide(x, dtype) for x in flat]
    if dtype in (DType.UINT32, DType.UINT64):
        return [f"{x}u" for x in flat]
    return [str(int(x)) for x in flat]


def c_lines(elements: Iterable[str]) -> list[str]:
    """Initializers joined by commas, wrapped into lines of at most `_COLUMNS`.

    An element has no spaces, and fits into a line.
    """
    text, lines, start = ", ".join(elements), list[str](), 0
    while len(text) - start >= _COLUMNS:
        end = text.rindex(" ", start, start + _COLUMNS + 1)
        lines.append(text[start:end])
        start = end + 1
    if text:
        lines.append(f"{text[start:]},")
    return lines


def _wide(value: int, dtype: DType) -> str:
    low, _ = dtype.limits
    if value == low:
        return "INT32_MIN" if dtype is DType.INT32 else "INT64_MIN"
    return str(value)
