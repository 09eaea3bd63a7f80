"""int8 sums and differences of two tensors: what every core's kernel has to get right.

TensorFlow Lite scales both inputs, rounds, adds, scales and rounds again. That is nearly
`(a * s + b * t + c) >> shift`, and there are but 65536 pairs of inputs to ask whether it is so
exactly. Each pair bounds `c` from either side: so for given factors `c` is found, or that there is
none. How the factors are multiplied is each core's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from smelt.codegen.lower.kernel import Refusal
from smelt.ir import Array, DType, Node
from smelt.ops.arithmetic.fixed_point import clamp_limits
from smelt.ops.core.binary import Binary

_SIGNS = {"add": 1, "sub": -1}


@dataclass(frozen=True)
class Addition:
    """A sum or difference for every pair of inputs.

    Attributes:
        a, b: int64 `[65536]`: the pairs.
        outputs: int64 `[65536]`: what the operator stores for each.
        slopes: roughly how much the output rises with `a`, and with `b`.
        limits: of the outputs.
    """

    a: Array
    b: Array
    outputs: Array
    slopes: tuple[float, float]
    limits: tuple[int, int]


def refuse_addition(node: Node) -> Refusal | None:
    """None for a sum or difference of int8 tensors of one shape, else why not."""
    op, name = node.op, node.op.name
    if not isinstance(op, Binary) or op.kind not in _SIGNS:
        return Refusal(f"{name} is no sum and no difference.")
    types = [value.type for value in (node.input(0), node.input(1), node.output)]
    if any(t.dtype is not DType.INT8 or t.quant is None for t in types):
        return Refusal(f"{name} is served in assembly for quantized i8 only.")
    if len({t.size for t in types}) > 1:
        return Refusal(f"{name} is served in assembly for tensors of equal shapes only.")
    return None


@lru_cache(maxsize=16)
def addition(node: Node[Binary]) -> Addition:
    """All pairs of inputs of a node that `refuse_addition` does not refuse, by its reference."""
    op = node.op
    stored = np.arange(-128, 128).astype(np.int8)
    a, b = (x.ravel() for x in np.meshgrid(stored, stored))
    (outputs,) = op.reference(node, (a, b))
    y = node.output.type
    return Addition(
        a.astype(np.int64),
        b.astype(np.int64),
        outputs.astype(np.int64),
        (node.input(0).type.scale / y.scale, _SIGNS[op.kind] * node.input(1).type.scale / y.scale),
        clamp_limits(op.activation, y, node.rounding),
    )
