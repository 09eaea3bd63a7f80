"""Use a model file as Smelt does: read it, and compile it if it is small."""

from __future__ import annotations

from pathlib import Path

from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.frontend import Imported, load
from smelt.ir import Graph

TARGETS = ("host", "cortex-m4", "cortex-m0", "cortex-m55", "cortex-m3", "host", "rv32imac")
_NODES, _ELEMENTS = 24, 1 << 13
"""Limits below which a network is small enough to compile thousands of them."""


def check(path: Path, variant: int) -> None:
    """Read a model, and compile it for one of the targets."""
    imported = load(path)
    if small(imported.graph):
        compile_model(imported, Options(target=TARGETS[variant]))


def read(path: Path) -> Imported | None:
    """Return the network, or None if it is too large to compile."""
    imported = load(path)
    return imported if small(imported.graph) else None


def small(graph: Graph) -> bool:
    """Return whether the network is small enough to compile in milliseconds."""
    return len(graph.nodes) <= _NODES and sum(v.type.size for v in graph.values()) <= _ELEMENTS
