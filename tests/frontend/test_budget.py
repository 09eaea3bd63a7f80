"""The budget for computing constants at import: files that exceed it are refused quickly."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import numpy as np
import onnx
import pytest
from onnx import helper

from smelt.codegen.passes import run_passes
from smelt.errors import ModelError, UnsupportedError
from smelt.frontend import load
from smelt.ir import Array, DType, Graph, Node, Origin, TensorType, Value, evaluate
from smelt.ir.archive import save
from smelt.ir.budget import limited
from smelt.ops.control.branches import Loop
from smelt.ops.core.binary import Binary
from tests.support.onnx_networks import graph, ints, model, node, tensor_info
from tests.support.tflite_networks import O, T, const, edited, network

LARGE = 2**40
MEMORY = 2**30
"""Largest allocation in bytes while a file is refused."""


def made(nodes: Sequence[onnx.NodeProto], **constants: Any) -> onnx.ModelProto:
    """Return a network that adds the maximum of `c`, which the nodes compute, to its input."""
    arrays = {name: np.asarray(value) for name, value in constants.items()}
    ending = [node("ReduceMax", "c", "m", keepdims=0), node("Add", "x m", "y")]
    return model(graph([*nodes, *ending], {"x": [1]}, "y", arrays))


def one(kind: str, inputs: str, constants: dict[str, Any], **attributes: Any) -> onnx.ModelProto:
    return made([node(kind, inputs, "c", "", **attributes)], **constants)


ONES = np.ones((1, 1, 4, 4), np.float32)
VECTOR = np.ones(8, np.float32)


def loop_node(turns: str, body: onnx.GraphProto) -> onnx.NodeProto:
    return node("Loop", f"{turns} true s", "c", body=body)


def body(depth: int, more: str = "going") -> onnx.GraphProto:
    """Return a loop's body that adds one, or that contains `depth` nested loops of such a body.

    The trip count of the nested loops is the tensor `turns`.
    """
    step = [node("Add", f"s{depth} one", f"t{depth}")]
    if depth:
        step = [node("Loop", f"turns true s{depth}", f"t{depth}", body=body(depth - 1))]
    return graph(
        [*step, node("Identity", f"{more}{depth}", f"more{depth}")],
        [
            tensor_info(f"n{depth}", [], "l"),
            tensor_info(f"going{depth}", [], "b"),
            tensor_info(f"s{depth}", [2]),
        ],
        [tensor_info(f"more{depth}", [], "b"), tensor_info(f"t{depth}", [2])],
    )


def loop_network(turns: int, depth: int = 0) -> onnx.ModelProto:
    constants = {"turns": turns, "true": True, "s": VECTOR[:2], "one": VECTOR[:1]}
    return made([loop_node("turns", body(depth))], **constants)


def loop_until(far: float = 1e7) -> onnx.ModelProto:
    """Return a network with a loop without trip count that adds ones until the sum is `far`."""
    inner = graph(
        [
            node("Add", "s0 one", "t"),
            node("ReduceMax", "t", "top", keepdims=0),
            node("Less", "top far", "more"),
        ],
        [tensor_info("n", [], "l"), tensor_info("g", [], "b"), tensor_info("s0", [2])],
        [tensor_info("more", [], "b"), tensor_info("t", [2])],
    )
    constants = {"true": True, "s": VECTOR[:2], "one": VECTOR[:1], "far": np.float32(far)}
    return made([node("Loop", "_ true s", "c", body=inner)], **constants)


def scan_network(rows: int) -> onnx.ModelProto:
    inner = graph(
        [node("Add", "a b", "t"), node("Identity", "t", "u")],
        [tensor_info("a", []), tensor_info("b", [])],
        [tensor_info("t", []), tensor_info("u", [])],
    )
    nodes = [node("ConstantOfShape", "rows", "r"), node("Scan", "zero r", "c d", body=inner)]
    nodes[1].attribute.append(helper.make_attribute("num_scan_inputs", 1))
    return made(nodes, rows=ints(rows), zero=np.float32(0))


def doubled(kind: str) -> onnx.ModelProto:
    """Return a network that doubles a constant 60 times: t[i + 1] = kind(t[i], t[i])."""
    nodes = [node(kind, f"t{i} t{i}", f"t{i + 1}", axis=0) for i in range(60)]
    return made([*nodes, node("Identity", "t60", "c")], t0=VECTOR)


def many_constants(count: int) -> onnx.ModelProto:
    """Return a network that computes `count` constants, of which each one alone is allowed."""
    nodes = [node("ConstantOfShape", "size", f"t{i}") for i in range(count)]
    nodes += [node("ReduceMax", f"t{i}", f"m{i}", keepdims=0) for i in range(count)]
    joined = node("Max", " ".join(f"m{i}" for i in range(count)), "c")
    return made([*nodes, joined], size=ints(2**22))


def growing_sequence() -> onnx.ModelProto:
    """Return a network that appends a tensor to a sequence 5000 times."""
    nodes = [node("SequenceConstruct", "v", "s0")]
    nodes += [node("SequenceInsert", f"s{i} v", f"s{i + 1}") for i in range(5000)]
    return made([*nodes, node("ConcatFromSequence", "s5000", "c", axis=0)], v=VECTOR)


def _numbers(*values: float) -> dict[str, Any]:
    return {f"n{i}": np.asarray(v) for i, v in enumerate(values)}


def _reals(*values: float) -> Array:
    return np.asarray(values, np.float32)


REFUSED: dict[str, Callable[[], onnx.ModelProto]] = {
    "Loop": lambda: loop_network(10**9),
    "nested Loops": lambda: loop_network(2000, 3),
    "endless Loop": loop_until,
    "Scan": lambda: scan_network(2**20),
    "Range": lambda: one("Range", "n0 n1 n2", _numbers(0, LARGE, 1)),
    "Range of reals": lambda: one("Range", "n0 n1 n2", _numbers(0.0, 1e12, 1e-3)),
    "Tile": lambda: one("Tile", "v n", {"v": VECTOR, "n": ints(LARGE)}),
    "Tile by little": lambda: one("Tile", "v n", {"v": VECTOR, "n": ints(2**24)}),
    "Expand": lambda: one("Expand", "v n", {"v": VECTOR[:1], "n": ints(2**14, 2**14)}),
    "ConstantOfShape": lambda: one("ConstantOfShape", "n", {"n": ints(2**20, 2**20)}),
    "ConstantOfShapes": lambda: many_constants(40),
    "EyeLike": lambda: made(
        [node("ConstantOfShape", "n", "t"), node("EyeLike", "t", "c")], n=ints(2**13, 2**13)
    ),
    "Resize": lambda: one("Resize", "v _ n", {"v": ONES, "n": _reals(1, 1, 1e6, 1e6)}),
    "cubic Resize": lambda: one("Resize", "v _ n", {"v": VECTOR, "n": _reals(1e6)}, mode="cubic"),
    "Upsample": lambda: one("Resize", "v _ _ n", {"v": VECTOR, "n": ints(2**23)}, mode="linear"),
    "Pad": lambda: one("Pad", "v n", {"v": VECTOR, "n": ints(LARGE, 0)}),
    "Pad by little": lambda: one("Pad", "v n", {"v": VECTOR, "n": ints(2**26, 0)}),
    "CenterCropPad": lambda: one("CenterCropPad", "v n", {"v": VECTOR, "n": ints(2**27)}),
    "Concat": lambda: doubled("Concat"),
    "sequence": growing_sequence,
    "OneHot": lambda: one(
        "OneHot", "v d w", {"v": np.zeros(64, np.int64), "d": 2**21, "w": VECTOR[:2]}
    ),
    "MatMul": lambda: made(
        [
            node("ConstantOfShape", "a", "p"),
            node("ConstantOfShape", "b", "q"),
            node("MatMul", "p q", "c"),
        ],
        a=ints(2**13, 1),
        b=ints(1, 2**13),
    ),
    "Einsum": lambda: one(
        "Einsum", "v v v v v v v v v", {"v": VECTOR}, equation="a,b,c,d,e,f,g,h,i->abcdefghi"
    ),
    "Conv": lambda: one("Conv", "v w", {"v": ONES, "w": ONES}, pads=[2**13] * 4),
    "Conv far apart": lambda: one(
        "Conv", "v w", {"v": ONES, "w": ONES}, pads=[2**15] * 4, strides=[2**15, 2**15]
    ),
    "ConvTranspose": lambda: one(
        "ConvTranspose", "v w", {"v": ONES, "w": ONES}, strides=[2**13, 2**13]
    ),
    "AveragePool": lambda: one(
        "AveragePool", "v", {"v": ONES}, kernel_shape=[2**13, 2**13], pads=[2**13 - 1] * 4
    ),
    "RoiAlign": lambda: one(
        "RoiAlign",
        "v b i",
        {"v": ONES, "b": _reals(0, 0, 1, 1)[None], "i": ints(0)},
        output_height=2**10,
        output_width=2**10,
    ),
    "HannWindow": lambda: made([node("HannWindow", "n0", "c")], n0=np.asarray(2**33)),
    "STFT": lambda: model(
        graph(
            [node("STFT", "x s w", "y")],
            {"x": [1, 2**20, 1], "w": [2**10]},
            "y",
            {"s": np.asarray(1)},
        )
    ),
    "Attention": lambda: model(
        graph([node("Attention", "x x x", "y", is_causal=1)], {"x": [1, 1, 2**13, 8]}, "y"), 23
    ),
    "Attention of masks": lambda: model(
        graph(
            [node("Attention", "x x x m", "y")],
            {"x": [1, 1, 2**9, 8]},
            "y",
            {"m": np.zeros((2**10, 1, 1, 1), np.bool_)},
        ),
        23,
    ),
    "unidirectional Attention": lambda: model(
        graph(
            [node("Attention", "x w", "y", "com.microsoft", num_heads=1, unidirectional=1)],
            {"x": [1, 2**13, 1]},
            "y",
            {"w": np.ones((1, 3), np.float32)},
        ),
        com_microsoft=1,
    ),
    "blocks": lambda: model(
        graph(
            [node("DequantizeLinear", "x s", "y", axis=0, block_size=2**40)],
            [tensor_info("x", [2**28], "i8")],
            "y",
            {"s": np.ones(1, np.float32)},
        )
    ),
    "MelWeightMatrix": lambda: one(
        "MelWeightMatrix", "n0 n1 n2 n3 n4", _numbers(2**20, 2**12, 16000, 0.0, 8000.0)
    ),
    "DFT": lambda: one("DFT", "v n", {"v": ONES.reshape(1, 16, 1), "n": 2**21}),
    "AffineGrid": lambda: one(
        "AffineGrid", "t n", {"t": np.ones((1, 2, 3), np.float32), "n": ints(1, 1, 2**12, 2**12)}
    ),
    "SplitToSequence": lambda: made(
        [
            node("ConstantOfShape", "n", "v"),
            node("SplitToSequence", "v", "s"),
            node("SequenceLength", "s", "c"),
        ],
        n=ints(2**24),
    ),
    "LSTM": lambda: made(
        [node("ConstantOfShape", "n", "v"), node("LSTM", "v w r", "_ c", hidden_size=1)],
        n=ints(2**20, 1, 1),
        w=np.ones((1, 4, 1), np.float32),
        r=np.ones((1, 4, 1), np.float32),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_too_much_work_on_constants_is_refused(name: str) -> None:
    # Tracing memory takes ten times as long, and this loop allocates almost none.
    kind, message = refusal(REFUSED[name]().SerializeToString(), trace=name != "endless Loop")
    assert kind is UnsupportedError
    assert re.search(
        r"[\d,.e+]{6,} (elementary operations|elements|operators|bytes)|large", message
    )


def refusal(data: bytes, *, trace: bool = True) -> tuple[type[Exception], str]:
    """Return type and message of the error that the file causes.

    With `trace`, also assert that the import allocates little memory.
    """
    if trace:
        tracemalloc.start()
    try:
        with pytest.raises((ModelError, UnsupportedError)) as caught:
            load(data)
        assert not trace or tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()
    return caught.type, str(caught.value)


def test_the_message_names_operator_work_limit_and_remedy() -> None:
    _, message = refusal(loop_network(10**9).SerializeToString())
    assert re.fullmatch(
        r"Loop #0 'c': computing the constants up to here takes 3,079,000,001,\d{3} elementary "
        r"operations; Smelt computes at most 33,5\d\d,\d{3} for a network of this size while it "
        r"compiles. Export the network with the result as a constant, or with less to compute",
        message,
    )


def test_loops_over_constants_that_end_are_computed() -> None:
    """A simple loop, nested loops, and a loop that ends by its condition."""
    for proto, sum_ in (
        (loop_network(3000), 3001),
        (loop_network(12, 2), 12**3 + 1),
        (loop_until(40.0), 40),
    ):
        (found,) = evaluate(load(proto.SerializeToString()).graph, [VECTOR[:1]]).outputs
        assert found == sum_ + 1


def test_the_budget_grows_with_the_constants_of_the_file() -> None:
    """Large weights may be dequantized and transposed."""
    weights = np.zeros((2048, 2048), np.int8)
    steps = [node("DequantizeLinear", "w scale", "t0")]
    steps += [node("Transpose", f"t{i}", f"t{i + 1}", perm=[1, 0]) for i in range(4)]
    proto = made([*steps, node("Identity", "t4", "c")], w=weights, scale=np.float32(1))
    load(proto.SerializeToString())
    small = made([*steps, node("Identity", "t4", "c")], w=weights[:4, :4], scale=np.float32(1))
    with limited(0) as budget:
        load(small.SerializeToString())
    assert budget.spent == 0  # each file has a budget of its own


def test_a_caller_may_raise_the_budget() -> None:
    data = made([node("ConstantOfShape", "many", "c")], many=ints(1 << 26)).SerializeToString()
    assert "computing the constants up to here takes" in refusal(data)[1]
    with limited(1 << 24):
        load(data)


def test_constants_of_unrolled_loops_are_counted() -> None:
    """Each turn has its own copy of the body's constants."""
    sequence = helper.make_tensor_sequence_value_info
    inner = graph(
        [node("SequenceInsert", "s w", "t"), node("Identity", "g", "more")],
        [tensor_info("n", [], "l"), tensor_info("g", [], "b"), sequence("s", 1, None)],
        [tensor_info("more", [], "b"), sequence("t", 1, None)],
        {"w": np.zeros(2**20, np.float32)},
    )
    nodes = [
        node("SequenceEmpty", "", "empty"),
        node("Loop", "turns true empty", "made", body=inner),
        node("ConcatFromSequence", "made", "c", axis=0),
    ]
    data = made(nodes, turns=256, true=True).SerializeToString()
    assert "constant 'w': computing the constants up to here takes" in refusal(data)[1]


