"""Other engines' outputs of a network, and the tolerance for generated code."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import numpy as np
import onnx

from smelt.ir import Array
from smelt.samples import Sample
from tests.differential.program import Outputs
from tests.differential.recipe import Network
from tests.support.graphs import TOLERANCE
from tests.support.onnx_networks import session
from tests.support.tflite_networks import litert

_NOISE = 2.0**-22
"""Relative size of the noise that shows how a network amplifies rounding errors."""
LITERT_DEPARTS = frozenset({"ABS", "FULLY_CONNECTED", "SUM"})
"""int8 operators that LiteRT rounds differently, or computes wrongly."""
_ARENA = 2**22
"""Bytes of TensorFlow Lite Micro's arena, far more than these networks need."""
_AMPLIFIED = 16.0
"""Outputs may differ by this multiple of the noise's effect: each operator adds rounding errors."""


@dataclass(frozen=True)
class Truth:
    """The right outputs of a network.

    Attributes:
        outputs: of each sample.
        engine: that computed them.
        noise: for floats, by sample and output, the largest change of an element under noise of
            the size of rounding errors.
        bounds: for integers rounded from real numbers, by sample and output, the least and the
            greatest value of each element under rounding errors.
    """

    outputs: Outputs
    engine: str
    noise: Callable[[], list[list[float]]] | None = None
    bounds: Callable[[], tuple[Outputs, Outputs]] | None = None


def onnxruntime_truth(network: Network) -> Truth:
    """Return onnxruntime's outputs, computed without optimizations."""
    proto = onnx.load_from_string(network.data)
    runtime = session(proto)
    names = [value.name for value in proto.graph.input]

    def run(samples: Sequence[Sample]) -> Outputs:
        fed = (dict(zip(names, sample, strict=True)) for sample in samples)
        return [tuple(np.asarray(y) for y in runtime.run(None, feed)) for feed in fed]

    outputs = run(network.samples)

    @cache
    def noise() -> list[list[float]]:
        changed = np.zeros((len(outputs), len(outputs[0])))
        rng = np.random.default_rng(0)
        for _ in range(4):
            noisy = run([tuple(_shaken(a, rng) for a in sample) for sample in network.samples])
            for i, (ours, theirs) in enumerate(zip(noisy, outputs, strict=True)):
                apart = [_apart(a, b) for a, b in zip(ours, theirs, strict=True)]
                changed[i] = np.maximum(changed[i], apart)
        return changed.tolist()

    return Truth(outputs, "onnxruntime", noise)


def _shaken(array: Array, rng: np.random.Generator) -> Array:
    if array.dtype.kind != "f":
        return array
    factors = 1 + rng.uniform(-_NOISE, _NOISE, array.shape)
    return (array * factors).astype(array.dtype)


def _apart(a: Array, b: Array) -> float:
    return float(np.abs(np.float64(a) - np.float64(b)).max(initial=0.0))


def difference(found: Outputs, truth: Truth) -> str:
    """Describe how outputs differ from the right ones; empty if they do not.

    Integers must be equal in every element. Floats may differ by a small part of the output's
    range, or by as much as rounding errors change them.
    """
    spans = [
        max(float(np.max(a, initial=0)) for a in arrays)
        - min(float(np.min(a, initial=0)) for a in arrays)
        for arrays in zip(*truth.outputs, strict=True)
    ]
    for sample, (ours, wanted) in enumerate(zip(found, truth.outputs, strict=True)):
        for index, (a, b) in enumerate(zip(ours, wanted, strict=True)):
            where = f"output {index}, sample {sample}"
            if a.dtype != b.dtype or a.shape != b.shape:
                return f"{where} is {a.dtype} {a.shape}, by {truth.engine} {b.dtype} {b.shape}"
            allowed = TOLERANCE * spans[index] if a.dtype.kind == "f" else 0.0
            wrong = _beyond(a, b, b, allowed)
            if wrong.any() and truth.noise is not None:
                allowed += _AMPLIFIED * truth.noise()[sample][index]
                wrong = _beyond(a, b, b, allowed)
            if wrong.any() and truth.bounds is not None:
                low, high = truth.bounds()
                wrong = _beyond(a, low[sample][index], high[sample][index], allowed)
            if wrong.any():
                at = tuple(int(i) for i in np.argwhere(wrong)[0])
                return (
                    f"{where}: {int(wrong.sum())} of {wrong.size} elements differ, first "
                    f"[{', '.join(map(str, at))}] is {a[at]}, by {truth.engine} {b[at]}"
                    + (f" (allowed: {allowed:.3g})" if allowed else "")
                )
    return ""


def _beyond(a: Array, low: Array, high: Array, allowed: float) -> Array:
    """Return which elements are out of bounds; NaN always is."""
    wide = a.astype(np.float64)
    return ~((wide >= low - np.float64(allowed)) & (wide <= high + np.float64(allowed)))


def tflite_truth(network: Network) -> Truth | None:
    """Return TensorFlow Lite Micro's outputs, or those of LiteRT's reference kernels without it.

    None if neither applies: some of LiteRT's kernels differ from TensorFlow Lite Micro's.
    """
    with contextlib.suppress(ImportError, RuntimeError, ValueError):
        return Truth(tflite_micro_outputs(network.data, network.samples), "TensorFlow Lite Micro")
    if LITERT_DEPARTS & {*network.operators}:
        return None
    return Truth([tuple(litert(network.data, *s)) for s in network.samples], "LiteRT")


def tflite_micro_outputs(data: bytes, samples: Sequence[Sequence[Array]]) -> Outputs:
    """Return the outputs of TensorFlow Lite Micro for each sample, run one after another."""
    runtime = importlib.import_module("tflite_micro").runtime
    model: Any = schema.ModelT.InitFromPackedBuf(bytearray(data))
    outputs = len(model.subgraphs[0].outputs)
    interpreter = runtime.Interpreter.from_bytes(data, arena_size=_ARENA)
    found = Outputs()
    for sample in samples:
        for index, array in enumerate(sample):
            interpreter.set_input(array, index)
        interpreter.invoke()
        found.append(tuple(np.array(interpreter.get_output(i)) for i in range(outputs)))
    return found
