"""A damaged ONNX file is refused in time, and only by the errors meant for it.

Bytes are damaged at random; and so is the structure: attributes, shapes, names, operators and
constants of valid networks, which a protocol buffer hides from the former. What is read is compiled
up to the C project.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from smelt.errors import ModelError, UnsupportedError
from smelt.pipeline import compile_model
from tests.onnx_networks import graph, ints, model, node, tensor_info
from tests.shared import SHARED

SECONDS = 10.0
"""Generous: an import takes milliseconds, a run-away length takes minutes."""

DIGITS = Path(__file__).parents[1] / "examples/digits/digits.onnx"


def refused_or_read(data: bytes) -> bool:
    """Whether the file was read; anything but the frontend's own errors fails the test."""
    start = time.process_time()
    try:
        compile_model(data)
    except (ModelError, UnsupportedError):
        return False
    finally:
        assert time.process_time() - start < SECONDS
    return True


def test_the_file_is_whole() -> None:
    assert refused_or_read(DIGITS.read_bytes())


def test_every_truncation_is_refused() -> None:
    data = DIGITS.read_bytes()
    for end in np.linspace(0, len(data) - 1, 200).astype(int):
        assert not refused_or_read(data[:end])


_mutation = st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=8))


@given(st.lists(_mutation, min_size=1, max_size=12))
def test_random_damage(mutations: list[tuple[float, bytes]]) -> None:
    data = bytearray(DIGITS.read_bytes())
    for place, patch in mutations:
        # Most of the file is weights: half of the damage goes to its end, where the rest is.
        position = int(place * len(data)) if len(patch) % 2 else len(data) - int(place * 2000) - 8
        data[position : position + len(patch)] = patch
    refused_or_read(bytes(data))


@given(st.binary(max_size=400))
def test_random_bytes(data: bytes) -> None:
    refused_or_read(data)


# Small networks