# TFLite


def tflite(
    kind: str, constants: Sequence[T], shape: tuple[int, ...], options: Any = None, **fields: Any
) -> bytes:
    """Return a network that adds the result of an operator on constants to its input."""
    made = T("made", shape)
    operators = [
        O(kind, [c.name for c in constants], ["made"], options, fields),
        O("ADD", ["x", "made"], ["y"], schema.AddOptionsT),
    ]
    return network([T("x", shape), T("y", shape), made, *constants], operators, ["x"], ["y"])


def _ints(name: str, *values: int) -> T:
    return const(name, values, np.int32)


V = const("v", VECTOR)
IMAGE = const("v", ONES)
REFUSED_TFLITE: dict[str, Callable[[], bytes]] = {
    "TILE": lambda: tflite("TILE", [V, _ints("n", 2**23)], (2**26,)),
    "BROADCAST_TO": lambda: tflite("BROADCAST_TO", [V, _ints("n", 2**23, 8)], (2**23, 8)),
    "PAD": lambda: tflite("PAD", [V, _ints("n", 2**26, 0)], (2**26 + 8,)),
    "RESIZE_NEAREST_NEIGHBOR": lambda: tflite(
        "RESIZE_NEAREST_NEIGHBOR",
        [IMAGE, _ints("n", 2**12, 2**12)],
        (1, 2**12, 2**12, 4),
        schema.ResizeNearestNeighborOptionsT,
    ),
    "ONE_HOT": lambda: tflite(
        "ONE_HOT",
        [_ints("v", *range(8)), _ints("d", 2**23), const("hot", 1.0), const("cold", 0.0)],
        (8, 2**23),
        schema.OneHotOptionsT,
        axis=-1,
    ),
}


