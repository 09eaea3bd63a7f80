"""The small GLSL functions that shaders share, each in one block of `functions.j2`."""

from __future__ import annotations

import re
from functools import cache

from smelt.codegen.text.render import environment

TEMPLATE = "backends/vulkan/functions.j2"

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def called_in(*texts: str) -> str:
    """The GLSL of all shared functions that pieces of GLSL call, callees first."""
    return "\n".join(_blocks()[name] for name in _needed("\n".join(texts)))


def _needed(text: str) -> dict[str, None]:
    needed: dict[str, None] = {}
    for name in _calls(_COMMENT.sub("", text)):
        needed |= _callees(name)
        needed[name] = None
    return needed


@cache
def _callees(name: str) -> dict[str, None]:
    body = _COMMENT.sub("", _blocks()[name])
    needed: dict[str, None] = {}
    for other in _calls(body):
        if other != name:
            needed |= _callees(other)
            needed[other] = None
    return needed


def _calls(text: str) -> list[str]:
    words = set(re.findall(r"\b(\w+)\(", text))
    return [name for name in _blocks() if name in words]


@cache
def _blocks() -> dict[str, str]:
    template = environment().get_template(TEMPLATE)
    context = template.new_context()
    return {name: "".join(block(context)).strip() + "\n" for name, block in template.blocks.items()}
