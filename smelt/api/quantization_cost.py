"""What layers that are not int8 cost, and what they brought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.codegen import arena
from smelt.codegen.lower.backend import backend
from smelt.codegen.lower.kernel import Request
from smelt.codegen.partition.partitioner import Partitioner
from smelt.codegen.passes import run_passes
from smelt.codegen.schedule.schedule import schedule
from smelt.ir import Graph
from smelt.quant.result import Island, Quantized
from smelt.targets import HOST


@dataclass(frozen=True)
class IslandCost:
    """Layers of one type, beside the network in which they are int8.

    Attributes:
        dtype: `int16` or `float32`.
        layers: how many there are.
        macs: the part of the multiply-accumulates that they compute.
        arena_bytes: what the arena takes, with portable C for the host.
        arena_bytes_int8: what it takes with these layers in int8; None where they have no such
            form.
        brought_db: how much the outputs' signal-to-quantization-noise ratio rose by them; None
            where nothing else was possible.
    """

    dtype: str
    layers: int
    macs: float
    arena_bytes: int
    arena_bytes_int8: int | None = None
    brought_db: float | None = None

    def __str__(self) -> str:
        layers, have, bring = (
            ("layer", "has", "brings") if self.layers == 1 else ("layers", "have", "bring")
        )
        what = (
            f"{self.layers} {layers} of {self.dtype} with {self.macs:.0%} of the "
            "multiply-accumulates"
        )
        if self.arena_bytes_int8 is None or self.brought_db is None:
            return (
                f"{what} {have} no int8 form; the arena takes {self.arena_bytes} bytes (portable C)"
            )
        more = self.arena_bytes - self.arena_bytes_int8
        return (
            f"{what} {bring} {self.brought_db:+.1f} dB for {more:+} bytes of arena "
            f"({self.arena_bytes} in place of {self.arena_bytes_int8}, portable C)"
        )


def island_costs(quantized: Quantized) -> tuple[IslandCost, ...]:
    """Of the layers that have no int8 form, and of those that are not int8 by choice."""
    forced = [island for island in quantized.exceptions if not island.chosen]
    chosen = [island for island in quantized.exceptions if island.chosen]
    costs: list[IslandCost] = []
    if forced:
        # Beside the network in which all that can be is int8.
        graph = quantized.plain or quantized.graph
        macs = _macs(graph, forced)
        costs.append(IslandCost(forced[0].dtype, len(forced), macs, _arena_bytes(graph)))
    if chosen and quantized.plain is not None:
        before, after = quantized.steps[-2:]
        costs.append(
            IslandCost(
                chosen[0].dtype,
                len(chosen),
                _macs(quantized.graph, chosen),
                _arena_bytes(quantized.graph),
                _arena_bytes(quantized.plain),
                after.sqnr - before.sqnr,
            )
        )
    return tuple(costs)


def _macs(graph: Graph, islands: Sequence[Island]) -> float:
    """The part of a network's multiply-accumulates that islands compute."""
    origins = {island.origin for island in islands}
    dtype = islands[0].dtype
    own = [
        node.op.macs(node)
        for node in graph.nodes
        if str(node.origin) in origins and node.outputs[0].type.dtype.numpy.name == dtype
    ]
    return sum(own) / max(graph.macs, 1)


def _arena_bytes(graph: Graph) -> int:
    partitioner = Partitioner([(backend("c"),)], Request(HOST.target))
    problem = schedule(run_passes(graph), HOST, partitioner, prefix="network").problem
    return arena.plan(problem).bytes
