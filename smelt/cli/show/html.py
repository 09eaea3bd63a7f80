"""Pages of HTML about a network, whose names come from the model's file and may hold any text."""

from __future__ import annotations

from smelt.codegen.text.parameters import Parameters
from smelt.codegen.text.render import render
from smelt.terminal import plain


def page(template: str, parameters: Parameters) -> str:
    """One page that needs no other file; names are text in it, neither markup nor control."""
    return plain(render(f"report/{template}", parameters))
