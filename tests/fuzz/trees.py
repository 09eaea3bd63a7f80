"""Damage JSON and TOML values: nested tables, lists, strings and numbers."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from random import Random
from typing import Any

from tests.fuzz.raw import hostile_name

Tree = Any
"""A dictionary, a list, or a value inside them."""

NUMBERS = (0, 1, -1, 2, 7, 255, 256, 65536, 2**31 - 1, 2**31, 2**32, 2**63 - 1, -(2**63), 2**64)
FLOATS = (0.0, -0.0, 0.5, -1.5, 1e-320, 1e300, float("inf"), float("-inf"), float("nan"))
TEXTS = ("0", "1K", "-1K", "0M", "9999999999G", "1e3", "0x10", "K", "none", "true", "2026-01-01")
_DEEP = 60


def damaged(tree: Tree, rng: Random) -> Tree:
    """Return the tree with one random damage."""
    changed = copy.deepcopy(tree)
    places = list(_places(changed))
    if not places:
        return rng.choice((None, [], {}, 7, "text"))
    parent, key = rng.choice(places)
    value, (other_parent, other_key) = parent[key], rng.choice(places)
    match rng.randrange(7):
        case 0:
            del parent[key]
        case 1:
            parent[key] = copy.deepcopy(other_parent[other_key])
        case 2 if isinstance(parent, dict):
            parent[hostile_name(rng)] = parent.pop(key)
        case 2:
            parent.insert(key, copy.deepcopy(value))
        case 3 if isinstance(parent, dict):
            parent[rng.choice((f"{key}s", str(other_key), "extra"))] = copy.deepcopy(value)
        case _:
            parent[key] = _another(value, rng)
    return changed


def _places(tree: Tree) -> Iterator[tuple[Any, Any]]:
    """Return each value's container, and its key or index there."""
    waiting = [tree]
    while waiting:
        parent = waiting.pop()
        keys = list(parent) if isinstance(parent, dict) else range(len(parent))
        for key in keys:
            yield parent, key
            if isinstance(parent[key], dict | list):
                waiting.append(parent[key])


def _another(value: Any, rng: Random) -> Any:
    """Return another value, usually of the same type."""
    near: tuple[Any, ...] = ()
    if isinstance(value, bool):
        near = (not value,)
    elif isinstance(value, int | float):
        near = (*NUMBERS, *FLOATS, value + 1, -value, 2 * value)
    elif isinstance(value, str):
        near = (*TEXTS, *(hostile_name(rng) for _ in TEXTS), value * 2, value[:-1], f"{value} ")
    elif isinstance(value, list):
        near = ([], value * 2, value[:1], [value], value * 200)
    deep: Any = []
    for _ in range(_DEEP):
        deep = [deep]
    far = (None, True, 0, -1, 1.5, "", "text", [], {}, [1], {"a": 1}, deep)
    return rng.choice(near if near and rng.random() < 0.75 else far)


def toml(tree: dict[str, Any]) -> str:
    """Return the tree as TOML, without values that TOML lacks, such as null."""
    lines = [f"{json.dumps(str(key))} = {_inline(value)}" for key, value in tree.items()]
    return "\n".join(lines) + "\n"


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(str(k))} = {_inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _text(value)
    return '""' if value is None else str(value)


def _text(text: str) -> str:
    """Return a basic string: TOML escapes as JSON does, except above U+FFFF."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
