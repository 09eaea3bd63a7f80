"""Checks of arguments that Python code passes to the package's functions.

Each function returns the argument with the type that the caller expects. If the argument is wrong,
it raises `ConfigError` with the argument's name, its value and what it must be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast, get_args

import numpy as np

from smelt.errors import ConfigError

if TYPE_CHECKING:
    from smelt.ir.types import Array

T = TypeVar("T")

_MOST_SHOWN = 60


def wrong(name: str, wanted: str, given: object) -> ConfigError:
    """Return the error to raise if argument `name` is not what `wanted` says."""
    return ConfigError(f"{name} must be {wanted}, not {_described(given)}")


def _described(given: object) -> str:
    if isinstance(given, np.ndarray):
        array = cast("Array", given)
        return f"an array of {array.dtype}{list(array.shape)}"
    text = " ".join(repr(given).split())
    shown = text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"
    return shown if given is None else f"the {type(given).__name__} {shown}"


def as_path(given: object, name: str, wanted: str = "a path") -> Path:
    """Return a path that is given as a path or as text."""
    path = given if isinstance(given, str) else None
    if isinstance(given, Path):
        path = str(given)
    if path is None or "\0" in path:
        raise wrong(name, wanted, given)
    return Path(path)


def as_text(given: object, name: str, wanted: str = "text") -> str:
    """Return text that is given as text or as a path."""
    if isinstance(given, Path):
        return str(given)
    if not isinstance(given, str):
        raise wrong(name, wanted, given)
    return given


def as_flag(given: object, name: str) -> bool:
    """Return a bool."""
    if given is True or given is False:
        return given
    raise wrong(name, "True or False", given)


def as_integer(given: object, name: str, least: int | None = 0) -> int:
    """Return an integer that is given as Python's or numpy's, and is at least `least`."""
    number = None
    if isinstance(given, np.integer):
        number = int(cast("int", given))
    elif isinstance(given, int) and not isinstance(given, bool):
        number = given
    if number is None or (least is not None and number < least):
        from_least = "" if least is None else f" of at least {least}"
        raise wrong(name, f"an integer{from_least}", cast("object", given))
    return number


def as_choice(given: object, name: str, literal: object) -> str:
    """Return text that is one of the values of a `Literal` type."""
    known = get_args(literal)
    if not isinstance(given, str) or given not in known:
        raise wrong(name, " or ".join(map(repr, known)), given)
    return given


def as_table(given: object, name: str, wanted: str) -> dict[str, object]:
    """Return a mapping with text as keys, as a dict."""
    if not isinstance(given, Mapping):
        raise wrong(name, wanted, given)
    table = cast("Mapping[object, object]", given)
    for key in table:
        if not isinstance(key, str):
            raise wrong(f"each key of {name}", "text", key)
    return cast("dict[str, object]", dict(table))


def as_items(given: object, name: str, wanted: str) -> tuple[object, ...]:
    """Return the items of an iterable that is not text or bytes."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise wrong(name, wanted, given)
    if isinstance(given, np.ndarray):
        return tuple(cast("Array", given).ravel().tolist())
    return tuple(cast("Iterable[object]", given))


def as_instance(given: object, name: str, kind: type[T], wanted: str) -> T:
    """Return an object of the given class."""
    if not isinstance(given, kind):
        raise wrong(name, wanted, given)
    return given
