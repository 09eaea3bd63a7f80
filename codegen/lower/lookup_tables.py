"""Lookup tables for the kernels of several backends, and their sizes."""

from __future__ import annotations

import numpy as np

from smelt.ir import Array, Node
from smelt.ops.arithmetic.gemmlowp import exp_on_negative_values
from smelt.ops.core.softmax import difference_scaling


def tabulate(node: Node) -> Array:
    """Return the reference's result for all 256 stored inputs, in ascending order."""
    low, high = node.input(0).type.dtype.limits
    inputs = np.arange(low, high + 1, dtype=node.input(0).type.dtype.numpy)
    return node.op.reference(node, [inputs])[0]


def exponentials(scale: float, beta: float) -> Array:
    """Return exp of `-beta · scale · difference` for stored differences 0, 1, … as Q0.31 (int32).

    The table ends where the exponentials are negligible, after at most 256 entries.
    """
    scaling = difference_scaling(scale, beta)
    differences = np.arange(0, -min(256, 1 - scaling.lowest), -1, dtype=np.int64)
    return exp_on_negative_values(scaling(differences), 5).astype(np.int32)


def padded_sizes(node: Node) -> int:
    """Return the sum of the output sizes of all axes that a Pad makes longer."""
    sizes = zip(node.input(0).type.shape, node.output.type.shape, strict=True)
    return sum(after for before, after in sizes if before != after)
