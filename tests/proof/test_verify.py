"""Tests that `verify` accepts only correct results, and otherwise names the faulty step."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto
from onnxruntime.quantization import QuantFormat, QuantType

from bench.quantized_networks import Scheme, quantize, samples
from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.codegen.emit.network import render_network
from smelt.codegen.emit.weights import constants_of
from smelt.errors import DeviceError, VerifyError
from smelt.frontend import Imported
from smelt.ir import (
    Array,
    DType,
    Graph,
    Node,
    Op,
    Origin,
    Quant,
    Rounding,
    State,
    TensorType,
    Value,
    verify,
)
from smelt.ops import all_cases
from smelt.ops.case import build
from smelt.ops.core.arg_reduce import ArgReduce
from smelt.ops.core.binary import Binary
from smelt.ops.core.cast import Cast
from smelt.ops.core.quantize import Dequantize, Quantize
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.copy import Copy
from smelt.ops.tensor.select import Select
from smelt.proof.tolerances import FLOAT16_TOLERANCE, compare, tolerances_of
from smelt.proof.verify import verify_model
from smelt.samples import Sample, random_samples
from tests.support.banded_networks import RandomNetwork
from tests.support.graphs import compile_graph
from tests.support.onnx_networks import graph, model, node, tensor_info
from tests.support.projects import digits
from tests.support.tflite_networks import DIGITS

INT8, FLOAT = "digits_int8", "digits_float32"


def steps_with_weights(artifact: Artifact) -> list[int]:
    return [i for i, step in enumerate(artifact.schedule.steps) if len(step.node.inputs) > 2]


def with_wrong_weights(artifact: Artifact, step: int) -> Artifact:
    """Return the artifact with wrong elements in the largest constant of one step."""
    constants = dict(artifact.schedule.constants)
    own = [name for name in constants if f"_step{step}_" in name]
    chosen = max(own, key=lambda name: constants[name].size)
    array = constants[chosen]
    constants[chosen] = ~array if array.dtype.kind == "i" else -array
    schedule = replace(artifact.schedule, constants=constants)
    network = replace(artifact.network, constants=constants_of(schedule, {}))
    header = artifact.project.files[f"{network.name}.h"]  # with the hash of the right weights
    files = {**artifact.project.files, **render_network(network, schedule).texts}
    files[f"{network.name}.h"] = header
    assert files != artifact.project.files
    project = replace(artifact.project, files=files)
    return replace(artifact, schedule=schedule, project=project)


@pytest.mark.parametrize(
    ("model", "how"), [(INT8, "bit-exact, 3 samples"), (FLOAT, "within 1e-05")]
)
def test_agreement(model: str, how: str) -> None:
    artifact = digits(model=model)
    done: list[int] = []
    verdict = verify_model(artifact, random_samples(artifact.graph, 3, 0), progress=done.append)
    assert str(verdict).startswith(how)
    assert (verdict.tolerance == 0) == (model == INT8)
    assert done == [1, 2, 3]
    assert verdict.result.report["flash"]["network"] > 0


@pytest.mark.quick(every=2)
@pytest.mark.parametrize("model", [INT8, FLOAT])
def test_the_step_with_wrong_weights_is_named(model: str) -> None:
    artifact = digits(model=model)
    samples = random_samples(artifact.graph, 2, 0)
    steps = steps_with_weights(artifact)
    assert len(steps) > 4
    for step in steps[::2]:
        node = artifact.schedule.steps[step].node
        with pytest.raises(VerifyError) as caught:
            verify_model(with_wrong_weights(artifact, step), samples)
        message = str(caught.value)
        assert message.startswith("sample 0: the device differs from the reference")
        assert f"step {step}, {node.op.name} of {node.origin}, kernel" in message
        assert re.search(rf"\d+ of {node.output.type.size} elements differ, at most by \d", message)


@pytest.mark.parametrize("segment", [0, 1])
def test_a_step_of_a_segment_is_named(segment: int) -> None:
    """Such a step reports its result in parts; segments alternate in the order of rows."""
    artifact = compile_graph(RandomNetwork(5).chain(6), Options("host", "host", optimize="ram"))
    step = artifact.schedule.segments[segment].layers[-1]
    broken = with_wrong_weights(artifact, step.index)
    with pytest.raises(VerifyError, match=rf"First layer that differs: step {step.index}, Conv2D"):
        verify_model(broken, random_samples(artifact.graph, 1, 0))


@pytest.mark.qemu
def test_a_step_is_named_on_a_simulated_board() -> None:
    artifact = digits(Options(board="mps2-an386"))
    broken = with_wrong_weights(artifact, 3)
    with pytest.raises(VerifyError, match="step 3, Conv2D of CONV_2D #3"):
        verify_model(broken, random_samples(artifact.graph, 1, 0))


def test_a_fault_after_the_last_step_is_reported() -> None:
    """Every step is right, but the output is read from the wrong address."""
    artifact = digits()
    name = f"{artifact.network.name}.c"
    source = artifact.project.files[name]
    start = source.index("const void *digits_int8_net_output")
    wrong = re.sub(r"(return .*ctx->arena \+) (\w+)", r"\1 1 + \2", source[start:])
    assert wrong != source[start:]
    files = {**artifact.project.files, name: source[:start] + wrong}
    broken = replace(artifact, project=replace(artifact.project, files=files))
    with pytest.raises(VerifyError, match="With TRACE=1, every step is equal"):
        verify_model(broken, random_samples(artifact.graph, 1, 0))


def test_a_write_behind_the_arena_is_found() -> None:
    """The output of the last step is moved behind the arena, where no other buffer is."""
    artifact = compile_graph(scaled(2.0), Options(keep_inputs=True))
    name, end = f"{artifact.network.name}.c", artifact.network.arena_bytes
    source = artifact.project.files[name]
    offsets = re.findall(r"(#define (?:\w*ARENA_OFFSET\w*) \(?)(\d+)", source)
    last = max(int(offset) for _, offset in offsets)
    wrong = re.sub(rf"(#define \w*ARENA_OFFSET\w* \(?){last}\b", rf"\g<1>{end}", source)
    files = {**artifact.project.files, name: wrong}
    broken = replace(artifact, project=replace(artifact.project, files=files))
    with pytest.raises(DeviceError, match="wrote beyond the end of its arena"):
        verify_model(broken, random_samples(artifact.graph, 1, 0))


def test_a_pass_that_changes_the_network_is_found() -> None:
    artifact = compile_graph(scaled(2.0))
    tampered = replace(artifact, imported=Imported(scaled(3.0)))
    with pytest.raises(VerifyError, match=r"optimized graph differs from the imported one.*'y'"):
        verify_model(tampered, random_samples(artifact.graph, 1, 0))


def test_expected_outputs() -> None:
    artifact = digits()
    with np.load(DIGITS / "digits_test.npz") as data:
        inputs, expected = data["input_0"][:3], data["tflite_reference_0"][:3].copy()
    samples: list[Sample] = [(x,) for x in inputs]
    verify_model(artifact, samples, expected=[(y,) for y in expected])
    expected[1, 0, 4] ^= 1
    with pytest.raises(
        VerifyError, match=r"sample 1.*differs from --expect: 1 of 10 elements differ"
    ):
        verify_model(artifact, samples, expected=[(y,) for y in expected])


def test_state_is_carried_from_sample_to_sample() -> None:
    artifact = compile_graph(accumulator(2.0))
    samples = random_samples(artifact.graph, 4, 0)
    assert verify_model(artifact, samples).samples == 4
    with pytest.raises(VerifyError, match="optimized graph differs"):
        verify_model(replace(artifact, imported=Imported(accumulator(3.0))), samples)


def test_a_fault_that_shows_only_later_is_found() -> None:
    """The first sample is right: the wrong factor multiplies a state that is zero at first."""
    artifact = compile_graph(accumulator(2.0))
    broken = with_wrong_weights(artifact, 0)
    samples = random_samples(artifact.graph, 3, 0)
    verify_model(broken, samples[:1])
    with pytest.raises(VerifyError, match=r"^sample 1: .*step 0, Binary\(mul\)"):
        verify_model(broken, samples)


def scaled(factor: float) -> Graph:
    type_ = TensorType((4,), DType.FLOAT32)
    x, y = Value("x", type_), Value("y", type_)
    k = Value.constant("k", np.full(4, factor, np.float32))
    node = Node(Binary("mul"), (x, k), (y,), Origin("MUL", 0))
    return verify(Graph("scaled", (x,), (y,), (node,)), "test")


def accumulator(factor: float) -> Graph:
    """Return a network that computes y = factor * last y + x."""
    type_ = TensorType((4,), DType.FLOAT32)
    x, y, h, last = (Value(name, type_) for name in ("x", "y", "h", "last"))
    k = Value.constant("k", np.full(4, factor, np.float32))
    nodes = (
        Node(Binary("mul"), (last, k), (h,), Origin("MUL", 0)),
        Node(Binary("add"), (h, x), (y,), Origin("ADD", 1)),
    )
    state = State(last, y, np.zeros(4, np.float32))
    return verify(Graph("accumulator", (x,), (y,), nodes, (state,)), "test")


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("expected", "found", "elements"),
    [
        (np.array([1, -128], np.int8), np.array([1, 127], np.int8), 1),
        (np.array([0, 0], np.int8), np.array([0, 0], np.int8), 0),
        (floats(0, 100), floats(0.0009, 100), 0),
        (floats(0, 100), floats(0.0011, 100), 1),
        (floats(0, 0), floats(0, 1e-20), 1),
        (floats(np.nan, 1), floats(np.nan, 1), 0),
        (floats(np.nan, 1), floats(1, 1), 1),
        (floats(1, 1), floats(np.nan, 1), 1),
        (floats(np.inf, 1), floats(np.inf, 1), 0),
        (floats(np.inf, 1), floats(-np.inf, 1), 1),
        (floats(np.inf, 1), floats(3e38, 1), 1),
        (floats(1, 2, 3), floats(1, 2), 3),
    ],
)
def test_compare(expected: Array, found: Array, elements: int) -> None:
    difference = compare(expected, found)
    assert (0 if difference is None else difference.elements) == elements


def test_largest_difference_does_not_wrap() -> None:
    difference = compare(np.array([-128, 3], np.int8), np.array([127, 3], np.int8))
    assert str(difference) == "1 of 2 elements differ, at most by 255"


def test_quantized_real_numbers_have_a_tolerance(tmp_path: Path) -> None:
    """16-bit activations are computed as real numbers, with rounding errors of the machine."""
    rng = np.random.default_rng(2)
    constants = {
        "w": (rng.standard_normal((4, 3, 1, 1)) / 2).astype(np.float32),
        "v": (rng.standard_normal((4, 5)) / 2).astype(np.float32),
    }
    nodes = [
        node("Conv", "x w", "c"),
        node("Relu", "c", "r"),
        node("GlobalAveragePool", "r", "p"),
        node("Flatten", "p", "f"),
        node("MatMul", "f v", "m"),
        node("Tanh", "m", "y"),
    ]
    proto = model(graph(nodes, {"x": (1, 3, 2, 4)}, "y", constants), 21)
    scheme = Scheme(QuantFormat.QDQ, QuantType.QInt16, QuantType.QInt8, per_channel=False)
    quantized = quantize(proto, scheme, samples((1, 3, 2, 4), 8, 1), tmp_path)
    artifact = compile_model(quantized.SerializeToString())
    tolerance = max(tolerances_of(artifact.graph).values())
    assert tolerance == 2 / 65535
    verdict = verify_model(artifact, random_samples(artifact.graph, 20, 0))
    assert verdict.tolerance == tolerance
    far, near = np.array([0, 9], np.int16), np.array([2, 8], np.int16)
    assert compare(far, near, tolerance) is None
    assert compare(far, near + np.int16(1), tolerance) is not None
    assert compare(far, near) is not None


def test_tolerances_of_results_of_quantized_numbers() -> None:
    """Sums have a tolerance, but indices and booleans must be equal."""
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((6, 5)).astype(np.float32),
        "s": np.array(0.02, np.float32),
        "z": np.array(0, np.int8),
        "t": np.array(0.1, np.float32),
        "one": np.array(1, np.int64),
        "k": rng.integers(-128, 128, (5, 3)).astype(np.int8),
    }
    nodes = [
        node("Gemm", "x w", "f"),
        node("QuantizeLinear", "f s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("ArgMax", "d", "index", axis=1, keepdims=0),
        node("Add", "index one", "next"),
        node("Greater", "d t", "truth"),
        node("MatMulInteger", "q k", "sums"),
    ]
    kinds = {"index": "l", "next": "l", "truth": "b", "sums": "i"}
    infos = [tensor_info(name, None, kind) for name, kind in kinds.items()]
    proto = model(graph(nodes, {"x": (4, 6)}, infos, constants), 21)
    artifact = compile_model(proto.SerializeToString())
    assert verify_model(artifact, random_samples(artifact.graph, 4, 0)).tolerance > 0
    tolerances = tolerances_of(artifact.graph)
    index, follows, truth, sums = (tolerances.get(v, 0.0) for v in artifact.graph.outputs)
    assert (index, follows, truth) == (0.0, 0.0, 0.0)
    wanted = np.array([[-1000, 0, 1000]], np.int32)
    assert compare(wanted, wanted + np.int32(2000 * sums), sums) is None
    assert compare(wanted, wanted + np.int32(2000 * sums + 1), sums) is not None
    assert compare(wanted * 0, wanted * 0 + np.int32(1), sums) is not None
    few = np.array([[0, 1, 100]], np.int32)  # a cast may change an element by one
    assert compare(few, few + np.int32(1), sums) is None
    assert compare(few, few + np.int32(2), sums) is not None
    fewest, labels = np.array([[0, 1, 16]], np.int64), np.array([[0, 1, 15]], np.int64)
    assert compare(fewest, fewest + 1, sums) is None
    assert compare(labels, labels + 1, sums) is not None


def branching(then: NodeProto, otherwise: NodeProto, output: str = "y") -> NodeProto:
    branches: dict[str, Any] = {
        "then_branch": graph([then], {}, then.output[0]),
        "else_branch": graph([otherwise], {}, otherwise.output[0]),
    }
    return node("If", "c", output, "", **branches)


def looping(step: NodeProto, kind: str, shape: list[int], first: str = "first") -> NodeProto:
    """Return a loop of `n` iterations that carries the result of `step`; it may read `d`, `s`."""
    inputs = [tensor_info("iteration", [], "l"), tensor_info("go", [], "b")]
    outputs = [tensor_info("on", [], "b"), tensor_info(step.output[0], shape, kind)]
    body = graph(
        [step, node("Identity", "go", "on")], [*inputs, tensor_info("s", shape, kind)], outputs
    )
    return node("Loop", f"n c {first}", "y", "", body=body)


SUMS = node("MatMulInteger", "q k", "s")
MASK = [node("Greater", "d t", "b"), node("Cast", "b", "real", to=1)]
DYNAMIC = node("DynamicQuantizeLinear", "x", "qx sx zx")
CLASS = [node("ArgMax", "d", "i", axis=1), node("Cast", "i", "class", to=1)]


@pytest.mark.parametrize(
    ("kind", "exact", "made"),
    [
        ("u8", True, [node("Greater", "d t", "b"), node("Cast", "b", "y", to=2)]),
        ("i8", True, [node("Greater", "d t", "b"), node("Where", "b seven z", "y")]),
        ("u8", True, [node("ArgMax", "d", "i", axis=1), node("Cast", "i", "y", to=2)]),
        ("l", True, [*MASK, node("Cast", "real", "y", to=7)]),
        ("f", True, [*MASK, node("Identity", "real", "y")]),
        ("l", True, [node("TopK", "d two", "v y", axis=1)]),
        ("f", False, [node("TopK", "d two", "v i", axis=1), node("Relu", "v", "y")]),
        ("i", False, [SUMS, node("TopK", "s two", "y i", axis=1)]),
        ("i", False, [SUMS, node("ArgMax", "s", "i", axis=0), node("Gather", "s i", "y")]),
        ("i", False, [node("Cast", "d", "y", to=6)]),
        ("f", False, [node("Where", "c d t", "y")]),
        (
            "l",
            True,
            [branching(node("ArgMax", "d", "a", axis=1), node("ArgMin", "d", "b", axis=1))],
        ),
        ("f", False, [branching(node("Neg", "d", "a"), node("Abs", "d", "b"))]),
        ("f", False, [looping(node("Sub", "d s", "made"), "f", [4, 5])]),
        ("f", False, [*MASK, branching(node("Identity", "real", "a"), node("Neg", "d", "b"))]),
        ("f", False, [*MASK, branching(node("Neg", "d", "a"), node("Identity", "real", "b"))]),
        ("f", False, [*MASK, looping(node("Identity", "real", "made"), "f", [4, 5], "d")]),
        ("f", False, [*MASK, looping(node("Add", "d s", "made"), "f", [4, 5], "real")]),
        ("l", True, [*MASK, node("ReduceSum", "real", "s"), node("Cast", "s", "y", to=7)]),
        ("l", True, [*CLASS, node("Add", "class one", "s"), node("Cast", "s", "y", to=7)]),
        ("i8", True, [*CLASS, node("QuantizeLinear", "class one z", "y")]),
        ("u8", False, [node("Round", "d", "r"), node("Cast", "r", "y", to=2)]),
        ("l", True, [node("Round", "f", "r"), node("Cast", "r", "y", to=7)]),
        ("l", True, [*MASK, node("CumSum", "real axis", "s"), node("Cast", "s", "y", to=7)]),
        ("l", True, [*CLASS, node("Clip", "class t", "s"), node("Cast", "s", "y", to=7)]),
        ("i", False, [DYNAMIC, node("MatMulInteger", "qx ku", "y")]),
        (
            "i8",
            False,
            [
                node("Cast", "f", "s", to=6),
                node("Cast", "s", "r", to=1),
                node("QuantizeLinear", "r one z", "y"),
            ],
        ),
        (
            "i8",
            False,
            [
                branching(node("Neg", "f", "a"), node("Abs", "f", "b"), "r"),
                node("QuantizeLinear", "r one z", "y"),
            ],
        ),
        ("i8", True, [node("Transpose", "x", "r"), node("QuantizeLinear", "r one z", "y")]),
        ("f", True, [node("TopK", "f two", "y i", axis=1)]),
        (
            "i8",
            True,
            [
                node("Abs", "f", "r"),
                node("Cast", "r", "i", to=7),
                node("Gather", "t5 i", "v"),
                node("QuantizeLinear", "v one z", "y"),
            ],
        ),
        ("l", True, [looping(node("ArgMax", "d", "made", axis=1), "l", [4, 1])]),
    ],
)
def test_which_outputs_have_a_tolerance(kind: str, exact: bool, made: list[NodeProto]) -> None:
    """Numbers behind a quantization have a tolerance; booleans and indices must be equal."""
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((6, 5)).astype(np.float32),
        "s0": np.array(0.02, np.float32),
        "z": np.array(0, np.int8),
        "t": np.array(0.1, np.float32),
        "seven": np.array(7, np.int8),
        "two": np.array([2], np.int64),
        "one": np.array(1, np.float32),
        "axis": np.array(1, np.int64),
        "t5": np.arange(5, dtype=np.float32),
        "ku": rng.integers(-128, 128, (6, 3)).astype(np.int8),
        "k": rng.integers(-128, 128, (5, 3)).astype(np.int8),
        "n": np.array(40, np.int64),
        "first": np.zeros((4, 1), np.int64) if kind == "l" else np.zeros((4, 5), np.float32),
    }
    nodes = [
        node("Gemm", "x w", "f"),
        node("QuantizeLinear", "f s0 z", "q"),
        node("DequantizeLinear", "q s0 z", "d"),
        *made,
    ]
    inputs = [tensor_info("x", [4, 6]), tensor_info("c", [], "b")]
    proto = model(graph(nodes, inputs, [tensor_info("y", None, kind)], constants), 21)
    optimized = compile_model(proto.SerializeToString()).graph
    assert (optimized.outputs[0] not in tolerances_of(optimized)) == exact


def test_a_class_in_a_state_has_no_tolerance() -> None:
    """Also if nodes that read the state come before the nodes that compute it."""
    row, one = TensorType((1, 8), DType.FLOAT32), TensorType((1,), DType.FLOAT32)
    quantized = TensorType((1, 8), DType.INT8, Quant.per_tensor(0.01, 0))
    x, h, d, before, after = (
        Value(n, t) for n, t in zip("xhdba", (row, row, row, one, one), strict=True)
    )
    q, index = Value("q", quantized), Value("i", TensorType((1,), DType.INT64))
    y = Value("y", TensorType((1,), DType.INT8, Quant.per_tensor(1.0, 0)))
    half = Value("half", TensorType((1,), DType.FLOAT16))
    nodes = (
        Node(Cast(DType.FLOAT16), (before,), (half,), Origin("C", 6)),
        Node(Quantize(DType.INT8), (before,), (y,), Origin("Q", 0), Rounding.ONNX),
        Node(Unary("tanh"), (x,), (h,), Origin("T", 1)),
        Node(Quantize(DType.INT8), (h,), (q,), Origin("Q", 2), Rounding.ONNX),
        Node(Dequantize(), (q,), (d,), Origin("D", 3)),
        Node(ArgReduce("max", 1, False), (d,), (index,), Origin("A", 4)),
        Node(Cast(DType.FLOAT32), (index,), (after,), Origin("C", 5)),
    )
    state = State(before, after, np.zeros(1, np.float32))
    tolerances = tolerances_of(verify(Graph("held", (x,), (y, half), nodes, (state,)), "test"))
    assert d in tolerances
    assert y not in tolerances
    assert half not in tolerances


def test_a_number_in_a_state_has_a_tolerance() -> None:
    """As float16, a number in a state is rounded and has a tolerance, but a boolean has none."""
    row, bit = TensorType((1, 8), DType.FLOAT32), TensorType((1,), DType.BOOL)
    x, after, before = (Value(n, row) for n in ("x", "after", "before"))
    half = Value("half", TensorType((1, 8), DType.FLOAT16))
    truth, one = Value("truth", bit), Value("one", TensorType((1,), DType.FLOAT16))
    nodes = (
        Node(Cast(DType.FLOAT16), (before,), (half,), Origin("C", 0)),
        Node(Cast(DType.FLOAT16), (truth,), (one,), Origin("C", 1)),
        Node(Copy(), (x,), (after,), Origin("I", 2)),
    )
    state = State(before, after, np.zeros((1, 8), np.float32))
    held = Graph("held", (x, truth), (half, one), nodes, (state,))
    assert tolerances_of(verify(held, "test")) == {half: FLOAT16_TOLERANCE}


@pytest.mark.parametrize(
    ("step", "exact"), [(0.1, False), (1.0, True), (1023 / 7, False), (146.0, True), (147.0, False)]
)
def test_constants_that_float16_may_have_rounded_have_a_tolerance(step: float, exact: bool) -> None:
    """A choice between constants is exact only for integers below 1,024, such as classes."""
    truth = Value("truth", TensorType((1, 8), DType.BOOL))
    halves = (np.arange(8)[None] * step).astype(np.float16)
    this, that = Value.constant("this", halves), Value.constant("that", -halves)
    y = Value("y", TensorType((1, 8), DType.FLOAT16))
    node = Node(Select(), (truth, this, that), (y,), Origin("W", 0))
    tolerances = tolerances_of(verify(Graph("chosen", (truth,), (y,), (node,)), "test"))
    assert tolerances == ({} if exact else {y: FLOAT16_TOLERANCE})


def operators_before(last: Op, made: TensorType, *, booleans: bool = False) -> set[str]:
    """Return names of operators with a float32 result that has no tolerance after `last`.

    Args:
        last: the operator that quantizes or casts the result.
        made: type of what `last` returns; its shape is ignored.
        booleans: whether the inputs are booleans that are cast to numbers.
    """
    found: set[str] = set()
    for case in all_cases():
        for own in (build(case, dtype) for dtype in case.dtypes):
            y, inputs = own.outputs[0], {v: v for v in own.inputs}
            if y.type.dtype is not DType.FLOAT32:
                continue
            if booleans:
                inputs = {v: renamed(v, TensorType(v.type.shape, DType.BOOL)) for v in inputs}
            casts = [
                Node(Cast(v.type.dtype), (source,), (v,), Origin("CAST", 0))
                for v, source in inputs.items()
                if source is not v
            ]
            z = renamed(y, replace(made, shape=y.type.shape))
            end = Node(last, (y,), (z,), Origin("END", 1), Rounding.ONNX)
            nodes = (*casts, *own.nodes, end)
            whole = replace(own, inputs=tuple(inputs.values()), nodes=nodes, outputs=(z,))
            if z not in tolerances_of(whole):
                found.add(own.nodes[-1].op.name)
    return found


def renamed(value: Value, type_: TensorType) -> Value:
    return Value(f"{value.name}_other", type_)


def test_operators_that_only_move_numbers_keep_them_exact() -> None:
    """Exact inputs give exact results, and booleans give numbers that float16 holds."""
    moving = {"Cast", "Concat", "Copy", "MaxPoolIndices", "Pad", "Reshape", "Slice", "Transpose"}
    moving |= {
        "Gather",
        "GatherElements",
        "GatherND",
        "OneHot",
        "ReverseSequence",
        "Select",
        "Tile",
        "UpdateSlice",
    }
    quantized = TensorType((), DType.INT8, Quant.per_tensor(1.0, 0))
    assert operators_before(Quantize(DType.INT8), quantized) == {*moving, "Dequantize"}
    halves = TensorType((), DType.FLOAT16)
    assert operators_before(Cast(DType.FLOAT16), halves, booleans=True) == moving


def test_differences_do_not_overflow() -> None:
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    for a, b in ((low, 0), (0, low), (low, high), (-(2**62), 2**62)):
        assert compare(np.array([a], np.int64), np.array([b], np.int64)) is not None
    assert compare(np.array([2**63], np.uint64), np.array([0], np.uint64)) is not None


def test_integers_are_also_compared_with_the_files_real_numbers() -> None:
    constants = {"s": np.array(0.0373, np.float32), "z": np.array(3, np.int8)}
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("AveragePool", "d", "p", kernel_shape=[2, 2]),  # often a tie
        node("QuantizeLinear", "p s z", "r"),
        node("DequantizeLinear", "r s z", "y"),
    ]
    proto = model(graph(nodes, {"x": (1, 3, 6, 6)}, "y", constants), 21)
    artifact = compile_model(proto.SerializeToString())
    verdict = verify_model(artifact, random_samples(artifact.graph, 20, 0))
    assert verdict.real is not None
    assert 0 < verdict.real.elements < verdict.real.total / 2
    assert "compared with the file's float arithmetic" in str(verdict)
