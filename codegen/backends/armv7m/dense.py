"""int8 dense layers for Armv7-M without the DSP extension: one word holds two taps of a row.

Inputs are counted from -128, so that x' = x + 128 lies within 0 and 255, and weights from an
*offset*, u = w + offset. With

    X = x'_a + 2^16 x'_b    and    W = u_b + 2^16 u_a,

    X W = x'_a u_b + 2^16 (x'_a u_a + x'_b u_b)    modulo 2^32.

While no u is negative or more than 255 and u_a + u_b is 257 at most, the first product stays below
2^16 and the bracket too, since 255 * 257 = 2^16 - 1: the upper half of X W is the bracket. One
instruction makes the words of a pair out of bytes, so a product costs a mask, a multiplication and
an addition with a shift for two taps. The offset is the one that the fewest pairs stand against; of
those, one u is changed until they hold, and what its weight lacks stands in a list of *repairs*,
multiplied and added one by one.

The sum of w x is that of u x', less `offset` times the sum of all x' of the row, less 128 times the
sum of w. Modulo 2^32, in which all of it is computed, the sum that results is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.armv7m.assembly import Turns
from smelt.codegen.backends.armv7m.convolution_pairs import convolution
from smelt.codegen.backends.armv7m.dense_assembly import RowSums, row
from smelt.codegen.backends.armv7m.instructions import CONDITION
from smelt.codegen.backends.armv7m.packing import PIXELS
from smelt.codegen.backends.armv7m.paired_weights import Repairs, repair_words, two_in_a_word
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
from smelt.codegen.text.expressions import offset, times
from smelt.codegen.text.helpers import when
from smelt.ir import Array, DType, Node
from smelt.ops.arithmetic.fixed_point import wrap_int32
from smelt.ops.core.fully_connected import FullyConnected

_LARGEST_PAIR = 257
"""What u_a + u_b may be."""

_LARGEST_OFFSET = 128
_UNROLLED = {"speed": 8, "ram": 8, "size": 1}
"""Fours of taps in a turn of the loop, at most."""


@dataclass(frozen=True)
class PairsOfInputsParameters(Parameters):
    """Variables of `backends/armv7m/dense.j2`.

    Attributes:
        title: what is computed.
        condition: the preprocessor's, for assembly.
        assembly: the lines of each statement of the function for a row.
        scaling: of sums.
        offset: what weights are counted from.
        rows: to be computed.
        outputs: of a row.
        blocks: fours of inputs.
        whole: those that are whole.
        last: C of the inputs of the last block, where it is not whole.
        left: how many they are.
        repaired: whether some output has repairs.
        common: words of constants that requantize all outputs.
        fields: words of an output's own, and of four outputs'.
        own: C of both, side by side; none where outputs have nothing in common.
    """

    title: str
    condition: str
    assembly: tuple[str, ...]
    scaling: ScalingSteps
    offset: int
    rows: int
    outputs: int
    blocks: int
    whole: int
    last: tuple[str, ...]
    left: int
    repaired: bool
    common: int
    fields: tuple[int, int]
    own: tuple[str, ...]


class PairsFullyConnected(Kernel[FullyConnected]):
    """Dense layers: row by row, or rows as the pixels of a 1x1 convolution."""

    op = FullyConnected

    @override
    def offer(self, node: Node[FullyConnected], request: Request) -> KernelCall | Refusal:
        rows = node.input(0).type.size // node.input(1).type.shape[1]
        return _dense(node, rows, request) if rows < PIXELS else convolution(node, request)


def _dense(node: Node[FullyConnected], rows: int, request: Request) -> KernelCall | Refusal:
    """The call that computes all outputs of each of some rows, or why none does."""
    scaling = scaling_of(node)
    if isinstance(scaling, Refusal):
        return scaling
    outputs, depth = node.input(1).type.shape
    blocks = -(-depth // 4)
    if blocks * 8 > SCRATCH_BYTES:
        return Refusal(
            f"{node.op.name} has rows too long to be widened into {SCRATCH_BYTES} bytes."
        )
    weights = CountedWeights.of(_in_fours(node.input(1).array))
    channels = _ChannelConstants.of(scaling, len(weights.pairs))
    sums = RowSums(
        outputs=outputs,
        blocks=blocks,
        turns=Turns.of(blocks, _UNROLLED[request.optimize]),
        offset=weights.offset,
        repaired=any(weights.repairs),
        common=len(channels.common),
        scaling=scaling.signed,
    )
    return KernelCall(
        template="backends/armv7m/dense.j2",
        stem="fully_connected",
        parameters=_parameters(node, rows, sums, channels),
        operands=(
            Input(0, "input"),
            Packed("constants", _stream(weights, channels)),
            Scratch("wide", DType.INT32, blocks * 2),
            Output(0, "output"),
        ),
        uses={"SMELT_ARRAY", "SMELT_NAKED"} | when(depth >= 4, "string.h"),
        summary="two taps in one multiplication, four outputs at a time",
        form="armv7m_pairs_4x1",
        work={
            "products": rows * weights.pairs.size,
            "repairs": rows * sum(map(len, weights.repairs)),
            "outputs": rows * len(weights.pairs),
            "inputs": rows * depth,
            "calls": 1,
        },
    )


def _parameters(
    node: Node[FullyConnected], rows: int, sums: RowSums, channels: _ChannelConstants
) -> PairsOfInputsParameters:
    depth, fields = node.input(1).type.shape[1], channels.rows.shape[1]
    own = [f"row[{offset(times('j', fields), i)}]" for i in range(fields)]
    own += [f"common[{i}]" for i in range(sums.common)]
    return PairsOfInputsParameters(
        title=f"{node.op.name}: {node.input(0).type} -> {node.output.type}",
        condition=CONDITION,
        assembly=row(sums).statements,
        scaling=sums.scaling.steps,
        offset=sums.offset,
        rows=rows,
        outputs=sums.outputs,
        blocks=sums.blocks,
        whole=depth // 4,
        last=tuple(f"input[{i}] + 128" if i < depth % 4 else "0" for i in range(4)),
        left=depth % 4,
        repaired=sums.repaired,
        common=sums.common,
        fields=(fields, 4 * fields),
        own=tuple(own) if sums.common else (),
    )


def _in_fours(weights: Array) -> Array:
    """int64: `[o, k]` weights, with zeros where they do not fill fours of outputs and inputs."""
    outputs, depth = weights.shape
    return np.pad(weights.astype(np.int64), ((0, -outputs % 4), (0, -depth % 4)))


@dataclass(frozen=True)
class _ChannelConstants:
    """What requantizes outputs.

    Attributes:
        common: what is the same for all of them, if anything.
        rows: the rest, `[outputs, fields]`.
    """

    common: Array
    rows: Array

    @staticmethod
    def of(scaling: ShortScaling, outputs: int) -> _ChannelConstants:
        """Those of so many outputs, of which the last ones may not exist."""
        rows = scaling.signed.rows
        own = 1 if scaling.biases is None else 2
        if (rows[:, own:] != rows[0, own:]).any():
            own = rows.shape[1]
        filled = np.pad(rows[:, :own].astype(np.int64), ((0, outputs - len(rows)), (0, 0)))
        return _ChannelConstants(rows[0, own:], filled)


@dataclass(frozen=True)
class CountedWeights:
    """Weights in pairs, counted from an offset.

    Attributes:
        offset: that needs the fewest repairs.
        pairs: int64 `[o, k/4, 2, 2]`: what is multiplied; of every four taps 0 and 2, and 1 and 3.
        repairs: taps, by where their inputs stand in the packed ones, in bytes; what weights lack.
        sums: int64 `[o]`: of the weights themselves.
    """

    offset: int
    pairs: Array
    repairs: Repairs
    sums: Array

    @staticmethod
    def of(weights: Array, offset: int | None = None) -> CountedWeights:
        """Those of int64 `[o, k]`, `k` a multiple of 4, counted from that offset or the best."""
        taps = weights.reshape(len(weights), -1, 2, 2).transpose(0, 1, 3, 2)
        offset = _best_offset(taps) if offset is None else offset
        wanted = taps + offset
        found = np.maximum(wanted, 0)
        over = np.maximum(found.sum(axis=3) - _LARGEST_PAIR, 0)
        first = found[..., 0] >= found[..., 1]
        found = found - np.stack([np.where(first, over, 0), np.where(first, 0, over)], axis=-1)
        lack = (wanted - found).reshape(len(weights), -1)
        repairs = tuple(
            tuple((2 * int(i), int(row[i])) for i in np.flatnonzero(row)) for row in lack
        )
        return CountedWeights(offset, found, repairs, weights.sum(axis=1))


def _best_offset(pairs: Array) -> int:
    """The offset that needs the fewest repairs."""
    sums = pairs.sum(axis=3)
    counts = [
        (pairs < -offset).sum() + (sums > _LARGEST_PAIR - 2 * offset).sum()
        for offset in range(_LARGEST_OFFSET + 1)
    ]
    return int(np.argmin(counts))


def _stream(weights: CountedWeights, channels: _ChannelConstants) -> Array:
    """int32: what all outputs have in common, then all constants of four outputs after others."""
    words = two_in_a_word(weights.pairs[:, :, 0], weights.pairs[:, :, 1])
    parts: list[Array] = [channels.common]
    for i in range(0, len(words), 4):
        four = slice(i, i + 4)
        parts += [-128 * weights.sums[four], words[four].T.ravel()]
        if any(weights.repairs):
            mine = weights.repairs[four]
            parts.append(np.asarray([sum(map(len, mine))]))
            parts += [repair_words(repairs) for repairs in mine if any(mine)]
        parts.append(channels.rows[four].ravel())
    return wrap_int32(np.concatenate(parts)).astype(np.int32)


KERNELS = (PairsFullyConnected(),)
