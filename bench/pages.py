"""Rendering of the documents of benchmarks from the templates in `bench/documents/`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def render(template: str, parameters: DataclassInstance) -> str:
    """Render a template of `bench/documents/`; its variables are the fields of the dataclass."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "documents"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=template.endswith(".svg.j2"),
    )
    return environment.get_template(template).render(vars(parameters))
