"""Operators on a GPU: long rows, wide ranges, rounding ties, layers left to the CPU.

`test_cases` runs the case table. Oracles are the numpy references in double precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import cast, get_args

import numpy as np
import pytest
from hypothesis import strategies as st

from smelt.api.artifact import Artifact
from smelt.codegen.lower.backend import backend
from smelt.ir import (
    Array,
    DType,
    Graph,
    Node,
    Op,
    Origin,
    Quant,
    Rounding,
    TensorType,
    Value,
    evaluate,
    verify,
)
from smelt.ops import all_cases
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.case import Case, Data, build, sample_of
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.l2_normalization import L2Normalization
from smelt.ops.core.normalization import Normalization
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.prelu import PRelu
from smelt.ops.core.quantize import Quantize
from smelt.ops.core.reduce import Reduce
from smelt.ops.core.softmax import LogSoftmax, Softmax
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.copy import Copy
from smelt.ops.tensor.gather import Gather
from smelt.ops.tensor.pad import Pad
from smelt.ops.tensor.reshape import Reshape
from smelt.ops.tensor.resize import Resize
from smelt.ops.tensor.slice import Slice
from smelt.ops.tensor.tile import Tile
from smelt.ops.tensor.transpose import Transpose
from smelt.proof.run import run
from smelt.samples import Sample
from tests.backends.test_cases import serves
from tests.support.graphs import SETUPS, Member, assert_same, combine, compile_graph, run_together
from tests.support.random_networks import Builder, no_choice
from tests.support.vulkan_tools import program_of, requires_vulkan

pytestmark = requires_vulkan

ON_GPU = SETUPS["vulkan"]
MOST_INVOCATIONS = 65535 * 64
"""Invocations that every device can dispatch along one axis: 65,535 workgroups of 64."""


def one_node(
    op: Op, *inputs: Value, rounding: Rounding | None = None, y: TensorType | None = None
) -> Graph:
    outputs = op.infer([v.type for v in inputs]) if y is None else (y,)
    values = tuple(Value(f"y{i}", type_) for i, type_ in enumerate(outputs))
    node = Node(op, inputs, values, Origin(op.name.upper(), 0), rounding)
    data = tuple(v for v in inputs if not v.is_constant)
    return verify(Graph("one_node", data, values, (node,)), "building a test")


def floats(name: str, *shape: int) -> Value:
    return Value(name, TensorType(shape, DType.FLOAT32))


def check(members: Sequence[Member]) -> None:
    for member, found in zip(members, run_together(members, ON_GPU), strict=True):
        expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
        assert_same(found, expected, repr(member))


def test_rows_that_a_workgroup_shares() -> None:
    rng = np.random.default_rng(3)
    x, image = floats("x", 3, 1000), floats("x", 1, 30, 20, 3)
    scale = Value.constant("scale", rng.normal(size=3).astype(np.float32))
    graphs = [
        *(one_node(op, x) for op in (Softmax(1.5), LogSoftmax(), L2Normalization())),
        *(one_node(Reduce(kind, (1,)), x) for kind in ("sum", "prod", "l2", "log_sum_exp")),
        *(one_node(Reduce(kind, (1, 2)), image) for kind in ("mean", "max", "min", "l1")),
        one_node(Normalization((1, 2), 1e-3), image, scale),
        one_node(Normalization((1,), 1e-5, centered=False), x),
        one_node(Normalization((1,), 1e-5, statistics=True), x),
    ]
    check([Member(g, [(sample(g.inputs[0], rng),), (sample(g.inputs[0], rng),)]) for g in graphs])


def sample(value: Value, rng: np.random.Generator) -> Array:
    return rng.uniform(-2, 2, value.type.shape).astype(np.float32)


def test_more_elements_than_a_row_of_workgroups() -> None:
    side = 2100
    assert side * side > MOST_INVOCATIONS
    x, y = floats("x", side, 1), floats("y", 1, side)
    (wide,) = Binary("sub").infer([x.type, y.type])
    table, rows = Value("table", wide), floats("rows", side)
    nodes = (
        Node(Binary("sub"), (x, y), (table,), Origin("SUB", 0)),
        Node(Reduce("min", (1,)), (table,), (rows,), Origin("MIN", 1)),
    )
    graph = verify(Graph("wide", (x, y), (rows,), nodes), "building a test")
    rng = np.random.default_rng(4)
    check([Member(graph, [(sample(x, rng), sample(y, rng))])])


UNITS = {"exp": 3, "log": 3, "tanh": 4, "logistic": 5, "erf": 4, "softplus": 4}
"""Error of float functions that is allowed on any device, in units in the last place."""


def test_float_functions_keep_their_precision() -> None:
    rng = np.random.default_rng(5)
    wide = np.concatenate(
        [rng.normal(size=2000) * scale for scale in (1e-3, 1, 10, 80)] + [[-0.0, 0.0, 1.0]]
    ).astype(np.float32)
    members = [Member(one_node(Unary(kind), floats("x", wide.size)), [(wide,)]) for kind in UNITS]
    for (kind, units), ((found,),) in zip(
        UNITS.items(), run_together(members, ON_GPU), strict=True
    ):
        x = np.abs(wide) if kind == "log" else wide
        (expected,) = evaluate(one_node(Unary(kind), floats("x", x.size)), (wide,)).outputs
        # Subnormal results may be flushed to zero.
        there = np.isfinite(expected) & (np.abs(expected) > 2e-38)
        allowed = units * np.spacing(np.abs(expected[there]))
        distance = np.abs(found[there].astype(np.float64) - expected[there])
        assert (distance <= allowed).all(), (kind, float((distance / allowed).max()))


def _keeps_what_is_no_number(op: Op) -> bool:
    """Return whether a NaN input must give NaN; C's comparison of a maximum pool drops NaN."""
    clamps = getattr(op, "activation", Activation.NONE) is not Activation.NONE
    maximum = isinstance(op, Pool2D) and op.kind == "max"
    return isinstance(op, Unary | Softmax | LogSoftmax) or (clamps and not maximum)


