"""Every case of every operator: the C function equals the numpy reference.

All functions go into one C file, which is compiled by each compiler with every warning an error,
and run once under AddressSanitizer and UndefinedBehaviorSanitizer: each operand lies in a heap
block of exactly its size.
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

from smelt.codegen.helpers import required_headers, required_helpers
from smelt.codegen.kernels.base import Input, Output, Packed, Request, Scratch, backend
from smelt.codegen.schedule import Schedule, schedule
from smelt.ir import Array, DType, Graph, Node, Value, evaluate
from smelt.ops import all_cases
from smelt.ops.case import Case, Data, build, random_array
from smelt.ops.control import If, While
from smelt.ops.reshape import Reshape
from smelt.targets import HOST

WARNINGS = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion")
COMPILERS = {
    "gcc": ("gcc", "-std=c99", "-O2"),
    "clang": ("clang", "-std=c99", "-O2"),
    "g++": ("g++", "-x", "c++", "-std=c++17", "-O1"),
    "clang++": ("clang++", "-x", "c++", "-std=c++17", "-O1"),
}
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-ffp-contract=off")
RANDOM_RUNS = 2


@dataclass(frozen=True)
class Entry:
    """One case at one element type, scheduled, with the inputs of its runs."""

    name: str
    graph: Graph
    schedule: Schedule
    inputs: tuple[tuple[Array, ...], ...]

    @property
    def node(self) -> Node:
        return self.graph.nodes[0]


def combinations() -> Iterator[tuple[Case, DType]]:
    for case in all_cases():
        if not isinstance(case.op, Reshape | If | While):
            for dtype in case.dtypes:
                yield case, dtype


def name_of(case: Case, dtype: DType) -> str:
    return f"{case}-{dtype.value}"


NAMES = [name_of(*pair) for pair in combinations()]


@cache
def entries() -> dict[str, Entry]:
    backends = [backend("c")]
    found: dict[str, Entry] = {}
    for case, dtype in combinations():
        name = name_of(case, dtype)
        graph = build(case, dtype)
        plan = schedule(graph, HOST, backends, Request(HOST.target), prefix=f"k{len(found)}")
        found[name] = Entry(name, graph, plan, tuple(runs(case, graph)))
    return found


def runs(case: Case, graph: Graph) -> Iterator[tuple[Array, ...]]:
    """Random inputs, then the extremes: all least, all greatest, alternating, all zero."""
    rng = np.random.default_rng(7)
    ranges = [a for a in case.arguments if isinstance(a, Data)]
    for _ in range(RANDOM_RUNS):
        yield tuple(
            rng.uniform(a.low, a.high, v.type.shape).astype(np.float32)
            if v.type.dtype is DType.FLOAT32
            else random_array(v.type, rng)
            for v, a in zip(graph.inputs, ranges, strict=True)
        )
    for pattern in ((0,), (1,), (0, 1), (1, 0, 0)):
        arrays: list[Array] = []
        for value, range_ in zip(graph.inputs, ranges, strict=True):
            dtype = value.type.dtype
            limits = (range_.low, range_.high) if dtype.is_float else dtype.limits
            flat = np.resize(np.array(limits, dtype.numpy)[list(pattern)], value.type.size)
            arrays.append(flat.reshape(value.type.shape))
        yield tuple(arrays)


def variants(entry: Entry) -> list[int | None]:
    """Operands that the output may overwrite, after None: an output of its own."""
    (step,) = entry.schedule.steps
    return [None, *(i for _, i in step.call.in_place if not entry.node.input(i).is_constant)]


def kernels_source() -> str:
    helpers: set[str] = set()
    bodies: list[str] = []
    for entry in entries().values():
        for function in entry.schedule.functions:
            helpers |= function.helpers
            bodies.append(f"void {function.name}({function.signature});\n{function.definition}")
    texts = required_helpers(helpers)
    headers = ["stdint.h", *required_headers("".join([*texts, *bodies]))]
    includes = "".join(f"#include <{header}>\n" for header in headers)
    opening = '#ifdef __cplusplus\nextern "C" {\n#endif\n'
    closing = "#ifdef __cplusplus\n}\n#endif\n"
    return "\n".join([includes, *texts, opening, *bodies, closing])


def driver_source() -> str:
    """A program that reads operands from standard input and writes outputs to standard output."""
    declarations: list[str] = []
    calls: list[str] = []
    for entry in entries().values():
        for function in entry.schedule.functions:
            declarations.append(f"void {function.name}({function.signature});")
        for _ in entry.inputs:
            for shared in variants(entry):
                calls.append(call_text(entry, shared))
    return "\n".join(
        [
            "#include <stdint.h>\n#include <stdio.h>\n#include <stdlib.h>",
            "static void *take(size_t n) {"
            " void *p = malloc(n); if (n && fread(p, 1, n, stdin) != n) exit(2); return p; }",
            *declarations,
            "int main(void) {",
            *calls,
            "return 0; }",
        ]
    )


def call_text(entry: Entry, shared: int | None) -> str:
    (step,) = entry.schedule.steps
    lines: list[str] = []
    names: list[str] = []
    results: list[tuple[str, int]] = []
    for position, operand in enumerate(step.call.operands):
        name = f"p{position}"
        names.append(name)
        match operand:
            case Input(index):
                lines.append(f"void *{name} = take({entry.node.input(index).type.bytes});")
            case Packed(_, array):
                lines.append(f"void *{name} = take({array.nbytes});")
            case Output(index):
                size = entry.node.outputs[index].type.bytes
                source = shared_name(entry, shared)
                lines.append(f"void *{name} = {source or f'malloc({size})'};")
                results.append((name, size))
            case Scratch(_, dtype, count):
                lines.append(f"void *{name} = malloc({dtype.size * count});")
    lines.append(f"{step.function}({', '.join(names)});")
    lines += [f"fwrite({name}, 1, {size}, stdout);" for name, size in results]
    owned = [n for n in names if shared is None or n != results[0][0]]
    lines += [f"free({name});" for name in owned]
    return "{ " + " ".join(lines) + " }"


def shared_name(entry: Entry, shared: int | None) -> str | None:
    if shared is None:
        return None
    operands = entry.schedule.steps[0].call.operands
    return next(
        f"p{i}" for i, o in enumerate(operands) if isinstance(o, Input) and o.index == shared
    )


def operand_bytes() -> bytes:
    parts: list[bytes] = []
    for entry in entries().values():
        for arrays in entry.inputs:
            values = dict(zip(entry.graph.inputs, arrays, strict=True))
            one = b"".join(
                packed_bytes(operand, entry, values)
                for operand in entry.schedule.steps[0].call.operands
            )
            parts += [one] * len(variants(entry))
    return b"".join(parts)


def packed_bytes(operand: object, entry: Entry, values: dict[Value, Array]) -> bytes:
    match operand:
        case Input(index):
            value = entry.node.input(index)
            return np.ascontiguousarray(
                values[value] if value.data is None else value.data
            ).tobytes()
        case Packed(_, array):
            return np.ascontiguousarray(array).tobytes()
        case _:
            return b""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "kernels.c").write_text(kernels_source())
    (folder / "driver.c").write_text(driver_source())
    return folder


@pytest.fixture(scope="module")
def outputs(sources: Path) -> dict[str, list[list[Array]]]:
    """By entry: for each run and variant, the outputs of the C function under sanitizers."""
    program = sources / "program"
    files = [str(sources / "kernels.c"), str(sources / "driver.c")]
    command = ["gcc", "-std=c99", "-O1", "-g", "-w", *SANITIZERS, *files, "-o", str(program), "-lm"]
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
            for operand in entry.schedule.steps[0].call.operands:
                if isinstance(operand, Output):
                    type_ = entry.node.outputs[operand.index].type
                    flat = np.frombuffer(done.stdout, type_.dtype.numpy, type_.size, offset)
                    arrays.append(flat.reshape(type_.shape))
                    offset += type_.bytes
            found[entry.name].append(arrays)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_equals_reference(name: str, outputs: dict[str, list[list[Array]]]) -> None:
    entry = entries()[name]
    results = iter(outputs[name])
    for arrays in entry.inputs:
        expected = evaluate(entry.graph, arrays).outputs
        for shared in variants(entry):
            for ours, reference in zip(next(results), expected, strict=True):
                where = f"{name}, output over operand {shared}"
                if reference.dtype.kind == "f":
                    scale = max(float(np.abs(reference[np.isfinite(reference)]).max(initial=0)), 1)
                    np.testing.assert_allclose(ours, reference, 0, 1e-5 * scale, err_msg=where)
                else:
                    np.testing.assert_array_equal(ours, reference, err_msg=where)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_compiles_without_a_warning(compiler: str, sources: Path) -> None:
    if shutil.which(COMPILERS[compiler][0]) is None:
        pytest.skip(f"no {compiler}")
    command = [*COMPILERS[compiler], *WARNINGS, "-c", str(sources / "kernels.c"), "-o", "/dev/null"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
