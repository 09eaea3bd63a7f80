"""Verification that a device contains the build and computes the model's outputs on samples.

Errors name the array or function that differs in memory, or the first layer that differs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smelt.api.artifact import Artifact
from smelt.api.report import Report
from smelt.boards import Device, ElfInfo, TracedOutput
from smelt.codegen.passes.quantized.integer_arithmetic import use_integer_arithmetic
from smelt.codegen.passes.subgraphs import everywhere
from smelt.codegen.schedule.steps import Call
from smelt.errors import ConfigError, DeviceError, SmeltError, VerifyError
from smelt.formatting import counted
from smelt.ir import Array, DType, Evaluation, Graph, Node, Value
from smelt.ops.core.cast import Cast
from smelt.ops.run_time_lengths import cut, evaluate_at_size, find_marks
from smelt.proof.memory import ComparedMemory, MemoryProgress, compare_memory
from smelt.proof.rig import Rig
from smelt.proof.run import Progress, Result, device_inputs, run, set_sizes, step_sizes
from smelt.proof.tolerances import FLOAT_TOLERANCE, Difference, compare, tolerances_of
from smelt.samples import Sample, check_samples


@dataclass(frozen=True)
class Verdict:
    """Result of a successful verification.

    Attributes:
        samples: number of samples.
        tolerance: accepted difference as a fraction of an output's range; 0 means bit-exact.
        result: outputs and measurements of the run.
        memory: amount of the device's memory that was compared.
        real: if the file dequantizes, computes with real numbers and quantizes, but the network
            computes with integers: how its outputs differ from those of real numbers. None if
            there is no difference.
    """

    samples: int
    tolerance: float
    result: Result
    memory: ComparedMemory
    real: Difference | None = None

    def __str__(self) -> str:
        how = (
            f"within {self.tolerance:.3g} of the output's range" if self.tolerance else "bit-exact"
        )
        text = f"{how}, {counted(self.samples, 'sample')}; {self.memory}"
        if self.real is None:
            return text
        return (
            f"{text}; compared with the file's float arithmetic, which integers replace, "
            f"{self.real.elements:,} of {self.real.total:,} outputs differ by at most "
            f"{self.real.largest:g}"
        )


def verify_model(
    artifact: Artifact,
    samples: Sequence[Sample],
    rig: Rig | None = None,
    expected: Sequence[Sequence[Array]] | None = None,
    progress: Progress | None = None,
    memory_progress: MemoryProgress | None = None,
    *,
    any_build: bool = False,
) -> Verdict:
    """Check each stage on every sample, with state carried from one sample to the next.

    1. The reference of the imported graph equals that of the optimized graph. For a quantized ONNX
       file, integer arithmetic in place of the file's real numbers counts as imported.
    2. The device's memory contains the constants and code of the build; see `smelt.proof.memory`.
    3. The device's outputs equal the reference of the optimized graph. If they differ, a second
       build with TRACE=1 finds the first step that differs.
    4. If `expected` is given, the device's outputs equal it.

    `smelt.proof.tolerances` defines when outputs are equal. With `any_build`, firmware that was
    flashed earlier may be another build of the network, and its memory is not compared.

    Raises:
        ConfigError: the samples do not match the network, or `expected` has another number of
            samples.
        VerifyError: something differs; the message says where, in how many elements, by how much.
    """
    rig = rig or Rig()
    samples = check_samples(artifact.graph, samples)
    if expected is not None and len(expected) != len(samples):
        raise ConfigError(
            f"expected outputs are given for {counted(len(expected), 'sample')}, but inputs for "
            f"{counted(len(samples), 'sample')}"
        )
    references = [
        {value: e.values[value] for value in artifact.graph.outputs}
        for e in _evaluations(artifact.graph, samples)
    ]
    tolerances = tolerances_of(artifact.graph)
    real = _check_passes(artifact, samples, references, tolerances)
    compared: list[ComparedMemory] = []

    def inspect(elf: ElfInfo, device: Device) -> None:
        found = compare_memory(
            artifact,
            elf,
            device,
            loaded=rig.loads(artifact),
            any_build=any_build,
            progress=memory_progress,
        )
        compared.append(found)

    result = run(artifact, samples, rig, progress, inspect)
    for index, (reference, outputs) in enumerate(zip(references, result.outputs, strict=True)):
        for value, found in zip(artifact.graph.outputs, outputs, strict=True):
            difference = compare(reference[value], found, tolerances.get(value, 0.0))
            if difference is not None:
                culprit = _first_difference(artifact, samples[: index + 1], rig)
                raise VerifyError(
                    f"sample {index}: the device differs from the reference. {culprit} "
                    f"Output '{value.name}': {difference}."
                )
    if expected is not None:
        _check_expected(artifact, result, expected, tolerances)
    floats = any(v.type.dtype.is_float for v in artifact.graph.outputs)
    accepted = max(tolerances.get(v, 0.0) for v in artifact.graph.outputs)
    tolerance = max(accepted, FLOAT_TOLERANCE if floats else 0.0)
    return Verdict(len(samples), tolerance, result, compared[0], real)


def _first_difference(artifact: Artifact, samples: Sequence[Sample], rig: Rig) -> str:
    """Return a sentence on the first step that differs; retry once if the serial line fails."""
    relevant = samples if artifact.graph.states else samples[-1:]
    (reference,) = deque(_evaluations(artifact.graph, relevant), maxlen=1)
    problem = ""
    for _ in range(2):
        try:
            return find_first_difference(artifact, samples, reference.values, rig)
        except DeviceError as error:
            problem = str(error)
    return f"The first layer that differs could not be found: {problem}."


def verified(verdict: Verdict) -> Report:
    """Return the completed report of a successful verification, with `verification`."""
    judged = {
        "passed": True,
        "message": str(verdict),
        "samples": verdict.samples,
        "tolerance": verdict.tolerance,
        "memory": {
            "bytes": verdict.memory.bytes,
            "arrays": verdict.memory.arrays,
            "why_not": verdict.memory.why_not or None,
        },
        "seconds": verdict.result.seconds,
    }
    return {**verdict.result.report, "verification": judged}


def failed(report: Mapping[str, Any], error: SmeltError, seconds: float) -> Report:
    """Return the report of a failed verification, with `verification`."""
    judged = {
        "passed": False,
        "message": str(error),
        "samples": None,
        "tolerance": None,
        "memory": None,
        "seconds": seconds,
    }
    return {**report, "verification": judged}


class _TracedValues:
    """Finds which elements of which tensors a device reports.

    A step reports each of its results once. A layer of a segment reports a few rows at a time.
    """

    def __init__(self, artifact: Artifact) -> None:
        self._steps = artifact.schedule.steps
        self._outputs: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()

    def find(self, traced: TracedOutput) -> tuple[Value, slice]:
        """Return the tensor of a traced output, and which of its elements the output has.

        Raises:
            DeviceError: The step reports too much, or has no output of this size.
        """
        step, count = self._steps[traced.step], len(traced.data)
        made = self._outputs[traced.step]
        if made >= len(step.node.outputs):
            raise DeviceError(f"the device reports step {traced.step} more than once")
        value = step.node.outputs[made]
        whole, size = value.type.bytes, value.type.dtype.size
        bands = step.bands if isinstance(step, Call) else None
        done = self._bytes[traced.step]
        if count != whole if bands is None else done + count > whole:
            raise DeviceError(
                f"the device reports {count} bytes for step {traced.step}, not {whole - done}"
            )
        self._bytes[traced.step] = done + count
        if done + count == whole:
            self._outputs[traced.step] += 1
            self._bytes[traced.step] = 0
        first = whole - done - count if bands is not None and bands.reverse else done
        return value, slice(first // size, (first + count) // size)


def find_first_difference(
    artifact: Artifact,
    samples: Sequence[Sample],
    reference: dict[Value, Array],
    rig: Rig | None = None,
) -> str:
    """Return one sentence that names the first step whose output differs on the device.

    The network is built again with TRACE=1. The plan and the kernels are the same, and the device
    sends each step's output when it is computed.

    Args:
        artifact: a compiled network.
        samples: samples up to the one that differs; earlier ones are needed for its state.
        reference: all values of the last sample.
        rig: device to run on; see `run`.
    """
    with (rig or Rig()).open(artifact, trace=True) as (_, device):
        if not device.info.trace:
            return (
                "The firmware on the device cannot report which layer differs first; "
                "`smelt deploy` flashes firmware that can."
            )
        if artifact.graph.states:
            for sample in samples[:-1]:
                set_sizes(device, artifact.graph, sample)
                device.run(device_inputs(artifact.graph, sample))
        tolerances = tolerances_of(artifact.graph)
        sizes, marks = set_sizes(device, artifact.graph, samples[-1]), find_marks(artifact.graph)
        device.load_all(device_inputs(artifact.graph, samples[-1]))
        values = _TracedValues(artifact)
        for traced in device.trace(step_sizes(artifact)):
            step = artifact.schedule.steps[traced.step]
            if step.inside is not None:  # may run many times; only the enclosing step is compared
                continue
            value, elements = values.find(traced)
            found = np.frombuffer(traced.data, value.type.dtype.numpy)
            if len(found) < value.type.size:
                rows, found = found, reference[value].copy()
                found.reshape(-1)[elements] = rows
            difference = compare(
                reference[value], cut(value, found, marks, sizes), tolerances.get(value, 0.0)
            )
            if difference is not None:
                kernel = f", kernel {step.function}" if isinstance(step, Call) else ""
                return (
                    f"First layer that differs: step {traced.step}, {step.node.op.name} of "
                    f"{step.node.origin}{kernel}: {difference}."
                )
    return "With TRACE=1, every step is equal: the fault is in what happens after a step."


def _evaluations(graph: Graph, samples: Sequence[Sample]) -> Iterator[Evaluation]:
    """Yield the reference's evaluation of each sample, carrying state to the next."""
    states: Sequence[Array] | None = None
    for sample in samples:
        evaluation = evaluate_at_size(graph, sample, states)
        states = evaluation.states
        yield evaluation


