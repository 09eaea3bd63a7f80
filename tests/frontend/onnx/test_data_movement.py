"""ONNX operators that move data, as several operator sets define them, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest

from smelt.codegen.passes import run_passes
from smelt.errors import ModelError, UnsupportedError
from smelt.frontend import load
from smelt.ir import Array, Graph, evaluate
from smelt.ops.tensor.gather import Gather
from smelt.ops.tensor.slice import Slice
from tests.support.onnx_networks import agrees, graph, ints, model, node, tensor_info

RNG = np.random.default_rng(5)
X = RNG.uniform(-1, 1, (2, 3, 4)).astype(np.float32)
IMAGE = RNG.uniform(-1, 1, (1, 8, 4, 6)).astype(np.float32)
FROM_0_TO_1, FROM_2_TO_3 = (np.asarray(pair, np.float32) for pair in ((0, 1), (2, 3)))
EQUAL = RNG.integers(0, 4, (3, 20)).astype(np.float32)
_KINDS = {"float32": "f", "int32": "i", "int64": "l", "bool": "b", "uint8": "u8", "int8": "i8"}


@dataclass(frozen=True)
class One:
    """A network of one operator.

    Attributes:
        kind: ONNX name of the operator.
        opset: operator set.
        fed: values of the first operands, which are inputs of the network.
        constants: the other operands; None for an absent one.
        attributes: the attributes of the operator.
        outputs: number of outputs.
    """

    kind: str
    opset: int
    fed: Sequence[Array]
    constants: Sequence[Array | None] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    outputs: int = 1

    def __str__(self) -> str:
        numbers = [a.tolist() if isinstance(a, np.ndarray) else a for a in self.constants]
        return f"{self.kind}-{self.opset}-{numbers}-{dict(self.attributes)}".replace(" ", "")

    def proto(self) -> onnx.ModelProto:
        inputs = [
            tensor_info(f"x{i}", a.shape, _KINDS[a.dtype.name]) for i, a in enumerate(self.fed)
        ]
        constants = {f"c{i}": a for i, a in enumerate(self.constants) if a is not None}
        operands = [i.name for i in inputs]
        operands += ["_" if a is None else f"c{i}" for i, a in enumerate(self.constants)]
        results = [f"y{i}" for i in range(self.outputs)]
        kind = node(self.kind, " ".join(operands), " ".join(results), **self.attributes)
        outputs = [onnx.ValueInfoProto(name=name) for name in results]
        return model(graph([kind], inputs, outputs, constants), self.opset)

    def feeds(self) -> dict[str, Array]:
        return {f"x{i}": a for i, a in enumerate(self.fed)}


def one(
    kind: str, opset: int, fed: Array | Sequence[Array], *constants: Array | None, **attributes: Any
) -> One:
    fed = [fed] if isinstance(fed, np.ndarray) else fed
    outputs = attributes.pop("outputs", 1)
    return One(kind, opset, fed, constants, attributes, outputs)


def scalar(number: float, dtype: type = np.float32) -> Array:
    return np.asarray(number, dtype)


def indices(*shape: int, size: int, dtype: type = np.int64) -> Array:
    return RNG.integers(-size, size, shape).astype(dtype)


NETWORKS = (
    one("Reshape", 13, X, ints(0, -1)),
    one("Reshape", 14, X, ints(4, 6), allowzero=1),
    one("Flatten", 9, X, axis=0),
    one("Flatten", 13, X, axis=-1),
    one("Flatten", 13, X, axis=3),
    one("Squeeze", 11, X[:1, None], axes=[0, 1]),
    one("Squeeze", 13, X[:1, None]),
    one("Unsqueeze", 11, X, axes=[0, 4]),
    one("Unsqueeze", 13, X, ints(-1, 1)),
    one("Transpose", 13, X),
    one("Transpose", 13, X, perm=[1, 0, 2]),
    one("Concat", 13, [X, X[:, :1]], axis=-2),
    one("Split", 11, X, axis=2, split=[1, 3], outputs=2),
    one("Split", 11, X, axis=-1, outputs=2),
    one("Split", 13, X, ints(1, 1, 2), axis=2, outputs=3),
    one("Split", 18, RNG.uniform(size=7).astype(np.float32), num_outputs=3, outputs=3),
    one("Slice", 9, X, starts=[1, -3], ends=[2, 1000], axes=[0, 2]),
    one("Slice", 9, X, starts=[0, 1], ends=[2, -1]),
    one("Slice", 13, X, ints(0, 3), ints(2, 0), ints(1, -1), ints(1, -2)),
    one("Slice", 13, X, ints(-1), ints(-(2**63)), ints(2), ints(-1)),
    one("Slice", 13, X, ints(9), ints(-99), ints(1), ints(-1)),
    one("Slice", 13, X, ints(1), ints(2**63 - 1), None, ints(2)),
    one("Slice", 13, X, *(np.array([n], np.int32) for n in (1, 3, 2, 1))),
    one("Expand", 13, X[:, :1], ints(3, 1)),
    one("Expand", 13, X, ints(5, 1, 1, 1)),
    one("Tile", 13, X, ints(1, 2, 3)),
    one("Pad", 10, X, pads=[0, 1, 0, 0, 0, 2], value=0.5),
    one("Pad", 10, X, pads=[0, 2, 1, 1, 1, 3], mode="reflect"),
    one("Pad", 13, X, ints(0, -1, 2, 0, 1, -1), scalar(1.5)),
    one("Pad", 18, X, ints(1, 2), None, ints(-1)),
    one("Pad", 18, X, ints(2, -1, 1, 3), None, ints(2, 1), mode="edge"),
    one("Pad", 19, X, ints(0, 3, 1, 0, 2, 5), mode="wrap"),
    one("Pad", 19, (X * 9).astype(np.int64), ints(0, 0, 1, 0, 0, 0), scalar(2**40, np.int64)),
    one("Gather", 13, [X, indices(2, 5, size=3)], axis=1),
    one("Gather", 13, [X, indices(size=4)], axis=-1),
    one("Gather", 13, X, scalar(-1, np.int64), axis=1),
    one("Gather", 13, X, ints(0, 2), axis=2),
    one("Gather", 13, X, ints(3, 0, 0), axis=2),
    one("Gather", 13, X, ints(2, 1, 0).reshape(1, 3), axis=1),
    one("GatherElements", 13, [X, indices(2, 7, 4, size=3)], axis=1),
    one("GatherElements", 13, [X, indices(1, 3, 2, size=4, dtype=np.int32)], axis=-1),
    one("GatherND", 13, [X, RNG.integers(-2, 2, (5, 2))]),
    one("GatherND", 13, [X, indices(2, 4, 1, size=3)], batch_dims=1),
    one("ScatterElements", 16, [X, ints(1, 0, 2, -4).reshape(1, 1, 4), X[:1, :1]], axis=2),
    *(
        one(
            "ScatterElements",
            18,
            [X, indices(2, 3, 6, size=4), np.tile(X, 2)[..., :6]],
            axis=2,
            reduction=reduction,
        )
        for reduction in ("add", "mul", "max", "min")
    ),
    one("Scatter", 9, [X, ints(1, 0).reshape(2, 1, 1), X[:, :1, :1]], axis=1),
    one("ScatterND", 18, [X, ints(1, 2, 0, -1).reshape(2, 2), X[0, :2]]),
    one("ScatterND", 18, [X, ints(1, 1).reshape(2, 1), X * 3], reduction="add"),
    one("OneHot", 11, indices(3, 2, size=6), scalar(5, np.int64), FROM_2_TO_3),
    one("OneHot", 11, np.trunc(X * 5), scalar(4), FROM_0_TO_1, axis=0),
    one("TopK", 9, X, k=2, outputs=2),
    one("TopK", 10, X, ints(3), axis=1, outputs=2),
    one("TopK", 11, EQUAL, ints(15), largest=0, outputs=2),
    one("TopK", 11, EQUAL, ints(7), axis=-1, outputs=2),
    one("ArgMax", 13, EQUAL, axis=1, keepdims=0),
    one("ArgMax", 13, EQUAL, axis=0, select_last_index=1),
    one("ArgMin", 11, EQUAL, axis=-1),
    one("Trilu", 14, X, scalar(1, np.int64)),
    one("Trilu", 14, X, upper=0),
    one("Trilu", 14, X, scalar(-1, np.int64), upper=0),
    one("ReverseSequence", 10, X, ints(2, 1, 2)),
    one("ReverseSequence", 10, [X, ints(1, 3)], batch_axis=0, time_axis=1),
    one("DepthToSpace", 13, IMAGE, blocksize=2),
    one("DepthToSpace", 13, IMAGE, blocksize=2, mode="CRD"),
    one("SpaceToDepth", 13, IMAGE, blocksize=2),
    one("CenterCropPad", 18, IMAGE, ints(7, 3), axes=[-1, 2]),
    one("Compress", 11, X, np.array([True, False, True]), axis=1),
    one("Compress", 11, X, np.array([False, True, True, False, True])),
)


@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_agrees_with_onnx_runtime(network: One) -> None:
    agrees(network.proto(), network.feeds())


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.bool_])
@pytest.mark.parametrize("kind", ["Slice", "Gather", "GatherND", "Expand", "Concat", "Tile"])
def test_every_element_type_is_moved(kind: str, dtype: type) -> None:
    x = RNG.integers(0, 2, (2, 3, 4)).astype(dtype)
    network = {
        "Slice": one("Slice", 13, x, ints(2), ints(0), ints(1), ints(-1)),
        "Gather": one("Gather", 13, [x, indices(4, size=3)], axis=1),
        "GatherND": one("GatherND", 13, [x, indices(4, 1, size=2)]),
        "Expand": one("Expand", 13, x[:, :1], ints(2, 5, 4)),
        "Concat": one("Concat", 13, [x, x], axis=0),
        "Tile": one("Tile", 13, x, ints(2, 1, 2)),
    }[kind]
    agrees(network.proto(), network.feeds())


# Shapes computed in the graph


def test_shapes_computed_in_the_graph_become_constants() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n", axis=0),
        node("Gather", "s one", "c", axis=0),
        node("Unsqueeze", "n at", "n1"),
        node("Unsqueeze", "c at", "c1"),
        node("Concat", "n1 rest c1", "shape", axis=0),
        node("Reshape", "x shape", "viewed"),
        node("Slice", "s at one1", "head"),
        node("Concat", "head two1 one1", "repeats", axis=0),
        node("Tile", "viewed repeats", "tiled"),
        node("Concat", "none shape none", "same", axis=0),
        node("Reshape", "x same", "again"),
        node("Range", "zero c one", "steps"),
        node("Gather", "again steps", "y", axis=2),
    ]
    constants = {
        "zero": scalar(0, np.int64),
        "one": scalar(1, np.int64),
        "at": ints(0),
        "rest": ints(-1),
        "one1": ints(1),
        "two1": ints(2),
        "none": ints(),
    }
    proto = model(graph(nodes, {"x": (2, 3, 4)}, "tiled y", constants))
    agrees(proto, {"x": X})
    kinds = [type(n.op).__name__ for n in run_passes(load(proto.SerializeToString()).graph).nodes]
    assert kinds.count("Tile") == 1
    assert set(kinds) <= {"Tile", "Reshape", "Slice", "Copy"}


def imported(network: One) -> Graph:
    return load(network.proto().SerializeToString()).graph


def test_gather_with_evenly_spaced_constant_indices_becomes_a_slice() -> None:
    (op,) = (n.op for n in imported(one("Gather", 13, X, ints(3, 1), axis=2)).nodes)
    assert op == Slice((0, 0, 3), (2, 3, 2), (1, 1, -2))


def test_other_constant_indices_become_non_negative_constants() -> None:
    (gather,) = imported(one("Gather", 13, X, ints(-1, 0, 2), axis=2)).nodes
    assert gather.op == Gather(2)
    np.testing.assert_array_equal(gather.input(1).array, [3, 0, 2])


def test_indices_out_of_range_select_the_nearest_element() -> None:
    x = np.arange(4, dtype=np.float32)
    found = imported(one("Gather", 13, [x, ints(-9, -4, 9)], axis=0))
    np.testing.assert_array_equal(evaluate(found, [x, ints(-9, -4, 9)]).outputs[0], [0, 0, 3])


def test_the_pad_value_may_be_computed_at_run_time() -> None:
    nodes = [node("Pad", "x pads v", "y")]
    inputs = [tensor_info("x", X.shape), tensor_info("v", ())]
    proto = model(graph(nodes, inputs, "y", {"pads": ints(0, 1, 0, 1, 0, 0)}))
    agrees(proto, {"x": X, "v": scalar(0.25)})


# Refusals

COMPUTED = ints(1, 2)
WRONG: tuple[tuple[One, type[Exception], str], ...] = (
    (one("Reshape", 13, X, ints(5, -1)), ModelError, r"cannot be reshaped to \[5, -1\]"),
    (one("Reshape", 13, X, ints(2, 3, 4, 0)), ModelError, "copies dimension 3"),
    (one("Reshape", 13, [X, COMPUTED]), UnsupportedError, "is computed at run time"),
    (one("Slice", 13, [X, ints(1), ints(2)]), UnsupportedError, "is computed at run time"),
    (one("Squeeze", 13, X, ints(1)), ModelError, "not all of size 1"),
    (one("Split", 13, X, ints(1, 1), axis=2, outputs=2), ModelError, "cannot be split"),
    (one("Expand", 13, X, ints(2, 5, 4)), ModelError, "cannot be expanded"),
    (one("Gather", 13, X, ints(0, 4), axis=2), ModelError, "are out of range"),
    (one("Gather", 13, scalar(1), ints(0)), ModelError, "has no axes"),
    (one("TopK", 11, X, ints(5), outputs=2), ModelError, "k = 5 is not from 0 to"),
    (one("TopK", 11, [X, ints(2)], outputs=2), UnsupportedError, "is computed at run time"),
    (one("NonZero", 13, X), UnsupportedError, "the shape of its result depends"),
    (one("Unique", 11, X), UnsupportedError, "the shape of its result depends"),
    (one("Tile", 13, X, ints(2**40, 1, 1)), UnsupportedError, "elements"),
    (one("Pad", 13, X, ints(0, 0, 0, 0, 0)), ModelError, "pads"),
    (one("Pad", 13, X, ints(-1, 0, 0, -2, 0, 0)), ModelError, "remove more elements"),
    (one("Trilu", 14, X[0, 0]), ModelError, "at least 2 dimensions"),
    (one("ScatterND", 13, [X, COMPUTED.reshape(1, 2), X[0]]), ModelError, "updates"),
    (one("RandomNormalLike", 13, X), UnsupportedError, "RandomNormalLike"),
)


@pytest.mark.parametrize(
    ("network", "error", "message"), WRONG, ids=[f"{o}-{m[:9]}" for o, _, m in WRONG]
)
def test_refusals_name_the_operator_and_the_reason(
    network: One, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        imported(network)
    assert network.kind in str(caught.value)
