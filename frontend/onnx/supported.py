"""Finds the operators that a graph needs, and refuses unsupported ones with a remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx

from smelt.errors import UnsupportedError
from smelt.frontend.onnx import expansion
from smelt.frontend.onnx.converters import CONVERTERS
from smelt.frontend.onnx.file import STANDARD_DOMAINS

_MACHINE_DOMAINS = ("com.microsoft.nchwc", "com.ms.internal.nhwc")
"""Domains of operators with tensors laid out for one kind of processor."""

_OF_SHAPES = frozenset({"Shape", "Size"})
"""Operators with results that are always known at compile time."""


def needed_operators(graph: onnx.GraphProto) -> list[tuple[int, onnx.NodeProto]]:
    """Return the operators that the outputs depend on, with their indices, in order."""
    wanted = {output.name for output in graph.output}
    found: list[tuple[int, onnx.NodeProto]] = []
    for index, node in reversed(list(enumerate(graph.node))):
        if wanted.isdisjoint(node.output):
            continue
        found.append((index, node))
        wanted.update(_used(node))
    return found[::-1]


def _used(node: onnx.NodeProto) -> Iterable[str]:
    """Yield the tensors that an operator reads, including those its graphs use from outside."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield from (output.name for output in attribute.g.output)
            for inner in attribute.g.node:
                yield from _used(inner)


def domain_of(node: onnx.NodeProto) -> str:
    """Return the domain of an operator; "" for ONNX's own."""
    return "" if node.domain in STANDARD_DOMAINS else node.domain


def converter_key(node: onnx.NodeProto) -> str:
    """Return an operator's key in the converter table: `Name`, or `domain::Name` if not ONNX's."""
    if node.domain in STANDARD_DOMAINS:
        return node.op_type
    return f"{node.domain}::{node.op_type}"


def operator_name(node: onnx.NodeProto) -> str:
    """Return an operator's name in messages."""
    if node.domain in STANDARD_DOMAINS:
        return node.op_type
    return f"{node.op_type} of domain '{node.domain}'"


def remedy(node: onnx.NodeProto) -> str:
    """Return what the user can do about an unsupported operator."""
    if node.domain in STANDARD_DOMAINS:
        return (
            "replace it by supported operators before export, or add it by a plugin "
            "(--plugin file.py)"
        )
    if node.domain in _MACHINE_DOMAINS:
        return (
            "onnxruntime wrote it for the processor of this computer: save the optimized network "
            "at level extended (GraphOptimizationLevel.ORT_ENABLE_EXTENDED) instead of all"
        )
    return "load a plugin that adds it, or export with operators of ONNX's own domain only"


def refuse_unsupported(
    nodes: Sequence[tuple[int, onnx.NodeProto]], is_fed: Callable[[str], bool]
) -> None:
    """Refuse all unsupported operators at once, before any work is done.

    Args:
        nodes: operators with their indices.
        is_fed: returns whether a tensor from outside of these operators is known only at run time.

    Raises:
        UnsupportedError: an operator is not supported.
    """
    dynamic = _computed_at_run_time(nodes, is_fed)
    missing = [
        (index, node)
        for index, node in nodes
        if converter_key(node) not in CONVERTERS
        and not expansion.has_function(node)
        and not (expansion.is_computable(node) and dynamic.isdisjoint(node.output))
    ]
    if not missing:
        return
    (index, first), others = missing[0], missing[1:]
    also = ", ".join(sorted({converter_key(node) for _, node in others} - {converter_key(first)}))
    raise UnsupportedError(
        f"operator {operator_name(first)} (#{index} of the file, from "
        f"{', '.join(first.input) or 'nothing'} to {', '.join(first.output)}) is not supported"
        f"{f'; nor are {also}' if also else ''}. `smelt ops` lists the supported operators; "
        f"{remedy(first)}."
    )


def _computed_at_run_time(
    nodes: Sequence[tuple[int, onnx.NodeProto]], is_fed: Callable[[str], bool]
) -> set[str]:
    """Return the results that depend on more than constants and shapes."""
    found: set[str] = set()
    for _, node in nodes:
        if node.op_type in _OF_SHAPES and node.domain in STANDARD_DOMAINS:
            continue
        if any(name in found or is_fed(name) for name in _used(node)):
            found.update(node.output)
    return found
