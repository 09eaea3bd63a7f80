"""Table of the converters of all ONNX operators."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from smelt.frontend.onnx import operators
from smelt.frontend.onnx.operation import OnnxConverter


def _collected() -> dict[str, OnnxConverter]:
    table: dict[str, OnnxConverter] = {}
    for module in iter_modules(operators.__path__):
        table |= import_module(f"{operators.__name__}.{module.name}").CONVERTERS
    return table


CONVERTERS: dict[str, OnnxConverter] = _collected()
"""Converter of each operator, by its name (`domain::Name` outside of ONNX's own domain). A plugin
adds its operators here."""
