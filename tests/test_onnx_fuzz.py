"""A damaged ONNX file is refused in time, and only by the errors meant for it.

Bytes are damaged at random; and so is the structure: attributes, shapes, names, operators and
constants of valid networks, which a protocol buffer hides from the former.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from smelt.codegen.passes import run_passes
from smelt.errors import ModelError, UnsupportedError
from smelt.frontend import load
from tests.shared import SHARED

SECONDS = 10.0
"""Generous: an import takes milliseconds, a run-away length takes minutes."""

DIGITS = Path(__file__).parents[1] / "examples/digits/digits.onnx"


def refused_or_read(data: bytes) -> bool:
    """Whether the file was read; anything but the frontend's own errors fails the test."""
    start = time.monotonic()
    try:
        run_passes(load(data).graph)
    except (ModelError, UnsupportedError):
        return False
    finally:
        assert time.monotonic() - start < SECONDS
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
            array = np.array(numpy_helper.to_array(tensor))
            array.reshape(-1)[: 1 + array.size // 3] = rng.choice([0, 1, -1, 127])
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
