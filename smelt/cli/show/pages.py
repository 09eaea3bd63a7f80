"""Pages of HTML about a network, whose names come from the model's file and may hold any text."""

from __future__ import annotations

from smelt.codegen.text.render import environment
from smelt.terminal import plain


def page(template: str, **variables: object) -> str:
    """One page that needs no other file; names are text in it, neither markup nor control."""
    pages = environment().overlay(autoescape=True)
    return plain(pages.get_template(f"report/{template}").render(**variables))
