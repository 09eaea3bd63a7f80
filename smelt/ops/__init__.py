"""Operators: one module for each operator or family of operators.

Importing this package imports all of these modules. Each defines `Op` subclasses and a table
`CASES` of named test cases.
May import `ir`; `frontend`, `quant`, `codegen`, `api`, `proof`, `cli` and `bench` may import it.
"""

from importlib import import_module
from pkgutil import walk_packages

from smelt.ops.case import Case


def all_cases() -> tuple[Case, ...]:
    """Return the cases of all operator modules, in the order of the modules' names."""
    return tuple(case for module in _MODULES for case in getattr(module, "CASES", ()))


_FOUND = (info.name for info in walk_packages(__path__, f"{__name__}.") if not info.ispkg)
_MODULES = [import_module(name) for name in sorted(_FOUND, key=lambda name: name.split(".")[-1])]
