"""Networks whose tensors a GPU stores as float16: as close to float32 as float16 allows.

Oracles are the numpy references in float32, onnxruntime, and LiteRT's reference kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.errors import ConfigError, VerifyError
from smelt.ir import Array, DType, Graph, Node, evaluate
from smelt.ops.case import Case
from smelt.ops.core.arg_reduce import ArgReduce
from smelt.ops.core.binary import Binary
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.softmax import Softmax
from smelt.proof.run import run
from smelt.proof.tolerances import FLOAT16_TOLERANCE, tolerances_of
from smelt.proof.verify import verify_model
from smelt.samples import random_samples
from tests.backends.test_cases import member_of, pairs, serves
from tests.backends.vulkan.test_barriers import check_barriers, check_validation
from tests.backends.vulkan.test_float16_layers import Net, narrowed
from tests.backends.vulkan.test_operators import network
from tests.backends.vulkan.test_products import HOSTILE
from tests.proof.test_verify import branching, looping
from tests.support.graphs import Member, SampleOutputs, assert_same, combine, compile_graph
from tests.support.onnx_networks import graph as onnx_graph
from tests.support.onnx_networks import model, session, tensor_info
from tests.support.onnx_networks import node as onnx_node
from tests.support.shared import Network, networks, shared
from tests.support.vulkan_tools import (
    branches,
    build,
    check_arena,
    exact_ranges,
    program_of,
    requires_vulkan,
    shared_library,
)

pytestmark = requires_vulkan

HALVES = Options(target="vulkan", backends=("vulkan", "c"), float16=True)
SHARDS = 10
FAST = {"FAST": "1", "LP_NUM_THREADS": "1"}
FLOAT_NETWORKS = ("mobilenet_v1_025_96", "resnet8", "dscnn_kws", "autoencoder")

STORED = frozenset(
    {"ArgReduce", "Binary", "Concat", "Conv2D", "ConvTranspose", "Copy", "DepthwiseConv2D"}
    | {"FullyConnected", "Gather", "GatherElements", "GatherND", "L2Normalization"}
    | {"LocalResponse", "LogSoftmax", "MatMul", "Normalization", "PRelu", "Pad", "Pool2D", "Reduce"}
    | {"Resample", "Resize", "Select", "Slice", "Softmax", "Tile", "Transpose", "Unary"}
)
"""Operators for which at least one case must be stored as float16."""

BEYOND = ("MatMul-centered", "Unary(to_bfloat16)-to_bfloat16_large")
"""Cases whose results exceed the range of float16."""


def halved(member: Member) -> Member:
    """Return the member with inputs that float16 represents exactly, away from discontinuities."""

    def nearest(array: Array) -> Array:
        if array.dtype != np.float32:
            return array
        return np.clip(array, -65504, 65504).astype(np.float16).astype(np.float32)

    samples = [tuple(map(nearest, sample)) for sample in member.samples]
    return Member(member.graph, samples)


def cases() -> list[tuple[Case, Member]]:
    """Return the float cases that a GPU computes."""
    return [
        (case, halved(member_of(case, dtype)))
        for case, dtype in pairs()
        if dtype is DType.FLOAT32 and serves(case, dtype) and str(case) not in BEYOND
    ]


def halves(graph: Graph) -> Iterator[Node]:
    """Return nodes that read or write float16, and compute something."""
    for node in graph.nodes:
        values = [v for v in (*node.inputs, *node.outputs) if v is not None]
        if any(v.type.dtype is DType.FLOAT16 for v in values) and node.op.name != "Cast":
            yield node


def references(members: Sequence[Member]) -> list[SampleOutputs]:
    return [[evaluate(m.graph, sample).outputs for sample in m.samples] for m in members]


def together(
    members: Sequence[Member], gpu: str | None = None
) -> tuple[Artifact, list[tuple[Array, ...]]]:
    """Join all members into one network, and return it with its samples."""
    graph = combine("all", [m.graph for m in members])
    artifact = compile_graph(graph, replace(HALVES, gpu=gpu))
    columns = zip(*(m.samples for m in members), strict=True)
    return artifact, [tuple(a for sample in column for a in sample) for column in columns]


def check_members(names: Sequence[str], members: Sequence[Member], found: SampleOutputs) -> None:
    """Fail if outputs differ, and name all that do."""
    wrong: list[str] = []
    start = 0
    for name, member, expected in zip(names, members, references(members), strict=True):
        stop = start + len(member.graph.outputs)
        try:
            own = [outputs[start:stop] for outputs in found]
            assert_same(own, expected, name, FLOAT16_TOLERANCE)
        except AssertionError as error:
            wrong.append(str(error))
        start = stop
    assert not wrong, "\n".join(wrong)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "shard", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, SHARDS))]
)
def test_cases(shard: int) -> None:
    chosen = cases()[shard::SHARDS]
    members = [member for _, member in chosen]
    artifact, samples = together(members)
    check_members([str(c) for c, _ in chosen], members, list(run(artifact, samples).outputs))


def test_operators_stored_as_float16() -> None:
    chosen = [member.graph for case, member in cases() if type(case.op).__name__ in STORED]
    assert {type(n.op).__name__ for n in halves(narrowed(combine("all", chosen)))} == STORED


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_library("exact_ranges", tmp_path_factory.mktemp("shim"))


def fast_environment(artifact: Artifact, shim: Path, folder: Path) -> dict[str, str]:
    """Return environment variables that select modules that compute with halves."""
    exact_ranges(artifact, folder / "ranges")
    return {**FAST, "LD_PRELOAD": str(shim), "EXACT_RANGES": str(folder / "ranges")}


@pytest.mark.thorough
@pytest.mark.parametrize("gpu", ["lavapipe", "generic"])
def test_products_of_halves(gpu: str, shim: Path, tmp_path: Path) -> None:
    """Devices with fast halves use other modules, which are almost as precise."""
    multiply = {"Conv2D", "ConvTranspose", "DepthwiseConv2D", "FullyConnected", "MatMul"}
    chosen = [(c, m) for c, m in cases() if type(c.op).__name__ in multiply]
    chosen += [(c, halved(member_of(c, DType.FLOAT32))) for c in HOSTILE]
    members = [member for _, member in chosen]
    # A sum of so many terms in halves alone would stop growing at 4096.
    names = [*(str(c) for c, _ in chosen), "a deep sum"]
    ones = (np.ones((1, 16384), np.float32),)
    net = Net(1, 16384)
    deep = net.add(FullyConnected(), net.x, np.full((4, 16384), 0.5, np.float32))
    members.append(Member(net.graph(deep), [ones] * len(members[0].samples)))
    artifact, samples = together(members, gpu)
    program = program_of(artifact)
    assert program is not None
    stems = {m.name.partition("_")[0] for m in program.modules if "half" in m.sources}
    assert stems == {"conv", "depthwise", "transposed", "matmul"}
    built = build(artifact, tmp_path, "-O0")
    plain = built.run(samples, {"LP_NUM_THREADS": "1"})
    fast = built.run(samples, fast_environment(artifact, shim, tmp_path))
    assert any((a != b).any() for a, b in zip(plain[0], fast[0], strict=True))
    for found in (plain, fast):
        check_members(names, members, found)


def test_large_weights_are_not_summed_as_halves() -> None:
    """Sums of a few hundred products would overflow float16 before they decrease."""
    net = Net(1, 32)
    small = net.add(FullyConnected(), net.x, np.ones((8, 32), np.float32))
    large = np.tile(np.array([100.0, -100.0], np.float32), (4, 16))
    graph = net.graph(net.add(FullyConnected(), net.x, large), small)
    program = program_of(compile_graph(graph, HALVES))
    assert program is not None
    sources = [set(m.sources) for m in program.modules if m.name.startswith("conv")]
    assert sorted(map(len, sources)) == [1, 2]


def weights_bytes(artifact: Artifact) -> int:
    return sum(array.nbytes for array in artifact.schedule.constants.values())


@pytest.mark.quick(name=("dscnn_kws",))
@pytest.mark.parametrize("name", FLOAT_NETWORKS)
def test_networks(name: str, shim: Path, tmp_path: Path) -> None:
    """Weights take half the bytes, and outputs are within 1e-2 of onnxruntime with any modules."""
    path = shared(f"models/float/{name}.onnx")
    wide = compile_model(path, replace(HALVES, float16=False))
    artifact = compile_model(path, HALVES)
    assert all(node.output.type.dtype is DType.FLOAT16 for node in halves(artifact.graph))
    check_arena(artifact)
    assert weights_bytes(artifact) < 0.56 * weights_bytes(wide)
    # The input, as given and as float16, may be the only large tensor.
    if name in ("mobilenet_v1_025_96", "resnet8"):
        assert artifact.network.arena_bytes <= 0.75 * wide.network.arena_bytes
    samples = random_samples(artifact.graph, 2, 0)
    peer = session(path)
    (fed,) = peer.get_inputs()
    expected = [tuple(peer.run(None, {fed.name: sample[0]})) for sample in samples]
    built = build(artifact, tmp_path)
    environments = {"LP_NUM_THREADS": "1"}, fast_environment(artifact, shim, tmp_path)
    for environment in environments:
        assert_same(built.run(samples, environment), expected, name, FLOAT16_TOLERANCE)


@pytest.mark.quick(every=4)
@networks("mlperf_tiny/*_float32")
def test_networks_of_mlperf(network: Network) -> None:
    artifact = compile_model(network.model, HALVES)
    assert list(halves(artifact.graph))
    check_arena(artifact)
    samples = [(sample,) for sample in network.golden["input_0"][:3]]
    expected = [(sample,) for sample in network.golden["litert_reference_0"][:3]]
    found = [
        tuple(a.reshape(b.shape) for a, b in zip(ours, theirs, strict=True))
        for ours, theirs in zip(run(artifact, samples).outputs, expected, strict=True)
    ]
    assert_same(found, expected, str(network), FLOAT16_TOLERANCE)


def test_validation_is_silent(shim: Path, tmp_path: Path) -> None:
    """With the exact ranges of every dispatch, and without each single barrier."""
    artifact = compile_graph(branches(), HALVES)
    check_barriers(artifact)
    check_validation(artifact, shim, tmp_path, FLOAT16_TOLERANCE)


@pytest.mark.quick(start=(0,))
@pytest.mark.parametrize("start", [0, 1])
def test_layers_left_to_the_cpu(start: int) -> None:
    """Every layer runs once on the CPU, in float32, between float16 neighbors on the GPU."""
    member = network(DType.FLOAT32)
    plain = compile_graph(member.graph, replace(HALVES, float16=False))
    served = [s.node.name for s in plain.schedule.calls if s.backend == "vulkan"]
    place = dict.fromkeys(served[start::2], "c")
    artifact = compile_graph(member.graph, replace(HALVES, place=place))
    on_cpu = {s.node.name for s in artifact.schedule.calls if s.backend == "c"}
    assert on_cpu >= place.keys()
    assert {node.name for node in halves(artifact.graph)}.isdisjoint(on_cpu)
    assert len(list(halves(artifact.graph))) > 5
    (expected,) = references([member])
    found = list(run(artifact, member.samples).outputs)
    assert_same(found, expected, f"every other layer from {start}", FLOAT16_TOLERANCE)


def test_layers_left_to_the_cpu_stay_float32() -> None:
    """The same layers as without float16: conversions are too cheap here to change that."""
    model = shared("models/mlperf_tiny/ic_float32.tflite")
    wide, half = (
        compile_model(model, Options(target="vulkan", float16=float16)).schedule.calls
        for float16 in (False, True)
    )
    layers = [step for step in half if step.node.op.name != "Cast"]
    assert [step.backend for step in layers] == [step.backend for step in wide]
    on_cpu = {step.node.output.type.dtype for step in half if step.backend == "c"}
    assert on_cpu == {DType.FLOAT32}


def test_verification() -> None:
    artifact = compile_model(shared("models/float/resnet8.onnx"), HALVES)
    verdict = verify_model(artifact, random_samples(artifact.graph, 1, 0))
    assert verdict.tolerance == FLOAT16_TOLERANCE


def test_overflow_of_float16_is_reported() -> None:
    """Each factor is within the range of float16, and so is the result."""
    net = Net(2, 8)
    large = net.add(FullyConnected(), net.x, np.full((4, 8), 3e4, np.float32))
    small = net.add(FullyConnected(), large, np.full((3, 4), 1e-4, np.float32))
    artifact = compile_graph(net.graph(small), HALVES)
    ones = (np.ones((2, 8), np.float32),)
    with pytest.raises(
        VerifyError, match=f"'{large.name}' at FullyConnected .* exceeds float16 .*--place"
    ):
        verify_model(artifact, [ones])


def test_the_layer_that_overflows_float16_is_named_as_for_place() -> None:
    """Not a layer that reads an infinity that float32 also has; outputs are named as outputs."""
    net = Net(2, 8)
    masked = net.add(Binary("add"), net.x, np.array([0.0, -np.inf] * 4, np.float32))
    gone = net.add(FullyConnected(), net.x, np.full((4, 8), 3e4, np.float32))
    graph = net.graph(net.add(Softmax(), masked), gone)
    artifact, ones = compile_graph(graph, HALVES), (np.ones((2, 8), np.float32),)
    message = f"FullyConnected .* exceeds float16 .*--place '{gone.name}'=c"
    with pytest.raises(VerifyError, match=message):
        verify_model(artifact, [ones])
    placed = compile_graph(graph, replace(HALVES, place={gone.name: "c"}))
    verify_model(placed, [ones])


@pytest.mark.parametrize("what", ["index", "truth"])
def test_results_without_tolerance_must_be_right(what: str) -> None:
    """Numbers that float16 cannot distinguish."""
    net = Net(1, 8)
    near = net.add(Binary("add"), net.x, np.array([2000.0], np.float32))
    if what == "index":
        y = net.add(ArgReduce("max", 1), near)
    else:
        y = net.add(Binary("greater"), near, np.array([2000.0], np.float32))
    artifact = compile_graph(net.graph(y), HALVES)
    sample = (np.linspace(0.01, 0.08, 8, dtype=np.float32).reshape(1, 8),)
    with pytest.raises(VerifyError, match="more precision than float16"):
        verify_model(artifact, [sample])


@pytest.mark.parametrize(
    ("what", "part"),
    [
        ("branches", 0.0),
        ("loop", 0.0),
        ("reals", FLOAT16_TOLERANCE),
        ("input", FLOAT16_TOLERANCE),
        ("constants", FLOAT16_TOLERANCE),
    ],
)
def test_classes_stored_as_float16_must_be_right(what: str, part: float) -> None:
    """Also if the CPU's branches and loops made them; real numbers beside them may be close."""
    made = {
        "branches": branching(
            onnx_node("ArgMax", "x", "a", axis=1), onnx_node("ArgMin", "x", "b", axis=1), "k"
        ),
        "loop": looping(onnx_node("ArgMax", "x", "made", axis=1), "l", [4, 1]),
        "reals": branching(onnx_node("Neg", "x", "a"), onnx_node("Abs", "x", "b"), "k"),
        "input": onnx_node("Transpose", "x", "k"),
        "constants": branching(
            onnx_node("Identity", "thirds", "a"), onnx_node("Identity", "sevenths", "b"), "k"
        ),
    }[what]
    k = made.output[0] = "k"
    nodes = [made, onnx_node("Cast", k, "kf", to=1), onnx_node("Concat", "kf kf", "y", axis=1)]
    row = np.ones((4, 6), np.float32)
    constants = {"n": np.array(3, np.int64), "first": np.zeros((4, 1), np.int64)}
    constants |= {"thirds": row / 3, "sevenths": row / 7}
    inputs = [tensor_info("x", [4, 6]), tensor_info("c", [], "b")]
    proto = model(onnx_graph(nodes, inputs, [tensor_info("y", None, "f")], constants), 21)
    compiled = compile_model(proto.SerializeToString(), HALVES).graph
    assert any(v.type.dtype is DType.FLOAT16 for v in compiled.values())
    assert tolerances_of(compiled).get(compiled.outputs[0], 0.0) == part


def test_errors() -> None:
    with pytest.raises(ConfigError, match="--float16 needs a target with a GPU; 'host' has none"):
        compile_graph(branches(), Options(float16=True))
    with pytest.raises(ConfigError, match="--float16 and --cpu-fallback exclude each other"):
        compile_graph(branches(), replace(HALVES, cpu_fallback=True))
