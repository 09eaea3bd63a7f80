"""The variables that templates use, and those that they are rendered with."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from importlib.resources import files

from jinja2 import meta, nodes

from smelt.codegen.text.parameters import Parameters
from smelt.codegen.text.render import environment

GLOBALS = {"header"}
"""Names that every template may use."""


@cache
def looked_up(template: str) -> frozenset[str]:
    """Return the variables that a template and the templates that it includes by name use."""
    text = files("smelt.templates").joinpath(template).read_text(encoding="utf-8")
    tree = environment().parse(text)
    included = (node.template for node in tree.find_all(nodes.Include))
    own = {
        node.target.name
        for node in tree.find_all(nodes.Assign)
        if isinstance(node.target, nodes.Name)
    }
    found = meta.find_undeclared_variables(tree) - GLOBALS - own
    for name in included:
        if isinstance(name, nodes.Const):
            found |= looked_up(str(name.value))
    return frozenset(found)


def given(*parameters: type[Parameters]) -> frozenset[str]:
    """Return the names of the fields of these dataclasses."""
    return frozenset(field.name for one in parameters for field in fields(one))
