"""Compile kernel calls for the host, under sanitizers, and run them.

All calls are compiled into one program. It reads commands from standard input: fill a part of a
buffer, call the function, write a part of a buffer to standard output. Buffers have exactly the
size of their tensors, so that sanitizers report any access beyond the last element.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from smelt.codegen.lower.kernel import Input, KernelCall, LayerStruct, Output, Packed, Scratch
from smelt.codegen.schedule.shared_symbols import Functions, struct_type
from smelt.codegen.schedule.steps import StructType
from smelt.codegen.text.helpers import preamble
from smelt.codegen.text.literals import c_elements, c_lines
from smelt.ir import Array, DType, Node
from smelt.samples import Sample

WARNINGS = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion")

SANITIZERS = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
"""Unoptimized: with sanitizers gcc takes nine times as long to compile at -O1."""


RELEASED = ("-O2", "-ffp-contract=off")
"""The flags of released projects: optimized code has other instructions, so it is tested too."""


def _links_sanitizers(compiler: str) -> bool:
    """Return whether clang and its sanitizer libraries are installed (separate packages)."""
    if shutil.which(compiler) is None:
        return False
    command = (compiler, *SANITIZERS, "-x", "c", "-", "-o", os.devnull)
    source = b"int main(void) { return 0; }"
    return subprocess.run(command, input=source, capture_output=True, check=False).returncode == 0


COMPILER = "clang" if _links_sanitizers("clang") else "gcc"
"""With sanitizers clang compiles three times as fast as gcc."""

READERS = {
    "clang": ("clang", "-std=c99", "-fsyntax-only"),
    "g++": ("g++", "-xc++", "-std=c++17", "-fsyntax-only"),
}
"""Compilers that only check the program: as C by another compiler, and as C++."""

PREFIX = "k"
"""Prefix of all kernel names."""

OUTPUT = -1
"""Index of the output among the buffers; inputs have their own index."""

_MAIN = """
typedef struct {
    int command, buffer, begin, count;
} header_t;

typedef struct {
    int count;
    const size_t *sizes;
    void (*call)(void **buffers);
} entry_t;

