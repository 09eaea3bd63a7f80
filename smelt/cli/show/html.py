"""HTML pages about a network. Its names come from the model file and may contain any text."""

from __future__ import annotations

from smelt.codegen.text.parameters import Parameters
from smelt.codegen.text.render import render
from smelt.terminal import plain


def page(template: str, parameters: Parameters) -> str:
    """Return a self-contained page. Names are escaped, so they cannot contain markup or scripts."""
    return plain(render(f"report/{template}", parameters))
