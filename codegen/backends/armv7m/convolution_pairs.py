"""int8 convolutions for Armv7-M without the DSP extension: one word holds two taps of a pixel.

With the inputs of taps a and b, and their weights, in words

    X = (x_a + 129) + 2^16 x_b    and    W = w_b + 2^16 w_a,

    X W = (x_a + 129) w_b + 2^16 ((x_a + 129) w_a + x_b w_b)    modulo 2^32.

The factor x_a + 129 is between 1 and 256. So the first product is between -2^15 and 2^15 - 256, and
it is negative if and only if w_b is. Therefore the upper half of X W, read by an arithmetic shift
by 16, is the second bracket, minus 1 if w_b is negative. This holds as long as the bracket fits
into a signed 16-bit number for all inputs. If it might not (2 |w_a| + |w_b| of about 256 or more),
w_a is reduced until it does. The missing part of w_a is in a list of *repairs* after the output's
weights: products of the same kind, which few pairs need.

So one multiplication and one addition with a shift add two exact products to a 32-bit sum, in two
cycles of a Cortex-M3. The sum also contains a known constant: 129 w_a of all pairs, and -1 for each
negative w_b of products and repairs. The sum starts at minus this constant.

The inputs of three pixels are packed into scratch. One assembly function computes all their output
channels, two at a time. It reads all constants in sequence: starts of the sums, weights, repairs,
rows of requantization. Weights are stored as words if there are few and each is used for many
pixels, otherwise as bytes; five instructions make two words of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from smelt.codegen.backends.armv7m.assembly import UnrolledLoop
from smelt.codegen.backends.armv7m.convolution_pairs_assembly import PairsOfTaps, block
from smelt.codegen.backends.armv7m.instructions import CONDITION
from smelt.codegen.backends.armv7m.packing import (
    PIXELS,
    PairsPacking,
    pack_function,
    scratch_bytes,
    slide_function,
)
from smelt.codegen.backends.armv7m.paired_weights import (
    PairedWeights,
    in_pairs,
    repair_words,
    two_in_a_word,
)
from smelt.codegen.backends.armv7m.plain_functions import UPPER_HALF
from smelt.codegen.backends.armv7m.shared_pairs import SharedPairs, shared_pairs
from smelt.codegen.lower.image_loops import ImageLoop
from smelt.codegen.lower.image_product import ImageProduct
from smelt.codegen.lower.kernel import (
    InnerFunction,
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
from smelt.codegen.lower.stored_output import stored_output
from smelt.codegen.text.helpers import when
from smelt.ir import Array, DType, Node
from smelt.ops.arithmetic.fixed_point import wrap_int32
from smelt.ops.core.convolution import Conv2D
from smelt.ops.core.fully_connected import FullyConnected

WORD_PIXELS = 32
"""Smallest number of pixels for which weights are stored as words: two bytes per weight."""

WORD_WEIGHTS = 12 << 10
"""Largest number of weights stored as words; larger layers dominate a network's flash."""

_UNROLLED = {"speed": 32, "ram": 32, "size": 4}
"""Upper limit of the pairs of taps per iteration of the loop."""


@dataclass(frozen=True)
class PairsBlockParameters(Parameters):
    """Variables of `backends/armv7m/pairs.j2`.

    Attributes:
        condition: preprocessor condition for the assembly.
        assembly: C lines of the statement of the function for a block.
        fields: words of requantization constants for one channel and for two.
        outputs: number of output channels.
        odd: whether `outputs` is odd.
        steps: number of pairs of taps.
        in_words: whether weights are stored as words.
        repaired: whether some output channel has repairs.
    """

    condition: str
    assembly: str
    fields: tuple[int, int]
    outputs: int
    odd: bool
    steps: int
    in_words: bool
    repaired: bool


@dataclass(frozen=True)
class PairsOfTapsParameters(Parameters):
    """Variables of `backends/armv7m/convolution_pairs.j2`.

    Attributes:
        title: text of the function's comment.
        images: the loop over images.
        outputs: number of output channels.
        joint: whether the function for a block takes the layer's struct.
        packing: packing of inputs.
    """

    title: str
    images: ImageLoop
    outputs: int
    joint: bool
    packing: PairsPacking