int main(int argc, char **argv) {
    static const entry_t entries[] = { %s };
    const entry_t *const entry = &entries[argc > 1 ? atoi(argv[1]) : 0];
    void *buffers[8];
    header_t h;
    for (int i = 0; i < entry->count; ++i) {
        buffers[i] = malloc(entry->sizes[i]);
        memset(buffers[i], 0x5A, entry->sizes[i]);
    }
    while (fread(&h, sizeof h, 1, stdin) == 1) {
        if (h.command == 'C') {
            entry->call(buffers);
        } else if (h.command == 'P') {
            void *const output = buffers[h.begin];
            buffers[h.begin] = buffers[h.buffer];
            entry->call(buffers);
            memcpy(output, buffers[h.buffer], entry->sizes[h.begin]);
            buffers[h.begin] = output;
        } else if (h.command == 'W') {
            if (fread((uint8_t *)buffers[h.buffer] + h.begin, (size_t)h.count, 1, stdin) != 1) {
                return 2;
            }
        } else {
            fwrite((uint8_t *)buffers[h.buffer] + h.begin, (size_t)h.count, 1, stdout);
        }
    }
    for (int i = 0; i < entry->count; ++i) {
        free(buffers[i]);
    }
    return 0;
}
"""


@dataclass(frozen=True)
class Entry:
    """One kernel call to compile."""

    node: Node
    call: KernelCall

    def buffers(self) -> dict[int, tuple[int, DType, int]]:
        """Return buffers by number: position among the program's buffers, type, elements."""
        table: dict[int, tuple[int, DType, int]] = {}
        for operand in self.call.operands:
            match operand:
                case Input(index):
                    if self.node.input(index).is_constant:
                        continue
                    number, type_ = index, self.node.input(index).type
                    dtype, size = type_.dtype, type_.size
                case Output(index):
                    number, type_ = OUTPUT - index, self.node.outputs[index].type
                    dtype, size = type_.dtype, type_.size
                case Scratch(_, dtype, size):
                    number = 100 + len(table)
                case Packed() | LayerStruct():
                    continue
            table[number] = len(table), dtype, size
        return table

    def overwritten(self) -> list[tuple[int, int]]:
        """Return each output, and an operand of at least its size that it may overwrite."""
        node = self.node
        return [
            (output, operand)
            for output, operand in self.call.in_place
            if not node.input(operand).is_constant
            and node.outputs[output].type.bytes <= node.input(operand).type.bytes
        ]

    @property
    def structs(self) -> list[StructType]:
        """Return the struct types among the parameters."""
        structs = (o for o in self.call.operands if isinstance(o, LayerStruct))
        return [struct_type(PREFIX, struct) for struct in structs]

    def arguments(self, prefix: str) -> tuple[list[str], list[str]]:
        """Return C arguments of the call, and definitions of the constants among them."""
        arguments: list[str] = []
        constants: list[str] = []
        buffers = iter(self.buffers().values())
        for operand in self.call.operands:
            if isinstance(operand, LayerStruct):
                name, kind = f"{prefix}_{operand.name}", struct_type(PREFIX, operand).name
                numbers = ", ".join(map(str, operand.numbers.values()))
                constants.append(f"static const {kind} {name} = {{ {numbers} }};")
                arguments.append(f"&{name}")
                continue
            array = operand.array if isinstance(operand, Packed) else None
            if isinstance(operand, Input):
                array = self.node.input(operand.index).data
            if array is None:
                position, dtype, _ = next(buffers)
                const = "const " if isinstance(operand, Input) else ""
                arguments.append(f"({const}{dtype.c_name} *)buffers[{position}]")
                continue
            name = f"{prefix}_constant{len(constants)}"
            lines = "\n".join(c_lines(c_elements(array)))
            kind = DType.of(array).c_name
            constants.append(f"static const {kind} {name}[{array.size}] = {{\n{lines}\n}};")
            arguments.append(name)
        return arguments, constants


@dataclass(frozen=True)
class Run:
    """A call, its inputs, and the right output of each sample."""

    name: str
    entry: Entry
    samples: Sequence[Sample]
    expected: Sequence[Array]


