"""Options that take several things: with commas between them, given again for each, or both.

Every such option is `list[str]` on the command line, and is read by one of these functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from smelt.errors import ConfigError

T = TypeVar("T")

_ONE = r"[^,=]*"
_SEVERAL = rf"{_ONE}(?:,{_ONE})*"
_DIGITS = r"\d{1,18}"


def words(option: str, texts: Sequence[str]) -> tuple[str, ...]:
    """The words of an option, in order; `ConfigError` where one is empty or comes twice."""
    found = [word.strip() for text in texts for word in text.split(",")]
    if not all(found):
        raise ConfigError(f"{option} '{','.join(texts)}': give names with commas between them")
    twice = next((word for word in found if found.count(word) > 1), None)
    if twice is not None:
        raise ConfigError(f"{option} names '{twice}' twice: give it once")
    return tuple(found)


def numbers(option: str, texts: Sequence[str]) -> tuple[float, ...]:
    """The numbers of an option, in order; `ConfigError` for what is none."""
    try:
        return tuple(float(word) for text in texts for word in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"{option} {','.join(texts)}: give a number, or one a channel with commas between them"
        ) from error


def plugins(files: Sequence[Path]) -> tuple[Path, ...]:
    """Files of Python, whose names may have commas."""
    return tuple(Path(name) for file in files for name in re.split(r"(?<=\.py),", str(file)))


def places(texts: Sequence[str]) -> dict[str, str]:
    """The backend of each layer; `ConfigError` for a text of another form."""
    return _table("--place", texts, _ONE, _placed)


def dims(texts: Sequence[str]) -> dict[str, int | tuple[int, int]]:
    """The size, or least and greatest size, of each dimension."""
    return _table("--dim", texts, _ONE, _dim)


def shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shape of each input."""
    return _table("--shape", texts, _SEVERAL, _shape)


def values(texts: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """The elements of each input that becomes a constant."""
    return _table("--value", texts, _SEVERAL, _value)


def _table(
    option: str, texts: Sequence[str], value: str, read: Callable[[str, str, str], T]
) -> dict[str, T]:
    """What an option gives each name, as NAME=VALUE; `ConfigError` where it gives one twice.

    Args:
        option: for messages.
        texts: as they were given.
        value: what a value may look like, so far as that tells where it ends. A name may have
            commas and equals signs.
        read: makes the value out of an item, its name and what stands behind the sign.
    """
    pair = re.compile(rf"(?:\A|,)(.*?={value})(?=,|\Z)", re.DOTALL)
    table: dict[str, T] = {}
    for text in texts:
        items: list[str] = pair.findall(text)
        rest = text[len(",".join(items)) :]
        if rest or not items:
            items.append(rest.removeprefix(","))
        for item in items:
            name, _, given = item.rpartition("=")
            name = name.strip()
            content = read(item or text, name, given.strip())
            if name in table:
                raise ConfigError(f"{option} is given twice for '{name}': give it once")
            table[name] = content
    return table


def _placed(text: str, layer: str, name: str) -> str:
    if not layer or not name:
        raise ConfigError(f"--place {text}: give a layer and a backend, as conv1=c")
    return name


def _dim(text: str, name: str, size: str) -> int | tuple[int, int]:
    match = re.fullmatch(rf"({_DIGITS})(?:\.\.({_DIGITS}))?", size)
    if match is None or not name:
        raise ConfigError(f"--dim {text}: give a name and a size, as batch=1, or T=1..64")
    low, high = match.groups()
    if high is None:
        return int(low)
    if not 1 <= int(low) <= int(high):
        raise ConfigError(f"--dim {text}: the least size must be from 1 to the greatest")
    return int(low), int(high)


def _shape(text: str, name: str, sizes: str) -> tuple[int, ...]:
    if not name or not re.fullmatch(rf"{_DIGITS}([x,]{_DIGITS})*", sizes):
        raise ConfigError(f"--shape {text}: give an input and its sizes, as image=1x3x96x96")
    return tuple(map(int, re.split("[x,]", sizes)))


def _value(text: str, name: str, given: str) -> tuple[float, ...]:
    try:
        found = tuple(_number(word) for word in given.split(","))
    except ValueError:
        found = ()
    if not name or not found:
        raise ConfigError(
            f"--value {text}: give an input and its value, as rate=16000 or flag=true"
        )
    return found


def _number(word: str) -> float:
    found = _WORDS.get(word.strip().lower())
    return float(word) if found is None else found


_WORDS = {"true": True, "false": False}
"""What the elements of a bool input may be called, besides 1 and 0."""
