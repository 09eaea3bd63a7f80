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
from smelt.api.report import lengths, measured_elsewhere
from smelt.boards import Board
from smelt.cli.output import say
from smelt.codegen.lower.offer import Refusal, Request, backend
from smelt.frontend import Imported
from smelt.ir import Array, DType, Node, TensorType
from smelt.ops import all_cases
from smelt.ops.case import build as build_case
from smelt.terminal import one_line
from smelt.wording import counted


@dataclass(frozen=True)
class TextTable:
    """Rows under headings; numbers stand to the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    title: str = ""

    def records(self) -> list[dict[str, object]]:
        """One dictionary a row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def markdown(self) -> str:
        """The table in Markdown, ending in a line break."""
        lines = [self.columns, tuple("---" for _ in self.columns), *self.rows]
        return "".join(f"| {' | '.join(_cell(x) for x in line)} |\n" for line in lines)

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
            table.add_row(*(one_line(_cell(x)) for x in row))
        if not console.is_terminal:  # There is no edge that lines should be folded at.
            console.width = _PAGE_WIDTH
        console.print(table, highlight=False, markup=False)


_PAGE_WIDTH = 200


def operators() -> TextTable:
    """The operators that each format's importer knows."""
    rows = [("TFLite", name, kinds) for name, kinds in sorted(_tflite_operators().items())]
    rows += [("ONNX", name, kinds) for name, kinds in sorted(_onnx_operators().items())]
    return TextTable(("format", "operator", "element types"), tuple(rows))


# The packages tflite and onnx take long to import, which other commands should not wait for.


def _tflite_operators() -> dict[str, str]:
    from smelt.frontend.tflite import CONVERTERS, SPECIAL_CASES

    return SPECIAL_CASES | {
        name: " ".join(sorted(d.numpy.name for d in converter.dtypes))
        for name, converter in CONVERTERS.items()
    }


def _onnx_operators() -> dict[str, str]:
    from smelt.frontend.onnx import expansion
    from smelt.frontend.onnx.converters import CONVERTERS as ONNX_CONVERTERS

    defined = dict.fromkeys(expansion.defined(), "those of the operators that define it")
    computed = dict.fromkeys(expansion.constant_only(), "any, computed where all is constant")
    return computed | defined | dict.fromkeys(ONNX_CONVERTERS, "those of its kernels")


def kernels() -> TextTable:
    """Which backend serves which operator of the IR, found by asking its kernels about cases.

    Of the fallback, why not; of the others, on which targets.
    """
    targets = targets_room.available()
    fallback = targets[0].backends[-1]
    others = tuple(
        dict.fromkeys(b for t in targets for b in (*t.backends, *t.libraries) if b != fallback)
    )
    rows = tuple(
        (
            op,
            " ".join(dtypes),
            _served(fallback, cases),
            *(_targets_served(name, cases) for name in others),
        )
        for op, (dtypes, cases) in _cases_by_operator().items()
    )
    return TextTable(("operator", "element types", fallback, *others), rows)


def _targets_served(name: str, nodes: Sequence[Node]) -> str:
    """The targets on which a backend serves all cases of an operator, or some."""
    found: dict[str, list[str]] = {"": [], "partly ": []}
    for target in targets_room.available():
        if name not in (*target.backends, *target.libraries):
            continue
        calls = [backend(name).find(node, Request(target)) for node in nodes]
        served = sum(not isinstance(found, Refusal) for found in calls)
        if served:
            word = "" if served == len(calls) else "partly "
            found[word].append(target.name.removeprefix("cortex-"))
    return "; ".join(word + ", ".join(names) for word, names in found.items() if names) or "no"


def support_page(imported: TextTable, served: TextTable) -> str:
    """`docs/operators.md`."""
    return (
        "# Supported operators\n\n"
        "Generated by `smelt ops --markdown`; do not edit.\n\n"
        "## What is imported\n\n"
        "Operators of ONNX are those of operator sets 7 to 28. How far each goes is in\n"
        "[conformance.md](conformance.md).\n\n"
        f"{imported.markdown()}\n"
        "## What serves the operators of the IR\n\n"
        "Found by asking each backend's kernels about the operator's test cases: `c` serves every\n"
        "target; of the others, the targets on which they serve all of the cases, or some.\n"
        "`smelt partition` tells for a network, and why not.\n\n"
        f"{served.markdown()}"
    )


def boards() -> TextTable:
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
                ", ".join(way.runner for way in board.flash) or "-",
                "-" if board.qemu is None else board.qemu.machine,
                board.verified,
            )
        )
    for name in boards_room.computers():
        computer = boards_room.computer_called(name)
        if computer is not None:
            what = f"a computer: {computer.gpu}"
            rows.append((name, computer.target, "-", what, "-", "-", computer.verified))
    columns = ("board", "target", "clock", "memories", "flashed by", "QEMU", "verified on")
    return TextTable(columns, tuple(rows))


def board(console: Console, found: Board) -> None:
    """What a board file says, and what it does without."""
    rows: list[tuple[object, ...]] = [
        ("board", f"{found.name}: {found.description}"),
        ("target", f"{found.target} at {found.clock_hz / 1e6:g} MHz"),
        *(
            (m.name, f"{m.origin:#010x}, {_size(m.size)}: {', '.join(m.holds) or 'nothing'}")
            for m in found.memory
        ),
        ("stack", f"{found.stack_bytes:,} bytes"),
        ("UART", f"{found.uart.driver} at {found.uart.base:#010x}, {found.uart.baud:,} baud"),
        ("timer", found.timer.driver),
        ("setup", f"{len(found.setup)} registers"),
        ("flashed by", ", ".join(way.runner for way in found.flash) or "--gdb HOST:PORT only"),
        ("port", ", ".join(found.usb) or "not found by itself: name it with --port or --on"),
        ("QEMU", "nothing stands in for it" if found.qemu is None else found.qemu.machine),
        ("verified on", found.verified),
    ]
    TextTable(("", ""), tuple(rows)).print(console)


