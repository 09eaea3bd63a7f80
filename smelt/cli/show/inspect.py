"""Output of `smelt inspect`: the inputs, outputs and layers of a network."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from smelt.api.report import lengths
from smelt.cli.output import say
from smelt.cli.show.report import length_range
from smelt.cli.show.tables import TextTable
from smelt.formatting import counted
from smelt.frontend import Imported
from smelt.ir import TensorType


def description(imported: Imported) -> dict[str, Any]:
    """Return the JSON record that `smelt inspect --json` prints."""
    graph = imported.graph
    return {
        "name": graph.name,
        "inputs": [{"name": v.name, **_type(v.type)} for v in graph.inputs],
        "outputs": [{"name": v.name, **_type(v.type)} for v in graph.outputs],
        "lengths": lengths(graph),
        "layers": _layers(imported).records(),
        "macs": graph.macs,
        "parameters": _parameters(imported),
        "notes": list(imported.notes),
    }


def show(console: Console, imported: Imported) -> None:
    """Print the tables of `smelt inspect`."""
    graph = imported.graph
    rows = [("input", v) for v in graph.inputs] + [("output", v) for v in graph.outputs]
    TextTable(
        ("", "name", "type", "quantization"),
        tuple((kind, v.name, str(v.type), _quantization(v.type)) for kind, v in rows),
    ).print(console)
    console.print()
    _layers(imported).print(console)
    console.print(
        f"\n{counted(len(graph.nodes), 'layer')}, {graph.macs:,} multiply-accumulates, "
        f"{_parameters(imported):,} parameters",
        highlight=False,
    )
    for length in lengths(graph):
        say(console, length_range(length))
    for note in imported.notes:
        say(console, f"note: {note}")


def _layers(imported: Imported) -> TextTable:
    rows = tuple(
        (
            index,
            node.op.name,
            f"{node.origin.kind} #{node.origin.index}",
            ", ".join(str(v.type) for v in node.outputs),
            node.macs,
            sum(v.type.size for v in node.inputs if v is not None and v.is_constant),
        )
        for index, node in enumerate(imported.graph.nodes)
    )
    return TextTable(("layer", "operator", "origin", "output", "MACs", "parameters"), rows)


def _parameters(imported: Imported) -> int:
    constants = {v for v in imported.graph.values() if v.is_constant}
    return sum(v.type.size for v in constants)


def _type(type_: TensorType) -> dict[str, Any]:
    quant = type_.quant
    return {
        "shape": list(type_.shape),
        "dtype": type_.dtype.value,
        "scale": None if quant is None else list(quant.scale),
        "zero_point": None if quant is None else list(quant.zero_point),
    }


def _quantization(type_: TensorType) -> str:
    if type_.quant is None:
        return "-"
    scale, zero_point = type_.quant.scalar
    return f"{scale:.6g} * (stored {'-' if zero_point >= 0 else '+'} {abs(zero_point)})"
