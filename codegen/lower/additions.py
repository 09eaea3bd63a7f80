"""int8 sums and differences of two tensors, for the assembly kernels of all cores.

TensorFlow Lite scales both inputs, rounds, adds, scales and rounds again. The result is nearly `(a
* s + b * t + c) >> shift`. There are only 65536 pairs of inputs, so this form is checked for all of
them. For given factors `s` and `t`, each pair gives a lower or an upper bound of `c`; the search
tries factors until the bounds permit a `c`. How a core multiplies by the factors is up to its
kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from smelt.codegen.lower.kernel import Refusal
from smelt.ir import Array, DType, Node, Origin, Quant, Rounding, TensorType, Value
from smelt.ops.arithmetic.fixed_point import clamp_limits
from smelt.ops.core.binary import Binary

_SIGNS = {"add": 1, "sub": -1}


@dataclass(frozen=True)
class Addition:
    """A sum or difference evaluated for every pair of inputs.

    Attributes:
        a, b: int64 `[65536]`: the pairs.
        outputs: int64 `[65536]`: the stored output for each pair.
        slopes: Approximate derivatives of the output with respect to `a` and `b`.
        limits: Smallest and largest output.
    """

    a: Array
    b: Array
    outputs: Array
    slopes: tuple[float, float]
    limits: tuple[int, int]


def refuse_addition(node: Node) -> Refusal | None:
    """Return None for a sum or difference of int8 tensors of equal shape, else the reason."""
    op, name = node.op, node.op.name
    if not isinstance(op, Binary) or op.kind not in _SIGNS:
        return Refusal(f"{name} is neither a sum nor a difference.")
    types = [node.input(0).type, node.input(1).type, node.output.type]
    if any(t.dtype is not DType.INT8 or t.quant is None for t in types):
        return Refusal(f"{name} in assembly supports only quantized i8.")
    if len({t.size for t in types}) > 1:
        return Refusal(f"{name} in assembly supports only tensors of equal shape.")
    return None


def one_element(node: Node[Binary]) -> Node[Binary]:
    """Return the node that adds one element as this one does; the same for nodes of all shapes.

    What is found for it need not be found again for each number of rows.
    """
    a, b, y = (value.type.quant for value in (node.input(0), node.input(1), node.output))
    return _one_element(node.op, a, b, y, node.rounding)


@lru_cache(maxsize=128)
def _one_element(
    op: Binary, a: Quant | None, b: Quant | None, y: Quant | None, rounding: Rounding | None
) -> Node[Binary]:
    first, second, output = (
        Value(name, TensorType((1,), DType.INT8, quant))
        for name, quant in (("a", a), ("b", b), ("y", y))
    )
    return Node(op, (first, second), (output,), Origin(op.name, 0), rounding)


@lru_cache(maxsize=16)
def addition(node: Node[Binary]) -> Addition:
    """Return all pairs of inputs of a node that `refuse_addition` accepts, by its reference."""
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