def targets() -> TextTable:
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
    return TextTable(("target", "description", "backends", "compiler flags", "boards"), rows)


def describe(imported: Imported) -> dict[str, Any]:
    """`smelt inspect --json`."""
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


def inspect(console: Console, imported: Imported) -> None:
    """`smelt inspect`."""
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
        say(console, _range(length))
    for note in imported.notes:
        say(console, f"note: {note}")


def _range(length: Mapping[str, Any]) -> str:
    """One line about a dimension whose size is known at run time."""
    return (
        f"dimension {length['name']}: from {length['minimum']} to {length['maximum']}, known at "
        "run time; types have the largest"
    )


def build(console: Console, directory: Path, report: Mapping[str, Any]) -> None:
    """What `smelt build` says when it is done."""
    partition(console, report)
    console.print()
    measured(console, report)
    say(console, f"wrote {directory}")


def partition(console: Console, report: Mapping[str, Any], *, candidates: bool = False) -> None:
    """Which backend serves each layer; with `candidates` also the kernels that were not taken.

    Sentences that say why a preferred backend does not serve a layer stand below the table. Beside
    a GPU, what each layer takes there and on the CPU is shown in place of cycles; what is stored as
    float16 says so.
    """
    notes: dict[str, int] = {}
    rows: list[tuple[object, ...]] = []
    beside = any(layer["beside"] for layer in report["layers"])
    for layer in report["layers"]:
        note = notes.setdefault(layer["why"], len(notes) + 1) if layer["why"] else "-"
        estimate = "-" if layer["estimate"] is None else layer["estimate"]
        costs = _microseconds(layer["beside"]) if beside else (estimate,)
        form = layer["form"] or layer["summary"]
        form = f"{form}: {layer['block']}" if layer["block"] else form
        form += ", f16" if layer["output"].startswith(f"{DType.FLOAT16.value}[") else ""
        rows.append((layer["step"], layer["name"], layer["backend"], form, *costs, note))
        if candidates:
            rows += [
                ("", "", f"not {c['backend']}", *_lost(c, beside), "") for c in layer["candidates"]
            ]
    costs = ("us on GPU", "us on CPU") if beside else ("cycles (estimate)",)
    columns = ("", "layer", "backend", "form of kernel", *costs, "why")
    TextTable(columns, tuple(rows)).print(console)
    for sentence, number in notes.items():
        say(console, f"{number}: {sentence}")


def _microseconds(beside: Mapping[str, Any]) -> tuple[str, str]:
    """What a layer takes on the GPU and on the CPU, an estimate with a tilde."""
    about = "" if beside["measured"] else "~"
    here = "-" if beside["cpu"] is None else f"{about}{beside['cpu']:.1f}"
    return f"{about}{beside['gpu']:.1f}", here


def _lost(candidate: Mapping[str, Any], beside: bool) -> tuple[object, ...]:
    """A kernel that was not taken; beside a GPU its costs stand in the layer's own row."""
    form, estimate = candidate["form"] or "general", candidate["estimate"]
    return (form, "", "") if beside else (form, "-" if estimate is None else estimate)


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
    removed = report["removed"]
    if removed["channels"]:
        count = sum(r["constant"] + r["unread"] for r in removed["channels"])
        layers = counted(len(removed["channels"]), "layer")
        why = f"{counted(count, 'channel')} of {layers}, constant or never read"
        rows.append(("removed", f"{removed['macs']:,} MACs: {why}"))
    if report["state"]["bytes"]:
        rows.append(("state", f"{report['state']['bytes']:,} bytes"))
    elsewhere = measured_elsewhere(report)
    if elsewhere and flash["network"] is not None:
        rows.append(("measured on", f"{elsewhere}, not on {report['board']}"))
    if flash["network"] is not None:
        rows.append(("flash", f"{flash['network']:,} bytes network, {flash['elf']:,} firmware"))
    if report["ram"]["variables"] is not None:
        rows.append(("RAM", f"{report['ram']['variables']:,} bytes of variables and arena"))
    if inference["instructions"] is not None:
        rows.append(("inference", f"{inference['instructions']:,} instructions"))
    if inference["gpu"] is not None:
        rows.append(("GPU", inference["gpu"] or "none: the CPU computed everything"))
    if inference["latency"] is not None:
        rows.append(("latency", f"{1e3 * inference['latency']['seconds']['mean']:.4g} ms"))
    if inference["stack"] is not None:
        rows.append(("stack", f"{inference['stack']:,} bytes"))
    TextTable(("", ""), tuple(rows)).print(console)
    for length in report["network"]["lengths"]:
        say(console, _range(length))


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
    TextTable(("sample", "output", "values"), tuple(rows)).print(console)


_SAMPLES_SHOWN = 8


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
    if all(node.op.is_view for node in nodes):
        return "yes (costs nothing)"
    found = [backend(name).find(node, Request(targets_room.get("host"))) for node in nodes]
    refusals = [answer.reason for answer in found if isinstance(answer, Refusal)]
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
