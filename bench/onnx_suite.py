"""The cases of the ONNX backend test suite, imported as graphs, with their expected outputs.

Every case is first imported unchanged, and its inputs are read at run time. If that is refused, the
inputs that determine shapes (axes, pads, repeats, sizes …) are replaced by constants with the
case's values. Such cases are marked `frozen`. Data inputs are never replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from smelt.errors import UnsupportedError
from smelt.frontend import InputOptions, load
from smelt.frontend.onnx.tensors import DTYPES
from smelt.ir import Array, Graph
from smelt.ir.budget import limited

Set = Literal["node", "simple", "pytorch-converted", "pytorch-operator", "light"]
SETS: tuple[Set, ...] = get_args(Set)

SHAPE_OPERANDS: dict[str, tuple[int, ...]] = (
    {
        "AffineGrid": (1,),
        "CenterCropPad": (1,),
        "Col2Im": (1, 2),
        "ConstantOfShape": (0,),
        "CumProd": (1,),
        "CumSum": (1,),
        "DFT": (1, 2),
        "Expand": (1,),
        "Loop": (0,),
        "OneHot": (1,),
        "Pad": (1, 3),
        "Range": (0, 1, 2),
        "Resize": (3,),
        "Reshape": (1,),
        "STFT": (1, 3),
        "SequenceAt": (1,),
        "SequenceErase": (1,),
        "SequenceInsert": (2,),
        "Slice": (1, 2, 3, 4),
        "Split": (1,),
        "SplitToSequence": (1,),
        "Squeeze": (1,),
        "Tile": (1,),
        "TopK": (1,),
        "Trilu": (1,),
        "Unsqueeze": (1,),
        "MaxUnpool": (2,),
        "BlackmanWindow": (0,),
        "HammingWindow": (0,),
        "HannWindow": (0,),
    }
    | {
        f"Reduce{kind}": (1,)
        for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum")
    }
    | {"ReduceSumSquare": (1,)}
)
"""Indices of operands that determine shapes, axes, pads or repeats, by operator."""

REAL_OPERANDS: dict[str, tuple[int, ...]] = {"OneHot": (1,), "Resize": (1, 2), "Upsample": (1,)}
"""Indices of float operands that determine shapes; cases that need them frozen count separately."""

PART_OF_RANGE = 1e-6
"""Allowed error of a float result, as a fraction of the expected output's range (including zero).

The suite's own results are float32. If terms cancel, their error exceeds the case's tolerance."""

Status = Literal[
    "passed",
    "frozen",
    "onnxruntime",
    "frozen reals",
    "no kernel",
    "constant",
    "unsupported",
    "failed",
]
"""The result of a case.

`constant`: the outputs depend only on shapes. `no kernel`: nothing is computed; the outputs are
inputs. `onnxruntime`: the outputs agree with ONNX Runtime's, which differ from the suite's."""

LARGEST_WEIGHTS = 1 << 25
"""Bytes of constants from which the limit of work at import is computed, for every case.

Files of the set `light` contain a few kilobytes, but create up to half a gigabyte of weights with
ConstantOfShape, which Smelt refuses for files of this size."""

CONVERSIONS = ("Cast", "CastLike")
"""Operators whose results must be exact for every element type."""


@dataclass(frozen=True)
class Expectation:
    """A set of inputs, in the graph's order, and the expected outputs."""

    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]


@dataclass(frozen=True)
class ImportedCase:
    """The imported network of a case, its data, and the status if its outputs are correct."""

    graph: Graph
    expectations: tuple[Expectation, ...]
    status: Status


