"""int8 dense layers of one row, with two outputs in one 64-bit multiply-add.

As in `pairs`, with the roles exchanged: here it is two weights of different outputs that share a
word. They are masked out of four packed ones, so that nothing is unpacked byte by byte. A lower
weight has no sign bits in the mask's gap, so it is stored 128 up; the sum of the inputs, taken
once, corrects that.
"""

from __future__ import annotations

import numpy as np

from smelt.codegen.kernels.base import Input, KernelCall, Output, Packed
from smelt.codegen.kernels.c.finish import Finish
from smelt.codegen.kernels.c.requantization import sum_range
from smelt.ir import Array, DType, Node
from smelt.targets import Target

_LIMIT = 2**23
"""What a lower sum must stay below."""


def serves_words(node: Node, target: Target) -> bool:
    """Whether this form serves a dense layer with constant, symmetric weights."""
    if node.output.type.dtype is not DType.INT8 or "long_multiply" not in target.features:
        return False
    return fits_words(node.input(1).array)


def fits_words(weights: Array) -> bool:
    """Whether the sums of int8 weights `[o, k]` times int8 inputs may share 64 bits."""
    low, high = sum_range(np.zeros(len(weights), np.int64), weights)
    return bool((low > -_LIMIT).all() and (high < _LIMIT).all())


def stretches(depth: int) -> dict[str, int]:
    """How a sum over so many inputs is written: so many at a time, in a loop up to `looped`."""
    unrolled = max(min(depth // 2, 8), 1)
    looped = depth - depth % unrolled if depth > unrolled else 0
    return {"depth": depth, "unrolled": unrolled, "looped": looped}


def dense_words(node: Node, finish: Finish, weights: Array, *, stem: str) -> KernelCall:
    """The call that computes one row of a dense layer.

    Args:
        node: what is computed; its input is one row.
        finish: what follows each sum; its bias holds the input's zero point.
        weights: int8 `[o, k]`.
        stem: of the function's name.
    """
    outputs, depth = weights.shape
    parameters: dict[str, object] = {
        "title": f"{node.op.name}: {node.input(0).type} -> {node.output.type}",
        "f": finish,
        **stretches(depth),
        "step": 4 if depth % 4 == 0 else 1,
        "whole": outputs - outputs % 4,
        "rest": outputs % 4,
    }
    return KernelCall(
        template="c/dense_words.j2",
        stem=stem,
        parameters=parameters,
        operands=(
            Input(0, "input"),
            Packed("weights", words_of(weights)),
            *finish.operands,
            Output(0, "output"),
        ),
        helpers=finish.helpers | {"lower_sum", "upper_sum"},
        summary="two outputs in one multiply-add, 4 outputs at a time",
    )


def words_of(weights: Array) -> Array:
    """int32 `[o / 4, k]`: four outputs' weights for one input, the first in the low byte."""
    outputs, depth = weights.shape
    padded = np.zeros((-(-outputs // 4) * 4, depth), np.int64)
    padded[:outputs] = weights
    padded[0::4] += 128
    padded[2::4] += 128
    octets = (padded & 0xFF).reshape(-1, 4, depth)
    words = sum(octets[:, i] << (8 * i) for i in range(4))
    return np.asarray(words, np.uint32).astype(np.int32)