def _check_passes(
    artifact: Artifact,
    samples: Sequence[Sample],
    optimized: Sequence[Mapping[Value, Array]],
    tolerances: Mapping[Value, float],
) -> Difference | None:
    """Check the passes. Return how integer arithmetic differs from the file's real numbers."""
    graph = artifact.imported.graph
    integers = everywhere(use_integer_arithmetic)(graph)
    for index, imported in enumerate(_evaluations(integers, samples)):
        for before, value in zip(imported.outputs, artifact.graph.outputs, strict=True):
            difference = compare(before, optimized[index][value], tolerances.get(value, 0.0))
            if difference is not None:
                raise VerifyError(
                    f"sample {index}: the optimized graph differs from the imported one in output "
                    f"'{value.name}': {difference}. "
                    + _why_it_differs(artifact.graph, samples[: index + 1])
                )
    if len(integers.nodes) == len(graph.nodes):
        return None
    reals = [e.outputs for e in _evaluations(graph, samples)]
    found = [
        compare(real, values[value])
        for outputs, values in zip(reals, optimized, strict=True)
        for real, value in zip(outputs, artifact.graph.outputs, strict=True)
    ]
    differing = [d for d in found if d is not None]
    if not differing:
        return None
    return Difference(
        sum(d.elements for d in differing),
        sum(real.size for outputs in reals for real in outputs),
        max(d.largest for d in differing),
    )


