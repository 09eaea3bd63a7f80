"""Damaged board files, and files of computers with a GPU."""

from __future__ import annotations

import io
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from rich.console import Console

from smelt import boards, show
from smelt.errors import ConfigError, DoesNotFit
from smelt.frontend import Imported, load
from smelt.pipeline import Options, compile_model
from tests.fuzz import trees
from tests.fuzz.case import Format, Step
from tests.fuzz.raw import scratched
from tests.onnx_networks import graph, model, node
from tests.shared import ROOT


@cache
def seeds() -> Mapping[str, bytes]:
    """The boards that come with Smelt."""
    return {path.stem: path.read_bytes() for path in sorted((ROOT / "boards").glob("*.toml"))}


@cache
def _network() -> Imported:
    """A network that fits every board."""
    weights = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
    nodes = [node("MatMul", "x w", "y")]
    return load(model(graph(nodes, {"x": [1, 3]}, "y", {"w": weights})).SerializeToString())


def damage(data: bytes, steps: Sequence[Step]) -> bytes:
    """The file after the steps: those that change tables come first."""
    chosen = [(Random(step), Random(step).random() < 0.85) for step in steps]
    tables = [rng for rng, structural in chosen if structural]
    if tables:
        tree = tomllib.loads(data.decode())
        for rng in tables:
            tree = trees.damaged(tree, rng)
        data = trees.toml(tree).encode(errors="surrogatepass")
    for rng in (rng for rng, structural in chosen if not structural):
        data = scratched(data, rng)
    return data


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