@dataclass(frozen=True)
class SuiteCase:
    """A case of the suite."""

    name: str
    kind: Set
    model: onnx.ModelProto
    data: tuple[tuple[Sequence[Any], Sequence[Any]], ...]
    rtol: float
    atol: float

    @property
    def operator(self) -> str:
        """The tested operator: the most frequent one, or the one that an expanded case replaces."""
        kinds = [node.op_type for node in self.model.graph.node]
        if "_expanded" not in self.name or self.kind != "node":
            main = Counter(k for k in kinds if k not in ("Constant", "Identity", "Cast"))
            return main.most_common(1)[0][0] if main else kinds[0] if kinds else "none"
        return _operators().get(self.name.partition("_expanded")[0], kinds[0])

    def imported(self) -> ImportedCase:
        """Import the network and its data.

        Raises:
            SmeltError: The network is refused; UnsupportedError if Smelt does not support it.
        """
        try:
            return self._imported(frozenset())
        except UnsupportedError:
            operands, reals = self._frozen(SHAPE_OPERANDS), self._frozen(REAL_OPERANDS)
            if not operands | reals:
                raise
            if operands:
                try:
                    return self._imported(operands)
                except UnsupportedError:
                    if not reals:
                        raise
            return self._imported(operands | reals, "frozen reals")

    def _imported(self, frozen: frozenset[str], status: Status = "frozen") -> ImportedCase:
        model, expectations = onnx.ModelProto(), []
        model.CopyFrom(self.model)
        fed = [i.name for i in _inputs(self.model)]
        for name, array in zip(fed, self.data[0][0], strict=False):
            if name in frozen:
                model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        kept = [index for index, name in enumerate(fed) if name not in frozen]
        data = ((fed[i], self.data[0][0][i]) for i in kept)
        shapes = {name: array.shape for name, array in data if isinstance(array, np.ndarray)}
        with limited(LARGEST_WEIGHTS):
            graph = load(model.SerializeToString(), "case", InputOptions(shapes=shapes)).graph
        for inputs, outputs in self.data:
            arrays = [_array(inputs[i]) for i in kept]
            types = [value.type.dtype.numpy for value in graph.inputs]
            given = tuple(a.astype(t) for a, t in zip(arrays, types, strict=True))
            expectations.append(Expectation(given, tuple(map(_array, outputs))))
        if not _reads_data(graph):
            return ImportedCase(graph, tuple(expectations), "constant")
        return ImportedCase(graph, tuple(expectations), status if frozen else "passed")

    def _frozen(self, table: dict[str, tuple[int, ...]]) -> frozenset[str]:
        """Return the scalar and vector inputs that reach an operand of `table`.

        They may pass through the operators of `_VECTOR_ARITHMETIC`.
        """
        types = _REALS if table is REAL_OPERANDS else _INTEGERS
        small = {
            info.name
            for info in _inputs(self.model)
            if info.type.WhichOneof("value") == "tensor_type"
            and info.type.tensor_type.elem_type in types
            and len(info.type.tensor_type.shape.dim) <= 1
        }
        wanted: set[str] = set()
        _reach(self.model.graph, table, wanted)
        return frozenset(small & wanted)

    def mismatch(self, outputs: Sequence[Array], expectation: Expectation) -> str | None:
        """Return what is wrong with the outputs; None if nothing is."""
        if len(outputs) != len(expectation.outputs):
            return f"{len(outputs)} outputs instead of {len(expectation.outputs)}"
        for index, (ours, theirs) in enumerate(zip(outputs, expectation.outputs, strict=True)):
            try:
                self._compare(ours, theirs)
            except AssertionError as error:
                return f"output {index}: {' '.join(str(error).split())[:200]}"
        return None

    def by_onnxruntime(self) -> tuple[Expectation, ...] | None:
        """Return the data with ONNX Runtime's outputs; None if it cannot run the file."""
        names = [info.name for info in _inputs(self.model)]
        found: list[Expectation] = []
        try:
            session = onnxruntime.InferenceSession(
                self.model.SerializeToString(), providers=["CPUExecutionProvider"]
            )
            for given, _ in self.data:
                inputs = tuple(map(_array, given))
                fed = dict(zip(names, inputs, strict=False))
                found.append(Expectation(inputs, tuple(map(_array, session.run(None, fed)))))
        except Exception:  # noqa: BLE001 - it raises errors of many kinds
            return None
        return tuple(found)

    def _compare(self, ours: Array, theirs: Array) -> None:
        assert ours.shape == theirs.shape, f"shape {ours.shape} instead of {theirs.shape}"
        if theirs.dtype.kind in "iub" or self.operator in CONVERSIONS:
            np.testing.assert_array_equal(ours, theirs.astype(ours.dtype))
            return
        precision = 1e-2 if theirs.dtype.itemsize < 4 and theirs.dtype != np.float16 else 1e-3
        half = theirs.dtype.itemsize < 4
        wanted = theirs.astype(np.float64)
        finite = np.append(wanted[np.isfinite(wanted)], 0.0)
        noise = PART_OF_RANGE * float(np.ptp(finite))
        np.testing.assert_allclose(
            ours.astype(np.float64),
            wanted,
            rtol=max(self.rtol, precision) if half else self.rtol,
            atol=max(self.atol, noise, precision) if half else max(self.atol, noise),
        )