@pytest.mark.parametrize("name", REFUSED_TFLITE)
def test_too_much_work_on_constants_of_tflite_is_refused(name: str) -> None:
    kind, message = refusal(REFUSED_TFLITE[name]())
    assert kind is UnsupportedError
    assert message.startswith(name)
    assert "elementary operations" in message


def test_each_tensor_with_a_shared_buffer_is_counted() -> None:
    data = np.zeros(2**16, np.float32)
    tensors = [T(f"c{i}", data.shape, data=data if i == 0 else None) for i in range(2000)]
    shape = (2000 * 2**16,)
    ends = [T("x", shape), T("y", shape), T("made", shape)]
    operators = [
        O("CONCATENATION", [t.name for t in tensors], ["made"], schema.ConcatenationOptionsT),
        O("ADD", ["x", "made"], ["y"], schema.AddOptionsT),
    ]

    def share(model: Any) -> None:
        for tensor in model.subgraphs[0].tensors:
            if tensor.name.startswith(b"c"):
                tensor.buffer = 1

    empty = network([*tensors, *ends], operators, ["x"], ["y"])
    assert "constant 'c" in refusal(edited(empty, share))[1]


# Archives


@pytest.mark.parametrize(("turns", "computed"), [(3, True), (200_000, False)])
def test_only_short_loops_of_archives_are_computed(
    turns: int, computed: bool, tmp_path: Path
) -> None:
    """A loop on constants with too many turns stays in the graph."""
    number, vector = TensorType((), DType.INT64), TensorType((2,), DType.FLOAT32)
    add = Binary("add")

    def summed(name: str, a: Value, b: Value) -> tuple[Node, Value]:
        made = Value(name, vector)
        return Node(add, (a, b), (made,), Origin("ADD", 0)), made

    turn, s = Value("turn", number), Value("s", vector)
    step, t = summed("t", s, s)
    body_ = Graph("body", (turn, s), (t,), (step,))
    start, x, c = Value.constant("start", VECTOR[:2] * 0), Value("x", vector), Value("c", vector)
    loop = Node(Loop(body_, 1, turns), (None, None, start), (c,), Origin("LOOP", 0))
    last, y = summed("y", x, c)
    path = tmp_path / "net.smelt"
    save(Graph("net", (x,), (y,), (loop, last)), path)
    kinds = [n.op.name for n in run_passes(load(path).graph).nodes]
    assert ("Loop" not in kinds) is computed
