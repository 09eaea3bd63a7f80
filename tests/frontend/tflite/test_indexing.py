"""TFLite operators that select or move elements, in float32 and int8, against LiteRT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import numpy as np
import pytest

from smelt.codegen.passes import run_passes
from smelt.errors import ModelError, UnsupportedError
from smelt.frontend import load
from smelt.frontend.tflite.indexing import CONVERTERS
from smelt.ir import Array, evaluate
from smelt.ops.tensor.gather import Gather
from smelt.ops.tensor.slice import Slice
from tests.support.tflite_networks import O, T, const, edited, litert, network

RNG = np.random.default_rng(13)
Build = Callable[[type], bytes]
X = (2, 4, 6, 3)


def data(name: str, shape: Sequence[int], dtype: type) -> T:
    """Return a tensor of the network's element type; all int8 tensors share one quantization."""
    quant: dict[str, Any] = {"scale": (0.05,), "zero_point": (3,)} if dtype is np.int8 else {}
    return T(name, tuple(shape), dtype, **quant)


def ints(name: str, values: Any) -> T:
    return const(name, values, np.int32)


def one(
    kind: str,
    x: Sequence[int],
    results: Sequence[Sequence[int]],
    *operands: T,
    options: Any = None,
    first: int = 0,
    index_results: Sequence[int] = (),
    **fields: Any,
) -> Build:
    """Return a function that builds a network of one operator for an element type.

    Args:
        kind: the operator.
        x: shape of the input `x`.
        results: shapes of the outputs.
        operands: other operands; those without data are inputs of the network.
        options: class of the operator's options.
        first: index of `x` among the operands.
        index_results: numbers of the outputs that are int32 indices.
        fields: of the options.
    """

    def build(dtype: type) -> bytes:
        outputs = [
            T(f"y{i}", tuple(shape), np.int32)
            if i in index_results
            else data(f"y{i}", shape, dtype)
            for i, shape in enumerate(results)
        ]
        names = [o.name for o in operands]
        names.insert(first, "x")
        fed = ["x", *(o.name for o in operands if o.data is None)]
        made = [o.name for o in outputs]
        tensors = [data("x", x, dtype), *operands, *outputs]
        return network(tensors, [O(kind, names, made, options, fields)], fed, made)

    return build


def one_hot(axis: int, y: Sequence[int]) -> Build:
    def build(dtype: type) -> bytes:
        real = {"scale": (0.05,), "zero_point": (3,)} if dtype is np.int8 else {}
        values = [const("on", 5, dtype, **real), const("off", -7, dtype, **real)]
        tensors = [T("x", (2, 3), np.int32), ints("depth", 4), *values, data("y", y, dtype)]
        names = ["x", "depth", "on", "off"]
        kind = O("ONE_HOT", names, ["y"], schema.OneHotOptionsT, {"axis": axis})
        return network(tensors, [kind], ["x"], ["y"])

    return build


def pack(axis: int, y: Sequence[int]) -> Build:
    def build(dtype: type) -> bytes:
        tensors = [*(data(name, (2, 3), dtype) for name in "abc"), data("y", y, dtype)]
        fields = {"axis": axis, "valuesCount": 3}
        return network(
            tensors, [O("PACK", "abc", ["y"], schema.PackOptionsT, fields)], list("abc"), ["y"]
        )

    return build


def strided(
    begin: list[int], end: list[int], strides: list[int], y: Sequence[int], **masks: Any
) -> Build:
    operands = ints("begin", begin), ints("end", end), ints("strides", strides)
    options = schema.StridedSliceOptionsT
    return one("STRIDED_SLICE", X, [y], *operands, options=options, **masks)


def arg(kind: str, options: Any, axis: int | list[int], y: Sequence[int]) -> Build:
    return one(
        kind,
        (3, 5, 4),
        [y],
        ints("axis", axis),
        options=options,
        index_results=[0],
        outputType=schema.TensorType.INT32,
    )


