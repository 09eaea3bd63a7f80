"""C notation of constants, names and comments."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import isinf, isnan
from typing import Any

import numpy as np

from smelt.errors import ModelError
from smelt.ir import Array, DType

_COLUMNS = 96
"""Maximum length of a line of array elements."""


def c_float(value: float) -> str:
    """Return a float32 constant: the shortest decimal that reads back as the same float32."""
    number = np.float32(value)
    if isnan(number):
        raise ModelError("a NaN cannot be written as a C constant")
    if isinf(number):
        return "INFINITY" if number > 0 else "-INFINITY"
    text = str(number)
    return f"{text}f" if any(c in text for c in ".e") else f"{text}.0f"


def c_double(value: float) -> str:
    """Return a double constant: the shortest decimal that reads back as the same number."""
    if isnan(value):
        raise ModelError("a NaN cannot be written as a C constant")
    if isinf(value):
        return "(double)INFINITY" if value > 0 else "-(double)INFINITY"
    return repr(float(value))


def c_int(value: int) -> str:
    """Return an int32 constant; C has no literal for INT32_MIN, so it is the macro."""
    return "INT32_MIN" if int(value) == -(2**31) else str(int(value))


def c_comment(text: str) -> str:
    """Return text that is safe inside a C comment: printable ASCII without comment delimiters."""
    text = text.replace("…", "...")
    printable = "".join(c if " " <= c <= "~" else "_" for c in text)
    return re.sub(r"\?(?=\?)", "? ", printable.replace("*/", "* /").replace("/*", "/ *"))


def grouped(number: int) -> str:
    """Return a number with its digits in groups of three."""
    return f"{number:,}"


def code_span(text: str) -> str:
    """Return text that is safe between Markdown backticks: only backticks have a meaning there."""
    return c_comment(text).replace("`", "'")


def c_elements(array: Array) -> list[str]:
    """Return every element of an array, flattened, as a C initializer."""
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
    """Return initializers joined by commas, wrapped into lines of at most `_COLUMNS`.

    An element must have no spaces and fit into a line.
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
