"""Parsers for options that take a list: separated by commas, repeated, or both.

On the command line, each such option has the type `list[str]`.
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
    """Return the words of an option. Raise a `ConfigError` for an empty or repeated word."""
    found = [word.strip() for text in texts for word in text.split(",")]
    if not all(found):
        raise ConfigError(f"{option} '{','.join(texts)}': give names separated by commas")
    twice = next((word for word in found if found.count(word) > 1), None)
    if twice is not None:
        raise ConfigError(f"{option}: '{twice}' is given twice")
    return tuple(found)


def numbers(option: str, texts: Sequence[str]) -> tuple[float, ...]:
    """Return the numbers of an option in order. Raise a `ConfigError` for any other text."""
    try:
        return tuple(float(word) for text in texts for word in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"{option} {','.join(texts)}: give one number, or one per channel separated by commas"
        ) from error


def plugins(files: Sequence[Path]) -> tuple[Path, ...]:
    """Return the paths of Python files. A comma separates files only after `.py`."""
    return tuple(Path(name) for file in files for name in re.split(r"(?<=\.py),", str(file)))


def places(texts: Sequence[str]) -> dict[str, str]:
    """Return the backend of each layer. Raise a `ConfigError` if a text is not LAYER=BACKEND."""
    return _table("--place", texts, _ONE, _placed)


def tensors(texts: Sequence[str]) -> dict[str, str]:
    """Return the memory of each tensor. Raise a `ConfigError` if a text is not TENSOR=MEMORY."""
    return _table("--place-tensor", texts, _ONE, _stored)


def dims(texts: Sequence[str]) -> dict[str, int | tuple[int, int]]:
    """Return the size, or the smallest and largest size, of each dimension."""
    return _table("--dim", texts, _ONE, _dim)


def shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each input."""
    return _table("--shape", texts, _SEVERAL, _shape)


def values(texts: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Return the elements of each input that becomes a constant."""
    return _table("--value", texts, _SEVERAL, _value)


def size(option: str, text: str) -> int:
    """Return the bytes that a text like `20000`, `32K`, `32KiB` or `2M` stands for."""
    match = re.fullmatch(rf"({_DIGITS})(?:([KM])i?)?B?", text, re.IGNORECASE)
    if match is None:
        raise ConfigError(f"{option} {text}: give bytes, for example 20000, 32K or 2M")
    return int(match[1]) * {"": 1, "K": 1024, "M": 1024**2}[(match[2] or "").upper()]


def _table(
    option: str, texts: Sequence[str], value: str, read: Callable[[str, str, str], T]
) -> dict[str, T]:
    """Return the value of each name, from texts of the form NAME=VALUE,NAME=VALUE.

    Args:
        option: name of the option, for messages.
        texts: the option's texts from the command line.
        value: regular expression that finds where a value ends. Names may contain commas and
            equals signs.
        read: converts one item, given its text, its name and the text after the equals sign.

    Raises:
        ConfigError: an item has another form, or a name is given twice.
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
                raise ConfigError(f"{option} is given twice for '{name}'")
            table[name] = content
    return table


def _placed(text: str, layer: str, name: str) -> str:
    if not layer or not name:
        raise ConfigError(f"--place {text}: give a layer and a backend, for example conv1=c")
    return name


def _stored(text: str, tensor: str, memory: str) -> str:
    if not tensor or not memory:
        raise ConfigError(
            f"--place-tensor {text}: give a tensor and a memory, for example conv1=dtcm"
        )
    return memory


def _dim(text: str, name: str, size: str) -> int | tuple[int, int]:
    match = re.fullmatch(rf"({_DIGITS})(?:\.\.({_DIGITS}))?", size)
    if match is None or not name:
        raise ConfigError(f"--dim {text}: give a name and a size, for example batch=1 or T=1..64")
    low, high = match.groups()
    if high is None:
        return int(low)
    if not 1 <= int(low) <= int(high):
        raise ConfigError(f"--dim {text}: give a range MIN..MAX with 1 <= MIN <= MAX")
    return int(low), int(high)


def _shape(text: str, name: str, sizes: str) -> tuple[int, ...]:
    if not name or not re.fullmatch(rf"{_DIGITS}([x,]{_DIGITS})*", sizes):
        raise ConfigError(
            f"--shape {text}: give an input and its sizes, for example image=1x3x96x96"
        )
    return tuple(map(int, re.split("[x,]", sizes)))


def _value(text: str, name: str, given: str) -> tuple[float, ...]:
    try:
        found = tuple(_number(word) for word in given.split(","))
    except ValueError:
        found = ()
    if not name or not found:
        raise ConfigError(
            f"--value {text}: give an input and its value, for example rate=16000 or flag=true"
        )
    return found


def _number(word: str) -> float:
    found = _WORDS.get(word.strip().lower())
    return float(word) if found is None else found


_WORDS = {"true": True, "false": False}
"""Names for the elements of a bool input, besides 1 and 0."""