def _why_it_differs(graph: Graph, samples: Sequence[Sample]) -> str:
    """Return a sentence: where the last sample overflows float16, or that this is a bug."""
    halves = [v for node in graph.nodes for v in node.outputs if v.type.dtype is DType.FLOAT16]
    if not halves:
        return "This is a bug in Smelt; please report it."
    remedy = "remove --float16, or keep {} in float32 with --place {}=c"
    *_, last = _evaluations(graph, samples)

    def finite(value: Value) -> bool:
        return bool(np.isfinite(last.values[value] if value.data is None else value.data).all())

    for value in halves:
        makes = graph.producer[value]
        if not finite(value) and all(finite(v) for v in makes.inputs if v is not None):
            reads = next((n for n in graph.nodes if value in n.inputs), makes)
            layer = reads if isinstance(makes.op, Cast) else makes
            what = f"'{value.name}' at {layer.op.name} of {layer.origin} exceeds float16 (65504)"
            return f"{what}: {remedy.format('it', repr(_name_of(layer, graph)))}."
    return f"It needs more precision than float16 has: {remedy.format('layers', 'LAYER')}."


def _name_of(layer: Node, graph: Graph) -> str:
    """Return the layer's name for `--place`; a widened result of the network has its own name."""
    widened = (n for n in graph.nodes if isinstance(n.op, Cast) and n.inputs[0] in layer.outputs)
    return next((n.name for n in widened if n.output in graph.results), layer.name)


def _check_expected(
    artifact: Artifact,
    result: Result,
    expected: Sequence[Sequence[Array]],
    tolerances: Mapping[Value, float],
) -> None:
    for index, (wanted, outputs) in enumerate(zip(expected, result.outputs, strict=True)):
        for value, want, found in zip(artifact.graph.outputs, wanted, outputs, strict=True):
            difference = compare(want, found, tolerances.get(value, 0.0))
            if difference is not None:
                raise VerifyError(
                    f"sample {index}: the device equals Smelt's reference, but output "
                    f"'{value.name}' differs from --expect: {difference}."
                )
