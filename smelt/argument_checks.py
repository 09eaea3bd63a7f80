"""What Python code passes to the functions of the package, checked before anything is done.

Each reader gives the argument back in the type that the rest expects, or raises `ConfigError`,
which names the argument, what it is and what it must be.
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
    """An error to raise: `name` must be what `wanted` says, and is not."""
    return ConfigError(f"{name} must be {wanted}, not {_described(given)}")


def _described(given: object) -> str:
    if isinstance(given, np.ndarray):
        array = cast("Array", given)
        return f"an array of {array.dtype}{list(array.shape)}"
    text = " ".join(repr(given).split())
    shown = text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"
    return shown if given is None else f"the {type(given).__name__} {shown}"


def as_path(given: object, name: str, wanted: str = "a path") -> Path:
    """A path, given as one or as text."""
    path = given if isinstance(given, str) else None
    if isinstance(given, Path):
        path = str(given)
    if path is None or "\0" in path:
        raise wrong(name, wanted, given)
    return Path(path)


def as_text(given: object, name: str, wanted: str = "text") -> str:
    """A text; a path is one too."""
    if isinstance(given, Path):
        return str(given)
    if not isinstance(given, str):
        raise wrong(name, wanted, given)
    return given


def as_flag(given: object, name: str) -> bool:
    """True or False."""
    if given is True or given is False:
        return given
    raise wrong(name, "True or False", given)


def as_integer(given: object, name: str, least: int | None = 0) -> int:
    """An integer, Python's or numpy's."""
    number = None
    if isinstance(given, np.integer):
        number = int(cast("int", given))
    elif isinstance(given, int) and not isinstance(given, bool):
        number = given
    if number is None or (least is not None and number < least):
        from_least = "" if least is None else f" from {least} on"
        raise wrong(name, f"an integer{from_least}", cast("object", given))
    return number


def as_choice(given: object, name: str, literal: object) -> str:
    """One of the texts of a `Literal` type."""
    known = get_args(literal)
    if not isinstance(given, str) or given not in known:
        raise wrong(name, " or ".join(map(repr, known)), given)
    return given


def as_table(given: object, name: str, wanted: str) -> dict[str, object]:
    """A mapping whose keys are texts."""
    if not isinstance(given, Mapping):
        raise wrong(name, wanted, given)
    table = cast("Mapping[object, object]", given)
    for key in table:
        if not isinstance(key, str):
            raise wrong(f"each key of {name}", "a text", key)
    return cast("dict[str, object]", dict(table))


def as_items(given: object, name: str, wanted: str) -> tuple[object, ...]:
    """Several things, of which a text is none."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise wrong(name, wanted, given)
    if isinstance(given, np.ndarray):
        return tuple(cast("Array", given).ravel().tolist())
    return tuple(cast("Iterable[object]", given))


def as_instance(given: object, name: str, kind: type[T], wanted: str) -> T:
    """An object of a class."""
    if not isinstance(given, kind):
        raise wrong(name, wanted, given)
    return given
