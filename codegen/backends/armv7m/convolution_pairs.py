"""int8 convolutions for Armv7-M without the DSP extension: one word holds two taps of a pixel.

With the inputs of taps a and b, and their weights, in words

    X = (x_a + 129) + 2^16 x_b    and    W = w_b + 2^16 w_a,

    X W = (x_a + 129) w_b + 2^16 ((x_a + 129) w_a + x_b w_b)    modulo 2^32.

The bracket x_a + 129 lies within 1 and 256. So the first product lies within -2^15 and 2^15 - 256,
and it is negative if and only if w_b is: the upper half of X W, as an arithmetic shift by 16 reads
it, is the second bracket, less 1 where w_b is negative. That holds while the bracket fits a signed
half, whatever the inputs. Where it might not (2 |w_a| + |w_b| of about 256 or more), w_a is reduced
until it does, and what is missing stands in a list of *repairs* behind the output's weights:
products of the same kind, which few pairs need.

So a multiplication and an addition with a shift add two exact products to a full sum, in two cycles
of a Cortex-M3. What the sum holds besides is known: 129 w_a of all pairs and -1 for each negative
w_b of products and repairs. Sums start from its opposite.

The inputs of three pixels are packed into scratch; one function in assembly runs over all output
channels of theirs, two at a time. All that it reads of constants stands in its order: starts of the
sums, weights, repairs, rows of requantization. Weights are words where there are few and each
serves many pixels, else bytes, from which five instructions make two words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.codegen.backends.armv7m.assembly import Turns
from smelt.codegen.backends.armv7m.convolution_pairs_assembly import PairsOfTaps, block
from smelt.codegen.backends.armv7m.instructions import CONDITION
from smelt.codegen.backends.armv7m.packing import PIXELS, PairsPacking, scratch_bytes
from smelt.codegen.backends.armv7m.paired_weights import (
    PairedWeights,
    in_pairs,
    repair_words,
    two_in_a_word,
)
from smelt.codegen.lower.image_loops import ImageLoop
from smelt.codegen.lower.image_product import ImageProduct
from smelt.codegen.lower.kernel import (
    Input,
    KernelCall,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.lower.products_32bit import SCRATCH_BYTES, scaling_of
from smelt.codegen.lower.requantization_32bit import ScalingSteps
from smelt.ir import Array, DType, Node
from smelt.ops.arithmetic.fixed_point import wrap_int32
from smelt.ops.core.convolution import Conv2D
from smelt.ops.core.fully_connected import FullyConnected

WORD_PIXELS = 32
"""Pixels from which on a weight may take two bytes instead of one."""

WORD_WEIGHTS = 12 << 10
"""Weights up to which it may: what layers of more would take is most of a network's flash."""

_UNROLLED = {"speed": 32, "ram": 32, "size": 4}
"""Pairs of taps in a turn of the loop, at most."""


@dataclass(frozen=True)
class PairsOfTapsParameters(Parameters):
    """Variables of `backends/armv7m/convolution_pairs.j2`.

    Attributes:
        title: what is computed.
        images: that it is computed for.
        condition: the preprocessor's, for assembly.
        assembly: the lines of each statement of the function over a block.
        scaling: of sums.
        fields: words of a channel's requantization, and of two channels'.
        outputs: channels.
        odd: whether their number is.
        steps: pairs of taps.
        in_words: whether weights are words.
        repaired: whether some output has repairs.
        packing: of inputs.
    """

    title: str
    images: ImageLoop
    condition: str
    assembly: tuple[str, ...]
    scaling: ScalingSteps
    fields: tuple[int, int]
    outputs: int
    odd: bool
    steps: int
    in_words: bool
    repaired: bool
    packing: PairsPacking


