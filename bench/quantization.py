"""Int8 quantization: Smelt's recipes compared with onnxruntime's static quantizer.

Every method gets the same float network and the same calibration samples, and quantizes every
layer. Smelt's networks run as generated C on the host, onnxruntime's networks in onnxruntime.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import onnxruntime as ort
import typer
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from rich.console import Console

from bench import records
from bench.quantization_data import Missing, TrainedNetwork, candidates
from smelt.api.compile import compile_model
from smelt.api.quantize import as_stored
from smelt.cli.show.tables import TextTable
from smelt.codegen.passes import run_passes
from smelt.errors import SmeltError
from smelt.frontend import Imported, load
from smelt.ir import Array, Graph
from smelt.proof.run import run
from smelt.quant.qdq import export
from smelt.quant.quantizer import quantize
from smelt.quant.recipe import RECIPES
from smelt.quant.result import sqnr
from smelt.samples import Sample, dequantize

RealOutputs = Sequence[Sequence[Array]]
"""For each sample, one array of floats per output."""

METHODS = {
    "min-max": CalibrationMethod.MinMax,
    "percentile": CalibrationMethod.Percentile,
    "entropy": CalibrationMethod.Entropy,
}
"""Calibration methods of onnxruntime, all with int8 weights and one scale per channel."""


@dataclass(frozen=True)
class QuantizedAccuracy:
    """The accuracy of an int8 network compared with the float network.

    Attributes:
        network: Name of the float network.
        method: The quantizer and its method.
        accuracy: Accuracy in per cent; None without labels.
        change: Percentage points by which the accuracy exceeds the float network's; None without
            labels.
        noise: Signal-to-quantization-noise ratio of each output in dB; empty for the float network
            itself, and if quantization failed.
        left_in_float: Operators that are not int8, separated by commas.
        failure: Why there is no result; empty if there is one.
    """

    network: str
    method: str
    accuracy: float | None
    change: float | None
    noise: tuple[float, ...]
    left_in_float: str = ""
    failure: str = ""

    @property
    def decibels(self) -> str:
        """`noise` as text, or else `failure`."""
        return self.failure or ", ".join(f"{noise:.1f} dB" for noise in self.noise)

    @property
    def line(self) -> tuple[object, ...]:
        """The line of the table."""
        accuracy = "-" if self.accuracy is None else f"{self.accuracy:.2f} %"
        change = "-" if self.change is None else f"{self.change:+.2f}"
        return self.network, self.method, accuracy, change, self.decibels, self.left_in_float


_COLUMNS = ("network", "method", "accuracy", "against float", "SQNR of the outputs", "not int8")


def main(
    networks: Annotated[
        str, typer.Option("--networks", help="Names of networks, or a pattern.")
    ] = "*",
    recipes: Annotated[
        str, typer.Option("--recipes", help="Smelt's recipes, separated by commas.")
    ] = "default",
    write: records.WriteOption = False,
    note: records.NoteOption = "",
) -> None:
    """Measure accuracy and noise of Smelt's int8 networks and of onnxruntime's."""
    if write and networks != "*":
        raise typer.BadParameter("a record contains all networks: name none with --write")
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    console = Console(stderr=True)
    rows: list[QuantizedAccuracy] = []
    for candidate in candidates(networks):
        if isinstance(candidate, Missing):
            console.print(f"{candidate.name}: {candidate.reason}", highlight=False)
            continue
        with console.status(candidate.name):
            rows += _rows(candidate, recipes.split(","))
    TextTable(_COLUMNS, tuple(row.line for row in rows)).print(Console())
    if write:
        device = f"{records.processor()}, onnxruntime {ort.__version__}"
        command = f"quantization --recipes {recipes} --write"
        measured = records.this_run(command, records.version("gcc"), device, note)
        records.write("quantization", measured, rows)


def _rows(candidate: TrainedNetwork, recipes: Sequence[str]) -> Iterator[QuantizedAccuracy]:
    network = load(candidate.model, inputs=candidate.inputs)
    original = run_passes(network.graph)
    onnx_file = candidate.model.suffix == ".onnx"
    model = candidate.model.read_bytes() if onnx_file else export(original, original)
    expected = _session(model, original, candidate.tests)
    yield _row(candidate, "float", expected, expected, "")
    for recipe in recipes:
        yield _measured(
            candidate, f"Smelt, {recipe}", expected, lambda r=recipe: _smelt(candidate, original, r)
        )
    for name, method in METHODS.items():
        yield _measured(
            candidate,
            f"onnxruntime, {name}",
            expected,
            lambda m=method: _onnxruntime(candidate, original, m),
        )
    if candidate.published is not None:
        published = load(candidate.published)
        found = _generated(published, as_stored(published.graph, candidate.tests))
        yield _row(candidate, "published int8 file", expected, found, "")


def _measured(
    candidate: TrainedNetwork,
    method: str,
    expected: RealOutputs,
    compute: Callable[[], tuple[RealOutputs, str]],
) -> QuantizedAccuracy:
    try:
        found, exceptions = compute()
    except SmeltError as error:
        failure = f"refused: {error}"
    except Exception as error:  # noqa: BLE001 - onnxruntime raises errors of many kinds
        failure = f"failed: {str(error).splitlines()[0][:60]}"
    else:
        return _row(candidate, method, expected, found, exceptions)
    return QuantizedAccuracy(candidate.name, method, None, None, (), failure=failure)


def _row(
    candidate: TrainedNetwork,
    method: str,
    expected: RealOutputs,
    found: RealOutputs,
    exceptions: str,
) -> QuantizedAccuracy:
    noise: tuple[float, ...] = ()
    if expected is not found:
        pairs = zip(_columns(expected), _columns(found), strict=True)
        noise = tuple(sqnr(_power(a), _power(a - b)) for a, b in pairs)
    accuracy, change = None, None
    if candidate.labels is not None:
        accuracy = _accuracy(found, candidate.labels)
        change = accuracy - _accuracy(expected, candidate.labels)
    return QuantizedAccuracy(candidate.name, method, accuracy, change, noise, exceptions)


def _columns(outputs: RealOutputs) -> list[Array]:
    return [np.stack(column).astype(np.float64) for column in zip(*outputs, strict=True)]


def _power(array: Array) -> float:
    return float(np.square(array).sum())


def _accuracy(outputs: RealOutputs, labels: Array) -> float:
    found = np.asarray([int(sample[0].argmax()) for sample in outputs])
    return 100.0 * float(np.mean(found == labels))


def _smelt(candidate: TrainedNetwork, original: Graph, recipe: str) -> tuple[RealOutputs, str]:
    done = quantize(
        original, candidate.calibration, RECIPES[recipe], candidate.allow, measure=False
    )
    stored = as_stored(done.graph, candidate.tests)
    exceptions = ", ".join(sorted({layer.op for layer in done.exceptions}))
    return _generated(Imported(done.graph), stored), exceptions


def _generated(network: Imported, stored: Sequence[Sample]) -> RealOutputs:
    """Return the dequantized outputs of the generated C on the host."""
    artifact = compile_model(network)
    return [
        tuple(
            dequantize(array, value.type)
            for array, value in zip(outputs, artifact.graph.outputs, strict=True)
        )
        for outputs in run(artifact, stored).outputs
    ]


def _session(model: bytes, graph: Graph, samples: Sequence[Sample]) -> RealOutputs:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    outputs = [value.name for value in graph.outputs]
    known = {value.name for value in session.get_outputs()}
    wanted = outputs if set(outputs) <= known else None
    found: list[Sequence[Array]] = []
    for sample in samples:
        feed = dict(zip(names, sample, strict=True))
        found.append([np.asarray(x) for x in session.run(wanted, feed)])
    return found


class _SampleReader(CalibrationDataReader):
    def __init__(self, names: Sequence[str], samples: Sequence[Sample]) -> None:
        self._feeds = iter([dict(zip(names, sample, strict=True)) for sample in samples])

    def get_next(self) -> dict[str, Array] | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return next(self._feeds, None)


def _onnxruntime(
    candidate: TrainedNetwork, original: Graph, method: CalibrationMethod
) -> tuple[RealOutputs, str]:
    """Quantize with onnxruntime as documented: with preprocessing, to QDQ, one scale per channel.

    Return the outputs of the tests, and the operators that are not int8.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given, prepared, result = (folder / f"{n}.onnx" for n in ("given", "prepared", "result"))
        onnx.save(_proto(candidate, original), given)
        quant_pre_process(str(given), str(prepared), skip_symbolic_shape=True)
        names = [value.name for value in onnx.load(prepared).graph.input]
        with redirect_stdout(StringIO()):
            quantize_static(
                prepared,
                result,
                _SampleReader(names, candidate.calibration),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=method,
            )
        outputs = _session(result.read_bytes(), original, candidate.tests)
        return outputs, ", ".join(sorted(_left_in_float(onnx.load(result).graph)))