GATHER = schema.GatherOptionsT
NETWORKS: dict[str, Build] = {
    "slice": one("SLICE", X, [(1, 2, 6, 2)], ints("b", [1, 1, 0, 0]), ints("s", [1, 2, -1, 2])),
    "strided": strided([0, 1, 5, 0], [2, 4, 0, 3], [1, 2, -2, 1], (2, 2, 3, 3)),
    "strided_masks": strided(
        [9, 1, 1], [0, 9, -1], [1, 1, 1], (2, 4, 4, 3), beginMask=3, endMask=1
    ),
    "strided_index": strided([-1, 0, 2], [0, 4, 9], [1, 1, 1], (4, 3), shrinkAxisMask=5),
    "gather": one("GATHER", X, [(2, 5, 6, 3)], T("i", (5,), np.int32), options=GATHER, axis=1),
    "gather_matrix": one("GATHER", (5, 3), [(2, 2, 3)], T("i", (2, 2), np.int32), options=GATHER),
    "gather_table": one("GATHER", X, [(2, 4, 3, 3)], ints("i", [5, 0, 0]), options=GATHER, axis=2),
    "gather_spaced": one("GATHER", X, [(2, 4, 6, 2)], ints("i", [2, 0]), options=GATHER, axis=-1),
    "gather_batch": one(
        *("GATHER", (2, 4, 3), [(2, 5, 3)], T("i", (2, 5), np.int32)),
        options=GATHER,
        axis=1,
        batchDims=1,
    ),
    "embedding_lookup": one(
        *("EMBEDDING_LOOKUP", (6, 4, 3), [(5, 4, 3)], T("i", (5,), np.int32)), first=1
    ),
    "gather_nd": one("GATHER_ND", (4, 4, 3), [(5, 3)], T("i", (5, 2), np.int32)),
    "split": one(
        *("SPLIT", X, [(2, 4, 2, 3)] * 3, ints("axis", 2)),
        first=1,
        options=schema.SplitOptionsT,
        numSplits=3,
    ),
    "split_v": one(
        *("SPLIT_V", X, [(2, 1, 6, 3), (2, 3, 6, 3)], ints("sizes", [1, -1]), ints("axis", -3)),
        options=schema.SplitVOptionsT,
        numSplits=2,
    ),
    "pack": pack(1, (2, 3, 3)),
    "pack_last": pack(-1, (2, 3, 3)),
    "unpack": one("UNPACK", (2, 3, 4), [(2, 4)] * 3, options=schema.UnpackOptionsT, axis=1, num=3),
    "one_hot": one_hot(-1, (2, 3, 4)),
    "one_hot_first": one_hot(0, (4, 2, 3)),
    "topk_v2": one("TOPK_V2", (3, 9), [(3, 4)] * 2, ints("k", 4), index_results=[1]),
    "arg_max": arg("ARG_MAX", schema.ArgMaxOptionsT, 1, (3, 4)),
    "arg_max_last": arg("ARG_MAX", schema.ArgMaxOptionsT, -1, (3, 5)),
    "arg_min": arg("ARG_MIN", schema.ArgMinOptionsT, 0, (5, 4)),
    "reverse_v2": one("REVERSE_V2", X, [X], ints("axes", [2])),
    "reverse_sequence": one(
        *("REVERSE_SEQUENCE", X, [X], const("lengths", [3, 6], np.int32)),
        options=schema.ReverseSequenceOptionsT,
        seqDim=2,
        batchDim=0,
    ),
    **{
        f"mirror_pad_{mode}": one(
            *("MIRROR_PAD", X, [(2, 7, 7, 3)], ints("p", [[0, 0], [2, 1], [0, 1], [0, 0]])),
            options=schema.MirrorPadOptionsT,
            mode=mode,
        )
        for mode in (0, 1)
    },
    "space_to_depth": one(
        *("SPACE_TO_DEPTH", X, [(2, 2, 3, 12)]), options=schema.SpaceToDepthOptionsT, blockSize=2
    ),
    "depth_to_space": one(
        *("DEPTH_TO_SPACE", (1, 2, 3, 12), [(1, 4, 6, 3)]),
        options=schema.DepthToSpaceOptionsT,
        blockSize=2,
    ),
    "dynamic_update_slice": lambda dtype: one(
        *("DYNAMIC_UPDATE_SLICE", X, [X]),
        data("update", (1, 2, 6, 3), dtype),
        T("starts", (4,), np.int32),
    )(dtype),
    "dynamic_update_slice_constant": lambda dtype: one(
        *("DYNAMIC_UPDATE_SLICE", X, [X]),
        data("update", (2, 3, 2, 3), dtype),
        const("starts", [0, 9, 1, -3], np.int64),
    )(dtype),
    "broadcast_to": lambda dtype: edited(
        one("BROADCAST_TO", (4, 1, 3), [X], ints("shape", X))(dtype), _as_version_2
    ),
}
NOT_IN_LITERT = {("reverse_sequence", np.int8)}