def convolution(node: Node[Conv2D | FullyConnected], request: Request) -> KernelCall | Refusal:
    """The call that computes a convolution of one group, or a dense layer, or why none does."""
    scaling, product = scaling_of(node), ImageProduct.of(node)
    if isinstance(scaling, Refusal):
        return scaling
    if scratch_bytes(product) > SCRATCH_BYTES:
        return Refusal(
            f"{node.op.name} has windows too large for three to be packed into "
            f"{SCRATCH_BYTES} bytes."
        )
    weights = PairedWeights.of(_by_steps(product))
    steps = weights.kept.shape[1]
    sums = PairsOfTaps(
        steps=steps,
        turns=Turns.of(steps - 1, _UNROLLED[request.optimize]),
        in_words=_stores_words(product, request),
        repaired=weights.repaired,
        outputs=product.window.outputs,
        together=product.place.pixels >= PIXELS,
        scaling=scaling.signed,
    )
    parameters = _parameters(product, sums)
    blocks = -(-product.place.pixels // PIXELS) * product.place.batch
    return KernelCall(
        template="backends/armv7m/convolution_pairs.j2",
        stem=product.stem,
        parameters=parameters,
        operands=(
            Input(0, "input"),
            *product.padding(product.window.kernel[1] if product.has_runs else 1),
            Packed("constants", _stream(weights, sums)),
            Scratch("patch", DType.INT32, steps * PIXELS),
            *parameters.packing.copies(product),
            Output(0, "output"),
        ),
        uses={"SMELT_ARRAY", "SMELT_NAKED", "string.h"},
        summary="two taps in one multiplication, two outputs of three pixels at a time",
        form="armv7m_pairs_words_2x3" if sums.in_words else "armv7m_pairs_2x3",
        work={
            "products": blocks * weights.words.size,
            "repairs": blocks * weights.lacking,
            "outputs": blocks * len(weights.kept),
            "inputs": blocks * product.window.kernel[0] * product.run,
            "blocks": blocks,
            "calls": 1,
        },
    )


def _stores_words(product: ImageProduct, request: Request) -> bool:
    """Whether weights are stored as the words that they are multiplied as."""
    few = request.optimize != "size" and product.node.input(1).type.size <= WORD_WEIGHTS
    return few and product.place.pixels * product.place.batch >= WORD_PIXELS


def _parameters(product: ImageProduct, sums: PairsOfTaps) -> PairsOfTapsParameters:
    fields = sums.scaling.rows.shape[1]
    return PairsOfTapsParameters(
        title=product.window.title(product.node),
        images=product.place.images,
        condition=CONDITION,
        assembly=block(sums).statements,
        scaling=sums.scaling.steps,
        fields=(fields, 2 * fields),
        outputs=sums.outputs,
        odd=sums.outputs % 2 == 1,
        steps=sums.steps,
        in_words=sums.in_words,
        repaired=sums.repaired,
        packing=PairsPacking.of(product),
    )


def _by_steps(product: ImageProduct) -> Array:
    """int64 `[o, steps, 2]`: weights w_a and w_b of each pair, an even number of outputs."""
    outputs, run = product.window.outputs, product.run
    weights = product.node.input(1).array.reshape(outputs, -1, run)
    paired = in_pairs(weights, run).reshape(outputs, -1, 2)
    return np.pad(paired, ((0, outputs % 2), (0, 0), (0, 0)))


def _stream(weights: PairedWeights, sums: PairsOfTaps) -> Array:
    """int32: all constants of two outputs after those of the two before."""
    rows = sums.scaling.rows
    rows = np.pad(rows, ((0, len(weights.kept) - len(rows)), (0, 0)))
    starts, words, parts = weights.starts, weights.words, list[Array]()
    for i in range(0, len(rows), 2):
        two, kept = slice(i, i + 2), weights.kept[i : i + 2] + 128
        parts += [starts[two], words[two].T if sums.in_words else two_in_a_word(*kept)]
        if sums.repaired:
            for repairs in weights.repairs[two]:
                placed = [(at * 4 * PIXELS, lack << 16) for at, lack in repairs]
                parts.append(repair_words(placed))
        parts.append(rows[two])
    return wrap_int32(np.concatenate([part.ravel() for part in parts])).astype(np.int32)