@dataclass
class Program:
    """One compiled call. `write`, `call` and `read` queue commands; `run` executes them all.

    Positions and counts are in elements.
    """

    binary: Path
    index: int
    entry: Entry
    _commands: list[bytes] = field(default_factory=list[bytes])
    _reads: list[tuple[DType, int]] = field(default_factory=list[tuple[DType, int]])

    def write(self, number: int, begin: int, data: Array) -> None:
        """Queue: write elements into a buffer."""
        position, dtype, _ = self.entry.buffers()[number]
        raw = np.ascontiguousarray(data, dtype.numpy).tobytes()
        self._commands.append(_header("W", position, begin * dtype.size, len(raw)) + raw)

    def call(self) -> None:
        """Queue: call the function."""
        self._commands.append(_header("C", 0, 0, 0))

    def call_in_place(self, output: int, operand: int) -> None:
        """Queue: call the function with an operand's address for an output of at most its size."""
        numbers = self.entry.buffers()
        self._commands.append(_header("P", numbers[operand][0], numbers[OUTPUT - output][0], 0))

    def read(self, number: int, begin: int, count: int) -> None:
        """Queue: read elements of a buffer."""
        position, dtype, _ = self.entry.buffers()[number]
        self._commands.append(_header("R", position, begin * dtype.size, count * dtype.size))
        self._reads.append((dtype, count))

    def run(self) -> list[Array]:
        """Execute the queue and return the result of each `read`; fail the test on an error."""
        done = subprocess.run(
            [self.binary, str(self.index)],
            input=b"".join(self._commands),
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        found: list[Array] = []
        position = 0
        for dtype, count in self._reads:
            found.append(np.frombuffer(done.stdout, dtype.numpy, count, position))
            position += count * dtype.size
        self._commands.clear()
        self._reads.clear()
        return found


def _header(command: str, buffer: int, begin: int, count: int) -> bytes:
    return struct.pack("=4i", ord(command), buffer, begin, count)


def build_programs(
    entries: Sequence[Entry],
    folder: Path,
    flags: Sequence[str] = SANITIZERS,
    compiler: str = COMPILER,
) -> list[Program]:
    """Compile kernel calls into one binary in `folder`, with warnings as errors."""
    source = folder / "kernels.c"
    source.write_text(source_of(entries))
    compile_c(source, (compiler, "-std=c99", *flags, "-o", str(folder / "kernels"), "-lm"))
    return [Program(folder / "kernels", i, entry) for i, entry in enumerate(entries)]


def check_on_host(
    runs: Sequence[Run],
    folder: Path,
    flags: Sequence[str] = SANITIZERS,
    compiler: str = COMPILER,
) -> None:
    """Fail unless all calls compute exactly the right outputs; by default, under sanitizers.

    Each call is also made in place of each operand that it may overwrite.
    """
    programs = build_programs([run.entry for run in runs], folder, flags, compiler)
    for run, program in zip(runs, programs, strict=True):
        variants = (None, *run.entry.overwritten())
        for sample, pair in product(run.samples, variants):
            for index, x in enumerate(sample):
                program.write(index, 0, x)
            if pair is None:
                program.call()
            else:
                program.call_in_place(*pair)
            program.read(OUTPUT, 0, run.entry.node.output.type.size)
        expected = [array for array in run.expected for _ in variants]
        for found, right in zip(program.run(), expected, strict=True):
            np.testing.assert_array_equal(found, right.ravel(), run.name)


def check_read_by(compiler: str, entries: Sequence[Entry], folder: Path) -> None:
    """Fail if one of `READERS` warns about the calls; skip if it is absent."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    source = folder / "kernels.c"
    source.write_text(source_of(entries))
    compile_c(source, READERS[compiler])


def source_of(entries: Sequence[Entry]) -> str:
    """Return one C file: helpers, constants, the functions, and a main that executes commands."""
    functions = Functions(PREFIX)
    constants: list[str] = []
    calls: list[str] = []
    table: list[str] = []
    for i, entry in enumerate(entries):
        name = functions.add(entry.node, entry.call)
        arguments, defined = entry.arguments(f"entry{i}")
        sizes = [str(dtype.size * n) for _, dtype, n in entry.buffers().values()]
        constants += defined
        calls.append(
            f"static const size_t sizes{i}[] = {{ {', '.join(sizes)} }};\n"
            f"static void call{i}(void **buffers) {{\n"
            f"    {name}({', '.join(arguments)});\n}}"
        )
        table.append(f"{{ {len(sizes)}, sizes{i}, call{i} }}")
    definitions = functions.all()
    before = preamble(*(f.uses for f in definitions))
    headers = dict.fromkeys(("stdint.h", "stdio.h", "stdlib.h", "string.h", *before.headers))
    return "\n".join(
        [
            *(f"#include <{h}>" for h in headers),
            *struct_definitions(entries),
            *(f"void {f.name}({f.signature});" for f in definitions),
            *constants,
            *before.helpers,
            *(f.definition for f in definitions),
            *calls,
            _MAIN % ",\n".join(table),
        ]
    )


def struct_definitions(entries: Sequence[Entry]) -> Iterator[str]:
    """Return the definitions of the struct types among the calls' parameters."""
    for kind in dict.fromkeys(kind for entry in entries for kind in entry.structs):
        fields = " ".join(f"int32_t {name};" for name in kind.fields)
        yield f"typedef struct {{ {fields} }} {kind.name};"


def compile_c(source: Path, command: Sequence[str]) -> None:
    """Compile a C file with warnings as errors; fail the test with the compiler's messages."""
    compiler, *flags = command
    done = subprocess.run(
        [compiler, *WARNINGS, flags[0], str(source), *flags[1:]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
