"""Compiles one kernel of a backend for the host, under sanitizers, and runs it piece by piece.

The program reads commands from standard input: fill a stretch of a buffer, call the function for a
rectangle, write a stretch of a buffer to standard output. Buffers have exactly the size asked for,
so that a byte too far is an error.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from smelt.codegen.helpers import required_headers, required_helpers
from smelt.codegen.kernels.base import Input, Kernel, KernelCall, Output, Packed, Request, backend
from smelt.codegen.render import c_elements, c_lines
from smelt.codegen.schedule import _Functions
from smelt.ir import Array, DType, Node

WARNINGS = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion")
SANITIZE = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

_MAIN = """
typedef struct {{ int32_t command, buffer, begin, count; }} header_t;

int main(void)
{{
    static const size_t sizes[] = {{ {sizes} }};
    void *buffers[{count}];
    header_t h;
    for (int i = 0; i < {count}; ++i) {{
        buffers[i] = malloc(sizes[i]);
        memset(buffers[i], 0x5A, sizes[i]);
    }}
    while (fread(&h, sizeof h, 1, stdin) == 1) {{
        uint8_t *at = (uint8_t *)buffers[h.buffer] + (h.command == 'C' ? 0 : h.begin);
        if (h.command == 'W' && fread(at, 1, (size_t)h.count, stdin) != (size_t)h.count) {{
            return 2;
        }}
        if (h.command == 'R') {{
            fwrite(at, 1, (size_t)h.count, stdout);
        }}
        if (h.command == 'C') {{
            int32_t r[4];
            if (fread(r, sizeof r, 1, stdin) != 1) {{
                return 3;
            }}
            {function}({arguments});
        }}
    }}
    for (int i = 0; i < {count}; ++i) {{
        free(buffers[i]);
    }}
    return 0;
}}
"""


@dataclass
class Program:
    """A compiled kernel. `write`, `call` and `read` queue commands; `run` executes them all.

    Buffers are numbered as the node's inputs, then -1 for the output. Positions and counts are in
    elements.
    """

    binary: Path
    buffers: dict[int, tuple[int, DType]]
    _commands: list[bytes] = field(default_factory=list[bytes])
    _reads: list[tuple[DType, int]] = field(default_factory=list[tuple[DType, int]])

    def write(self, operand: int, begin: int, data: Array) -> None:
        """Queue: put elements into a buffer."""
        index, dtype = self.buffers[operand]
        raw = np.ascontiguousarray(data, dtype.numpy).tobytes()
        self._commands.append(_header("W", index, begin * dtype.size, len(raw)) + raw)

    def call(self, y: tuple[int, int] = (0, 0), x: tuple[int, int] = (0, 0)) -> None:
        """Queue: call the function (for a rectangle, if it takes one)."""
        self._commands.append(_header("C", 0, 0, 0) + struct.pack("=4i", *y, *x))

    def read(self, operand: int, begin: int, count: int) -> None:
        """Queue: hand out elements of a buffer."""
        index, dtype = self.buffers[operand]
        self._commands.append(_header("R", index, begin * dtype.size, count * dtype.size))
        self._reads.append((dtype, count))

    def run(self) -> list[Array]:
        """Execute the queue; what each `read` found, in order. Fails the test on an error."""
        done = subprocess.run(
            [self.binary], input=b"".join(self._commands), capture_output=True, check=False
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


def find_kernel(node: Node, request: Request, name: str = "c") -> Kernel:
    """The kernel of a backend that serves the node; skips the test where none does."""
    found = backend(name).find(node, request.target)
    if isinstance(found, str):
        pytest.skip(found)
    return found


def build_program(
    node: Node,
    call: KernelCall,
    folder: Path,
    sizes: dict[int, int] | None = None,
    flags: Sequence[str] = SANITIZE,
) -> Program:
    """Compile one call of a kernel.

    Args:
        node: what is computed.
        call: the kernel's answer for it.
        folder: where to put the files.
        sizes: elements of the buffers that are not whole tensors, by operand number.
        flags: for the compiler, beside the warnings, which are errors.
    """
    (folder / "kernel.c").write_text(source := kernel_source(node, call, sizes or {}))
    compile_c(folder / "kernel.c", folder / "kernel", flags)
    del source
    return Program(folder / "kernel", _buffers(node, call, sizes or {})[0])


def kernel_source(node: Node, call: KernelCall, sizes: dict[int, int]) -> str:
    """One C file: helpers, constants, the function, and a main that obeys commands."""
    functions = _Functions("k")
    name = functions.add(node, call)
    (function,) = functions.all()
    helpers = required_helpers(function.helpers)
    text = "\n".join([*helpers, function.definition])
    buffers, arguments, constants = _operands(node, call, sizes)
    headers = ["stdint.h", "stdio.h", "stdlib.h", "string.h"]
    headers += [h for h in required_headers(text) if h not in headers]
    if call.parameters.get("rectangle"):
        arguments = [*arguments, *(f"r[{i}]" for i in range(4))]
    main = _MAIN.format(
        sizes=", ".join(str(max(size, 1)) for size in buffers),
        count=len(buffers),
        function=name,
        arguments=", ".join(arguments),
    )
    return "\n".join(
        [
            *(f"#include <{h}>" for h in headers),
            f"void {name}({function.signature});",
            *constants,
            text,
            main,
        ]
    )


def compile_c(
    source: Path, binary: Path, flags: Sequence[str], compiler: Sequence[str] = ("gcc", "-std=c99")
) -> None:
    """Compile a C file with warnings as errors; fails the test with the compiler's words."""
    command = [*compiler, *WARNINGS, *flags, str(source), "-o", str(binary), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@cache
def compilers() -> tuple[tuple[str, ...], ...]:
    """Every compiler here that generated code must please, as the start of a command."""
    candidates = (
        ("gcc", "-std=c99"),
        ("clang", "-std=c99"),
        ("g++", "-std=c++17", "-x", "c++"),
    )
    return tuple(c for c in candidates if shutil.which(c[0]))


def _buffers(
    node: Node, call: KernelCall, sizes: dict[int, int]
) -> tuple[dict[int, tuple[int, DType]], list[int]]:
    """Buffers by operand number, and the bytes of each."""
    table: dict[int, tuple[int, DType]] = {}
    lengths: list[int] = []
    for operand in call.operands:
        if isinstance(operand, Packed):
            continue
        number, dtype, count = 10 + len(lengths), DType.INT8, 0
        match operand:
            case Input(index):
                type_ = node.input(index).type
                if node.input(index).is_constant:
                    continue
                number, dtype, count = index, type_.dtype, sizes.get(index, type_.size)
            case Output(index):
                type_ = node.outputs[index].type
                number, dtype = -1 - index, type_.dtype
                count = sizes.get(number, type_.size)
            case scratch:
                dtype, count = scratch.dtype, scratch.count
        table[number] = len(lengths), dtype
        lengths.append(count * dtype.size)
    return table, lengths


def _operands(
    node: Node, call: KernelCall, sizes: dict[int, int]
) -> tuple[list[int], list[str], list[str]]:
    """Bytes of the buffers, C arguments, definitions of constants."""
    arguments: list[str] = []
    constants: list[str] = []
    table, lengths = _buffers(node, call, sizes)
    dtypes = dict(table.values())
    used = 0
    for operand in call.operands:
        array = None
        if isinstance(operand, Packed):
            array = operand.array
        elif isinstance(operand, Input):
            array = node.input(operand.index).data
        if array is None:
            const = "const " if isinstance(operand, Input) else ""
            arguments.append(f"({const}{dtypes[used].c_name} *)buffers[{used}]")
            used += 1
            continue
        name = f"constant{len(constants)}"
        lines = "\n".join(c_lines(c_elements(array)))
        kind = DType.of(array).c_name
        constants.append(f"static const {kind} {name}[{array.size}] = {{\n{lines}\n}};")
        arguments.append(name)
    return lengths, arguments, constants
