"""Tests of the ranges of concatenated tensors, with the noise of onnxruntime as the measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from onnxruntime import InferenceSession
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

from smelt.ir import Array, Graph, Quant, Value
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.l2_normalization import L2Normalization
from smelt.ops.core.softmax import Softmax
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.reshape import Reshape
from smelt.quant.plan import classify
from smelt.quant.qdq import export
from smelt.quant.quantizer import quantize
from smelt.quant.ranges.activation_statistics import observe
from smelt.quant.ranges.shared_ranges import Group, find_groups
from smelt.quant.recipe import RECIPES
from smelt.samples import Sample
from tests.quant.test_int16 import output_sqnr
from tests.support.quant_networks import Builder, outputs

_TOLERANCE = 0.5
"""dB by which random networks may be worse than onnxruntime's on average."""


def dense(make: Builder, x: Value, count: int, activation: Activation = Activation.NONE) -> Value:
    depth = x.type.shape[-1]
    weights = make.constant(count, depth, scale=float(depth**-0.5))
    return make.add(FullyConnected(activation), x, weights, make.constant(count, scale=0.3))


def multiply(make: Builder, x: Value, factor: float) -> Value:
    by = Value.constant(f"factor{len(make.nodes)}", np.asarray(factor, np.float32))
    return make.add(Binary("mul"), x, by)


def features(make: Builder) -> Value:
    return dense(make, make.input(1, 24), 32, Activation.RELU)


def heads(make: Builder) -> Value:
    """Return probabilities joined to a regression."""
    x = features(make)
    probabilities = make.add(Softmax(), dense(make, x, 10))
    return make.add(Concat(1), probabilities, multiply(make, dense(make, x, 4), 5.0))


def logits(make: Builder) -> Value:
    """Return a dense layer of logits joined to their probabilities."""
    x = dense(make, features(make), 10)
    both = make.add(Concat(1), x, make.add(Softmax(2.0), x))
    return dense(make, both, 8)


def gate(make: Builder) -> Value:
    """Return a dense layer of reshaped probabilities joined to a wider tensor."""
    x = features(make)
    weights = make.add(Reshape((1, 8)), make.add(Softmax(), dense(make, x, 8)))
    return dense(make, make.add(Concat(1), x, weights), 8)


def unit(make: Builder) -> Value:
    """Return a normalized vector joined to another vector."""
    x = features(make)
    normal = make.add(L2Normalization(), dense(make, x, 16))
    return make.add(Concat(1), normal, dense(make, x, 4))


def unlike(make: Builder) -> Value:
    """Return a concatenation of two tensors with different fixed quantizations."""
    x = features(make)
    probabilities = make.add(Softmax(), dense(make, x, 16))
    return make.add(Concat(1), probabilities, make.add(L2Normalization(), dense(make, x, 16)))


def boxes(make: Builder) -> Value:
    """Return boxes in pixels joined to scores."""
    x = features(make)
    sizes = multiply(make, dense(make, x, 4, Activation.RELU), 64.0)
    return make.add(Concat(1), sizes, make.add(Unary("logistic"), dense(make, x, 10)))


def faint(make: Builder) -> Value:
    """Return a dense layer of features joined to the same features times 0.003."""
    x = features(make)
    return dense(make, make.add(Concat(1), x, multiply(make, x, 0.003)), 8)


def pixels(make: Builder, by: float = 20.0) -> Value:
    """Return a dense layer of the input joined to a far wider convolution of the input."""
    x = make.input(1, 64)
    image = make.add(Reshape((1, 8, 8, 1)), x)
    kernel, bias = make.constant(4, 3, 3, 1, scale=0.4), make.constant(4, scale=0.3)
    convolved = make.add(Conv2D(padding=((1, 1), (1, 1))), image, kernel, bias)
    wide = multiply(make, make.add(Reshape((1, 256)), convolved), by)
    return dense(make, make.add(Concat(1), wide, x), 8)


KINDS: Sequence[Callable[[Builder], Value]] = (heads, logits, gate, unit, boxes, faint, pixels)


def bounded(make: Builder, count: int) -> list[Sample]:
    """Return samples with elements between -1 and 1."""
    return [tuple(np.tanh(array) for array in sample) for sample in make.samples(count)]


class _Reader(CalibrationDataReader):
    def __init__(self, name: str, samples: Sequence[Sample]) -> None:
        self._feeds = iter([{name: sample[0]} for sample in samples])

    def get_next(self) -> dict[str, Array] | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return next(self._feeds, None)


