"""Costs and gains of layers that are not quantized to int8."""

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
from smelt.quant.result import NonInt8Layer, Quantized
from smelt.targets import HOST


@dataclass(frozen=True)
class NonInt8Cost:
    """Cost and gain of the layers of one other type, compared with the same layers in int8.

    Attributes:
        dtype: `int16` or `float32`.
        layers: number of layers.
        macs: their share of the network's multiply-accumulates, 0 to 1.
        arena_bytes: size of the arena, with portable C for the host.
        arena_bytes_int8: size of the arena with these layers in int8; None if int8 is impossible.
        gain_db: rise of the outputs' signal-to-quantization-noise ratio in dB; None if int8 is
            impossible.
    """

    dtype: str
    layers: int
    macs: float
    arena_bytes: int
    arena_bytes_int8: int | None = None
    gain_db: float | None = None

    def __str__(self) -> str:
        layers, have, bring = (
            ("layer", "has", "brings") if self.layers == 1 else ("layers", "have", "bring")
        )
        what = (
            f"{self.layers} {layers} of {self.dtype} with {self.macs:.0%} of the "
            "multiply-accumulates"
        )
        if self.arena_bytes_int8 is None or self.gain_db is None:
            return (
                f"{what} {have} no int8 kernel; the arena takes {self.arena_bytes} bytes (portable "
                "C)"
            )
        more = self.arena_bytes - self.arena_bytes_int8
        return (
            f"{what} {bring} {self.gain_db:+.1f} dB for {more:+} bytes of arena "
            f"({self.arena_bytes} instead of {self.arena_bytes_int8}, portable C)"
        )


def non_int8_costs(quantized: Quantized) -> tuple[NonInt8Cost, ...]:
    """Return the costs of layers without an int8 form, and of layers chosen not to be int8."""
    forced = [layer for layer in quantized.exceptions if not layer.chosen]
    chosen = [layer for layer in quantized.exceptions if layer.chosen]
    costs: list[NonInt8Cost] = []
    if forced:
        # Compare with the network in which every layer that can be int8 is int8.
        graph = quantized.plain or quantized.graph
        macs = _macs(graph, forced)
        costs.append(NonInt8Cost(forced[0].dtype, len(forced), macs, _arena_bytes(graph)))
    if chosen and quantized.plain is not None:
        before, after = quantized.steps[-2:]
        costs.append(
            NonInt8Cost(
                chosen[0].dtype,
                len(chosen),
                _macs(quantized.graph, chosen),
                _arena_bytes(quantized.graph),
                _arena_bytes(quantized.plain),
                after.sqnr - before.sqnr,
            )
        )
    return tuple(costs)


def _macs(graph: Graph, layers: Sequence[NonInt8Layer]) -> float:
    """Return the layers' share of a network's multiply-accumulates, 0 to 1."""
    origins = {layer.origin for layer in layers}
    dtype = layers[0].dtype
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
