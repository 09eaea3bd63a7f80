"""int8 dense layers on Armv6-M: four outputs at a time, their weights in one word.

The weights a, b, c, d of four outputs for an input x are packed into the word
`R = (a + 2^8 b + 2^15) + 2^16 (c + 2^8 d)`. No weight is -128, so the first bracket is not negative
and an arithmetic right shift of R by 16 gives c + 2^8 d. The low bytes of the two halves, taken as
signed, are a and c. Four multiplications by x give four sums (capitals are sums of products; X is
the sum of inputs):

    A,  C,  CD = C + 2^8 D,  and  A + 2^8 B + 2^15 X + 2^16 CD modulo 2^32

So an input costs one multiplication and one addition for each output, and three instructions that
unpack R for all four outputs.

Inputs are widened to words in scratch, or read as bytes, four in a word. That takes one or two more
instructions for an input of four outputs, but no scratch, and is faster for few outputs.
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
    missed_for_ram,
)
from smelt.codegen.lower.products_32bit import SCRATCH_BYTES, scaling_of
from smelt.codegen.lower.requantization_32bit import ShortScaling
from smelt.codegen.lower.stored_output import stored_output
from smelt.ir import Array, DType, Node
from smelt.ops.core.fully_connected import FullyConnected

_UNROLLED = {"speed": 8, "ram": 8, "size": 2}
"""Inputs per iteration of the loop; at least four if they are not widened."""

_FEW_OUTPUTS = 12
"""For so few outputs, it takes longer to widen the inputs than to read them as bytes."""


@dataclass(frozen=True)
class FourWeightsParameters(Parameters):
    """Variables of `backends/armv6m/dense.j2`.

    Attributes:
        title: text of the function's comment.
        condition: preprocessor condition for the assembly.
        assembly: C lines of its statement.
        depth: number of inputs.
        outputs: number of outputs.
        fields: words of an output's requantization constants.
        widened: whether the inputs are widened to words, behind the start of the sums.
    """

    title: str
    condition: str
    assembly: str
    depth: int
    outputs: int
    fields: int
    widened: bool


class FourWeightsFullyConnected(Kernel[FullyConnected]):
    """Dense layers: one row with four weights per word, several rows as a 1x1 convolution."""

    op = FullyConnected
    uses_scratch_limit = True

    @override
    def offer(self, node: Node[FullyConnected], request: Request) -> KernelCall | Refusal:
        scaling, name = scaling_of(node), node.op.name
        if isinstance(scaling, Refusal):
            return scaling
        weights = node.input(1).array
        depth = weights.shape[1]
        if depth * 4 + 4 > SCRATCH_BYTES:
            return Refusal(f"{name} has rows too long to widen into {SCRATCH_BYTES} bytes.")
        if not _fits(weights):
            return Refusal(
                f"{name} has a weight of -128, or weights so large that a word could not hold "
                "two sums."
            )
        rows = node.input(0).type.size // depth
        if rows == 1:
            return _dense(node, scaling, weights, request)
        return halfword_convolution(node, request, CORE)


def _dense(
    node: Node[FullyConnected], scaling: ShortScaling, weights: Array, request: Request
) -> KernelCall:
    """Return the call that computes the outputs of one row with `[o, k]` weights."""
    outputs, depth = weights.shape
    pays = outputs > _FEW_OUTPUTS and request.allows(4 * (depth + 1))
    widened = pays or depth % 4 > 0
    missed = "" if widened or outputs <= _FEW_OUTPUTS else missed_for_ram("Widening the inputs")
    at_once = 2 if widened else 4
    unrolled = min(max(_UNROLLED[request.optimize], at_once), depth - depth % at_once)
    parameters = FourWeightsParameters(
        title=f"{node.op.name}: {node.input(0).type} -> {node.output.type}",
        condition=CONDITION,
        assembly=dense(scaling, outputs, depth, unrolled, widened=widened).text,
        depth=depth,
        outputs=outputs,
        fields=scaling.rows.shape[1],
        widened=widened,
    )
    return KernelCall(
        template="backends/armv6m/dense.j2",
        stem="fully_connected",
        details=scaling.details,
        parameters=parameters,
        operands=(
            Input(0, "input"),
            Packed("weights", _words(weights)),
            Packed("channels", scaling.rows),
            *((Scratch("wide", DType.INT32, depth + 1),) if widened else ()),
            Output(0, "output"),
        ),
        uses={"SMELT_ARRAY", "SMELT_NAKED"},
        inner=(stored_output(scaling.steps, CONDITION),),
        summary="four weights in a word, four outputs at a time",
        form="armv6m_words" if widened else "armv6m_bytes",
        work={
            "products": -(-outputs // 4) * 4 * depth,
            "outputs": outputs,
            "inputs": depth,
            "calls": 1,
        },
        missed=missed,
    )


def _fits(weights: Array) -> bool:
    """Return whether no weight is -128 and 32 bits hold a sum plus 2^8 times another sum."""
    if weights.min() == -128:
        return False
    largest = int(np.abs(weights.astype(np.int64)).sum(axis=1).max())
    return largest * 128 * 257 < 2**31


def _words(weights: Array) -> Array:
    """Return int32 `[o/4, k]`: words of four outputs' weights; missing outputs have zeros."""
    outputs, depth = weights.shape
    filled = np.zeros((-(-outputs // 4) * 4, depth), np.int64)
    filled[:outputs] = weights
    a, b, c, d = filled.reshape(-1, 4, depth).transpose(1, 0, 2)
    words = (a + (b << 8) + (1 << 15)) + (c + (d << 8) << 16)
    return words.astype(np.int32)


KERNELS = (FourWeightsFullyConnected(),)
