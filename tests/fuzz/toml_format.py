"""Damaged board files, and files of computers with a GPU."""

from __future__ import annotations

import io
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from rich.console import Console

from smelt import boards
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.cli.show import boards as show
from smelt.errors import ConfigError, DoesNotFit
from smelt.frontend import Imported, load
from tests.fuzz import trees
from tests.fuzz.case import Format, Step
from tests.fuzz.raw import scratched
from tests.support.onnx_networks import graph, model, node
from tests.support.shared import ROOT


@cache
def seeds() -> Mapping[str, bytes]:
    """Return the board files that come with Smelt."""
    return {path.stem: path.read_bytes() for path in sorted((ROOT / "boards").glob("*.toml"))}


@cache
def _network() -> Imported:
    """Return a network that fits every board."""
    weights = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
    nodes = [node("MatMul", "x w", "y")]
    return load(model(graph(nodes, {"x": [1, 3]}, "y", {"w": weights})).SerializeToString())


def damage(data: bytes, steps: Sequence[Step]) -> bytes:
    """Apply the steps: those that change tables come first."""
    structural, others = list[Random](), list[Random]()
    for step in steps:
        rng = Random(step)
        (structural if rng.random() < 0.85 else others).append(rng)
    if structural:
        tree = tomllib.loads(data.decode())
        for rng in structural:
            tree = trees.damaged(tree, rng)
        data = trees.toml(tree).encode(errors="surrogatepass")
    for rng in others:
        data = _overdone(data, rng) if rng.random() < 0.2 else scratched(data, rng)
    return data


def _overdone(data: bytes, rng: Random) -> bytes:
    """Return the file with one value nested very deeply, or a very long number."""
    vast = rng.choice((b"[" * 3000, b"{a=" * 3000, b"9" * 5000, b"0x" + b"f" * 5000))
    values = list(re.finditer(rb"(?<== )\S+", data))
    if not values:
        return b"name = " + vast
    value = rng.choice(values)
    return data[: value.start()] + vast + data[value.end() :]


def check(path: Path, variant: int) -> None:
    """Read a board, show it, and compile a network for it."""
    board = boards.load(path)
    show.board(Console(file=io.StringIO()), board)
    if variant:
        compile_model(_network(), Options(board=str(path)))


FORMAT = Format(
    *("toml", ".toml", seeds, damage, check),
    variants=2,
    refusals=(ConfigError, DoesNotFit),
    weight=4,
)
