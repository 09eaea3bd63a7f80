"""The placement of layers on the GPU or the CPU.

Layers run one after the other, each on one of the two. Their times on both are estimated, or were
measured by `smelt tune`. In addition, every run of GPU layers costs a submission and a wait, and
every tensor that is float16 on the GPU and float32 elsewhere costs a conversion. `assignment` finds
the cheapest placement for the given order of layers.
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
    """Nanoseconds that layers take on the GPU and on the CPU.

    Attributes:
        gpu: The profile that estimates layers that were not measured.
        measured: Measured times on the GPU and the CPU by `layer_key`; the second is None if it
            was not measured.
    """

    gpu: Gpu
    measured: Mapping[str, tuple[float, float | None]] = field(
        default_factory=dict[str, tuple[float, float | None]]
    )

    def of(self, node: Node) -> tuple[float, float]:
        """Return a layer's times on the GPU and on the CPU.

        Args:
            node: The layer as the GPU stores it, which may be float16. The CPU's time is that of
                the same layer in float32. It is infinite for conversions to or from float16, which
                only the GPU computes.
        """
        gpu_ns, cpu_ns = self.measured.get(layer_key(node), (None, None))
        if _is_conversion(node):
            return self._on_gpu(node) if gpu_ns is None else gpu_ns, inf
        if gpu_ns is None or cpu_ns is None:
            return self._on_gpu(node), self._on_cpu(node)
        return gpu_ns, cpu_ns

    def knows(self, node: Node) -> bool:
        """Return whether the layer was measured."""
        known = self.measured.get(layer_key(node))
        return known is not None and (known[1] is not None or _is_conversion(node))

    def _on_gpu(self, node: Node) -> float:
        gpu, narrow = self.gpu, _is_byte(node)
        moved = sum(v.type.bytes for v in _values(node))
        products = node.macs / gpu.products_per_ns[narrow]
        return gpu.dispatch_ns + max(products, moved / gpu.bytes_per_ns)

    def _on_cpu(self, node: Node) -> float:
        """Estimate the time of the layer in float32, even if the GPU stores float16."""
        if node.macs:
            return node.macs / self.gpu.cpu_products_per_ns[_is_byte(node)]
        halves = sum(v.type.bytes for v in _values(node) if v.type.dtype is DType.FLOAT16)
        return (sum(v.type.bytes for v in _values(node)) + halves) / self.gpu.cpu_bytes_per_ns


def device_share(
    graph: Graph, partitioner: Partitioner, costs: Costs | None, *, float16: bool = False
) -> DeviceShare:
    """Decide which nodes stay on the CPU, and which go to the GPU although it is slower.

    The GPU runs only nodes of the outermost graph, not those in branches and loops. The CPU runs
    the whole network if sizes are known only at run time, or if a tensor exceeds what every device
    can bind. Nodes are identified by their first output, because later passes may rebuild them;
    nodes that are stored as float16 are identified by its name.

    Args:
        graph: The graph, just before scheduling.
        partitioner: Knows which nodes the GPU serves, and which ones the user placed.
        costs: Times of layers; None to place all that the GPU serves on the GPU.
        float16: Whether the GPU will store tensors as float16.
    """
    if graph.lengths:
        return DeviceShare(lambda _: "The CPU computes layers whose sizes vary at run time.")
    largest = max(graph.values(), key=_arena_bytes)
    if _arena_bytes(largest) > MAX_RANGE:
        why = (
            f"'{largest.name}' has {largest.type.bytes:,} bytes in the arena, which a GPU would "
            f"share, but every device can bind only {MAX_RANGE:,}."
        )
        return DeviceShare(lambda _: why)
    inner = frozenset(nodes_inside(graph))
    found = _Reasons({}, {})
    if costs is not None:
        found = _reasons(graph, partitioner, costs, float16=float16)

    def stays(node: Node) -> str:
        if node in inner:
            return "The CPU computes branches and loops."
        return found.stays.get(node.outputs[0], "")

    return DeviceShare(stays, lambda node: found.goes.get(node.outputs[0].name, ""))


def _arena_bytes(value: Value) -> int:
    return 0 if value.is_constant else value.type.bytes


@dataclass(frozen=True)
class _Reasons:
    """Reasons of the placement.

    Attributes:
        stays: Why layers stay on the CPU although the GPU serves them, by their first output.
        goes: Why layers go to the GPU although the CPU is faster, by the name of that output.
    """

    stays: Mapping[Value, str]
    goes: Mapping[str, str]


def _reasons(graph: Graph, partitioner: Partitioner, costs: Costs, *, float16: bool) -> _Reasons:
    found = priced(graph, partitioner, costs, float16=float16)
    chosen = assignment(found.layers, costs.gpu.submit_ns, found.tensors)
    on_cpu = [
        backend.name for group in partitioner.groups for backend in group if not backend.on_device
    ]
    on_gpu = [
        backend.name for group in partitioner.groups for backend in group if backend.on_device
    ]
    stays: dict[Value, str] = {}
    goes: dict[str, str] = {}
    for number, (node, goes_to_gpu) in enumerate(zip(found.nodes, chosen, strict=True)):
        layer, result = found.layers[number], node.outputs[0]
        if not goes_to_gpu and layer.can[0]:
            stays[result] = _why_on_cpu(number, found, costs.gpu, [*on_gpu, *on_cpu])
        elif goes_to_gpu and layer.can[1] and layer.times[1] < layer.times[0]:
            why = _why_on_gpu(number, found, costs.gpu, on_cpu)
            goes |= {result.name: why, found.float16_nodes.get(node, node).outputs[0].name: why}
    return _Reasons(stays, goes)


@dataclass(frozen=True)
class Priced:
    """The nodes of a network to assign, with their costs.

    Attributes:
        nodes: All nodes except reshapes, including branches and loops, which only the CPU runs.
        layers: The costs of each node.
        tensors: The tensors that may be stored as float16, with the costs of conversions.
        float16_nodes: The float16 form of nodes that may be stored so.
    """

    nodes: Sequence[Node]
    layers: Sequence[PricedLayer]
    tensors: Sequence[PricedTensor]
    float16_nodes: Mapping[Node, Node]


def priced(graph: Graph, partitioner: Partitioner, costs: Costs, *, float16: bool) -> Priced:
    """Return the nodes to assign, with the times of layers and of conversions of tensors."""
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
    """Return the tensors that may be stored as float16; reshaping one does not make another."""
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
    """Return the times to convert a float32 tensor to float16, and back."""
    half = replace(value, type=replace(value.type, dtype=DType.FLOAT16))
    origin = Origin("Cast", 0)
    narrow, widen = conversion(value, half, origin), conversion(half, value, origin)
    return costs.of(narrow)[0], costs.of(widen)[0]


def _values(node: Node) -> list[Value]:
    return [v for v in (*node.inputs, *node.outputs) if v is not None]


def _is_byte(node: Node) -> bool:
    return node.outputs[0].type.dtype in (DType.INT8, DType.UINT8)


def _is_conversion(node: Node) -> bool:
    """Return whether the node is a conversion to or from float16."""
    return isinstance(node.op, Cast) and any(v.type.dtype is DType.FLOAT16 for v in _values(node))


def _why_on_cpu(number: int, found: Priced, gpu: Gpu, backends: Sequence[str]) -> str:
    """Return why the CPU computes a layer; `backends` are the target's, the GPU's first."""
    gpu_us, cpu_us = (time / 1e3 for time in found.layers[number].times)
    why = (
        f"It would take {gpu_us:.1f} us on the GPU ({gpu.name}) and takes {cpu_us:.1f} us on the "
        f"CPU; moving it alone to the GPU costs {_transfer(number, found, gpu)}."
    )
    if cpu_us <= gpu_us:
        return why
    return (
        f"{why} To move it anyway, use --place LAYER={backends[0]}; to move all layers that the "
        f"GPU serves, use --backends {','.join(backends)}."
    )


def _why_on_gpu(number: int, found: Priced, gpu: Gpu, on_cpu: Sequence[str]) -> str:
    """Return why the GPU computes a layer although the CPU would be faster."""
    gpu_us, cpu_us = (time / 1e3 for time in found.layers[number].times)
    why = (
        f"It would take {cpu_us:.1f} us on the CPU and takes {gpu_us:.1f} us on the GPU "
        f"({gpu.name}); moving it alone to the CPU costs {_transfer(number, found, gpu)}."
    )
    return f"{why} To move it anyway, use --place LAYER={on_cpu[-1]}." if on_cpu else why


def _transfer(number: int, found: Priced, gpu: Gpu) -> str:
    """Return the extra time of a layer whose neighbors are on the other processor."""
    read = sum(t.times[0] for t in found.tensors if number in t.readers)
    made = sum(t.times[1] for t in found.tensors if number == t.maker)
    converted = f" and up to {(read + made) / 1e3:.0f} us of conversions" if read + made else ""
    return f"{gpu.submit_ns / 1e3:.0f} us{converted}"