_VECTOR_ARITHMETIC = frozenset(
    {"Add", "Cast", "Concat", "Div", "Gather", "Identity", "Mul", "Neg", "Reshape", "Slice"}
    | {"Squeeze", "Sub", "Unsqueeze", "Where", "Range", "Mod", "ConstantOfShape", "Split"}
)
_INTEGERS = frozenset(code for code, dtype in DTYPES.items() if dtype.is_integer)
_REALS = frozenset(code for code, dtype in DTYPES.items() if dtype.is_float)


def _reach(graph: onnx.GraphProto, table: dict[str, tuple[int, ...]], wanted: set[str]) -> None:
    """Add to `wanted` the tensors that reach an operand of `table`."""
    for node in reversed(graph.node):
        indices = table.get(node.op_type, ())
        wanted.update(node.input[i] for i in indices if i < len(node.input))
        if node.op_type in _VECTOR_ARITHMETIC and wanted.intersection(node.output):
            wanted.update(node.input)
        for inner in (a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH):
            if wanted.intersection(node.output):
                wanted.update(output.name for output in inner.output)
            _reach(inner, table, wanted)


def cases(sets: Iterable[Set] = SETS) -> Iterator[SuiteCase]:
    """Yield every case of the sets, in the suite's order."""
    for kind in sets:
        own_name = "real" if kind == "light" else kind
        for test in sorted(load_model_tests(kind=own_name), key=lambda test: test.name):
            if kind == "light":
                yield _light(test)
                continue
            if test.model is not None:
                yield SuiteCase(test.name, kind, test.model, _data(test), test.rtol, test.atol)
                continue
            folder = Path(str(test.model_dir))
            model = onnx.load(str(folder / "model.onnx"))
            yield SuiteCase(test.name, kind, model, _stored(folder), test.rtol, test.atol)


def _inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    constants = {tensor.name for tensor in model.graph.initializer}
    return [i for i in model.graph.input if i.name not in constants]


def _light(test: Any) -> SuiteCase:
    """Return a case of set `light`, with the inputs that the suite's own runner uses."""
    path = Path(onnx.__file__).parents[1] / test.url
    model = onnx.load(str(path))
    outputs = [
        numpy_helper.to_array(onnx.load_tensor(f"{path.with_suffix('')}_output_{index}.pb"))
        for index in range(len(model.graph.output))
    ]
    shapes = [[d.dim_value for d in i.type.tensor_type.shape.dim] for i in _inputs(model)]
    inputs = [(np.arange(prod(s)).reshape(s) / prod(s)).astype(np.float32) for s in shapes]
    return SuiteCase(test.name, "light", model, ((inputs, outputs),), test.rtol, test.atol)


def _data(test: Any) -> tuple[tuple[Sequence[Any], Sequence[Any]], ...]:
    return tuple((list(inputs), list(outputs)) for inputs, outputs in test.data_sets or ())


def _stored(folder: Path) -> tuple[tuple[Sequence[Any], Sequence[Any]], ...]:
    """Return the data sets stored beside a model file; data other than tensors becomes None."""

    def tensors(data: Path, role: str) -> list[Any]:
        found: list[Any] = []
        for index in range(len(list(data.glob(f"{role}_*.pb")))):
            tensor = onnx.TensorProto()
            try:
                tensor.ParseFromString((data / f"{role}_{index}.pb").read_bytes())
                found.append(numpy_helper.to_array(tensor))
            except Exception:  # noqa: BLE001 - a sequence or map: unsupported
                found.append(None)
        return found

    return tuple(
        (tensors(data, "input"), tensors(data, "output"))
        for data in sorted(folder.glob("test_data_set_*"))
    )


def _array(given: Any) -> Array:
    if isinstance(given, onnx.TensorProto):
        return numpy_helper.to_array(given)
    if not isinstance(given, np.ndarray | np.generic | int | float | bool):
        raise UnsupportedError(f"data of type {type(given).__name__}; Smelt supports tensors")
    return np.asarray(given)


def _reads_data(graph: Graph) -> bool:
    """Return whether an output depends on an input."""
    reached = set(graph.inputs)
    for node in graph.nodes:
        if any(value in reached for value in node.inputs):
            reached.update(node.outputs)
    return any(value in reached for value in graph.outputs)


@cache
def _operators() -> dict[str, str]:
    """Return the operator of each node case that has only one."""
    found: dict[str, str] = {}
    for test in load_model_tests(kind="node"):
        if test.model is not None and len(test.model.graph.node) == 1:
            found[test.name] = test.model.graph.node[0].op_type
    return found
