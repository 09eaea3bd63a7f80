"""What layers of 16 bits cost, and what they brought."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen import arena
from smelt.codegen.kernels.base import Request, backend
from smelt.codegen.partition import Partitioner
from smelt.codegen.passes import run_passes
from smelt.codegen.schedule import schedule
from smelt.ir import DType, Graph
from smelt.quant.quantized import Quantized
from smelt.targets import HOST


@dataclass(frozen=True)
class WideCost:
    """Layers of 16 bits beside the network without them.

    Attributes:
        layers: how many there are.
        macs: the part of the multiply-accumulates that they compute.
        arena_bytes: what the arena takes, with portable C for the host.
        arena_bytes_int8: what it takes without layers of 16 bits.
        brought_db: how much the outputs' signal-to-quantization-noise ratio rose.
    """

    layers: int
    macs: float
    arena_bytes: int
    arena_bytes_int8: int
    brought_db: float

    def __str__(self) -> str:
        more = self.arena_bytes - self.arena_bytes_int8
        return (
            f"{self.layers} layers of int16 with {self.macs:.0%} of the multiply-accumulates bring "
            f"{self.brought_db:+.1f} dB for {more:+} bytes of arena "
            f"({self.arena_bytes} in place of {self.arena_bytes_int8}, portable C)"
        )


def wide_cost(quantized: Quantized) -> WideCost | None:
    """The cost of a network's layers of 16 bits; None where it has none."""
    if quantized.plain is None:
        return None
    graph = quantized.graph
    wide = [node for node in graph.nodes if node.outputs[0].type.dtype is DType.INT16]
    before, after = quantized.steps[-2:]
    return WideCost(
        sum(island.dtype == "int16" for island in quantized.exceptions),
        sum(node.op.macs(node) for node in wide) / max(graph.macs, 1),
        _arena_bytes(graph),
        _arena_bytes(quantized.plain),
        after.sqnr - before.sqnr,
    )


def _arena_bytes(graph: Graph) -> int:
    partitioner = Partitioner([(backend("c"),)], Request(HOST.target))
    problem = schedule(run_passes(graph), HOST, partitioner, prefix="network").problem
    return arena.plan(problem).bytes
