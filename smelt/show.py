"""What the command line prints: tables for people, records for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

from smelt import boards as boards_room
from smelt import targets as targets_room
from smelt.boards import Board
from smelt.codegen.kernels.base import backend
from smelt.frontend import Imported
from smelt.frontend.tflite import CONVERTERS
from smelt.ir import Array, Node, Op, TensorType
from smelt.ops import all_cases
from smelt.ops.case import build as build_case
from smelt.ops.reshape import Reshape


@dataclass(frozen=True)
class Table:
    """Rows under headings; numbers stand to the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    title: str = ""

    def records(self) -> list[dict[str, object]]:
        """One dictionary a row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def print(self, console: Console) -> None:
        """Print it as a table."""
        table = RichTable(
            title=self.title or None,
            title_justify="left",
            show_header=any(self.columns),
            box=None,
            pad_edge=False,
        )
        for index, column in enumerate(self.columns):
            numeric = all(isinstance(row[index], int) for row in self.rows)
            table.add_column(column, justify="right" if numeric else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*(_cell(x) for x in row))
        console.print(table, highlight=False, markup=False)


def operators() -> Table:
    """The operators that each format's importer knows."""
    rows = tuple(
        ("TFLite", name, " ".join(sorted(d.numpy.name for d in converter.dtypes)))
        for name, converter in sorted(CONVERTERS.items())
    )
    return Table(("format", "operator", "element types"), rows)


def kernels() -> Table:
    """Which backend serves which operator of the IR, found by asking its kernels about cases."""
    names = tuple(dict.fromkeys(b for t in targets_room.available() for b in t.backends))
    rows = tuple(
        (op, " ".join(dtypes), *(_served(name, cases) for name in names))
        for op, (dtypes, cases) in _cases_by_operator().items()
    )
    return Table(("operator", "element types", *names), rows)


def boards() -> Table:
    """Every board that comes with Smelt."""
    rows: list[tuple[object, ...]] = []
    for name in boards_room.available():
        board = boards_room.load(name)
        memories = ", ".join(f"{m.name} {_size(m.size)}" for m in board.memory)
        rows.append(
            (
                name,
                board.target,
                f"{board.clock_hz / 1e6:g} MHz",
                memories,
                board.flash or "-",
                "-" if board.qemu is None else board.qemu.machine,
                board.verified,
            )
        )
    columns = ("board", "target", "clock", "memories", "flashed by", "QEMU", "verified on")
    return Table(columns, tuple(rows))


def targets() -> Table:
    """Every target."""
    rows = tuple(
        (
            t.name,
            t.description,
            ", ".join(t.backends),
            " ".join(t.arch_flags) or "-",
            ", ".join(_boards_of(t.name)) or "-",
        )
        for t in targets_room.available()
    )
    return Table(("target", "description", "backends", "compiler flags", "boards"), rows)


def describe(imported: Imported) -> dict[str, Any]:
    """`smelt inspect --json`."""
    graph = imported.graph
    return {
        "name": graph.name,
        "inputs": [{"name": v.name, **_type(v.type)} for v in graph.inputs],
        "outputs": [{"name": v.name, **_type(v.type)} for v in graph.outputs],
        "layers": _layers(imported).records(),
        "macs": graph.macs,
        "parameters": _parameters(imported),
        "notes": list(imported.notes),
    }


def inspect(console: Console, imported: Imported) -> None:
    """`smelt inspect`."""
    graph = imported.graph
    rows = [("input", v) for v in graph.inputs] + [("output", v) for v in graph.outputs]
    Table(
        ("", "name", "type", "quantization"),
        tuple((kind, v.name, str(v.type), _quantization(v.type)) for kind, v in rows),
    ).print(console)
    console.print()
    _layers(imported).print(console)
    console.print(
        f"\n{len(graph.nodes)} layers, {graph.macs:,} multiply-accumulates, "
        f"{_parameters(imported):,} parameters",
        highlight=False,
    )
    for note in imported.notes:
        console.print(f"note: {note}", highlight=False, markup=False)


def build(console: Console, directory: Path, report: Mapping[str, Any]) -> None:
    """What `smelt build` says when it is done."""
    measured(console, report)
    console.print(f"wrote {directory}", highlight=False, markup=False)


def measured(console: Console, report: Mapping[str, Any]) -> None:
    """The figures of a report: memory, flash, instructions."""
    arena, flash, inference = report["arena"], report["flash"], report["inference"]
    proof = "optimal" if arena["optimal"] else f"lower bound {arena['lower_bound']:,}"
    rows: list[tuple[object, ...]] = [
        ("network", f"{report['network']['name']}, {report['network']['macs']:,} MACs"),
        ("target", f"{report['target']}" + (f" on {report['board']}" if report["board"] else "")),
        ("arena", f"{arena['bytes']:,} bytes ({proof})"),
        ("weights", f"{report['weights']['bytes']:,} bytes"),
    ]
    if report["state"]["bytes"]:
        rows.append(("state", f"{report['state']['bytes']:,} bytes"))
    if flash["network"] is not None:
        rows.append(("flash", f"{flash['network']:,} bytes network, {flash['elf']:,} firmware"))
    if inference["instructions"] is not None:
        rows.append(("inference", f"{inference['instructions']:,} instructions"))
    if inference["stack"] is not None:
        rows.append(("stack", f"{inference['stack']:,} bytes"))
    Table(("", ""), tuple(rows)).print(console)


def run(
    console: Console, outputs: Mapping[str, Array], report: Mapping[str, Any], *, batched: bool
) -> None:
    """What `smelt run` says: the figures, and the outputs of the first samples."""
    measured(console, report)
    rows: list[tuple[object, ...]] = []
    for name, array in outputs.items():
        for index, sample in enumerate(array if batched else array[None]):
            if index < _SAMPLES_SHOWN:
                text = np.array2string(sample.reshape(-1), threshold=16, edgeitems=6, precision=4)
                rows.append((index, name, " ".join(text.split())))
    Table(("sample", "output", "values"), tuple(rows)).print(console)


_SAMPLES_SHOWN = 8


def _layers(imported: Imported) -> Table:
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
    return Table(("layer", "operator", "origin", "output", "MACs", "parameters"), rows)


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


def _cases_by_operator() -> dict[str, tuple[list[str], list[Node]]]:
    table: dict[str, tuple[list[str], list[Node]]] = {}
    for case in all_cases():
        for dtype in case.dtypes:
            dtypes, nodes = table.setdefault(case.op.name, ([], []))
            if dtype.numpy.name not in dtypes:
                dtypes.append(dtype.numpy.name)
            nodes += build_case(case, dtype).nodes
    return dict(sorted(table.items()))


def _served(name: str, nodes: Sequence[Node]) -> str:
    """`yes`, or the distinct reasons why not."""
    if all(isinstance(node.op, Reshape) for node in nodes):
        return "yes (costs nothing)"
    found = [backend(name).find(node, targets_room.get("host")) for node in nodes]
    refusals = [reason for reason in found if isinstance(reason, str)]
    if not refusals:
        return "yes"
    verdict = "no" if len(refusals) == len(found) else "partly"
    return f"{verdict}: {' '.join(dict.fromkeys(refusals))}"


def _boards_of(target: str) -> list[str]:
    loaded: list[Board] = [boards_room.load(name) for name in boards_room.available()]
    return [b.name for b in loaded if b.target == target]


def _size(size: int) -> str:
    return f"{size // 1048576}M" if size % 1048576 == 0 else f"{size // 1024}K"


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
