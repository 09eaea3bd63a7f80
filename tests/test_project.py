"""The C project: it compiles everywhere, keeps its promises, and appears whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from smelt.boards import compile_project, open_device
from smelt.errors import ConfigError, SmeltError
from smelt.frontend import load
from smelt.ir import (
    Array,
    DType,
    Graph,
    Node,
    Origin,
    Quant,
    State,
    TensorType,
    Value,
    evaluate,
    verify,
)
from smelt.ops.binary import Binary
from smelt.ops.concat import Concat
from smelt.ops.unary import Unary
from smelt.pipeline import Artefact, Options, compile_model
from smelt.run import run, write_project
from smelt.samples import random_samples
from tests.graphs import Member, assert_same, combine, compile_graph
from tests.shared import ROOT, Network, networks
from tests.test_golden_reference import INTEGER, NOT_BY_TFLM
from tests.tflite_networks import DIGITS

COMPILERS = {
    "gcc": ("gcc", "-std=c99"),
    "clang": ("clang", "-std=c99"),
    "g++": ("g++", "-x", "c++", "-std=c++17"),
    "clang++": ("clang++", "-x", "c++", "-std=c++17"),
}
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion")
SANITIZERS = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all"
MODELS = ("digits_int8", "digits_float32")
SCALAR = TensorType((4,), DType.FLOAT32)
HARNESS = """
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#define CHECK(condition) if (!(condition)) { printf("line %d: %s\\n", __LINE__, #condition); return 1; }
#define ALIGNED __attribute__((aligned(64)))
"""


def digits(options: Options | None = None, model: str = "digits_int8") -> Artefact:
    return compile_model(DIGITS / f"{model}.tflite", options)


def images(count: int) -> tuple[Array, Array]:
    """Inputs and right outputs of `digits_int8`."""
    with np.load(DIGITS / "digits_test.npz") as data:
        return data["input_0"][:count], data["tflite_reference_0"][:count]


def c_array(name: str, array: Array) -> str:
    kind = {"f4": "float", "i1": "int8_t"}[array.dtype.str[1:]]
    text = ", ".join(map(repr, array.reshape(-1).tolist()))
    return f"static const {kind} {name}[{array.size}] = {{{text}}};\n"


def run_c(
    folder: Path, source: str, projects: Sequence[Path], flags: Sequence[str] = ()
) -> None:
    """Compile a program with the networks of some projects; it prints what is wrong, if anything."""
    program = folder / "program.c"
    program.write_text(HARNESS + dedent(source))
    networks_ = [str(path) for project in projects for path in network_sources(project)]
    includes = [f"-I{project}" for project in projects]
    sanitizers = SANITIZERS.split()
    command = ["gcc", "-std=c99", *sanitizers, *flags, *includes, str(program), *networks_]
    done = subprocess.run(
        [*command, "-lm", "-o", str(folder / "program")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    done = subprocess.run([folder / "program"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def network_sources(project: Path) -> list[Path]:
    """The C files of the network alone."""
    return sorted(path for path in project.glob("*.c") if path.name != "main.c")


def unary_chain() -> Graph:
    """Two steps that can both work in place, so that an inference overwrites its input."""
    x, h, y = (Value(name, SCALAR) for name in "xhy")
    nodes = (
        Node(Unary("square"), (x,), (h,), Origin("SQUARE", 0)),
        Node(Unary("neg"), (h,), (y,), Origin("NEG", 1)),
    )
    return verify(Graph("chain", (x,), (y,), nodes), "test")


def counter() -> Graph:
    """Adds its input to a state, which starts as 1, 2, 3, 4, and returns twice the state."""
    x, total, after, y = (Value(name, SCALAR) for name in ("x", "total", "after", "y"))
    nodes = (
        Node(Binary("add"), (total, x), (after,), Origin("ADD", 0)),
        Node(Binary("add"), (after, after), (y,), Origin("ADD", 1)),
    )
    state = State(total, after, np.arange(1, 5, dtype=np.float32))
    return verify(Graph("counter", (x,), (y,), nodes, (state,)), "test")


def delay_line(length: int) -> Graph:
    """int8: returns the sum of this input and the one `length` inferences ago."""
    type_ = TensorType((1, 2), DType.INT8, Quant.per_tensor(0.5, 3))
    x, y = Value("x", type_), Value("y", TensorType((1, 2), DType.INT8, Quant.per_tensor(1.0, 0)))
    line = [Value(f"d{i}", type_) for i in range(length)]
    states = [
        State(line[i], line[i + 1] if i + 1 < length else x, np.full((1, 2), 3 + i, np.int8))
        for i in range(length)
    ]
    add = Node(Binary("add"), (line[0], x), (y,), Origin("ADD", 0), verify_rounding())
    return verify(Graph("delay", (x,), (y,), (add,), tuple(states)), "test")
