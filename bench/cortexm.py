"""Instructions, arena and flash of an inference beside TFLite Micro with CMSIS-NN.

The peer's figures (`tflm_cmsis_nn.json`) were counted with the same compiler and simulator; its
`live_bytes_bound` is the smallest arena of whole tensors that any order of memory can reach.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from smelt.pipeline import Options, compile_model
from smelt.run import run
from smelt.samples import random_samples
from smelt.show import Table
from smelt.targets import Optimize
from tests.shared import SHARED

PEER = json.loads((Path(__file__).parent / "tflm_cmsis_nn.json").read_text())
LIVE_BYTES_BOUND = {"kws": 16_000, "vww": 55_296, "ic": 49_152, "ad": 768, "sww": 6_656}
CORES = {
    "m0": ("mps2-an385", "cortex-m0"),
    "m3": ("mps2-an385", "cortex-m3"),
    "m4": ("mps2-an386", "cortex-m4"),
    "m55": ("mps3-an547", "cortex-m55"),
}


def main(
    networks: Annotated[list[str] | None, typer.Argument(help="kws, vww, …; all.")] = None,
    core: Annotated[list[str] | None, typer.Option("--core", help="m0, m3, m4, m55; all.")] = None,
    optimize: Annotated[str, typer.Option("--optimize", help="speed, size or ram.")] = "speed",
) -> None:
    """Instructions, arena and flash on each core, under QEMU, beside TFLM with CMSIS-NN."""
    console = Console(width=160)
    rows: list[tuple[object, ...]] = []
    for network in networks or LIVE_BYTES_BOUND:
        model = SHARED / f"models/mlperf_tiny/{network}_int8.tflite"
        if not model.exists():
            console.print(f"{network}: not in the shared folder (SMELT_SHARED), left out")
            continue
        for name in core or CORES:
            with console.status(f"{network} on {name}"):
                rows.append(_measure(model, network, name, _mode(optimize)))
    columns = (
        "network", "core", "instructions", "TFLM", "ratio", "a MAC",
        "arena", "bound", "TFLM arena", "flash", "TFLM flash", "ratio ", "stack",
    )  # fmt: skip
    title = "One inference, --optimize " + optimize + "; flash is code and weights"
    Table(columns, tuple(rows), title).print(console)


def _measure(model: Path, network: str, core: str, optimize: Optimize) -> tuple[object, ...]:
    board, target = CORES[core]
    artefact = compile_model(model, Options(target, board, optimize, network))
    report: dict[str, Any] = run(artefact, random_samples(artefact.graph, 1, 0)).report
    peer = PEER["models"][network][core]
    instructions = report["inference"]["instructions"]
    flash = report["flash"]["network"]
    peer_flash = peer["code_bytes"] + peer["model_bytes"]
    return (
        network,
        core,
        instructions,
        peer["instructions"],
        f"{instructions / peer['instructions']:.2f}",
        f"{instructions / artefact.graph.macs:.2f}",
        report["arena"]["bytes"],
        LIVE_BYTES_BOUND[network],
        peer["arena_bytes"],
        flash,
        peer_flash,
        f"{flash / peer_flash:.2f}",
        report["inference"]["stack"],
    )


def _mode(name: str) -> Optimize:
    match name:
        case "speed" | "size" | "ram":
            return name
        case _:
            raise typer.BadParameter(f"'{name}' is none of speed, size, ram")