def _weights(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(len(shape)).uniform(-1, 1, shape).astype(np.float32)


def _control_flow() -> onnx.ModelProto:
    """A branch, and a loop around it."""
    branches: dict[str, Any] = {
        "then_branch": graph([node("Neg", "s", "a")], {}, "a"),
        "else_branch": graph([node("Add", "s x", "b")], {}, "b"),
    }
    body = graph(
        [node("If", "flag", "t", "", **branches), node("Identity", "going", "more")],
        [tensor_info("n", [], "l"), tensor_info("going", [], "b"), tensor_info("s", [1, 4])],
        [tensor_info("more", [], "b"), tensor_info("t", [1, 4])],
    )
    nodes = [node("Loop", "three _ x", "z", body=body), node("Softmax", "z", "y")]
    inputs = [tensor_info("x", [1, 4]), tensor_info("flag", [], "b")]
    return model(graph(nodes, inputs, "y", {"three": np.asarray(3)}))


def _recurrent() -> onnx.ModelProto:
    constants = {"w": _weights(2, 12, 3), "r": _weights(2, 12, 3), "b": _weights(2, 24)}
    nodes = [
        node("LSTM", "x w r b", "h _ c", hidden_size=3, direction="bidirectional"),
        node("Transpose", "h", "t", perm=[2, 0, 1, 3]),
        node("Reshape", "t flat", "f"),
        node("GRU", "f gw gr", "y", hidden_size=2, linear_before_reset=1),
    ]
    nodes[0].output[1] = ""
    constants |= {"flat": ints(1, 5, 6), "gw": _weights(1, 6, 6), "gr": _weights(1, 6, 2)}
    return model(graph(nodes, {"x": [5, 1, 3]}, "y c", constants))


def _resized() -> onnx.ModelProto:
    constants = {
        "k": _weights(4, 2, 3, 3),
        "sizes": ints(1, 4, 9, 7),
        "scales": np.asarray([1, 1, 2, 0.5], np.float32),
        "pads": ints(0, 0, 1, 1, 0, 0, 2, 0),
    }
    nodes = [
        node("Pad", "x pads", "p", mode="reflect"),
        node("Conv", "p k", "c", pads=[1, 1, 1, 1], strides=[2, 1]),
        node("Resize", "c _ _ sizes", "r", mode="linear"),
        node(
            "Resize", "r _ scales", "s", mode="cubic", coordinate_transformation_mode="asymmetric"
        ),
        node("AveragePool", "s", "y", kernel_shape=[3, 3], ceil_mode=1),
    ]
    return model(graph(nodes, {"x": [1, 2, 6, 5]}, "y", constants))


def _quantized() -> onnx.ModelProto:
    weights = np.arange(-18, 18, dtype=np.int8).reshape(2, 2, 3, 3)
    constants: dict[str, np.ndarray[Any, Any]] = {
        "w": weights,
        "xs": np.asarray(0.02, np.float32),
        "xz": np.asarray(-3, np.int8),
        "ws": np.asarray([0.01, 0.03], np.float32),
        "wz": np.zeros(2, np.int8),
        "b": np.asarray([5, -7], np.int32),
        "m": _weights(2, 3),
    }
    nodes = [
        node("QuantizeLinear", "x xs xz", "q"),
        node("QLinearConv", "q xs xz w ws wz xs xz b", "c"),
        node("DequantizeLinear", "c xs xz", "d"),
        node("GlobalAveragePool", "d", "g"),
        node("Flatten", "g", "f"),
        node("MatMul", "f m", "y"),
    ]
    return model(graph(nodes, {"x": [1, 2, 5, 5]}, "y", constants))


def _functions() -> onnx.ModelProto:
    """Functions that call one another, with an attribute, and an operator that ONNX defines."""
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    scaled = [node("LeakyRelu", "a", "t"), node("Mul", "t a", "b")]
    reference = scaled[0].attribute.add(name="alpha", ref_attr_name="slope")
    reference.type = onnx.AttributeProto.FLOAT
    calls = [node("Scaled", "a", "t", "own", slope=0.1), node("Scaled", "t", "b", "own", slope=0.2)]
    nodes = [node("Twice", "x", "t", "own"), node("MeanVarianceNormalization", "t", "u")]
    nodes += [node("Einsum", "u w", "y", equation="nchw,cd->nhwd")]
    proto = model(graph(nodes, {"x": [1, 3, 2, 2]}, "y", {"w": _weights(3, 2)}), own=1)
    proto.functions.extend(
        [
            helper.make_function("own", "Scaled", ["a"], ["b"], scaled, opsets, ["slope"]),
            helper.make_function("own", "Twice", ["a"], ["b"], calls, opsets),
        ]
    )
    return proto


SMALL: dict[str, onnx.ModelProto] = {
    "control flow": _control_flow(),
    "recurrent": _recurrent(),
    "resized": _resized(),
    "quantized": _quantized(),
    "functions": _functions(),
}


@pytest.mark.parametrize("name", SMALL)
def test_the_small_networks_are_whole(name: str) -> None:
    assert refused_or_read(SMALL[name].SerializeToString())


def scratched(data: bytes, rng: random.Random) -> bytes:
    """The file with a few bytes changed, shifted or copied from elsewhere in it."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 3, 8])):
        at, other, count = rng.randrange(len(data)), rng.randrange(len(data)), rng.randrange(1, 12)
        match rng.randrange(4):
            case 0:
                changed[at] = rng.choice([0, 1, 2, 4, 8, 127, 128, 255])
            case 1:
                changed[at] = (changed[at] + rng.choice([1, -1])) % 256
            case 2:
                changed[at] ^= 1 << rng.randrange(8)
            case _:
                changed[at : at + count] = changed[other : other + count]
    return bytes(changed)


def _damage_small(name: str, seeds: Iterable[int]) -> None:
    data = SMALL[name].SerializeToString()
    for seed in seeds:
        refused_or_read(scratched(data, random.Random(seed)))
        refused_or_read(damaged(SMALL[name], seed))


@pytest.mark.parametrize("name", SMALL)
def test_damaged_small_networks(name: str) -> None:
    _damage_small(name, range(40))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_damaged_small_networks_at_length(name: str) -> None:
    _damage_small(name, range(100, 1600))


# Damage to the structure

Damage = Callable[[onnx.GraphProto, random.Random], None]
_SIZES = (0, -1, 1, 2, 3, 7, 64, 2**16, 2**31 - 1, 2**31, -(2**63), 2**63 - 1)


def _attribute(graph: onnx.GraphProto, rng: random.Random) -> None:
    found = [a for n in graph.node for a in n.attribute]
    if not found:
        return
    attribute = rng.choice(found)
    match rng.randrange(5):
        case 0 if attribute.ints:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(_SIZES)
        case 1 if attribute.ints:
            attribute.ints.append(rng.choice(_SIZES))
        case 2 if attribute.ints:
            del attribute.ints[-1]
        case 3:
            attribute.i = rng.choice(_SIZES)
        case _:
            other = rng.choice([0.5, 3, "text", [1.5, 2.5], [1, 2], ["some", "text"]])
            attribute.CopyFrom(helper.make_attribute(attribute.name, other))


def _names(graph: onnx.GraphProto, rng: random.Random) -> None:
    everything = [t for n in graph.node for t in (*n.input, *n.output)]
    node = rng.choice(graph.node)
    side = node.input if rng.random() < 0.7 and node.input else node.output
    side[rng.randrange(len(side))] = rng.choice([*everything, "", "nowhere"])


def _operators(graph: onnx.GraphProto, rng: random.Random) -> None:
    kinds = ["Conv", "Gemm", "Reshape", "Concat", "MatMul", "Softmax", "Resize", "Slice", "Gather"]
    kinds += ["Transpose", "LSTM", "Pad", "MaxPool", "If", "QLinearConv", "ReduceMean", "Split"]
    node = rng.choice(graph.node)
    match rng.randrange(4):
        case 0:
            node.op_type = rng.choice([n.op_type for n in graph.node])
        case 1:
            node.op_type = rng.choice(kinds)
        case 2:
            del node.input[rng.randrange(len(node.input) or 1) :]
        case _:
            graph.node.remove(node)


def _shapes(graph: onnx.GraphProto, rng: random.Random) -> None:
    info = rng.choice(graph.input)
    dims = info.type.tensor_type.shape.dim
    match rng.randrange(4):
        case 0 if dims:
            rng.choice(dims).dim_value = rng.choice(_SIZES)
        case 1 if dims:
            del dims[-1]
        case 2:
            dims.add().dim_value = rng.choice(_SIZES)
        case _:
            info.type.tensor_type.elem_type = rng.randrange(24)


def _constants(graph: onnx.GraphProto, rng: random.Random) -> None:
    if not graph.initializer:
        return
    tensor = rng.choice(graph.initializer)
    match rng.randrange(5):
        case 0 if tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(_SIZES)
        case 1:
            tensor.dims.append(rng.choice(_SIZES))
        case 2:
            tensor.data_type = rng.randrange(24)
        case 3:
            tensor.raw_data = tensor.raw_data[:-1]
        case _:
            # An earlier damage may have left nothing to read.
            with suppress(ValueError, TypeError, KeyError, OverflowError):
                array = np.array(numpy_helper.to_array(tensor))
                array.reshape(-1)[: 1 + array.size // 3] = rng.choice([0, 1, 127])
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


DAMAGES: tuple[Damage, ...] = (_attribute, _names, _operators, _shapes, _constants)


def damaged(model: onnx.ModelProto, seed: int) -> bytes:
    """The model with one to three damages to its structure."""
    rng = random.Random(seed)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for _ in range(rng.randint(1, 3)):
        if copy.graph.node and copy.graph.input:
            rng.choice(DAMAGES)(copy.graph, rng)
    return copy.SerializeToString()


@given(st.integers(0, 2**32))
def test_damaged_structure(seed: int) -> None:
    refused_or_read(damaged(onnx.load(str(DIGITS)), seed))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 1500, 300))
def test_damaged_structure_of_the_backend_suite(start: int) -> None:
    from bench.onnx_suite import cases

    chosen = [case for case in cases() if case.model.graph.input and case.model.graph.node]
    for seed, case in enumerate(chosen[start : start + 300]):
        for turn in range(4):
            refused_or_read(damaged(case.model, seed * 7 + turn))


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="the shared folder (SMELT_SHARED) is absent")
@pytest.mark.parametrize("path", sorted(SHARED.glob("**/*.onnx")), ids=lambda path: path.stem)
def test_damaged_structure_of_shared_networks(path: Path) -> None:
    model = onnx.load(str(path))
    for seed in range(60):
        refused_or_read(damaged(model, seed))