def convolution(node: Node[Conv2D | FullyConnected], request: Request) -> KernelCall | Refusal:
    """Return the call for a convolution with one group or a dense layer, or why there is none."""
    scaling, product = scaling_of(node), ImageProduct.of(node)
    if isinstance(scaling, Refusal):
        return scaling
    if scratch_bytes(product) > SCRATCH_BYTES:
        return Refusal(
            f"{node.op.name} has windows too large to pack three of them into "
            f"{SCRATCH_BYTES} bytes."
        )
    weights = PairedWeights.of(_by_steps(product))
    steps = weights.kept.shape[1]
    sums = PairsOfTaps(
        steps=steps,
        loop=UnrolledLoop.of(steps - 1, _UNROLLED[request.optimize]),
        in_words=_stores_words(product, request),
        repaired=weights.repaired,
        outputs=product.window.outputs,
        together=product.frame.pixels >= PIXELS,
        scaling=scaling.signed,
    )
    packing, constants = PairsPacking.of(product), _stream(weights, sums)
    blocks = -(-product.frame.pixels // PIXELS) * product.frame.batch
    call = KernelCall(
        template="backends/armv7m/convolution_pairs.j2",
        stem=product.stem,
        details=sums.scaling.details,
        parameters=PairsOfTapsParameters(
            product.window.title(product.node), product.frame.images, sums.outputs, False, packing
        ),
        in_place=product.in_place(),
        operands=(
            Input(0, "input"),
            *product.padding(product.window.kernel[1] if product.has_runs else 1),
            Packed("constants", constants),
            Scratch("patch", DType.INT32, (1 + (packing.ahead is not None)) * steps * PIXELS),
            *packing.copies(product),
            Output(0, "output"),
        ),
        uses={"SMELT_ARRAY"} | when(packing.loads_words, "string.h"),
        inner=(
            _block(sums),
            pack_function(product.run),
            *((product.input_pixel,) if packing.gathering is not None else ()),
            *slide_function(packing),
        ),
        summary="two taps in one multiplication, two outputs of three pixels at a time",
        form="armv7m_pairs_words_2x3" if sums.in_words else "armv7m_pairs_2x3",
        work={
            "products": blocks * weights.words.size,
            "repairs": blocks * weights.repair_count,
            "outputs": blocks * len(weights.kept),
            "inputs": blocks * product.window.kernel[0] * product.run,
            "blocks": blocks,
            "calls": 1,
        },
    )
    layer = SharedPairs(product, sums, constants, weights.repair_count, call)
    return replace(call, shared=shared_pairs(layer, request.optimize))


def _stores_words(product: ImageProduct, request: Request) -> bool:
    """Return whether weights are stored as words, ready to be multiplied."""
    few = request.optimize != "size" and product.node.input(1).type.size <= WORD_WEIGHTS
    return few and product.frame.pixels * product.frame.batch >= WORD_PIXELS


def _block(sums: PairsOfTaps) -> InnerFunction:
    """Return the function for a block of pixels."""
    fields = sums.scaling.rows.shape[1]
    return InnerFunction(
        template="backends/armv7m/pairs.j2",
        stem="pairs_in_words" if sums.in_words else "pairs_in_bytes",
        details={
            "outputs": f"c{sums.outputs}",
            "steps": f"steps{sums.steps}",
            "repaired": "repaired" if sums.repaired else "exact",
            **sums.scaling.details,
        },
        parameters=PairsBlockParameters(
            condition=CONDITION,
            assembly=block(sums).text,
            fields=(fields, 2 * fields),
            outputs=sums.outputs,
            odd=sums.outputs % 2 == 1,
            steps=sums.steps,
            in_words=sums.in_words,
            repaired=sums.repaired,
        ),
        uses={"SMELT_ARRAY", "SMELT_NAKED"},
        inner=(UPPER_HALF, stored_output(sums.scaling.steps, CONDITION)),
    )


def _by_steps(product: ImageProduct) -> Array:
    """Return int64 `[o, steps, 2]`: w_a and w_b of each pair; zeros make `o` even."""
    outputs, run = product.window.outputs, product.run
    weights = product.node.input(1).array.reshape(outputs, -1, run)
    paired = in_pairs(weights, run).reshape(outputs, -1, 2)
    return np.pad(paired, ((0, outputs % 2), (0, 0), (0, 0)))


def _stream(weights: PairedWeights, sums: PairsOfTaps) -> Array:
    """Return all constants, flat int32, two output channels after another."""
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