@pytest.mark.thorough
def test_nan_stays_nan() -> None:
    """NaN inputs give NaN outputs, on the GPU as on the CPU."""
    members: list[Member] = []
    for case in all_cases():
        if DType.FLOAT32 not in case.dtypes or not _keeps_what_is_no_number(case.op):
            continue
        graph = build(case, DType.FLOAT32)
        rng = np.random.default_rng(9)
        x, *rest = (sample(v, rng) for v in graph.inputs)
        ends = (graph.inputs[0], graph.outputs[0])
        if x.size < 4 or any(v.type.dtype is not DType.FLOAT32 for v in ends):
            continue
        x.reshape(-1)[::5] = np.nan
        members.append(Member(graph, [(x, *rest)]))
    assert {type(m.graph.nodes[0].op).__name__ for m in members} >= {"Conv2D", "Softmax", "Pool2D"}
    for member, ((found,),) in zip(members, run_together(members, ON_GPU), strict=True):
        (expected,) = evaluate(member.graph, member.samples[0]).outputs
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected), repr(member))


DOMAINS = {
    "asin": (-1, 1),
    "acos": (-1, 1),
    "atan": (-1e4, 1e4),
    "sinh": (-80, 80),
    "cosh": (-80, 80),
    "asinh": (-1e6, 1e6),
    "acosh": (1, 1e6),
    "atanh": (-1, 1),
}
"""Domains of functions whose results may have a relative error of 4e-7 plus 3e-7 absolute."""