def onnxruntime_sqnr(
    graph: Graph, samples: Sequence[Sample], unseen: list[Sample], folder: Path
) -> float:
    """Return the SQNR in dB of onnxruntime's static quantizer: per-channel scales, min-max."""
    given, result = folder / "given.onnx", folder / "result.onnx"
    given.write_bytes(export(graph, graph))
    name = graph.inputs[0].name
    quantize_static(
        given,
        result,
        _Reader(name, samples),
        per_channel=True,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
    )
    session = InferenceSession(result, providers=["CPUExecutionProvider"])
    found = np.stack([np.asarray(session.run(None, {name: sample[0]})[0]) for sample in unseen])
    wanted = outputs(graph, unseen)
    return float(10 * np.log10(np.square(wanted).sum() / np.square(wanted - found).sum()))


@pytest.mark.quick(every=3)
@pytest.mark.parametrize("kind", KINDS)
def test_joined_tensors_have_no_more_noise_than_onnxruntimes(
    kind: Callable[[Builder], Value], tmp_path: Path
) -> None:
    gains: list[float] = []
    for seed in (11, 12):
        make = Builder(seed)
        graph = make.graph(kind(make))
        samples, unseen = bounded(make, 128), bounded(make, 100)
        found = quantize(graph, samples, measure=False)
        assert found.exceptions == ()
        theirs = onnxruntime_sqnr(graph, samples, unseen, tmp_path)
        gains.append(output_sqnr(graph, found.graph, unseen) - theirs)
    assert np.mean(gains) >= -_TOLERANCE


def test_two_fixed_quantizations_are_joined_in_the_wider_one() -> None:
    make = Builder(11)
    graph = make.graph(unlike(make))
    found = quantize(graph, bounded(make, 128), measure=False)
    assert found.graph.outputs[0].type.quant == Quant.per_tensor(1 / 128, 0)
    assert output_sqnr(graph, found.graph, bounded(make, 100)) > 30.0


def grouped(graph: Graph, samples: Sequence[Sample]) -> dict[Value, Group]:
    groups = find_groups(graph, classify(graph), observe(graph, samples, 0))
    return {value: group for group in groups for value in group.values}


def test_a_fixed_quantization_is_shared_with_equal_ones() -> None:
    """Reshaped probabilities, and probabilities joined to others, keep it."""
    make = Builder(12)
    x = features(make)
    first, second = (make.add(Softmax(4.0), dense(make, x, 6)) for _ in range(2))
    both = make.add(Concat(1), make.add(Reshape((1, 6)), first), second)
    group = grouped(make.graph(both), make.samples(64))[both]
    assert {first, second, both} <= set(group.values)
    assert group.fixed == Quant.per_tensor(1 / 256, -128)


def test_a_reshaped_operand_keeps_its_own_range() -> None:
    make = Builder(13)
    result = pixels(make)
    graph = make.graph(result)
    of = grouped(graph, make.samples(64))
    (x,) = graph.inputs
    image = graph.nodes[0].output
    assert of[x] is of[image]
    assert set(of[x].values) == {x, image}


def test_ranges_that_add_much_noise_to_the_outputs_are_rejected() -> None:
    """Rare peaks hardly count in a tensor's error, but dominate the error of its fourth power."""
    make = Builder(14)
    x = make.input(1, 64)
    identity = Value.constant("identity", np.eye(64, dtype=np.float32))
    peaks = make.add(FullyConnected(), x, identity, Value.constant("bias", np.zeros(64, "f4")))
    square = make.add(Binary("mul"), peaks, peaks)
    graph = make.graph(make.add(Binary("mul"), square, square))
    found = quantize(graph, peaked(make, 128), measure=False)
    assert found.recipe.ranges == "minmax"
    assert output_sqnr(graph, found.graph, peaked(make, 100)) > 30.0
    other = Builder(11)
    usual = quantize(other.graph(heads(other)), bounded(other, 128), measure=False)
    assert usual.recipe == RECIPES["default"]


def peaked(make: Builder, count: int) -> list[Sample]:
    """Return samples in which one element of 370 is far from the others."""
    return [
        tuple(np.where(np.abs(a) > 3.0, np.sign(a) * 8.0, a).astype(np.float32) for a in sample)
        for sample in make.samples(count)
    ]