_RECURRENT = frozenset(("GRU", "LSTM", "RNN"))
_MOVES = frozenset(
    {"Concat", "Constant", "ConstantOfShape", "Flatten", "Gather", "Identity", "Reshape"}
    | {"Shape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
_FOLLOWING = frozenset(("Clip", "QuantizeLinear", "DequantizeLinear", "Relu"))


def _left_in_float(graph: onnx.GraphProto) -> set[str]:
    """Return the operators that onnxruntime did not quantize, or computes in float nevertheless.

    Operators that only move elements, or are fused to the operator before them, are ignored.
    """
    dequantized = {
        x for node in graph.node if node.op_type == "DequantizeLinear" for x in node.output
    }
    return {
        node.op_type
        for node in graph.node
        if node.op_type in _RECURRENT
        or (node.op_type not in _FOLLOWING | _MOVES and not dequantized & set(node.input))
    }


def _proto(candidate: TrainedNetwork, original: Graph) -> onnx.ModelProto:
    """Return the ONNX file, or Smelt's export if the file has another format or is too old.

    onnxruntime's quantizer needs operator set 13 for one scale per channel.
    """
    if candidate.model.suffix == ".onnx":
        proto = onnx.load(candidate.model)
        if all(opset.version >= 13 for opset in proto.opset_import if not opset.domain):
            return proto
    return onnx.load_from_string(export(original, original))
