"""Networks like some in users' files, of kinds that no other test contains, against LiteRT.

Smelt once failed to import a similar network, or generated wrong C for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import numpy as np
import pytest

from smelt.errors import UnsupportedError
from smelt.frontend import Imported, load
from smelt.ir import Array, evaluate
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.tensor.reshape import Reshape
from smelt.samples import Sample, random_samples
from tests.support.graphs import SETUPS, Member, assert_same, run_together
from tests.support.tflite_networks import O, T, const, edited, litert, network

RNG = np.random.default_rng(11)
PIXELS: dict[str, Any] = {"scale": (0.05,), "zero_point": (3,)}


def _data(name: str, *shape: int) -> T:
    return T(name, shape, np.int8, **PIXELS)


def _weights(*shape: int) -> T:
    return const("w", RNG.integers(-127, 128, shape), np.int8, scale=(0.02,), zero_point=(0,))


def _bias(size: int) -> T:
    return const("b", RNG.integers(-500, 500, size), np.int32, scale=(0.001,), zero_point=(0,))


def _conv(x: str, w: str, b: str, y: str) -> O:
    fields = {"strideH": 1, "strideW": 1, "padding": schema.Padding.SAME}
    return O("CONV_2D", [x, w, b], [y], schema.Conv2DOptionsT, fields)


def _dense(x: tuple[int, ...], y: tuple[int, ...], activation: int = 0) -> bytes:
    """Return a dense layer whose output shape in the file is `y`, followed by a reshape."""
    rows, outputs = int(np.prod(y[:-1])), y[-1]
    shape = const("shape", [rows, outputs], np.int32)
    tensors = (_data("x", *x), _weights(outputs, 8), _bias(outputs), _data("y", *y))
    fields = {"fusedActivationFunction": activation}
    operators = (
        O("FULLY_CONNECTED", ["x", "w", "b"], ["y"], schema.FullyConnectedOptionsT, fields),
        O("RESHAPE", ["y", "shape"], ["z"], schema.ReshapeOptionsT),
    )
    return network((*tensors, shape, _data("z", rows, outputs)), operators, ["x"], ["y", "z"])


def _max_pool(x: tuple[int, ...], y: tuple[int, ...], window: tuple[int, int]) -> bytes:
    """Return a pool that is padded at top and bottom, but not at the sides."""
    fields = {"filterHeight": window[0], "filterWidth": window[1], "strideH": 2, "strideW": 2}
    pool = O("MAX_POOL_2D", ["x"], ["y"], schema.Pool2DOptionsT, fields)
    return network((_data("x", *x), _data("y", *y)), [pool], ["x"], ["y"])


def _folded_weights() -> bytes:
    """Return a layer whose weights are a transposed, reshaped constant, as from some exporters."""
    quant: dict[str, Any] = {"scale": (0.02,), "zero_point": (0,)}
    tensors = (
        _data("x", 1, 5, 5, 4),
        const("stored", RNG.integers(-127, 128, (4, 6)), np.int8, **quant),
        const("order", [1, 0], np.int32),
        T("turned", (6, 4), np.int8, **quant),
        const("shape", [6, 1, 1, 4], np.int32),
        T("w", (6, 1, 1, 4), np.int8, **quant),
        _bias(6),
        _data("y", 1, 5, 5, 6),
    )
    operators = (
        O("TRANSPOSE", ["stored", "order"], ["turned"], schema.TransposeOptionsT),
        O("RESHAPE", ["turned", "shape"], ["w"], schema.ReshapeOptionsT),
        _conv("x", "w", "b", "y"),
    )
    return network(tensors, operators, ["x"], ["y"])


def _results_everywhere() -> bytes:
    """Return a network that outputs an input, a constant, a value twice, and one that is read."""
    tensors = (
        _data("x", 1, 5, 5, 4),
        _data("unused", 1, 7),
        _weights(4, 3, 3, 4),
        _bias(4),
        _data("m", 1, 5, 5, 4),
        const("shape", [1, 100], np.int32),
        _data("flat", 1, 100),
        _data("y", 1, 5, 5, 4),
    )
    operators = (
        _conv("x", "w", "b", "m"),
        O("RESHAPE", ["m", "shape"], ["flat"], schema.ReshapeOptionsT),
        _conv("m", "w", "b", "y"),
    )
    return network(tensors, operators, ["x", "unused"], ["flat", "y", "x", "m", "w"])


def _batch() -> bytes:
    """Return a convolution and a padded pool of three images."""
    fields = {"filterHeight": 3, "filterWidth": 3, "strideH": 2, "strideW": 2}
    tensors = (
        _data("x", 3, 5, 4, 4),
        _weights(6, 3, 3, 4),
        _bias(6),
        _data("m", 3, 5, 4, 6),
        _data("y", 3, 3, 2, 6),
    )
    operators = (
        _conv("x", "w", "b", "m"),
        O("AVERAGE_POOL_2D", ["m"], ["y"], schema.Pool2DOptionsT, fields),
    )
    return network(tensors, operators, ["x"], ["y"])


NETWORKS: dict[str, bytes] = {
    "dense of old converters, rank 4": _dense((1, 8), (1, 1, 1, 5)),
    "dense of old converters, rank 3": _dense((1, 1, 1, 8), (1, 1, 5), 1),
    "dense with rows in the middle": _dense((3, 8), (3, 1, 5)),
    "dense without rows at the end": _dense((2, 2, 8), (1, 4, 5)),
    "maximum padded in one direction": _max_pool((1, 9, 6, 5), (1, 5, 3, 5), (4, 2)),
    "maximum padded in the other": _max_pool((1, 6, 9, 5), (1, 3, 5, 5), (2, 4)),
    "weights computed of constants": _folded_weights(),
    "results everywhere": _results_everywhere(),
    "batch of images": _batch(),
}


def _samples(imported: Imported) -> Sequence[Sample]:
    graph = imported.graph
    low = tuple(np.full(v.type.shape, v.type.dtype.limits[0], np.int8) for v in graph.inputs)
    high = tuple(np.full(v.type.shape, v.type.dtype.limits[1], np.int8) for v in graph.inputs)
    return [*random_samples(graph, 3, seed=5), low, high]


def _expected(
    data: bytes, imported: Imported, samples: Sequence[Sample]
) -> list[tuple[Array, ...]]:
    """Return LiteRT's outputs in the shapes of the file, because LiteRT infers other shapes."""
    shapes = [value.type.shape for value in imported.graph.outputs]
    return [
        tuple(array.reshape(shape) for array, shape in zip(litert(data, *s), shapes, strict=True))
        for s in samples
    ]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_reference_equals_litert(name: str) -> None:
    data = NETWORKS[name]
    imported = load(data, "unseen")
    samples = _samples(imported)
    found = [evaluate(imported.graph, sample).outputs for sample in samples]
    assert_same(found, _expected(data, imported, samples), name)