def test_inverse_and_hyperbolic_functions_keep_precision() -> None:
    rng = np.random.default_rng(8)
    members: list[Member] = []
    for kind, (low, high) in DOMAINS.items():
        near = np.clip(rng.normal(size=2000) + low * (kind == "acosh"), low, high)
        x = np.concatenate([near, rng.uniform(low, high, 2000) * 0.9999]).astype(np.float32)
        x = np.clip(x, low, None).astype(np.float32)
        inside = np.where(np.abs(x) < 1, x, 0.5).astype(np.float32) if kind == "atanh" else x
        members.append(Member(one_node(Unary(kind), floats("x", x.size)), [(inside,)]))
    for member, ((found,),) in zip(members, run_together(members, ON_GPU), strict=True):
        (expected,) = evaluate(member.graph, member.samples[0]).outputs
        np.testing.assert_allclose(found, expected, rtol=4e-7, atol=3e-7, err_msg=repr(member))


@pytest.mark.parametrize("kind", ["sin", "cos"])
def test_sines_of_any_angle(kind: str) -> None:
    rng = np.random.default_rng(6)
    powers = np.exp2(rng.uniform(-45, 127, 4000)) * rng.choice([-1, 1], 4000)
    quarters = np.arange(-2000, 2000) * (np.pi / 2)
    x = np.concatenate([powers, quarters, [0.0, 1e-45, 3.4e38]]).astype(np.float32)
    member = Member(one_node(Unary(kind), floats("x", x.size)), [(x,)])
    ((found,),) = run_together([member], ON_GPU)[0]
    np.testing.assert_allclose(found, getattr(np, kind)(x.astype(np.float64)), rtol=0, atol=2e-7)


def between() -> Iterator[tuple[Graph, Sample]]:
    """Yield Quantize graphs with inputs at, below and above the midpoints of stored integers."""
    for scale, zero_point, rounding in ((0.1, -3, None), (0.37, 5, Rounding.ONNX)):
        y = TensorType((1203,), DType.INT8, Quant.per_tensor(scale, zero_point))
        middle = ((np.arange(-200, 201) + 0.5) * np.float32(scale)).astype(np.float32)
        around = [np.nextafter(middle, np.float32(to)) for to in (-1e9, 1e9)]
        x = np.concatenate([middle, *around])
        if rounding is not None:
            x[:2] = -np.inf, np.inf
        yield one_node(Quantize(DType.INT8), floats("x", 1203), rounding=rounding, y=y), (x,)


def test_numbers_between_two_integers() -> None:
    check([Member(graph, [sample]) for graph, sample in between()])


@cache
def network(dtype: DType) -> Member:
    """Return a network with every class of operators that a GPU computes."""
    rng = np.random.default_rng(7)
    b = Builder(dtype, cast("st.DrawFn", no_choice), rng)
    same = ((1, 1), (1, 1))
    x = b.input((1, 8, 8, 8))
    conv = b.apply(Conv2D((1, 1), same), x, *b.weights(x, (8, 3, 3, 8), 0))
    rows = b.apply(DepthwiseConv2D((1, 1), same), conv, *b.weights(conv, (1, 3, 3, 8), 3))
    both = b.apply(Binary("add", Activation.RELU6), rows, conv)
    soft = b.apply(PRelu(), b.apply(Unary("hard_swish"), both), b.data((1, 1, 8)))
    small = b.apply(Pool2D("max", (2, 2), (2, 2)), soft)
    large = b.apply(Resize("nearest", (6, 5)), b.apply(Resize("bilinear", (5, 7)), small))
    if dtype is DType.FLOAT32:
        large = b.apply(Normalization((1, 2), 1e-3), large)
    left = b.apply(Slice((0, 1, 0, 2), (1, 5, 5, 5), (1, 1, 1, 1)), large)
    padded = b.apply(Pad(((0, 0), (1, 0), (0, 2), (0, 0))), left)
    turned = b.apply(Transpose((0, 2, 1, 3)), b.apply(Concat(3), padded, padded))
    tiled = b.apply(Tile((1, 1, 2, 1)), turned)
    order = Value.constant("order", np.array([2, 0, 5], np.int32))
    (type_,) = Gather(1).infer([tiled.type, order.type])
    reals = [real.take(order.array, 1) for real in b.reals[tiled]]
    taken = b.emit(Gather(1), (tiled, order), replace(tiled.type, shape=type_.shape), reals)
    mean = b.apply(Pool2D("average", (3, 3), (1, 1)), taken)
    total = b.apply(Reduce("mean", (1, 2)), mean)
    dense = b.apply(FullyConnected(), total, *b.weights(total, (12, total.type.shape[1]), 0))
    flat = b.apply(Reshape((12,)), dense)
    results = (
        b.apply(Softmax(), dense),
        b.apply(LogSoftmax(), dense),
        b.apply(L2Normalization(), dense),
        b.apply(Binary("maximum"), flat, flat),
    )
    graph = verify(Graph("all", (x,), results, tuple(b.nodes)), "building a test")
    kind = x.type.dtype.numpy
    low, high = (-2, 2) if x.type.quant is None else x.type.dtype.limits
    samples = [(rng.uniform(low, high, x.type.shape).astype(kind),) for _ in range(2)]
    return Member(graph, samples)


