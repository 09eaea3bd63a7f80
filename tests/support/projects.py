"""The example network, small graphs and compiler calls, for tests of the C project."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np

from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.ir import Array, DType, Graph, Node, Origin, State, TensorType, Value, verify
from smelt.ops.core.binary import Binary
from smelt.ops.core.unary import Unary
from tests.support.tflite_networks import DIGITS

SANITIZERS = "-O0 -g -fsanitize=address,undefined -fno-sanitize-recover=all"
DIGITS_MODELS = ("digits_int8", "digits_float32")
VECTOR = TensorType((4,), DType.FLOAT32)


def digits(options: Options | None = None, model: str = "digits_int8") -> Artifact:
    return compile_model(DIGITS / f"{model}.tflite", options)


def images(count: int) -> tuple[Array, Array]:
    """Return inputs and right outputs of `digits_int8`."""
    with np.load(DIGITS / "digits_test.npz") as data:
        return data["input_0"][:count], data["tflite_reference_0"][:count]


def must(*command: str, cwd: Path | None = None) -> None:
    """Run a command and assert that it succeeds."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def network_sources(project: Path) -> list[Path]:
    """Return the C files of the network alone."""
    return sorted(path for path in project.glob("*.c") if path.name != "main.c")


def unary_chain() -> Graph:
    """Return a graph of two steps that can both work in place and overwrite the input."""
    x, h, y = (Value(name, VECTOR) for name in "xhy")
    nodes = (
        Node(Unary("square"), (x,), (h,), Origin("SQUARE", 0)),
        Node(Unary("neg"), (h,), (y,), Origin("NEG", 1)),
    )
    return verify(Graph("chain", (x,), (y,), nodes), "test")


def counter() -> Graph:
    """Return a graph that adds its input to a state (1, 2, 3, 4 at first) and doubles that."""
    x, total, after, y = (Value(name, VECTOR) for name in ("x", "total", "after", "y"))
    nodes = (
        Node(Binary("add"), (total, x), (after,), Origin("ADD", 0)),
        Node(Binary("add"), (after, after), (y,), Origin("ADD", 1)),
    )
    state = State(total, after, np.arange(1, 5, dtype=np.float32))
    return verify(Graph("counter", (x,), (y,), nodes, (state,)), "test")