def _as_version_2(model: Any) -> None:
    """Set the operator's version to 2, which is the first that BROADCAST_TO has in LiteRT."""
    model.operatorCodes[0].version = 2


def _input(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return indices that are valid in all networks here, or data with many equal elements."""
    if dtype == np.int32:
        return RNG.integers(0, 4, shape).astype(np.int32)
    return RNG.integers(-20, 20, shape).astype(dtype)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(n, d) for n in NETWORKS for d in (np.float32, np.int8) if (n, d) not in NOT_IN_LITERT],
)
def test_operators_agree_with_litert(name: str, dtype: type) -> None:
    file = NETWORKS[name](dtype)
    imported = load(file).graph
    inputs = [_input(v.type.shape, v.type.dtype.numpy) for v in imported.inputs]
    expected = litert(file, *inputs)
    for graph in (imported, run_passes(imported)):
        for output, wanted in zip(evaluate(graph, inputs).outputs, expected, strict=True):
            assert (output.shape, output.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_array_equal(output, wanted)


@pytest.mark.parametrize("channels", [1, 6])
def test_rows_of_8_bits_become_floats(channels: int) -> None:
    stored = RNG.integers(-128, 128, (6, 4)).astype(np.int8)
    scale = tuple(0.01 * (1 + i) for i in range(channels))
    table = T("table", stored.shape, np.int8, stored, scale)
    tensors = [T("i", (5,), np.int32), table, T("y", (5, 4))]
    file = network(tensors, [O("EMBEDDING_LOOKUP", ["i", "table"], ["y"])], ["i"], ["y"])
    indices = np.asarray([5, 0, 3, 3, 1], np.int32)
    (found,) = evaluate(load(file).graph, [indices]).outputs
    np.testing.assert_allclose(found, litert(file, indices)[0], rtol=1e-6)


def test_every_converter_is_tested() -> None:
    kinds = {
        node.origin.kind
        for build in NETWORKS.values()
        for node in load(build(np.float32)).graph.nodes
    }
    assert kinds == set(CONVERTERS)


def test_constant_indices_become_a_slice_or_stay_a_gather() -> None:
    slice_, _ = load(NETWORKS["gather_spaced"](np.int8)).graph.nodes
    assert slice_.op == Slice((0, 0, 0, 2), (2, 4, 6, 2), (1, 1, 1, -2))
    (gather,) = load(NETWORKS["gather_table"](np.int8)).graph.nodes
    assert gather.op == Gather(2)


WRONG: tuple[tuple[Build, type[Exception], str], ...] = (
    (
        strided([0], [1], [1], (1, 4, 6, 3), newAxisMask=1),
        UnsupportedError,
        "STRIDED_SLICE #0.*new axes",
    ),
    (
        strided([2], [3], [1], (4, 6, 3), shrinkAxisMask=1),
        ModelError,
        "index 2 is out of range for axis 0",
    ),
    (
        one("SLICE", X, [X], ints("b", [1, 0, 0, 0]), ints("s", [2, -1, -1, -1])),
        ModelError,
        "SLICE #0.*reads elements outside",
    ),
    (one("GATHER", (3,), [(1,)], ints("i", [3]), options=GATHER), ModelError, "out of range"),
    (
        one("SPLIT", X, [X] * 4, ints("axis", 2), first=1, options=schema.SplitOptionsT),
        ModelError,
        "cannot be split into 4 equal parts",
    ),
    (
        one("SPLIT", X, [X] * 2, ints("axis", [1, 2]), first=1, options=schema.SplitOptionsT),
        ModelError,
        r"SPLIT #0.*: its axis must be a single number, is \[1, 2\]",
    ),
    (
        arg("ARG_MAX", schema.ArgMaxOptionsT, [0, 1], (3, 4)),
        ModelError,
        "its axis must be a single number",
    ),
    (
        one("SLICE", X, [X], T("b", (4,), np.int32), ints("s", X)),
        UnsupportedError,
        "must be constant",
    ),
)


@pytest.mark.parametrize(("build", "error", "message"), WRONG, ids=[w[2] for w in WRONG])
def test_wrong_operators_are_refused_with_the_reason(
    build: Build, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        load(build(np.float32))
