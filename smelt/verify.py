"""Proves that the device computes what the model says, or names the first layer that differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from smelt.errors import VerifyError
from smelt.ir import Array, Evaluation, Graph, Value
from smelt.ops.lengths import cut, evaluate_at_size, trace
from smelt.pipeline import Artefact
from smelt.run import Progress, Result, built, connected, device_inputs, run, set_sizes
from smelt.samples import Sample

FLOAT_TOLERANCE = 1e-5
"""Largest accepted difference of floats, relative to the range of the expected tensor."""


@dataclass(frozen=True)
class Difference:
    """How two tensors differ: in how many elements, and at most by how much."""

    elements: int
    total: int
    largest: float

    def __str__(self) -> str:
        return f"{self.elements} of {self.total} elements differ, at most by {self.largest:g}"


@dataclass(frozen=True)
class Verdict:
    """A verification that succeeded: on how many samples, exactly or within tolerance."""

    samples: int
    exact: bool
    result: Result

    def __str__(self) -> str:
        how = "bit-exact" if self.exact else f"within {FLOAT_TOLERANCE:g} of the output's range"
        return f"{how}, {self.samples} samples"


def compare(expected: Array, found: Array) -> Difference | None:
    """How `found` differs, or None: integers must be equal, floats within the tolerance."""
    if expected.shape != found.shape:
        return Difference(expected.size, expected.size, float("nan"))
    if expected.dtype.kind != "f":
        distance = np.abs(expected.astype(np.int64) - found.astype(np.int64))
        wrong = distance > 0
    else:
        wide, other = expected.astype(np.float64), found.astype(np.float64)
        finite = wide[np.isfinite(wide)]
        spread = float(finite.max() - finite.min()) if finite.size else 0.0
        magnitude = float(np.abs(finite).max()) if finite.size else 0.0
        equal = (wide == other) | (np.isnan(wide) & np.isnan(other))
        with np.errstate(invalid="ignore"):
            distance = np.where(equal, 0.0, np.abs(wide - other))
        wrong = ~(distance <= FLOAT_TOLERANCE * max(spread, magnitude, 1e-30))
    if not wrong.any():
        return None
    return Difference(int(wrong.sum()), expected.size, float(distance[wrong].max()))


def verify_model(
    artefact: Artefact,
    samples: Sequence[Sample],
    on: str | None = None,
    expected: Sequence[Sequence[Array]] | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Check every step of the road on every sample, one after the other as a device takes them.

    (1) The reference of the imported graph equals that of the optimized graph. (2) The reference
    of the optimized graph equals the device. (3) If `expected` is given, the device's outputs
    equal it. On a mismatch in (2), a second build with taps finds the first step that differs.

    Raises:
        VerifyError: something differs; the message says where, in how many elements, by how much.
    """
    references = [e.values for e in _evaluations(artefact.graph, samples)]
    _check_passes(artefact, samples, references)
    result = run(artefact, samples, on, progress)
    for index, (reference, outputs) in enumerate(zip(references, result.outputs, strict=True)):
        for value, found in zip(artefact.graph.outputs, outputs, strict=True):
            difference = compare(reference[value], found)
            if difference is not None:
                culprit = find_first_difference(artefact, samples[: index + 1], reference, on)
                raise VerifyError(
                    f"sample {index}: the device differs from the reference. {culprit} "
                    f"Output '{value.name}': {difference}."
                )
    if expected is not None:
        _check_expected(artefact, result, expected)
    exact = all(not v.type.dtype.is_float for v in artefact.graph.outputs)
    return Verdict(len(samples), exact, result)


def find_first_difference(
    artefact: Artefact,
    samples: Sequence[Sample],
    reference: dict[Value, Array],
    on: str | None = None,
) -> str:
    """One sentence naming the first step whose output differs on the device.

    Builds again with taps: same plan, same kernels, each step's output streamed as it is made.

    Args:
        artefact: a compiled network.
        samples: what differed in the end is the last; those before it lead to its state.
        reference: every value for the last sample.
        on: see `run`.
    """
    with built(artefact, taps=True) as elf, connected(elf, artefact, on) as device:
        if artefact.graph.states:
            for sample in samples[:-1]:
                set_sizes(device, artefact.graph, sample)
                device.run(device_inputs(artefact.graph, sample))
        sizes, marks = set_sizes(device, artefact.graph, samples[-1]), trace(artefact.graph)
        for i, data in enumerate(device_inputs(artefact.graph, samples[-1])):
            device.load(i, data)
        counts: dict[int, int] = {}
        for tap in device.taps():
            step = artefact.schedule.steps[tap.step]
            if step.inside is not None:  # runs any number of times; what controls it is compared
                continue
            value = step.node.outputs[counts.get(tap.step, 0)]
            counts[tap.step] = counts.get(tap.step, 0) + 1
            dtype = value.type.dtype.numpy
            found = cut(value, np.frombuffer(tap.data, dtype), marks, sizes)
            difference = compare(reference[value], found)
            if difference is not None:
                return (
                    f"First layer that differs: step {tap.step}, {step.node.op.name} of "
                    f"{step.node.origin}, kernel {step.function}: {difference}."
                )
    return "With taps every step agrees: the fault is in what happens after a step is done."


def _evaluations(graph: Graph, samples: Sequence[Sample]) -> Iterator[Evaluation]:
    """The reference on every sample; state goes from each to the next."""
    states: Sequence[Array] | None = None
    for sample in samples:
        evaluation = evaluate_at_size(graph, sample, states)
        states = evaluation.states
        yield evaluation


def _check_passes(
    artefact: Artefact, samples: Sequence[Sample], optimized: Sequence[dict[Value, Array]]
) -> None:
    for index, imported in enumerate(_evaluations(artefact.imported.graph, samples)):
        for before, value in zip(imported.outputs, artefact.graph.outputs, strict=True):
            difference = compare(before, optimized[index][value])
            if difference is not None:
                raise VerifyError(
                    f"sample {index}: the optimized graph differs from the imported one in output "
                    f"'{value.name}': {difference}. This is a bug in Smelt; please report it."
                )


def _check_expected(
    artefact: Artefact, result: Result, expected: Sequence[Sequence[Array]]
) -> None:
    for index, (wanted, outputs) in enumerate(zip(expected, result.outputs, strict=True)):
        for value, want, found in zip(artefact.graph.outputs, wanted, outputs, strict=True):
            difference = compare(want, found)
            if difference is not None:
                raise VerifyError(
                    f"sample {index}: the device computes what Smelt's reference says, but output "
                    f"'{value.name}' is not what --expect says: {difference}."
                )
