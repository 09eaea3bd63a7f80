"""Networks whose first layer determines the size of the arena."""

from __future__ import annotations

import numpy as np

from smelt.ir import (
    DType,
    Graph,
    Node,
    Op,
    Origin,
    Quant,
    Rounding,
    State,
    TensorType,
    Value,
    verify,
)
from smelt.ops.core.convolution import Conv2D
from smelt.ops.core.pool import Pool2D
from smelt.ops.tensor.reshape import Reshape

QUANT = Quant.per_tensor(0.05)
SAME = ((1, 1), (1, 1))


def image(name: str, *shape: int) -> Value:
    return Value(name, TensorType((1, *shape), DType.INT8, QUANT))


def node(op: Op, source: Value, target: Value) -> Node:
    inputs: tuple[Value | None, ...] = (source,)
    if isinstance(op, Conv2D):
        shape = (target.type.shape[3], 3, 3, source.type.shape[3])
        weights = np.random.default_rng(1).integers(-60, 61, shape).astype(np.int8)
        scale = Quant((0.002,) * shape[0], (0,) * shape[0], 0)
        inputs = (source, Value.constant(f"{target.name} weights", weights, scale), None)
    return Node(op, inputs, (target,), Origin(op.name, 0, target.name), Rounding.TFLM)


def network() -> Graph:
    """Return a network that makes a large image small and flattens it."""
    x, a, b = image("x", 24, 24, 24), image("a", 24, 24, 24), image("b", 8, 8, 24)
    c, d = image("c", 8, 8, 32), image("d", 2048)
    nodes = (
        node(Conv2D(padding=SAME), x, a),
        node(Pool2D("max", (3, 3), (3, 3)), a, b),
        node(Conv2D(padding=SAME), b, c),
        node(Reshape((1, 2048)), c, d),
    )
    return verify(Graph("net", (x,), (d,), nodes), "building")


def with_state() -> Graph:
    """Return two convolutions beside a state of 3,200 bytes."""
    x, y, z = image("x", 24, 24, 24), image("y", 24, 24, 24), image("z", 12, 12, 12)
    before, after = (Value(name, image("", 20, 20, 8).type) for name in ("before", "after"))
    seen, kept = image("seen", 20, 20, 8), image("kept", 20, 20, 8)
    nodes = (
        node(Conv2D(padding=SAME), x, y),
        node(Reshape((1, 20, 20, 8)), before, seen),
        node(Pool2D("max", (1, 1)), seen, kept),
        node(Reshape((1, 20, 20, 8)), kept, after),
        node(Conv2D((2, 2), padding=((0, 1), (0, 1))), y, z),
    )
    state = State(before, after, np.zeros((1, 20, 20, 8), np.int8))
    return verify(Graph("net", (x,), (z,), nodes, (state,)), "building")