def compiled(member: Member, cpu: Sequence[str] = ()) -> Artifact:
    place = dict.fromkeys(cpu, "c")
    return compile_graph(member.graph, replace(ON_GPU, place=place))


def layers(artifact: Artifact, backend: str) -> list[str]:
    return [s.node.name for s in artifact.schedule.calls if s.backend == backend]


def check_outputs(member: Member, artifact: Artifact, what: str) -> None:
    expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
    assert_same(list(run(artifact, member.samples).outputs), expected, what)


DTYPES = (DType.FLOAT32, DType.INT8)
BOTH = pytest.mark.parametrize("dtype", DTYPES)


@pytest.mark.quick(every=2)
@BOTH
def test_layers_left_to_the_cpu(dtype: DType) -> None:
    """Every layer runs once on the CPU, between neighbors on the GPU."""
    member = network(dtype)
    served = layers(compiled(member), "vulkan")
    assert len(served) > 15
    for start in (0, 1):
        artifact = compiled(member, served[start::2])
        assert set(layers(artifact, "c")) >= set(served[start::2])
        assert set(layers(artifact, "vulkan")) == set(served) - set(served[start::2])
        check_outputs(member, artifact, f"every other layer from {start} on the CPU")


def _turned(x: Value, name: str, *, gather: bool) -> Node:
    """Return a node that reverses all axes (Slice) or, if `gather`, the first axis (Gather)."""
    shape, y = x.type.shape, Value(name, x.type)
    if gather:
        order = Value.constant(f"{name} order", np.arange(shape[0], dtype=np.int32)[::-1].copy())
        return Node(Gather(0), (x, order), (y,), Origin("GATHER", 0))
    op = Slice(tuple(size - 1 for size in shape), shape, (-1,) * len(shape))
    return Node(op, (x,), (y,), Origin("SLICE", 0))


def _between(case: Case, dtype: DType) -> Member:
    """Return a network with the node of a case between reversals, which the GPU computes."""
    graph = build(case, dtype)
    gather, rng = isinstance(case.op, Slice), np.random.default_rng(12)
    given = [Value(f"{x.name} given", x.type) for x in graph.inputs]
    before = [
        replace(_turned(g, x.name, gather=gather), outputs=(x,))
        for g, x in zip(given, graph.inputs, strict=True)
    ]
    after = [_turned(y, f"{y.name} turned", gather=gather) for y in graph.outputs]
    nodes = (*before, *graph.nodes, *after)
    whole = Graph("between", tuple(given), tuple(node.output for node in after), nodes)
    ranges = [a for a in case.arguments if isinstance(a, Data)]
    pairs = [(r, x.type) for r, x in zip(ranges, graph.inputs, strict=True)]
    samples = [tuple(sample_of(*pair, rng) for pair in pairs) for _ in range(2)]
    return Member(verify(whole, "building a test"), samples)


