"""int8 dense layers for Armv7-M without the DSP extension: one word holds two taps of a row.

128 is added to inputs, so that x' = x + 128 is between 0 and 255, and an *offset* is added to
weights: u = w + offset. With

    X = x'_a + 2^16 x'_b    and    W = u_b + 2^16 u_a,

    X W = x'_a u_b + 2^16 (x'_a u_a + x'_b u_b)    modulo 2^32.

If each u is between 0 and 255 and u_a + u_b is at most 257, the first product and the bracket are
both below 2^16, since 255 * 257 = 2^16 - 1. The upper half of X W is then the bracket. One
instruction makes the word W of a pair from bytes; so two taps take a mask, a multiplication and an
addition with a shift. The offset is chosen so that the fewest pairs break these conditions. In
these pairs, one u is changed until they hold, and the missing part of its weight is in a list of
*repairs*, which are multiplied and added one by one.

    sum(w x) = sum(u x') - offset * sum(x') - 128 * sum(w)

is computed modulo 2^32 and is therefore exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.armv7m.assembly import UnrolledLoop
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
from smelt.codegen.lower.requantization_32bit import ShortScaling
from smelt.codegen.lower.stored_output import stored_output
from smelt.codegen.text.expressions import offset, times
from smelt.codegen.text.helpers import when
from smelt.ir import Array, DType, Node
from smelt.ops.arithmetic.fixed_point import wrap_int32
from smelt.ops.core.fully_connected import FullyConnected

_LARGEST_PAIR = 257
"""Upper limit of u_a + u_b."""

_LARGEST_OFFSET = 128
_UNROLLED = {"speed": 8, "ram": 8, "size": 1}
"""Upper limit of the groups of four taps per iteration of the loop."""


@dataclass(frozen=True)
class PairsOfInputsParameters(Parameters):
    """Variables of `backends/armv7m/dense.j2`.

    Attributes:
        title: text of the function's comment.
        condition: preprocessor condition for the assembly.
        assembly: C lines of the statement of the function for a row.
        offset: number added to weights.
        rows: number of rows.
        outputs: outputs of a row.
        blocks: groups of four inputs; the last one may be partial.
        whole: whole groups of four inputs.
        last: C texts of the four inputs of a partial group, 0 beyond its end.
        left: inputs of a partial group; 0 if there is none.
        repaired: whether some output has repairs.
        common: words of requantization constants that all outputs share.
        fields: words of an output's own requantization constants, and of four outputs'.
        own: C texts of an output's own and the shared constants; empty if none are shared.
    """

    title: str
    condition: str
    assembly: str
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
    """Dense layers: row by row, or with three or more rows as a 1x1 convolution."""

    op = FullyConnected

    @override
    def offer(self, node: Node[FullyConnected], request: Request) -> KernelCall | Refusal:
        rows = node.input(0).type.size // node.input(1).type.shape[1]
        return _dense(node, rows, request) if rows < PIXELS else convolution(node, request)


def _dense(node: Node[FullyConnected], rows: int, request: Request) -> KernelCall | Refusal:
    """Return the call that computes a dense layer row by row, or why there is none."""
    scaling = scaling_of(node)
    if isinstance(scaling, Refusal):
        return scaling
    outputs, depth = node.input(1).type.shape
    blocks = -(-depth // 4)
    if blocks * 8 > SCRATCH_BYTES:
        return Refusal(f"{node.op.name} has rows too long to widen into {SCRATCH_BYTES} bytes.")
    weights = CountedWeights.of(_in_fours(node.input(1).array))
    channels = _ChannelConstants.of(scaling, len(weights.pairs))
    sums = RowSums(
        outputs=outputs,
        blocks=blocks,
        loop=UnrolledLoop.of(blocks, _UNROLLED[request.optimize]),
        offset=weights.offset,
        repaired=any(weights.repairs),
        common=len(channels.common),
        scaling=scaling.signed,
    )
    return KernelCall(
        template="backends/armv7m/dense.j2",
        stem="fully_connected",
        details={**scaling.details, "offset": f"offset{weights.offset}"},
        parameters=_parameters(node, rows, sums, channels),
        operands=(
            Input(0, "input"),
            Packed("constants", _stream(weights, channels)),
            Scratch("wide", DType.INT32, blocks * 2),
            Output(0, "output"),
        ),
        uses={"SMELT_ARRAY", "SMELT_NAKED"} | when(depth >= 4, "string.h"),
        inner=(stored_output(sums.scaling.steps, CONDITION),),
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
    output = "j" if sums.outputs > 1 else "0"
    own = [f"row[{offset(times(output, fields), i)}]" for i in range(fields)]
    own += [f"common[{i}]" for i in range(sums.common)]
    return PairsOfInputsParameters(
        title=f"{node.op.name}: {node.input(0).type} -> {node.output.type}",
        condition=CONDITION,
        assembly=row(sums).text,
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
    """Return `[o, k]` weights as int64, padded with zeros to multiples of 4 along both axes."""
    outputs, depth = weights.shape
    return np.pad(weights.astype(np.int64), ((0, -outputs % 4), (0, -depth % 4)))


@dataclass(frozen=True)
class _ChannelConstants:
    """The constants that requantize outputs.

    Attributes:
        common: constants that are equal for all outputs; may be empty.
        rows: the other constants, `[outputs, fields]`.
    """

    common: Array
    rows: Array

    @staticmethod
    def of(scaling: ShortScaling, outputs: int) -> _ChannelConstants:
        """Return the constants for `outputs` outputs; those that do not exist get zeros."""
        rows = scaling.signed.rows
        own = 1 if scaling.biases is None else 2
        if (rows[:, own:] != rows[0, own:]).any():
            own = rows.shape[1]
        filled = np.pad(rows[:, :own].astype(np.int64), ((0, outputs - len(rows)), (0, 0)))
        return _ChannelConstants(rows[0, own:], filled)


@dataclass(frozen=True)
class CountedWeights:
    """Weights in pairs, with an offset added.

    Attributes:
        offset: the offset that needs the fewest repairs.
        pairs: int64 `[o, k/4, 2, 2]`: u of the pairs (0, 2) and (1, 3) of every four taps.
        repairs: for each output (position of the packed input in bytes, missing part of w).
        sums: int64 `[o]`: sums of w.
    """

    offset: int
    pairs: Array
    repairs: Repairs
    sums: Array

    @staticmethod
    def of(weights: Array, offset: int | None = None) -> CountedWeights:
        """Return the pairs of int64 `[o, k]` weights with this offset, or with the best one.

        k must be a multiple of 4.
        """
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
    """Return the offset that needs the fewest repairs."""
    sums = pairs.sum(axis=3)
    counts = [
        (pairs < -offset).sum() + (sums > _LARGEST_PAIR - 2 * offset).sum()
        for offset in range(_LARGEST_OFFSET + 1)
    ]
    return int(np.argmin(counts))


def _stream(weights: CountedWeights, channels: _ChannelConstants) -> Array:
    """Return flat int32: the shared constants, then all constants of four outputs after others."""
    words = two_in_a_word(weights.pairs[:, :, 0], weights.pairs[:, :, 1])
    parts: list[Array] = [channels.common]
    for i in range(0, len(words), 4):
        four = slice(i, i + 4)
        parts += [-128 * weights.sums[four], words[four].T.ravel()]
        if any(weights.repairs):
            of_four = weights.repairs[four]
            parts.append(np.asarray([sum(map(len, of_four))]))
            parts += [repair_words(repairs) for repairs in of_four if any(of_four)]
        parts.append(channels.rows[four].ravel())
    return wrap_int32(np.concatenate(parts)).astype(np.int32)


KERNELS = (PairsFullyConnected(),)
