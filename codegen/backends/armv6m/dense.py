"""int8 dense layers on Armv6-M: four outputs at a time, their weights in one word.

The weights a, b, c, d of four outputs for an input x make the word
`R = (a + 2^8 b + 2^15) + 2^16 (c + 2^8 d)`. No weight is -128, so the bracket is positive and R's
arithmetic shift by 16 is c + 2^8 d; the low bytes of either half, with their signs, are a and c.
Four multiplications of x add up to the sums A and C, to CD = C + 2^8 D, and to
A + 2^8 B + 2^15 X + 2^16 CD modulo 2^32, where X is the sum of inputs. So each output costs a
multiplication and an addition, and its share of three instructions that unpack.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.armv6m.convolution import CORE
from smelt.codegen.backends.armv6m.dense_assembly import dense
from smelt.codegen.backends.armv6m.instructions import CONDITION
from smelt.codegen.lower.halfword_convolution import halfword_convolution
from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.lower.products_32bit import SCRATCH_BYTES, scaling_of
from smelt.codegen.lower.requantization_32bit import ScalingSteps, ShortScaling
from smelt.ir import Array, DType, Node
from smelt.ops.core.fully_connected import FullyConnected

_UNROLLED = {"speed": 8, "ram": 8, "size": 2}
"""Inputs in a turn of the loop."""


@dataclass(frozen=True)
class FourWeightsParameters(Parameters):
    """Variables of `backends/armv6m/dense.j2`.

    `assembly` has the lines of each statement, `fields` are the words of a channel's constants.
    """

    title: str
    condition: str
    assembly: tuple[str, ...]
    scaling: ScalingSteps
    depth: int
    outputs: int
    fields: int


class FourWeightsFullyConnected(Kernel[FullyConnected]):
    """Dense layers: a row in words of four weights, several rows as pixels of a 1x1 convolution."""

    op = FullyConnected

    @override
    def offer(self, node: Node[FullyConnected], request: Request) -> KernelCall | Refusal:
        scaling, name = scaling_of(node), node.op.name
        if isinstance(scaling, Refusal):
            return scaling
        weights = node.input(1).array
        depth = weights.shape[1]
        if depth * 4 + 4 > SCRATCH_BYTES:
            return Refusal(f"{name} has rows too long to be widened into {SCRATCH_BYTES} bytes.")
        if not _fits(weights):
            return Refusal(
                f"{name} has weights of -128, or so large that two sums could leave a word."
            )
        rows = node.input(0).type.size // depth
        if rows == 1:
            return _dense(node, scaling, weights, request)
        return halfword_convolution(node, request, CORE)


def _dense(
    node: Node[FullyConnected], scaling: ShortScaling, weights: Array, request: Request
) -> KernelCall:
    """The call that computes all outputs `[o, k]` weights make of one row."""
    outputs, depth = weights.shape
    unrolled = min(_UNROLLED[request.optimize], depth - depth % 2)
    parameters = FourWeightsParameters(
        title=f"{node.op.name}: {node.input(0).type} -> {node.output.type}",
        condition=CONDITION,
        assembly=dense(scaling, outputs, depth, unrolled).statements,
        scaling=scaling.steps,
        depth=depth,
        outputs=outputs,
        fields=scaling.rows.shape[1],
    )
    return KernelCall(
        template="backends/armv6m/dense.j2",
        stem="fully_connected",
        parameters=parameters,
        operands=(
            Input(0, "input"),
            Packed("weights", _words(weights)),
            Packed("channels", scaling.rows),
            Scratch("wide", DType.INT32, depth + 1),
            Output(0, "output"),
        ),
        uses={"SMELT_ARRAY", "SMELT_NAKED"},
        summary="four weights a word, four outputs at a time",
        form="armv6m_words",
        work={
            "products": -(-outputs // 4) * 4 * depth,
            "outputs": outputs,
            "inputs": depth,
            "calls": 1,
        },
    )


def _fits(weights: Array) -> bool:
    """Whether words can hold the weights, and 32 bits a sum plus 2^8 times another one."""
    if weights.min() == -128:
        return False
    largest = int(np.abs(weights.astype(np.int64)).sum(axis=1).max())
    return largest * 128 * 257 < 2**31


def _words(weights: Array) -> Array:
    """int32 `[o/4, k]`: four outputs' weights in a word; zeros fill up the last outputs."""
    outputs, depth = weights.shape
    filled = np.zeros((-(-outputs // 4) * 4, depth), np.int64)
    filled[:outputs] = weights
    a, b, c, d = filled.reshape(-1, 4, depth).transpose(1, 0, 2)
    words = (a + (b << 8) + (1 << 15)) + (c + (d << 8) << 16)
    return words.astype(np.int32)


KERNELS = (FourWeightsFullyConnected(),)
