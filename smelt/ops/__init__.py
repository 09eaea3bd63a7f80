"""The operators: one module an operator or a family, found by importing this package.

Each module defines `Op` subclasses and a table `CASES` of named test cases.
"""

from importlib import import_module
from pkgutil import iter_modules

from smelt.ops.case import Case


def all_cases() -> tuple[Case, ...]:
    """The cases of every operator module, in the order of the modules' names."""
    return tuple(case for module in _MODULES for case in getattr(module, "CASES", ()))


_MODULES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
