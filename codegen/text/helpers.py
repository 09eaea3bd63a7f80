"""The small C functions that kernels share, each in one block of `backends/c/helpers.c.j2`."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from functools import cache

from smelt.codegen.text.render import environment

TEMPLATE = "backends/c/helpers.c.j2"

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_HEADERS = {
    "string.h": re.compile(r"\b(memcpy|memset|memmove)\("),
    "math.h": re.compile(
        r"\b(INFINITY|NAN)\b|\b(?!sizeof\b)\w+f\(|\b(exp|expm1|log|log1p|pow|sqrt|fabs|fmod|rint|floor|ceil"
        r"|erf|erfc|a?(sin|cos|tan)h?)\("
    ),
    "arm_nnfunctions.h": re.compile(r"\barm_\w+_s8\w*\("),
}


@cache
def helper_blocks() -> dict[str, str]:
    """Every helper's C text by name, in the order of the file: one Jinja block each."""
    template = environment().get_template(TEMPLATE)
    context = template.new_context()
    return {name: "".join(block(context)).strip() + "\n" for name, block in template.blocks.items()}


def macros_in(text: str) -> frozenset[str]:
    """The macros of the helpers' file that a piece of C uses, which no kernel needs to list."""
    return frozenset(name for name in helper_blocks() if name.isupper() and name in text)


def required_helpers(names: AbstractSet[str]) -> list[str]:
    """The texts of the named helpers and of those that they call, callees first."""
    blocks = helper_blocks()
    needed: dict[str, None] = {}

    def need(name: str) -> None:
        if name in needed:
            return
        for other in blocks:
            if other != name and re.search(rf"\b{other}\(", blocks[name]):
                need(other)
        needed[name] = None

    for name in sorted(names):
        if name not in blocks:
            raise KeyError(f"{TEMPLATE} has no block '{name}'")
        need(name)
    return [blocks[name] for name in needed]


def required_headers(text: str) -> list[str]:
    """The headers of libraries that a piece of C needs."""
    code = _COMMENT.sub("", text)
    return [header for header, pattern in _HEADERS.items() if pattern.search(code)]
