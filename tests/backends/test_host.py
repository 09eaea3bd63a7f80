"""Every case of every operator, and more element types: C equals the numpy reference.

All functions are compiled in one C file by each compiler, with all warnings as errors, and run once
under AddressSanitizer and UndefinedBehaviorSanitizer. Each operand is in a heap block of exactly
its size.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from smelt.codegen.lower.backend import backend
from smelt.codegen.lower.kernel import Input, LayerStruct, Output, Packed, Request, Scratch
from smelt.codegen.partition.partitioner import Partitioner
from smelt.codegen.schedule.schedule import Schedule, schedule
from smelt.codegen.text.helpers import preamble
from smelt.ir import (
    Array,
    DType,
    Graph,
    Node,
    Op,
    Origin,
    Quant,
    Rounding,
    TensorType,
    Value,
    evaluate,
    verify,
)
from smelt.ops import all_cases
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.case import Data, build, sample_limits, sample_of
from smelt.ops.control.branches import If, While
from smelt.ops.core.binary import BINARY, Binary
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.prelu import PRelu
from smelt.ops.core.quantize import Dequantize, Quantize
from smelt.ops.core.reduce import REDUCE, Reduce
from smelt.ops.sequence.reverse_sequence import ReverseSequence
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.copy import Copy
from smelt.ops.tensor.gather import Gather, GatherElements, GatherND
from smelt.ops.tensor.one_hot import OneHot
from smelt.ops.tensor.pad import Pad
from smelt.ops.tensor.reshape import Reshape
from smelt.ops.tensor.resize import Resize
from smelt.ops.tensor.scatter import ScatterElements, ScatterND, TensorScatter
from smelt.ops.tensor.slice import Slice
from smelt.ops.tensor.tile import Tile
from smelt.ops.tensor.transpose import Transpose
from smelt.ops.tensor.triangle import Triangle
from smelt.targets import HOST
from tests.support.kernels_host import COMPILER, RELEASED, SANITIZERS

WARNINGS = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion")
COMPILERS = {
    "gcc": ("gcc", "-std=c99", "-O1"),
    "clang": ("clang", "-std=c99", "-fsyntax-only"),
    "g++": ("g++", "-x", "c++", "-std=c++17", "-fsyntax-only"),
    "clang++": ("clang++", "-x", "c++", "-std=c++17", "-fsyntax-only"),
}
"""Only with gcc does optimization reveal more warnings."""

RANDOM_RUNS = 2


@dataclass(frozen=True)
class Entry:
    """One case for one element type, scheduled, with the inputs of its runs."""

    name: str
    graph: Graph
    schedule: Schedule
    inputs: tuple[tuple[Array, ...], ...]

    @property
    def node(self) -> Node:
        return self.graph.nodes[0]


def op_cases() -> Iterator[tuple[str, Graph, list[Data]]]:
    """Return the operators' own cases, and int16 ones if the operator serves quantized int16."""
    for case in all_cases():
        op = case.op
        if isinstance(op, Reshape | If | While):
            continue
        wide = (
            isinstance(op, Pool2D)
            or (isinstance(op, Binary) and DType.INT16 in BINARY[op.kind].dtypes)
            or (isinstance(op, Reduce) and DType.INT16 in REDUCE[op.kind].dtypes)
        )
        served = case.dtypes
        if wide and not case.plain and DType.INT8 in served:
            served = (*served, DType.INT16)
        for dtype in served:
            ranges = [a for a in case.arguments if isinstance(a, Data)]
            yield f"{case}-{dtype.value}", build(case, dtype), ranges


def one_node(op: Op, *inputs: TensorType, quant: Quant | None = None) -> Graph:
    """Return the graph of one node whose inputs are all computed at run time."""
    values = tuple(Value(f"x{i}", type_) for i, type_ in enumerate(inputs))
    (inferred,) = op.infer(inputs)
    output = Value("y", TensorType(inferred.shape, inferred.dtype, quant))
    rounding = None if quant is None else Rounding.TFLM
    node = Node(op, values, (output,), Origin(op.name, 0), rounding)
    return verify(Graph("one_node", values, (output,), (node,)), "building a test")


