"""A cache for functions of arrays, which cannot be keys of a dictionary themselves."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import ParamSpec, TypeVar, cast

import numpy as np

from smelt.ir import Array

P = ParamSpec("P")
R = TypeVar("R")

_MOST = 256
"""Results that are kept for a function; the least recently used one is dropped first."""


def cached_by_content(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function with a cache of its results, by the contents of its arguments.

    A layer that is computed a few rows at a time becomes several nodes with equal weights, biases
    and ranges. The cache avoids computing again what depends on these numbers alone.

    Args:
        function: A pure function of hashable values, arrays, and dataclasses of these.
    """
    known: OrderedDict[Hashable, R] = OrderedDict()

    @wraps(function)
    def cached(*args: P.args, **kwargs: P.kwargs) -> R:
        key = tuple(map(_content, args)), tuple((k, _content(v)) for k, v in kwargs.items())
        if key not in known:
            known[key] = function(*args, **kwargs)
            if len(known) > _MOST:
                known.popitem(last=False)
        known.move_to_end(key)
        return known[key]

    return cached


def _content(value: object) -> Hashable:
    if isinstance(value, np.ndarray):
        array = cast("Array", value)
        return array.dtype.str, array.shape, array.tobytes()
    if is_dataclass(value) and not isinstance(value, type):
        parts = (_content(getattr(value, field.name)) for field in fields(value))
        return type(value), tuple(parts)
    if not isinstance(value, Hashable):
        raise TypeError(f"{type(value).__name__} has no content to compare")
    return value