def _changes(member: Member) -> bool:
    """Return whether the node changes its input; if not, passes remove it and both reversals."""
    first, *others = member.samples[0]
    return bool(others) or not np.array_equal(
        evaluate(member.graph, member.samples[0]).outputs[0], first
    )


@cache
def islands(dtype: DType) -> tuple[Member, Mapping[str, Node]]:
    """Return a network with a case of each operator of the GPU, and the nodes by operator."""
    found: dict[str, Member] = {}
    # Prefer quantized data, and the last case: the first is often the simplest.
    cases = list(reversed(all_cases()))
    for case in sorted(cases, key=lambda case: case.plain):
        name = case.op.name
        if name in found or dtype not in case.dtypes or not serves(case, dtype):
            continue
        graph = build(case, dtype)
        ends = (*graph.inputs, *graph.outputs)
        # Scalars cannot be reversed, and tensors without elements are constants.
        if all(v.type.shape and v.type.size for v in ends):
            member = _between(case, dtype)
            if isinstance(case.op, Copy) or _changes(member):
                found[name] = member
    members = list(found.values())
    samples = [
        tuple(array for column in columns for array in column)
        for columns in zip(*(m.samples for m in members), strict=True)
    ]
    whole = Member(combine("islands", [m.graph for m in members]), samples)
    nodes, theirs = iter(whole.graph.nodes), dict[str, Node]()
    for name, member in found.items():
        own = [next(nodes) for _ in member.graph.nodes]
        theirs[name] = next(node for node in own if node.op.name == name)
    return whole, theirs


def test_islands_of_every_operator() -> None:
    """Fail if an operator of the GPU has no case in `islands`."""
    assert {type(node.op) for dtype in DTYPES for node in islands(dtype)[1].values()} == {
        op for kernel in backend("vulkan").kernels for op in get_args(kernel.op) or (kernel.op,)
    }
    for dtype in DTYPES:
        mine = [
            case.op.name for case in all_cases() if dtype in case.dtypes and serves(case, dtype)
        ]
        assert islands(dtype)[1].keys() == set(mine)


def check_islands(dtype: DType, cpu: Mapping[str, Node]) -> None:
    """Fail unless these operators are on the CPU, their neighbors on the GPU, and outputs right."""
    member, _ = islands(dtype)
    artifact = compiled(member, [node.name for node in cpu.values()])
    on_cpu, on_gpu = (
        [s.node for s in artifact.schedule.calls if s.backend == name] for name in ("c", "vulkan")
    )
    assert {node.op.name: node.name for node in on_cpu} == {k: n.name for k, n in cpu.items()}
    made = {y for node in on_gpu for y in node.outputs}
    read = {x for node in on_gpu for x in node.inputs}
    for node in on_cpu:
        assert made.issuperset(x for x in node.inputs if x is not None and not x.is_constant)
        assert read.issuperset(node.outputs)
    gpu = program_of(artifact)
    assert gpu is not None
    assert len(gpu.regions) == len(cpu) + 1
    check_outputs(member, artifact, f"{len(cpu)} operators on the CPU")


@pytest.mark.quick(every=2)
@BOTH
def test_every_operator_left_to_the_cpu(dtype: DType) -> None:
    """Every operator's node runs on the CPU, between neighbors on the GPU."""
    check_islands(dtype, islands(dtype)[1])


@pytest.mark.slow
@pytest.mark.parametrize("start", range(4))
@BOTH
def test_some_operators_left_to_the_cpu(dtype: DType, start: int) -> None:
    """The others are on the GPU."""
    check_islands(dtype, dict(list(islands(dtype)[1].items())[start::4]))


@pytest.mark.slow
@BOTH
def test_each_layer_left_to_the_cpu(dtype: DType) -> None:
    member = network(dtype)
    served = layers(compiled(member), "vulkan")
    for name in served:
        artifact = compiled(member, [name])
        assert name in layers(artifact, "c")
        check_outputs(member, artifact, f"{name} on the CPU")