def test_generated_code_equals_litert() -> None:
    imports = [load(data, "unseen") for data in NETWORKS.values()]
    members = [Member(imported.graph, _samples(imported)) for imported in imports]
    found = run_together(members, SETUPS["host"], "unseen")
    for (name, data), member, imported, outputs in zip(
        NETWORKS.items(), members, imports, found, strict=True
    ):
        assert_same(outputs, _expected(data, imported, member.samples), name)


def test_another_output_shape_of_a_dense_layer_becomes_a_reshape() -> None:
    graph = load(_dense((1, 8), (1, 1, 1, 5)), "old").graph
    assert [node.op for node in graph.nodes] == [
        FullyConnected(),
        Reshape((1, 1, 1, 5)),
        Reshape((1, 5)),
    ]
    assert graph.outputs[0].type.shape == (1, 1, 1, 5)


def test_weights_computed_from_constants_are_folded() -> None:
    graph = load(_folded_weights(), "folded").graph
    assert [node.op.name for node in graph.nodes] == ["Conv2D"]
    assert graph.nodes[0].input(1).name == "w"


def test_a_shape_that_is_an_input_is_refused() -> None:

    def open_(model: Any) -> None:
        graph = model.subgraphs[0]
        z = next(t for t in graph.tensors if t.name == b"z")
        z.shape, z.shapeSignature = [1, 1], [-1, -1]
        (index,) = (i for i, t in enumerate(graph.tensors) if t.name == b"shape")
        graph.tensors[index].buffer = 0
        graph.inputs = [*graph.inputs, index]

    with pytest.raises(
        UnsupportedError, match=r"shape of 'z' is known only at run time.* fixed input shape"
    ):
        load(edited(_dense((3, 8), (3, 5)), open_), "open")
