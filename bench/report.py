"""Write docs/benchmarks.md, its charts and the figures of README.md from `bench/results/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.console import Console

from bench import random_weights
from bench.chart import THEMES, chart
from bench.cortexm import LIVE_BYTES_BOUND, IntegerInference
from bench.pages import render
from bench.shared_folder import ROOT
from bench.tables import CORES, PageTable, arena, every, flash, inferences, speed, summary

BEGIN, END = "<!-- figures: begin, by `python -m bench report` -->\n", "<!-- figures: end -->\n"


@dataclass(frozen=True)
class PageParameters:
    """Variables of the template of docs/benchmarks.md.

    Attributes:
        tables: Tables by name, as `bench.tables.every` returns them.
        cores: Name and table of each core.
        summary: The table of ratios, in Markdown.
        bounds: Bytes that the arena needs at least if no layer writes over its input, by network.
        cmsis_nn_check: For each core, the ratio of instructions of Smelt's code with CMSIS-NN's
            kernels to TFLite Micro's, for the network with random weights.
    """

    tables: Mapping[str, PageTable]
    cores: tuple[tuple[str, PageTable], ...]
    summary: str
    bounds: str
    cmsis_nn_check: Mapping[str, str]


@dataclass(frozen=True)
class ReadmeParameters:
    """Variables of the figures of README.md: ratios to TFLite Micro on a Cortex-M4.

    Attributes:
        instructions, flash, arena: The smallest and the largest ratio of the networks.
        vww: Ratio of instructions of network `vww`.
        random: Ratio of instructions of its variant with random weights.
    """

    instructions: str
    flash: str
    arena: str
    vww: str
    random: str


def main() -> None:
    """Write docs/benchmarks.md, its charts and the figures of README.md from bench/results."""
    console = Console()
    for path, text in documents().items():
        (ROOT / path).write_text(text, encoding="utf-8")
        console.print(f"wrote {path}")


def documents() -> dict[str, str]:
    """Return the text of every generated document, by its path in the repository.

    Raises:
        ValueError: README.md lacks the comments before and after the figures.
    """
    return {
        "docs/benchmarks.md": _page(),
        **{f"docs/images/benchmark-{theme.name}.svg": chart(theme) for theme in THEMES},
        "README.md": _readme((ROOT / "README.md").read_text(encoding="utf-8")),
    }


def _page() -> str:
    tables = every()
    kernels = ("cmsis_nn,c",)
    checks = {core: inferences(core, kernels=kernels).rows for core in ("m4", "m55")}
    parameters = PageParameters(
        tables=tables,
        cores=tuple((f"Cortex-{core.upper()}", tables[core]) for core in CORES),
        summary=summary(),
        bounds=", ".join(f"{size:,} ({name})" for name, size in LIVE_BYTES_BOUND.items()),
        cmsis_nn_check={
            core: f"{speed(row):.2f}"
            for core, rows in checks.items()
            for row in rows
            if row.network == random_weights.NAME
        },
    )
    return render("benchmarks.md.j2", parameters).rstrip() + "\n"


def _readme(text: str) -> str:
    """Return README.md with new figures between its two comments."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md has no {BEGIN.strip()} … {END.strip()}")
    rows = {row.network: row for row in inferences("m4").rows}
    own = [row for name, row in rows.items() if name != random_weights.NAME]
    parameters = ReadmeParameters(
        instructions=_range(own, speed),
        flash=_range(own, flash),
        arena=_range(own, arena),
        vww=f"{speed(rows['vww']):.2f}",
        random=f"{speed(rows[random_weights.NAME]):.2f}",
    )
    return before + begin + render("readme.md.j2", parameters) + end + after


def _range(rows: list[IntegerInference], figure: Callable[[IntegerInference], float]) -> str:
    found = sorted(map(figure, rows))
    return f"{found[0]:.2f}–{found[-1]:.2f}"
