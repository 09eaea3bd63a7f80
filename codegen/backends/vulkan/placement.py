"""Which layers a GPU computes, and which stay on the CPU beside it.

Layers run one after the other, each on one of the two. What a layer costs on either is estimated,
or was measured by `smelt tune`; every run of layers on the GPU costs a submission and a wait
besides, and so does every tensor that is float16 there and float32 elsewhere. In the given order,
the cheapest assignment is found (`assignment`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from smelt.codegen.backends.vulkan.assignment import PricedLayer, PricedTensor, assignment
from smelt.codegen.backends.vulkan.calls import ShaderCall
from smelt.codegen.backends.vulkan.dispatches import MAX_RANGE
from smelt.codegen.backends.vulkan.float16 import conversion, differing, stored_as_float16
from smelt.codegen.backends.vulkan.gpus import Gpu
from smelt.codegen.lower.device import DeviceShare, layer_key
from smelt.codegen.partition.partitioner import Partitioner, nodes_inside
from smelt.ir import DType, Graph, Node, Origin, Value
from smelt.ops.core.cast import Cast
from smelt.ops.tensor.reshape import Reshape


@dataclass(frozen=True)
class Costs:
    """Nanoseconds that a layer takes on the GPU and on the CPU.

    `measured` holds pairs of both by `layer_key`, or what it takes on the GPU alone; others are
    estimated by the profile.
    """

    gpu: Gpu
    measured: Mapping[str, tuple[float, float | None]] = field(
        default_factory=dict[str, tuple[float, float | None]]
    )

    def of(self, node: Node) -> tuple[float, float]:
        """A layer's time on the GPU, with its numbers as they are stored there, and on the CPU.

        What only converts to float16 and back is never the CPU's: infinite.
        """
        there, here = self.measured.get(layer_key(node), (None, None))
        if _is_conversion(node):
            return self._there(node) if there is None else there, inf
        if there is None or here is None:
            return self._there(node), self._here(node)
        return there, here

    def knows(self, node: Node) -> bool:
        """Whether the layer was measured."""
        known = self.measured.get(layer_key(node))
        return known is not None and (known[1] is not None or _is_conversion(node))

    def _there(self, node: Node) -> float:
        gpu, narrow = self.gpu, _is_byte(node)
        moved = sum(v.type.bytes for v in _values(node))
        products = node.macs / gpu.products_per_ns[narrow]
        return gpu.dispatch_ns + max(products, moved / gpu.bytes_per_ns)

    def _here(self, node: Node) -> float:
        """In float32 whatever the GPU stores."""
        if node.macs:
            return node.macs / self.gpu.cpu_products_per_ns[_is_byte(node)]
        halves = sum(v.type.bytes for v in _values(node) if v.type.dtype is DType.FLOAT16)
        return (sum(v.type.bytes for v in _values(node)) + halves) / self.gpu.cpu_bytes_per_ns


def device_share(
    graph: Graph, partitioner: Partitioner, costs: Costs | None, *, float16: bool = False
) -> DeviceShare:
    """Which nodes must stay on the CPU, and why; why slower ones go to the GPU.

    Only the outermost graph is dispatched: branches and loops are the CPU's, and so is a network
    whose sizes are known at run time only, or whose arena no device need be able to bind. A node
    that is rebuilt keeps its place by its result; what is stored as float16 is known by its name.

    Args:
        graph: about to be scheduled.
        partitioner: tells which nodes the GPU serves, and which are placed.
        costs: what layers take; None where all that the GPU serves goes there.
        float16: whether the GPU will store numbers as float16.
    """
    if graph.lengths:
        return DeviceShare(lambda _: "Sizes that are known at run time only are the CPU's.")
    largest = max(graph.values(), key=_arena_bytes)
    if _arena_bytes(largest) > MAX_RANGE:
        why = (
            f"'{largest.name}' has {largest.type.bytes:,} bytes of the arena, which a GPU would "
            f"share; {MAX_RANGE:,} is what every device can bind."
        )
        return DeviceShare(lambda _: why)
    inner = frozenset(nodes_inside(graph))
    found = _Reasons({}, {})
    if costs is not None:
        found = _reasons(graph, partitioner, costs, float16=float16)

    def stays(node: Node) -> str:
        if node in inner:
            return "Branches and loops are the CPU's."
        return found.stays.get(node.outputs[0], "")

    return DeviceShare(stays, lambda node: found.goes.get(node.outputs[0].name, ""))


def _arena_bytes(value: Value) -> int:
    return 0 if value.is_constant else value.type.bytes


@dataclass(frozen=True)
class _Reasons:
    """Why layers are where they are.

    Attributes:
        stays: of those that the GPU serves but that had better stay on the CPU, by their result.
        goes: of those on the GPU that the CPU would be faster at, by the name of their result.
    """

    stays: Mapping[Value, str]
    goes: Mapping[str, str]


def _reasons(graph: Graph, partitioner: Partitioner, costs: Costs, *, float16: bool) -> _Reasons:
    found = priced(graph, partitioner, costs, float16=float16)
    chosen = assignment(found.layers, costs.gpu.submit_ns, found.tensors)
    here = [
        backend.name for group in partitioner.groups for backend in group if not backend.on_device
    ]
    there = [backend.name for group in partitioner.groups for backend in group if backend.on_device]
    stays: dict[Value, str] = {}
    goes: dict[str, str] = {}
    for number, (node, on_gpu) in enumerate(zip(found.nodes, chosen, strict=True)):
        layer, result = found.layers[number], node.outputs[0]
        if not on_gpu and layer.can[0]:
            stays[result] = _why_here(number, found, costs.gpu, [*there, *here])
        elif on_gpu and layer.can[1] and layer.times[1] < layer.times[0]:
            why = _why_there(number, found, costs.gpu, here)
            goes |= {result.name: why, found.float16_nodes.get(node, node).outputs[0].name: why}
    return _Reasons(stays, goes)


@dataclass(frozen=True)
class Priced:
    """What is to be assigned: a network's nodes but for reshapes, and what they and tensors cost.

    Attributes:
        nodes: with branches and loops, which only the CPU runs.
        layers: one for each of them.
        tensors: those that may be stored as float16.
        twins: what is computed in place of some of the nodes where it is stored so.
    """

    nodes: Sequence[Node]
    layers: Sequence[PricedLayer]
    tensors: Sequence[PricedTensor]
    float16_nodes: Mapping[Node, Node]


def priced(graph: Graph, partitioner: Partitioner, costs: Costs, *, float16: bool) -> Priced:
    """Layers with their times on the GPU and the CPU; tensors with those of conversions."""
    float16_nodes: Mapping[Node, Node] = stored_as_float16(graph, partitioner) if float16 else {}
    nodes = [node for node in graph.nodes if not isinstance(node.op, Reshape)]
    layers = [_layer(node, float16_nodes.get(node, node), partitioner, costs) for node in nodes]
    return Priced(nodes, layers, _tensors(graph, nodes, float16_nodes, costs), float16_nodes)


def _layer(node: Node, twin: Node, partitioner: Partitioner, costs: Costs) -> PricedLayer:
    if node.op.subgraphs:
        return PricedLayer((0.0, 0.0), (False, True))
    served = isinstance(partitioner.choose(node).taken.call, ShaderCall)
    return PricedLayer(costs.of(twin), (served, not (served and partitioner.is_placed(node))))


def _tensors(
    graph: Graph, nodes: Sequence[Node], float16_nodes: Mapping[Node, Node], costs: Costs
) -> list[PricedTensor]:
    """The tensors that may be stored as float16; a reshaped one is the same."""
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        if isinstance(node.op, Reshape):
            source = node.input(0)
            same[node.output] = same.get(source, source)
    makers: dict[Value, int] = {}
    readers: dict[Value, list[int]] = {}
    wide = {same.get(value, value) for value in graph.results}
    for number, node in enumerate(nodes):
        twin = float16_nodes.get(node, node)
        makers |= {v: number for v, _ in differing(node.outputs, twin.outputs)}
        narrow = {v for v, _ in differing(node.inputs, twin.inputs)}
        for value in (v for v in node.inputs if v is not None):
            root = same.get(value, value)
            if value in narrow:
                readers.setdefault(root, []).append(number)
            else:
                wide.add(root)
    return [
        PricedTensor(
            makers.get(value),
            tuple(readers.get(value, ())),
            value in wide,
            _conversion_times(value, costs),
        )
        for value in dict.fromkeys((*makers, *readers))
        if not value.is_constant
    ]


def _conversion_times(value: Value, costs: Costs) -> tuple[float, float]:
    """Of a float32 tensor to float16, and back."""
    half = replace(value, type=replace(value.type, dtype=DType.FLOAT16))
    origin = Origin("Cast", 0)
    narrow, widen = conversion(value, half, origin), conversion(half, value, origin)
    return costs.of(narrow)[0], costs.of(widen)[0]


def _values(node: Node) -> list[Value]:
    return [v for v in (*node.inputs, *node.outputs) if v is not None]


def _is_byte(node: Node) -> bool:
    return node.outputs[0].type.dtype in (DType.INT8, DType.UINT8)


def _is_conversion(node: Node) -> bool:
    """Whether it only converts to float16 or back, which no other operator does."""
    return isinstance(node.op, Cast) and any(v.type.dtype is DType.FLOAT16 for v in _values(node))


def _why_here(number: int, found: Priced, gpu: Gpu, backends: Sequence[str]) -> str:
    """Why the CPU computes a layer; `backends` are those of the target, the GPU's first."""
    there, here = (time / 1e3 for time in found.layers[number].times)
    why = (
        f"It would take {there:.1f} us on the GPU ({gpu.name}), here {here:.1f} us; a way to the "
        f"GPU and back takes {_way(number, found, gpu)}."
    )
    if here <= there:
        return why
    return (
        f"{why} --place LAYER={backends[0]} takes it there all the same, --backends "
        f"{','.join(backends)} all that the GPU serves."
    )


def _why_there(number: int, found: Priced, gpu: Gpu, on_cpu: Sequence[str]) -> str:
    """Why the GPU computes a layer that the CPU would be faster at."""
    there, here = (time / 1e3 for time in found.layers[number].times)
    why = (
        f"It would take {here:.1f} us on the CPU, here {there:.1f} us ({gpu.name}); a way to the "
        f"CPU and back takes {_way(number, found, gpu)}."
    )
    return f"{why} --place LAYER={on_cpu[-1]} takes it there all the same." if on_cpu else why


def _way(number: int, found: Priced, gpu: Gpu) -> str:
    """What a layer of its own on the other side costs besides."""
    read = sum(t.times[0] for t in found.tensors if number in t.readers)
    made = sum(t.times[1] for t in found.tensors if number == t.maker)
    converted = f" and conversions up to {(read + made) / 1e3:.0f} us" if read + made else ""
    return f"{gpu.submit_ns / 1e3:.0f} us{converted}"