def moved_types() -> Iterator[tuple[str, Graph]]:
    """Return cases of operators that move data, for every element type."""
    moves: tuple[tuple[Op, int], ...] = (
        (Copy(), 1),
        (Concat(2), 2),
        (Pad(((0, 0), (1, 0), (2, 1), (0, 1))), 1),
        (Transpose((0, 3, 1, 2)), 1),
        (Transpose((0, 2, 1, 3)), 1),
        (Resize("nearest", (5, 4)), 1),
        (Slice((0, 2, 1, 0), (1, 2, 2, 2), (1, -1, 2, 1)), 1),
        (Tile((1, 2, 1, 3)), 1),
        (Pad(((0, 0), (2, 0), (1, 3), (0, 1)), mode="reflect"), 1),
        (Pad(((0, 0), (2, 0), (1, 3), (0, 0)), mode="wrap"), 1),
        (Triangle(upper=False), 1),
        (TensorScatter(2), 2),
    )
    for dtype in DType:
        for op, count in moves:
            graph = one_node(op, *[TensorType((1, 3, 4, 2), dtype)] * count)
            yield f"{op}-{dtype.value}", graph
    for value in (7, -1, 300):
        yield f"pad {value}-i32", one_node(Pad(((1, 2),), value), TensorType((3,), DType.INT32))


def indexed_types() -> Iterator[tuple[str, Graph]]:
    """Return cases of operators that index data, with arbitrary indices."""
    int32, int64 = DType.INT32, DType.INT64
    for dtype in DType:
        x, values = TensorType((2, 3, 4), dtype), TensorType((2,), dtype)
        nodes: tuple[tuple[Op, tuple[TensorType, ...]], ...] = (
            (Gather(1), (x, TensorType((5,), int64))),
            (GatherElements(2), (x, TensorType((2, 2, 7), int32))),
            (GatherND(), (x, TensorType((4, 2), int64))),
            (ScatterElements(1), (x, x, TensorType((2, 3, 4), int64))),
            (ScatterND(), (x, TensorType((5, 4), dtype), TensorType((5, 2), int32))),
            (TensorScatter(1), (x, TensorType((2, 2, 4), dtype), TensorType((2,), int64))),
            (TensorScatter(2, circular=True), (x, x, TensorType((2,), int32))),
            (OneHot(3, 1), (values, TensorType((9,), int64))),
            (ReverseSequence(0, 2), (x, TensorType((2,), int64))),
        )
        for op, types in nodes:
            yield f"{op}-{dtype.value}", one_node(op, *types)


def unquantized_integers() -> Iterator[tuple[str, Graph]]:
    for dtype in (DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64):
        x, row = TensorType((2, 3, 4), dtype), TensorType((3, 1), dtype)
        for kind in BINARY:
            yield f"{kind}-{dtype.value}", one_node(Binary(kind), x, row)
            if kind != "div" and not BINARY[kind].compares and dtype is not DType.INT64:
                op = Binary(kind, Activation.RELU6)
                yield f"{kind}-relu6-{dtype.value}", one_node(op, row, x)
        for kind in REDUCE:
            if (kind, dtype) == ("mean", DType.INT64) or not REDUCE[kind].integers:
                continue
            yield f"reduce {kind}-{dtype.value}", one_node(Reduce(kind, (0, 2)), x)


def requantizations() -> Iterator[tuple[str, Graph]]:
    """Return Quantize and Dequantize between all element types that they serve."""
    quants = {
        DType.INT8: Quant.per_tensor(0.05, 3),
        DType.UINT8: Quant.per_tensor(0.04, 130),
        DType.INT16: Quant.per_tensor(0.0003),
        DType.INT32: Quant.per_tensor(0.00002),
    }
    pairs = [
        *((DType.FLOAT32, target) for target in (DType.INT8, DType.UINT8, DType.INT16)),
        *((DType.INT8, target) for target in quants),
        (DType.UINT8, DType.INT8),
        *((DType.INT16, target) for target in (DType.INT8, DType.INT16, DType.INT32)),
        *((DType.INT32, target) for target in (DType.INT8, DType.INT16)),
    ]
    for source, target in pairs:
        x = TensorType((2, 9), source, quants.get(source))
        yield (
            f"{source.value} to {target.value}",
            one_node(Quantize(target), x, quant=quants[target]),
        )
    for dtype, quant in quants.items():
        yield f"dequantize {dtype.value}", one_node(Dequantize(), TensorType((9,), dtype, quant))


def slopes() -> Iterator[tuple[str, Graph]]:
    """Return PRelu of int16 data, which has int8 slopes."""
    x = TensorType((1, 3, 2, 4), DType.INT16, Quant.per_tensor(0.001))
    alpha = TensorType((4,), DType.INT8, Quant.per_tensor(0.01, -20))
    yield "prelu-i16", one_node(PRelu(), x, alpha, quant=Quant.per_tensor(0.002))


def _whole(type_: TensorType) -> Data:
    low, high = type_.dtype.limits if type_.dtype.is_integer else (-9.0, 9.0)
    return Data(type_.shape, low, high)


