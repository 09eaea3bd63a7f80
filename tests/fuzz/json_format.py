"""Damaged JSON: tunings that `build` takes, and reports that `flash` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.cli.flash import _of_project
from smelt.cli.options import BuildGroup
from smelt.codegen.backends.vulkan.tuning import load_tuning
from smelt.codegen.emit.destination import REPORT
from smelt.codegen.lower.device import layer_key
from smelt.errors import ConfigError
from smelt.frontend import Imported, load
from tests.fuzz import trees
from tests.fuzz.case import Format, Step
from tests.fuzz.raw import scratched
from tests.support.onnx_networks import graph, model, node


@cache
def _network() -> Imported:
    """Return a network of two products, which a GPU can compute."""
    weights = {n: np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8) for n in ("v", "w")}
    nodes = [node("MatMul", "x v", "a"), node("Relu", "a", "b"), node("MatMul", "b w", "y")]
    return load(model(graph(nodes, {"x": [4, 8]}, "y", weights)).SerializeToString())


@cache
def seeds() -> Mapping[str, bytes]:
    """Return a tuning of the network, and the report of a build."""
    nodes = compile_model(_network(), Options(target="vulkan")).graph.nodes
    block = {"pixels": 1, "quads": 1, "across": True, "local": 64}
    layer = {"gpu_ns": 900.0, "cpu_ns": 4000.0}
    layers = {layer_key(n): {**layer, "block": block} if i else layer for i, n in enumerate(nodes)}
    tuning = {"version": 2, "gpu": "lavapipe", "device": "llvmpipe", "submit_ns": 5e4}
    report = compile_model(_network(), Options(board=BOARD)).report
    return {
        "tuning": json.dumps({**tuning, "layers": layers}).encode(),
        "report": json.dumps(report).encode(),
    }


BOARD = "nucleo-f446re"


def damage(data: bytes, steps: Sequence[Step]) -> bytes:
    """Apply the steps: those that change values come first."""
    chosen = [(Random(step), Random(step).random() < 0.85) for step in steps]
    tree = json.loads(data)
    for rng in (rng for rng, structural in chosen if structural):
        tree = trees.damaged(tree, rng)
    data = json.dumps(tree, ensure_ascii=False).encode(errors="surrogatepass")
    for rng in (rng for rng, structural in chosen if not structural):
        data = scratched(data, rng)
    return data


def check(path: Path, variant: int) -> None:
    """Read the file as a tuning, and in one variant build a network with it, or as a report."""
    if variant == 0:
        _ = load_tuning(path).costs
    elif variant == 1:
        compile_model(_network(), Options(target="vulkan", tuning=load_tuning(path)))
    else:
        path.replace(path.with_name(REPORT))
        _of_project(path.parent, BuildGroup())


FORMAT = Format(
    *("json", ".json", seeds, damage, check), variants=3, refusals=(ConfigError,), weight=3
)
