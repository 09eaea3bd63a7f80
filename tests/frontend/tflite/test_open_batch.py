"""Networks that Keras writes if the batch size is unknown, against LiteRT.

They compute shapes by integer arithmetic. A dilated convolution is a plain convolution between
SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import numpy as np
import pytest

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend import Imported, load
from smelt.ir import Array, evaluate
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.samples import Sample, random_samples
from tests.support.graphs import SETUPS, Member, assert_same, run_together
from tests.support.tflite_networks import O, T, const, edited, litert, network

RNG = np.random.default_rng(23)
PIXELS: dict[str, Any] = {"scale": (0.05,), "zero_point": (3,)}
RESULTS: dict[str, Any] = {"scale": (0.09,), "zero_point": (-11,)}
VALID = {"strideH": 1, "strideW": 1, "padding": schema.Padding.VALID}
SPREAD, COLLECT = "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"


def _i8(name: str, *shape: int, **quant: Any) -> T:
    return T(name, shape, np.int8, **(quant or PIXELS))


def _i32(name: str, data: Any) -> T:
    return const(name, data, np.int32)


def _weights(*shape: int) -> T:
    return const("w", RNG.integers(-127, 128, shape), np.int8, scale=(0.02,), zero_point=(0,))


def _bias(size: int) -> T:
    return const("b", RNG.integers(-500, 500, size), np.int32, scale=(0.001,), zero_point=(0,))


def _opened(data: bytes, **signatures: Sequence[int]) -> bytes:
    """Return the file with these shape signatures; as from Keras, open dimensions have size 1."""

    def open_(model: Any) -> None:
        for tensor in model.subgraphs[0].tensors:
            signature = signatures.get(tensor.name.decode())
            if signature is not None:
                tensor.shapeSignature = list(signature)
                tensor.shape = [max(n, 1) for n in signature]

    return edited(data, open_)


def _dense_3d() -> bytes:
    """Return a dense layer on rows: [1, 5, 7] is reshaped to [5, 7], and [5, 9] to [1, 5, 9]."""
    tensors = (
        *(_i8("x", 1, 5, 7), _i8("flat", 5, 7), _i8("rows", 5, 9, **RESULTS)),
        *(_weights(9, 7), _bias(9), _i8("y", 1, 5, 9, **RESULTS)),
        *(T("size", (3,), np.int32), T("front", (2,), np.int32), T("last", (1,), np.int32)),
        *(T("count", (), np.int32), T("depth", (), np.int32), T("matrix", (2,), np.int32)),
        T("cube", (3,), np.int32),
        *(_i32("first_two", [0, 1]), _i32("third", [2]), _i32("axis", [0]), _i32("nine", [9])),
    )
    concatenation: Any = schema.ConcatenationOptionsT
    operators = (
        O("SHAPE", ["x"], ["size"], schema.ShapeOptionsT, {"outType": schema.TensorType.INT32}),
        O("GATHER", ["size", "first_two"], ["front"], schema.GatherOptionsT),
        O("REDUCE_PROD", ["front", "axis"], ["count"], schema.ReducerOptionsT),
        O("CONCATENATION", ["front", "nine"], ["cube"], concatenation),
        O("GATHER", ["size", "third"], ["last"], schema.GatherOptionsT),
        O("REDUCE_PROD", ["last", "axis"], ["depth"], schema.ReducerOptionsT),
        O("PACK", ["count", "depth"], ["matrix"], schema.PackOptionsT, {"valuesCount": 2}),
        O("RESHAPE", ["x", "matrix"], ["flat"], schema.ReshapeOptionsT),
        O("FULLY_CONNECTED", ["flat", "w", "b"], ["rows"], schema.FullyConnectedOptionsT),
        O("RESHAPE", ["rows", "cube"], ["y"], schema.ReshapeOptionsT),
    )
    data = network(tensors, operators, ["x"], ["y"])
    return _opened(data, x=(-1, 5, 7), flat=(-1, -1), rows=(-1, 9), y=(-1, 5, 9))


def _upsampled() -> bytes:
    """Return a network that repeats rows; their number is 2 times an element of the shape."""
    tensors = (
        *(_i8("x", 1, 3, 4, 5), _i8("apart", 1, 3, 1, 4, 5), _i8("tiled", 1, 3, 2, 4, 5)),
        *(_i8("y", 1, 6, 4, 5), _i8("z", 1, 6, 1, 4, 5)),
        *(_i32("axis", 2), _i32("times", [1, 1, 2, 1, 1]), T("size", (4,), np.int64)),
        *(T("narrow", (4,), np.int32), _i32("from", [1]), _i32("to", [2]), _i32("step", [1])),
        *(T("height", (), np.int32), _i32("two", 2), T("double", (), np.int32)),
        *(_i32("none", 0), _i32("end", [-3]), T("batch", (1,), np.int32)),
        *(T("one", (1,), np.int32), T("shape", (4,), np.int32), _i32("rest", [4, 5])),
        T("sum", (), np.int32),
    )
    types = {"inDataType": schema.TensorType.INT64, "outDataType": schema.TensorType.INT32}
    slices: Any = schema.StridedSliceOptionsT
    operators = (
        O("EXPAND_DIMS", ["x", "axis"], ["apart"], schema.ExpandDimsOptionsT),
        O("TILE", ["apart", "times"], ["tiled"], schema.TileOptionsT),
        O("SHAPE", ["x"], ["size"], schema.ShapeOptionsT, {"outType": schema.TensorType.INT64}),
        O("CAST", ["size"], ["narrow"], schema.CastOptionsT, types),
        O("STRIDED_SLICE", ["narrow", *("from", "to", "step")], ["height"], slices, _mask(1)),
        O("STRIDED_SLICE", ["narrow", *("from", "end", "step")], ["batch"], slices, _mask(begin=1)),
        O("MUL", ["height", "two"], ["double"], schema.MulOptionsT),
        O("ADD", ["double", "none"], ["sum"], schema.AddOptionsT),
        O("PACK", ["sum"], ["one"], schema.PackOptionsT, {"valuesCount": 1}),
        O("CONCATENATION", ["batch", "one", "rest"], ["shape"], schema.ConcatenationOptionsT),
        O("RESHAPE", ["tiled", "shape"], ["y"], schema.ReshapeOptionsT),
        O("EXPAND_DIMS", ["y", "axis"], ["z"], schema.ExpandDimsOptionsT),
    )
    data = network(tensors, operators, ["x"], ["z"])
    x, y = (-1, 3, 4, 5), (-1, -1, 4, 5)
    return _opened(data, x=x, apart=(-1, 3, 1, 4, 5), y=y, z=(-1, -1, 1, 4, 5))


def _mask(shrink: int = 0, begin: int = 0) -> dict[str, int]:
    return {"shrinkAxisMask": shrink, "beginMask": begin}


def _dilated(
    block: tuple[int, int],
    paddings: tuple[tuple[int, int], tuple[int, int]],
    crops: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0)),
    *,
    kind: str = "CONV_2D",
    dtype: type = np.int8,
    batch: int = 1,
    **fields: Any,
) -> bytes:
    """Return a dilated 3 x 2 convolution of 9 x 8 images, as Keras writes it.

    Args:
        block: the dilations, which are the block shape of SPACE_TO_BATCH_ND and its inverse.
        paddings: of SPACE_TO_BATCH_ND.
        crops: of BATCH_TO_SPACE_ND.
        kind: the convolution's operator.
        dtype: int8 or float32.
        batch: number of images; the batch dimension is open if it is 1.
        fields: of the convolution's options.
    """
    height, width = (n + sum(p) for n, p in zip((9, 8), paddings, strict=True))
    pieces, size = batch * block[0] * block[1], (height // block[0], width // block[1])
    valid = size[0] - 2, size[1] - 1
    y = tuple(v * n - sum(c) for v, n, c in zip(valid, block, crops, strict=True))
    depthwise = kind == "DEPTHWISE_CONV_2D"
    out = 3 if depthwise else 4
    tensors = (
        _i8("x", batch, 9, 8, 3),
        _i8("dealt", pieces, *size, 3),
        _i8("computed", pieces, *valid, out, **RESULTS),
        _i8("y", batch, *y, out, **RESULTS),
        _weights(*((1, 3, 2, 3) if depthwise else (4, 3, 2, 3))),
        _bias(out),
        *(_i32("block", block), _i32("paddings", paddings), _i32("crops", crops)),
    )
    if dtype is np.float32:
        tensors = tuple(map(_as_float, tensors))
    options: Any = schema.DepthwiseConv2DOptionsT if depthwise else schema.Conv2DOptionsT
    fields = VALID | ({"depthMultiplier": 1} if depthwise else {}) | fields
    operators = (
        O(SPREAD, ["x", "block", "paddings"], ["dealt"], schema.SpaceToBatchNDOptionsT),
        O(kind, ["dealt", "w", "b"], ["computed"], options, fields),
        O(COLLECT, ["computed", "block", "crops"], ["y"], schema.BatchToSpaceNDOptionsT),
    )
    data = network(tensors, operators, ["x"], ["y"])
    if batch > 1:
        return data
    inner, outer = (-1, *size, 3), (-1, *valid, out)
    return _opened(data, x=(-1, 9, 8, 3), dealt=inner, computed=outer, y=(-1, *y, out))


def _as_float(tensor: T) -> T:
    if not tensor.scale:
        return tensor
    data = None if tensor.data is None else tensor.scale[0] * tensor.data.astype(np.float32)
    return replace(tensor, dtype=np.float32, data=data, scale=(), zero_point=())


def _dilated_row(axis: int, paddings: tuple[int, int], crops: tuple[int, int]) -> bytes:
    """Return a dilated convolution of 15 pixels in a row.

    An axis of size 1 is inserted at `axis`.
    """
    block, taps = 2, 3
    length = (15 + sum(paddings)) // block
    valid = length - taps + 1
    y = valid * block - sum(crops)

    def image(batch: int, n: int, depth: int) -> tuple[int, ...]:
        return (batch, 1, n, depth) if axis == 1 else (batch, n, 1, depth)

    tensors = (
        *(_i8("x", 1, 15, 7), _i8("dealt", 2, length, 7), _i8("image", *image(2, length, 7))),
        *(_i8("computed", *image(2, valid, 6), **RESULTS), _i8("row", 2, valid, 6, **RESULTS)),
        *(_i8("y", 1, y, 6, **RESULTS), _weights(*image(6, taps, 7)), _bias(6)),
        *(_i32("block", [block]), _i32("paddings", [paddings]), _i32("crops", [crops])),
        *(_i32("axis", axis - 4), _i32("shape", [-1, valid, 6])),
    )
    operators = (
        O(SPREAD, ["x", "block", "paddings"], ["dealt"], schema.SpaceToBatchNDOptionsT),
        O("EXPAND_DIMS", ["dealt", "axis"], ["image"], schema.ExpandDimsOptionsT),
        O("CONV_2D", ["image", "w", "b"], ["computed"], schema.Conv2DOptionsT, VALID),
        O("RESHAPE", ["computed", "shape"], ["row"], schema.ReshapeOptionsT),
        O(COLLECT, ["row", "block", "crops"], ["y"], schema.BatchToSpaceNDOptionsT),
    )
    data = network(tensors, operators, ["x"], ["y"])
    sizes = {t.name: (-1, *t.shape[1:]) for t in tensors if t.data is None}
    return _opened(data, **sizes)


SAME = ((2, 3), (1, 1))
NETWORKS: dict[str, bytes] = {
    "dense layer on rows": _dense_3d(),
    "rows repeated": _upsampled(),
    "dilated": _dilated((2, 2), ((0, 1), (0, 0))),
    "dilated, padded and cropped": _dilated((2, 2), SAME, ((0, 1), (1, 0))),
    "dilated in one direction": _dilated((1, 3), ((0, 0), (1, 3)), ((0, 0), (0, 1))),
    "dilated, several images": _dilated((2, 2), SAME, ((0, 0), (0, 1)), batch=3),
    "dilated, with activation": _dilated(
        (2, 2), SAME, fusedActivationFunction=schema.ActivationFunctionType.RELU
    ),
    "depthwise dilated": _dilated((3, 2), ((3, 3), (2, 2)), kind="DEPTHWISE_CONV_2D"),
    "row dilated": _dilated_row(1, (2, 3), (0, 1)),
    "column dilated": _dilated_row(2, (4, 1), (0, 0)),
    "dilated in float": _dilated((2, 2), SAME, ((0, 1), (1, 0)), dtype=np.float32),
}


def _samples(imported: Imported) -> Sequence[Sample]:
    return random_samples(imported.graph, 3, seed=5)


def _expected(data: bytes, samples: Sequence[Sample]) -> list[tuple[Array, ...]]:
    return [tuple(litert(data, *sample)) for sample in samples]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_reference_equals_litert(name: str) -> None:
    imported = load(NETWORKS[name], "open")
    samples = _samples(imported)
    found = [evaluate(imported.graph, sample).outputs for sample in samples]
    assert_same(found, _expected(NETWORKS[name], samples), name)


def test_generated_code_equals_litert() -> None:
    imports = [load(data, "open") for data in NETWORKS.values()]
    members = [Member(imported.graph, _samples(imported)) for imported in imports]
    found = run_together(members, SETUPS["host"], "open")
    for (name, data), member, outputs in zip(NETWORKS.items(), members, found, strict=True):
        assert_same(outputs, _expected(data, member.samples), name)


def test_shape_arithmetic_leaves_no_node() -> None:
    names = [node.op.name for node in load(NETWORKS["dense layer on rows"], "open").graph.nodes]
    assert names == ["Reshape", "FullyConnected", "Reshape"]


def test_a_dilated_convolution_is_one_node() -> None:
    graph = load(NETWORKS["dilated, padded and cropped"], "open").graph
    assert [node.op for node in graph.nodes] == [Conv2D((1, 1), ((2, 2), (0, 1)), (2, 2))]
    graph = load(NETWORKS["depthwise dilated"], "open").graph
    assert [node.op for node in graph.nodes] == [DepthwiseConv2D((1, 1), ((3, 3), (2, 2)), (3, 2))]


_FIXED = r"convert the network with a fixed batch size"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        # The crops are larger than the paddings.
        (_dilated((2, 2), ((0, 1), (0, 0)), ((1, 0), (0, 0))), SPREAD),
        (_dilated((2, 2), SAME, padding=schema.Padding.SAME), "CONV_2D"),
        (_dilated((2, 2), SAME, strideW=2), "CONV_2D"),
    ],
    ids=["crops", "padding", "stride"],
)
def test_other_uses_of_space_to_batch_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{message}.*{_FIXED}"):
        load(data, "open")


def test_a_dilated_convolution_whose_parts_have_other_readers_is_refused() -> None:
    def expose(model: Any) -> None:
        graph = model.subgraphs[0]
        names = [tensor.name for tensor in graph.tensors]
        graph.outputs = [*graph.outputs, names.index(b"dealt")]

    with pytest.raises(UnsupportedError, match=f"{SPREAD}.*{_FIXED}"):
        load(edited(NETWORKS["dilated"], expose), "open")


def test_arithmetic_on_data_is_refused() -> None:
    tensors = (_i8("x", 3, 4), _i8("y", 3, 4))
    cast = O("CAST", ["x"], ["y"], schema.CastOptionsT)
    with pytest.raises(UnsupportedError, match=r"CAST #0 'y': .* only in arithmetic on shapes"):
        load(network(tensors, [cast], ["x"], ["y"]), "data")


def test_impossible_arithmetic_on_shapes_is_refused() -> None:
    tensors = (_i8("x", 3, 4), T("size", (2,), np.int32), _i32("at", [2]), T("y", (1,), np.int32))
    operators = (
        O("SHAPE", ["x"], ["size"], schema.ShapeOptionsT),
        O("GATHER", ["size", "at"], ["y"], schema.GatherOptionsT),
    )
    with pytest.raises(ModelError, match=r"GATHER #1 'y': its operands are invalid: index 2"):
        load(network(tensors, operators, ["x"], ["y"]), "broken")