@cache
def graphs() -> dict[str, tuple[Graph, list[Data]]]:
    found = {name: (graph, ranges) for name, graph, ranges in op_cases()}
    plain = (moved_types(), indexed_types(), unquantized_integers())
    for family in (*plain, requantizations(), slopes()):
        for name, graph in family:
            found[name] = graph, [_whole(v.type) for v in graph.inputs]
    return found


@cache
def entries() -> dict[str, Entry]:
    partitioner = Partitioner([(backend("c"),)], Request(HOST.target))
    found: dict[str, Entry] = {}
    for name, (graph, ranges) in graphs().items():
        plan = schedule(graph, HOST, partitioner, prefix=f"k{len(found)}")
        found[name] = Entry(name, graph, plan, tuple(runs(ranges, graph)))
    return found


def runs(ranges: list[Data], graph: Graph) -> Iterator[tuple[Array, ...]]:
    """Return random inputs, then extremes, except quotients of INT_MIN, which are undefined."""
    for arrays in patterns(ranges, graph):
        if graph.nodes[0].op == Binary("div") and arrays[0].dtype.kind == "i":
            yield tuple(np.maximum(a, -np.iinfo(a.dtype).max) for a in arrays)
        else:
            yield arrays


def patterns(ranges: list[Data], graph: Graph) -> Iterator[tuple[Array, ...]]:
    """Return two random patterns, all smallest, all largest, alternating."""
    rng = np.random.default_rng(7)
    for _ in range(RANDOM_RUNS):
        yield tuple(sample_of(a, v.type, rng) for v, a in zip(graph.inputs, ranges, strict=True))
    for pattern in ((0,), (1,), (0, 1), (1, 0, 0)):
        yield tuple(
            np.resize(limits(v.type, a)[list(pattern)], v.type.size).reshape(v.type.shape)
            for v, a in zip(graph.inputs, ranges, strict=True)
        )


def limits(type_: TensorType, range_: Data) -> Array:
    """Return the smallest and largest element."""
    return np.array(sample_limits(range_, type_), type_.dtype.numpy)


Shared = tuple[int, int]
"""An output and the operand that it may overwrite."""


def variants(entry: Entry) -> list[Shared | None]:
    """Return None (no overlap), then each operand that an output may overwrite."""
    (step,) = entry.schedule.calls
    return [None, *(s for s in step.call.in_place if not entry.node.input(s[1]).is_constant)]


def kernels_source() -> str:
    uses: set[str] = set()
    bodies: list[str] = []
    for entry in entries().values():
        for function in entry.schedule.functions:
            uses |= function.uses
            bodies.append(f"void {function.name}({function.signature});\n{function.definition}")
    before = preamble(uses)
    includes = "".join(f"#include <{header}>\n" for header in ("stdint.h", *before.headers))
    opening = '#ifdef __cplusplus\nextern "C" {\n#endif\n'
    closing = "#ifdef __cplusplus\n}\n#endif\n"
    return "\n".join([includes, *before.helpers, opening, *bodies, closing])


def driver_source() -> str:
    """Return a program that reads operands from standard input and writes outputs."""
    definitions: list[str] = []
    calls: list[str] = []
    for entry in entries().values():
        for function in entry.schedule.functions:
            definitions.append(f"void {function.name}({function.signature});")
        for variant, shared in enumerate(variants(entry)):
            name = f"call_{entry.schedule.functions[0].name}_{variant}"
            definitions.append(f"static void {name}(void) {{ {call_text(entry, shared)} }}")
            calls += [f"{name}();"] * len(entry.inputs)
    return "\n".join(
        [
            "#include <stdint.h>\n#include <stdio.h>\n#include <stdlib.h>",
            "static void *take(size_t n) {"
            " void *p = malloc(n); if (n && fread(p, 1, n, stdin) != n) exit(2); return p; }",
            *definitions,
            "int main(void) {",
            *calls,
            "return 0; }",
        ]
    )


