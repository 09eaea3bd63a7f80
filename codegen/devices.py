"""Which layers a GPU computes, and which stay on the CPU beside it.

Layers run one after the other, each on one of the two. What a layer costs on either is estimated,
or was measured by `smelt tune`; every run of layers on the GPU costs a submission and a wait
besides. In the given order, the cheapest assignment is a shortest path through two states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from smelt.codegen.dispatches import MAX_RANGE
from smelt.codegen.kernels.base import ShaderCall, layer_key
from smelt.codegen.partition import Partitioner, nodes_inside
from smelt.ir import DType, Graph, Node, Value
from smelt.ops.reshape import Reshape
from smelt.targets.gpus import Gpu


@dataclass(frozen=True)
class Costs:
    """Nanoseconds that a layer takes on the GPU and on the CPU.

    `measured` holds pairs of both by `layer_key`; others are estimated by the profile.
    """

    gpu: Gpu
    measured: Mapping[str, tuple[float, float]] = field(
        default_factory=dict[str, tuple[float, float]]
    )

    def of(self, node: Node) -> tuple[float, float]:
        """A layer's time on the GPU and on the CPU."""
        known = self.measured.get(layer_key(node))
        if known is not None:
            return known
        gpu = self.gpu
        values = [v for v in (*node.inputs, *node.outputs) if v is not None]
        moved = sum(v.type.bytes for v in values)
        narrow = int(node.outputs[0].type.dtype in (DType.INT8, DType.UINT8))
        there = max(node.macs / gpu.products_per_ns[narrow], moved / gpu.bytes_per_ns)
        products = node.macs / gpu.cpu_products_per_ns[narrow]
        here = products if node.macs else moved / gpu.cpu_bytes_per_ns
        return gpu.dispatch_ns + there, here

    def knows(self, node: Node) -> bool:
        """Whether the layer was measured."""
        return layer_key(node) in self.measured


def stays_on_cpu(
    graph: Graph, partitioner: Partitioner, costs: Costs | None
) -> Callable[[Node], str]:
    """Why a node must stay on the CPU; an empty text where it need not.

    Only the outermost graph is dispatched: branches and loops are the CPU's, and so is a network
    whose sizes are known at run time only, or whose arena no device need be able to bind. A node
    that is rebuilt keeps its place by its result.

    Args:
        graph: about to be scheduled.
        partitioner: tells which nodes the GPU serves, and which are placed.
        costs: what layers take; None where all that the GPU serves goes there.
    """
    if graph.lengths:
        return lambda _: "Sizes that are known at run time only are the CPU's."
    largest = max(graph.values(), key=_arena_bytes)
    if _arena_bytes(largest) > MAX_RANGE:
        why = (
            f"'{largest.name}' has {largest.type.bytes:,} bytes of the arena, which a GPU would "
            f"share; {MAX_RANGE:,} is what every device can bind."
        )
        return lambda _: why
    inner = frozenset(nodes_inside(graph))
    losers = {} if costs is None else _losers(graph, partitioner, costs)

    def reason(node: Node) -> str:
        if node in inner:
            return "Branches and loops are the CPU's."
        return losers.get(node.outputs[0], "")

    return reason


def _arena_bytes(value: Value) -> int:
    return 0 if value.is_constant else value.type.bytes


@dataclass(frozen=True)
class Layer:
    """What a layer takes on the GPU and on the CPU, in nanoseconds, and whether it can be there."""

    times: tuple[float, float]
    can: tuple[bool, bool]


def _losers(graph: Graph, partitioner: Partitioner, costs: Costs) -> dict[Value, str]:
    """Layers that the GPU serves but that had better stay on the CPU, by their result, and why."""
    nodes = [n for n in graph.nodes if not isinstance(n.op, Reshape) and not n.op.subgraphs]
    layers = [_layer(node, partitioner, costs) for node in nodes]
    chosen = assignment(layers, costs.gpu.submit_ns)
    return {
        node.outputs[0]: _why(layer, costs.gpu)
        for node, layer, on_gpu in zip(nodes, layers, chosen, strict=True)
        if layer.can[0] and not on_gpu
    }


def _layer(node: Node, partitioner: Partitioner, costs: Costs) -> Layer:
    served = isinstance(partitioner.choose(node).taken.call, ShaderCall)
    return Layer(costs.of(node), (served, not (served and partitioner.is_placed(node))))


def assignment(layers: Sequence[Layer], submit_ns: float) -> list[bool]:
    """Whether each layer goes to the GPU in the cheapest assignment.

    A submission is paid where a run of layers on the GPU begins. Where both cost the same, a layer
    stays where the one before it is.
    """
    best = (float("inf"), 0.0)
    came: list[tuple[bool, bool]] = []
    for layer in layers:
        stay, enter = best[0], best[1] + submit_ns
        leave, go_on = best[0], best[1]
        came.append((stay <= enter, leave < go_on))
        best = (
            min(stay, enter) + layer.times[0] if layer.can[0] else float("inf"),
            min(leave, go_on) + layer.times[1] if layer.can[1] else float("inf"),
        )
    on_gpu, found = best[0] < best[1], list[bool]()
    for from_gpu in reversed(came):
        found.append(on_gpu)
        on_gpu = from_gpu[0] if on_gpu else from_gpu[1]
    return found[::-1]


def _why(layer: Layer, gpu: Gpu) -> str:
    there, here = (time / 1e3 for time in layer.times)
    return (
        f"It would take {there:.1f} us on the GPU ({gpu.name}), here {here:.1f} us; a way to the "
        f"GPU and back takes {gpu.submit_ns / 1e3:.0f} us."
    )
