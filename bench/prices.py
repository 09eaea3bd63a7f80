"""Measure the price of a unit of each kernel's work on a core, for `targets/prices/TARGET.json`.

Layers of many shapes are compiled with every form of kernel that serves them, and with CMSIS-NN's
if CMSIS_NN_DIR names its folder. QEMU counts the instructions of each layer, from which the core's
timings give cycles. The prices are non-negative and minimize the squares of the relative errors.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

import numpy as np
import typer
from rich.console import Console
from scipy.optimize import nnls

from bench.combined import combine
from bench.cores import CORES
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.cli.show.tables import TextTable
from smelt.codegen.lower.backend import backend
from smelt.codegen.lower.kernel import Request
from smelt.codegen.partition import sharing
from smelt.codegen.partition.candidates import Candidate
from smelt.codegen.partition.partitioner import Partitioner
from smelt.frontend import Imported
from smelt.ir import DType, Graph, Node, Op, Value
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.case import Bias, Case, Data, Weights, build
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import NO_PADDING, Conv2D, DepthwiseConv2D, same_padding
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.reduce import Reduce
from smelt.ops.core.softmax import Softmax
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.pad import Pad
from smelt.ops.tensor.slice import Slice
from smelt.proof.profile import profile_model
from smelt.samples import random_samples
from smelt.targets import get
from smelt.targets.prices import prices_of

PRICES = Path(__file__).parent.parent / "targets" / "prices"

BATCH = 24
"""Layers per firmware."""

POINTWISE = (
    (12, 12, 8, 16), (6, 6, 32, 64), (5, 5, 64, 64), (25, 5, 64, 64), (6, 6, 19, 15),
    (3, 3, 31, 22), (6, 6, 57, 30), (6, 6, 106, 57), (12, 12, 32, 60), (24, 1, 128, 128),
    (1, 1, 128, 32), (3, 3, 7, 5), (28, 1, 40, 128), (2, 1, 16, 16), (20, 20, 4, 8),
    (2, 2, 64, 64), (2, 2, 17, 9), (5, 1, 64, 64), (10, 1, 32, 48), (4, 2, 96, 13), (7, 1, 128, 20),
)  # fmt: skip
"""1x1 convolutions: height, width, inputs, outputs."""

WINDOWS = (
    (16, 16, 3, 16, 3, 1), (24, 24, 3, 8, 3, 2), (12, 12, 1, 8, 5, 2), (8, 8, 16, 16, 3, 1),
    (8, 8, 16, 32, 3, 2), (6, 6, 32, 32, 3, 1), (4, 4, 64, 64, 3, 1), (8, 8, 64, 32, 3, 2),
    (7, 9, 5, 7, 3, 1), (10, 10, 8, 12, 2, 2), (9, 9, 12, 4, 5, 1), (16, 16, 16, 16, 3, 1),
    (8, 8, 32, 32, 3, 1), (12, 12, 8, 16, 3, 1), (10, 10, 24, 24, 3, 1),
    (6, 6, 128, 16, 3, 1), (8, 3, 48, 24, 3, 1), (10, 10, 72, 8, 3, 1),
    (2, 2, 32, 32, 3, 1), (2, 5, 16, 16, 3, 1), (2, 4, 32, 16, 3, 1), (1, 5, 8, 24, 3, 1),
)  # fmt: skip
"""Convolutions: height, width, inputs, outputs, window, stride."""

DEPTHWISE = (
    (25, 5, 64, 3, 1), (24, 24, 8, 3, 1), (24, 24, 16, 3, 2), (12, 12, 32, 3, 1),
    (12, 12, 60, 3, 2), (6, 6, 57, 3, 1), (6, 6, 19, 3, 1), (3, 3, 31, 3, 1), (10, 10, 6, 5, 1),
    (12, 12, 3, 5, 2), (9, 9, 4, 7, 1),
)  # fmt: skip
"""Depthwise convolutions: height, width, channels, window, stride."""

COLUMNS = ((30, 40, 3), (28, 128, 5), (24, 128, 10), (15, 128, 15), (17, 9, 4))
"""Depthwise convolutions of one column: height, channels, window."""

DENSE = ((1, 640, 128), (1, 128, 128), (1, 128, 8), (1, 64, 12), (1, 22, 2), (1, 8, 128),
         (4, 64, 32), (1, 100, 37), (1, 33, 5), (3, 50, 50))  # fmt: skip
"""Dense layers: rows, inputs, outputs."""

IMAGES = ((16, 16, 16), (8, 8, 64), (25, 5, 64), (7, 5, 3), (1, 1, 37), (12, 12, 8))
"""Images for all other operators: height, width, channels."""

POOLS = (
    (16, 16, 16, 2, 2), (8, 8, 64, 2, 2), (12, 12, 8, 2, 2), (9, 9, 24, 3, 2), (9, 9, 5, 3, 1),
    (8, 8, 37, 3, 1), (12, 12, 32, 3, 2), (7, 7, 48, 3, 1), (14, 14, 4, 5, 2), (11, 9, 16, 4, 3),
)  # fmt: skip
"""Pools, each with and without padding: height, width, channels, window, stride."""


@dataclass(frozen=True)
class Measurement:
    """Measured cycles of a layer.

    Attributes:
        form: The form of its kernel.
        layer: Name of the layer.
        work: Units of work, as the kernel's call counts them.
        cycles: Cycles of the layer.
    """

    form: str
    layer: str
    work: dict[str, int]
    cycles: int


def main(
    core: Annotated[
        list[str] | None, typer.Option("--core", help="m0, m3, … [default: all].")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write targets/prices/.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Patterns of operators, as Pool2D*; other prices are kept."),
    ] = None,
) -> None:
    """Measure prices, and print how well they predict the counted cycles."""
    console = Console(width=120)
    for name in core or CORES:
        board, target = CORES[name]
        found: list[Measurement] = []
        for graph in _batches(only or ["*"]):
            with console.status(f"{name}: {len(found)} measured"):
                found += measure(graph, board, target)
        prices = fit(found)
        _errors(found, prices).print(console)
        if write:
            # Keep the prices of forms that were not measured, such as those of an absent library.
            known = {form: dict(units) for form, units in prices_of(target).items()}
            text = json.dumps(known | prices, indent=1, sort_keys=True) + "\n"
            (PRICES / f"{target}.json").write_text(text, encoding="utf-8")


def measure(graph: Graph, board: str, target: str) -> list[Measurement]:
    """Measure every layer of a graph with every form of kernel that serves it."""
    candidates = {node.name: _candidates(node, target) for node in graph.nodes}
    found: list[Measurement] = []
    for number in range(max(map(len, candidates.values()))):
        chosen = {name: forms[number % len(forms)] for name, forms in candidates.items()}
        place = {name: f"{c.backend}:{c.call.form}" for name, c in chosen.items()}
        options = Options(target, board, "speed", "prices", place=place, expand_weights=True)
        # Layers keep the body that `work` describes, although slower ones would cost little here.
        with patch.object(sharing, "NEGLIGIBLE", 0.0):
            artifact = compile_model(Imported(graph), options)
        profile = profile_model(artifact, random_samples(artifact.graph, 1, 0)[0])
        for step, counts in zip(artifact.schedule.calls, profile.steps, strict=True):
            call, name = step.call, step.node.name
            if counts is None or (number >= len(candidates[name]) and number > 0):
                continue
            found.append(Measurement(call.form, name, dict(call.work), profile.cycles(counts)))
    return found


def fit(measured: Sequence[Measurement]) -> dict[str, dict[str, float]]:
    """Return prices in cycles by form and unit of work, fitted to the measurements."""
    forms: dict[str, list[Measurement]] = defaultdict(list)
    for one in measured:
        forms[one.form].append(one)
    prices: dict[str, dict[str, float]] = {}
    for form, rows in sorted(forms.items()):
        units = sorted({unit for row in rows for unit in row.work})
        counts = np.array([[row.work.get(u, 0) for u in units] for row in rows], np.float64)
        weight = 1.0 / np.array([row.cycles for row in rows], np.float64)
        solution, _ = nnls(counts * weight[:, None], np.ones(len(rows)))
        prices[form] = {u: float(f"{p:.4g}") for u, p in zip(units, solution, strict=True) if p}
    return prices


def _errors(measured: Sequence[Measurement], prices: dict[str, dict[str, float]]) -> TextTable:
    errors: dict[str, list[float]] = defaultdict(list)
    for one in measured:
        told = sum(prices[one.form].get(unit, 0.0) * n for unit, n in one.work.items())
        errors[one.form].append(abs(told / one.cycles - 1))
    rows = tuple(
        (form, len(found), f"{np.median(found):.1%}", f"{max(found):.1%}", str(prices[form]))
        for form, found in sorted(errors.items())
    )
    return TextTable(("form", "layers", "median error", "largest", "prices"), rows)


def _candidates(node: Node, target: str) -> list[Candidate]:
    described = get(target)
    libraries = described.libraries if os.environ.get("CMSIS_NN_DIR") else ()
    group = [backend(name) for name in (*described.backends, *libraries)]
    choice = Partitioner((group,), Request(described, expand_weights=True)).choose(node)
    unique = {c.call.form: c for c in (choice.taken, *choice.lost)}
    return list(unique.values())


# --- layers ----------------------------------------------------------------------------------


def _batches(only: Sequence[str]) -> Iterator[Graph]:
    rng = np.random.default_rng(4)
    cases = [c for c in _cases() if any(fnmatchcase(c.op.name, pattern) for pattern in only)]
    graphs = [_plausible(build(case, DType.INT8), rng) for case in cases]
    for start in range(0, len(graphs), BATCH):
        yield combine("prices", graphs[start : start + BATCH])


def _plausible(graph: Graph, rng: np.random.Generator) -> Graph:
    """Return the graph with a distribution of weights like trained ones: most are small."""
    (node,) = graph.nodes
    if len(node.inputs) < 2 or (w := node.inputs[1]) is None or w.data is None or not node.macs:
        return graph
    smaller = np.trunc(w.array * rng.random(w.array.shape)).astype(np.int8)
    weights = Value.constant(w.name, smaller, w.type.quant)
    inputs = (node.inputs[0], weights, *node.inputs[2:])
    return replace(graph, nodes=(replace(node, inputs=inputs),))


def _cases() -> Iterator[Case]:
    yield from _products(Activation.RELU)
    yield from _products(Activation.NONE)
    yield from _others()


def _products(activation: Activation) -> Iterator[Case]:
    for h, w, i, o in POINTWISE:
        op = Conv2D(activation=activation)
        yield _case(op, Data((1, h, w, i)), Weights((o, 1, 1, i), 0), Bias(o))
    for h, w, i, o, k, s in WINDOWS:
        op = Conv2D((s, s), same_padding((h, w), (k, k), (s, s)), activation=activation)
        yield _case(op, Data((1, h, w, i)), Weights((o, k, k, i), 0), Bias(o))
    for h, w, c, k, s in DEPTHWISE:
        op = DepthwiseConv2D((s, s), same_padding((h, w), (k, k), (s, s)), activation=activation)
        yield _case(op, Data((1, h, w, c)), Weights((1, k, k, c), 3), Bias(c))
    for h, c, k in COLUMNS:
        yield _case(
            DepthwiseConv2D(activation=activation),
            Data((1, h, 1, c)),
            Weights((1, k, 1, c), 3),
            Bias(c),
        )
    for rows, depth, outputs in DENSE:
        yield _case(
            FullyConnected(activation),
            Data((rows, depth)),
            Weights((outputs, depth)),
            Bias(outputs),
        )


def _others() -> Iterator[Case]:
    for h, w, c in IMAGES:
        shape = (1, h, w, c)
        yield _case(Binary("add", Activation.RELU), Data(shape), Data(shape))
        yield _case(Binary("mul"), Data(shape), Data(shape))
        yield _case(Binary("div"), Data(shape), Data(shape, 0.25, 4.0))
        yield _case(Pool2D("average", (h, w)), Data(shape))
        yield _case(Unary("logistic"), Data(shape))
        yield _case(Pad(((0, 0), (1, 1), (0, 1), (0, 0))), Data(shape))
        yield _case(Concat(3), Data(shape), Data(shape))
        yield _case(Softmax(), Data((h, c)))
        yield _case(Slice.along(3, 0, -(-c // 2), shape), Data(shape))
        if h * w > 1:
            yield _case(Reduce("mean", (1, 2)), Data(shape))
    for kind, (h, w, c, k, s) in product(("max", "average"), POOLS):
        same = same_padding((h, w), (k, k), (s, s))
        for padding in dict.fromkeys((NO_PADDING, same)):
            yield _case(Pool2D(kind, (k, k), (s, s), padding), Data((1, h, w, c)))


def _case(op: Op, *arguments: Data | Weights | Bias) -> Case:
    return Case("prices", op, arguments, (DType.INT8,))


__all__ = ["fit", "main", "measure"]