def call_text(entry: Entry, shared: Shared | None) -> str:
    """Return the code of one call: read each operand into its own block, write the outputs.

    With `shared`, that output has the address of that operand.
    """
    (step,) = entry.schedule.calls
    lines: list[str] = []
    names = [f"p{position}" for position in range(len(step.call.operands))]
    names_of_own = list(names)
    results: list[tuple[str, int]] = []
    for position, operand in enumerate(step.call.operands):
        name = names[position]
        match operand:
            case Input(index):
                lines.append(f"void *{name} = take({entry.node.input(index).type.bytes});")
            case Packed(array=array) | LayerStruct(array=array):
                lines.append(f"void *{name} = take({array.nbytes});")
            case Output(index):
                size = entry.node.outputs[index].type.bytes
                source = f"malloc({size})"
                if shared is not None and shared[0] == index:
                    source = input_name(entry, shared[1])
                    names_of_own.remove(name)
                lines.append(f"void *{name} = {source};")
                results.append((name, size))
            case Scratch(_, dtype, count):
                lines.append(f"void *{name} = malloc({dtype.size * count});")
    lines.append(f"{step.function}({', '.join(names)});")
    lines += [f"fwrite({name}, 1, {size}, stdout);" for name, size in results]
    lines += [f"free({name});" for name in names_of_own]
    return " ".join(lines)


def input_name(entry: Entry, index: int) -> str:
    operands = entry.schedule.calls[0].call.operands
    return next(
        f"p{i}" for i, o in enumerate(operands) if isinstance(o, Input) and o.index == index
    )


def operand_bytes() -> bytes:
    parts: list[bytes] = []
    for entry in entries().values():
        one_variant: list[bytes] = []
        for arrays in entry.inputs:
            values = dict(zip(entry.graph.inputs, arrays, strict=True))
            operands = entry.schedule.calls[0].call.operands
            one_variant += [packed_bytes(operand, entry, values) for operand in operands]
        parts += one_variant * len(variants(entry))
    return b"".join(parts)


def packed_bytes(operand: object, entry: Entry, values: dict[Value, Array]) -> bytes:
    match operand:
        case Input(index):
            value = entry.node.input(index)
            return np.ascontiguousarray(
                values[value] if value.data is None else value.data
            ).tobytes()
        case Packed(array=array) | LayerStruct(array=array):
            return np.ascontiguousarray(array).tobytes()
        case _:
            return b""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "kernels.c").write_text(kernels_source())
    (folder / "driver.c").write_text(driver_source())
    return folder


@pytest.fixture(
    scope="module", params=["sanitized", pytest.param("released", marks=pytest.mark.slow)]
)
def outputs(request: pytest.FixtureRequest, sources: Path) -> dict[str, list[list[Array]]]:
    """Return the outputs of the C function, by entry, for each variant and run."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    program = sources / "program"
    files = [str(sources / "kernels.c"), str(sources / "driver.c")]
    how = (
        ["gcc", *RELEASED]
        if request.param == "released"
        else [COMPILER, *SANITIZERS, "-ffp-contract=off"]
    )
    command = [*how, "-std=c99", "-w", *files, "-o", str(program), "-lm"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    environment = {"ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        [program], input=operand_bytes(), capture_output=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, list[list[Array]]] = {}
    offset = 0
    for entry in entries().values():
        found[entry.name] = []
        for _ in range(len(entry.inputs) * len(variants(entry))):
            arrays: list[Array] = []
            for operand in entry.schedule.calls[0].call.operands:
                if isinstance(operand, Output):
                    type_ = entry.node.outputs[operand.index].type
                    flat = np.frombuffer(done.stdout, type_.dtype.numpy, type_.size, offset)
                    arrays.append(flat.reshape(type_.shape))
                    offset += type_.bytes
            found[entry.name].append(arrays)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("name", graphs())
def test_equals_reference(name: str, outputs: dict[str, list[list[Array]]]) -> None:
    entry = entries()[name]
    results = iter(outputs[name])
    references = [evaluate(entry.graph, arrays).outputs for arrays in entry.inputs]
    tolerances = [1e-5 * spread([r[i] for r in references]) for i in range(len(references[0]))]
    for shared in variants(entry):
        for expected in references:
            for ours, reference, atol in zip(next(results), expected, tolerances, strict=True):
                where = f"{name}, output over operand: {shared}"
                if reference.dtype.kind == "f":
                    np.testing.assert_allclose(ours, reference, 0, atol, err_msg=where)
                else:
                    np.testing.assert_array_equal(ours, reference, err_msg=where)


def spread(arrays: list[Array]) -> float:
    """Return the largest finite magnitude."""
    return max(float(np.abs(a[np.isfinite(a)]).max(initial=0)) for a in arrays)


@pytest.mark.quick(compiler=("clang",))
@pytest.mark.parametrize("compiler", COMPILERS)
def test_compiles_without_a_warning(compiler: str, sources: Path) -> None:
    if shutil.which(COMPILERS[compiler][0]) is None:
        pytest.skip(f"no {compiler}")
    command = [*COMPILERS[compiler], *WARNINGS, "-c", str(sources / "kernels.c"), "-o", "/dev/null"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
