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

from collections.abc import Sequence

import numpy as np

from smelt.codegen.backends.armv7m.assembly import Turns
from smelt.codegen.backends.armv7m.instructions import CONDITION
from smelt.codegen.backends.armv7m.products_assembly import PairsOfTaps, block
from smelt.codegen.backends.armv7m.products_parameters import (
    LastInputs,
    PairsGathering,
    PairsOfTapsParameters,
    SlidingInput,
)
from smelt.codegen.lower.images import Frame
from smelt.codegen.lower.offer import Input, KernelCall, Output, Packed, Refusal, Request, Scratch
from smelt.codegen.lower.short_products import SCRATCH_BYTES, scaling_of
from smelt.codegen.lower.short_scaling import ShortScaling
from smelt.codegen.lower.window import Window
from smelt.ir import Array, DType, Node
from smelt.ops.core.convolution import Conv2D
from smelt.ops.core.fully_connected import FullyConnected

PIXELS = 3
"""Pixels whose sums of two outputs fit into registers."""

LIFT = 129
"""What is added to the input of the first tap of a pair."""

WORD_PIXELS = 32
"""Pixels from which on a weight may take two bytes instead of one."""

WORD_WEIGHTS = 12 << 10
"""Weights up to which it may: what layers of more would take is most of a network's flash."""

_WIDEST_SLIDE = 5
"""Columns of a window up to which neighbouring pixels' inputs are loaded together."""

_UNROLLED = {"speed": 32, "ram": 32, "size": 4}
"""Pairs of taps in a turn of the loop, at most."""


def pairs_of(run: int) -> list[tuple[int, int | None]]:
    """The taps of a run of neighbours in pairs, as four inputs in a word make two with masks."""
    whole = run - run % 4
    found: list[tuple[int, int | None]] = []
    for i in range(0, whole, 4):
        found += [(i, i + 2), (i + 1, i + 3)]
    return found + [(i, i + 1 if i + 1 < run else None) for i in range(whole, run, 2)]


def convolution(
    node: Node[Conv2D | FullyConnected],
    window: Window,
    place: Frame,
    request: Request,
    *,
    stem: str,
) -> KernelCall | Refusal:
    """The call that computes a convolution of one group, or why none does.

    Args:
        node: what is computed.
        window: its geometry.
        place: the output pixels to compute.
        request: target and preference.
        stem: of the function's name.
    """
    x, y = node.input(0).type, node.output.type
    scaling = scaling_of(node)
    if isinstance(scaling, Refusal):
        return scaling
    if _scratch_bytes(window) > SCRATCH_BYTES:
        return Refusal(
            f"{node.op.name} has windows too large for three to be packed into "
            f"{SCRATCH_BYTES} bytes."
        )
    scaling = scaling.signed
    weights = node.input(1).array.reshape(window.outputs, -1)
    run = window.kernel[1] * window.depth
    halves = _paired(weights, window.kernel[0], run)
    steps = halves.shape[1]
    pixels = y.size // window.outputs // place.batch
    in_words = request.optimize != "size" and weights.size <= WORD_WEIGHTS
    in_words = in_words and pixels * place.batch >= WORD_PIXELS
    kept, repairs = split_pairs(halves)
    kept = kept.reshape(-1, 2, steps, 2)
    stream = _stream(kept, repairs, scaling, in_words)
    one = window.taps == 1 and not window.padded and window.stride == (1, 1)
    together = pixels >= PIXELS
    summed = PairsOfTaps(
        steps=steps,
        turns=Turns.of(steps - 1, _UNROLLED[request.optimize]),
        in_words=in_words,
        repaired=any(repairs),
        outputs=window.outputs,
        together=together,
        scaling=scaling,
    )
    contiguous = window.dilation[1] == 1 and place.source.pixel == window.depth
    runs = contiguous and 1 < window.kernel[1] <= window.size[1]
    line = _gathered(window) and (window.padded or not contiguous)
    gathering = None
    if not (together and one):
        gathering = _gathering(window, place, pixels, runs=runs, line=line)
    at_once = gathering is None or line or gathering.row in ("whole", "inside")
    rest, fields = run % 4, scaling.rows.shape[1]
    parameters = PairsOfTapsParameters(
        title=f"{node.op.name}: {x} -> {y}, {window.text}",
        images=place.images,
        condition=CONDITION,
        assembly=block(summed).statements,
        scaling=scaling.steps,
        fields=(fields, 2 * fields),
        outputs=window.outputs,
        odd=window.outputs % 2 == 1,
        steps=steps,
        in_words=in_words,
        repaired=any(repairs),
        depth=(window.depth, 2 * window.depth),
        run=run if at_once else 0,
        tail=tuple(
            LastInputs(
                first // 2 * PIXELS + i,
                i,
                f"[{first}] + {LIFT}"
                + (f" + in{i}[{first + 1}] * 65536" if first + 1 < rest else ""),
            )
            for first in range(0, rest, 2)
            for i in range(PIXELS)
        ),
        tail_words=(rest + 1) // 2 * PIXELS,
        pixels=pixels,
        last=pixels - PIXELS if together else None,
        gathering=gathering,
    )
    outside = np.full(run if runs else window.depth, x.zero_point, np.int8)
    blocks = -(-pixels // PIXELS) * place.batch
    return KernelCall(
        template="backends/armv7m/products.j2",
        stem=stem,
        parameters=parameters,
        operands=(
            Input(0, "input"),
            *((Packed("padding", outside),) if window.padded else ()),
            Packed("constants", stream),
            Scratch("patch", DType.INT32, steps * PIXELS),
            *((Scratch("line", DType.INT8, PIXELS * run),) if line else ()),
            Output(0, "output"),
        ),
        uses={"SMELT_ARRAY", "string.h"},
        summary="two taps in one multiplication, two outputs of three pixels at a time",
        form="armv7m_pairs_words_2x3" if in_words else "armv7m_pairs_2x3",
        work={
            "products": blocks * len(kept) * steps * 2,
            "repairs": blocks * sum(map(len, repairs)),
            "outputs": blocks * len(kept) * 2,
            "inputs": blocks * weights.shape[1],
            "blocks": blocks,
            "calls": 1,
        },
    )


def _gathering(
    window: Window, place: Frame, pixels: int, *, runs: bool, line: bool
) -> PairsGathering:
    columns, depth, last = window.kernel[1], window.depth, pixels - PIXELS
    slides = not _gathered(window) and 1 < columns <= _WIDEST_SLIDE
    slides = slides and window.stride[1] == window.dilation[1] == 1
    if slides:
        row = "sliding"
    elif columns == 1 or (runs and not window.padded):
        row = "whole"
    else:
        row = "inside" if runs else "columns"
    run, tall, whole = columns * depth, window.kernel[0] > 1, row == "whole"
    return PairsGathering(
        pixel=place.source.offset("y", "x"),
        output_pixel=place.target.offset("y", "x") if last < 0 else "",
        size=window.size if window.padded else None,
        top=window.origin(0, "y"),
        side=window.origin(1, "x"),
        width=place.width,
        tall=tall,
        row_end=window.end[0] if tall else 0,
        row_step=window.dilation[0] if tall else 0,
        row=row,
        inside=window.size[1] - columns if row == "inside" else 0,
        end=0 if whole else window.end[1],
        step=0 if whole else window.dilation[1],
        copies=tuple(f" + {i * run}" if i else "" for i in range(PIXELS)) if line else (),
        last=divmod(last, place.width) if last >= 0 and pixels % PIXELS else None,
        sliding=tuple(
            SlidingInput(
                f" + {i}" if i else "",
                tuple(
                    (at := dx * depth // 2 * PIXELS + i - dx, at + PIXELS)
                    for dx in range(columns)
                    if i - dx in range(PIXELS)
                ),
            )
            for i in range(columns + PIXELS - 1 if slides else 0)
        ),
        slid=(columns - 1) * depth // 2 * PIXELS if slides else 0,
    )


def _gathered(window: Window) -> bool:
    """Whether a row of the window must lie in one piece to be packed."""
    return window.kernel[1] > 1 and window.depth % 4 != 0


def _scratch_bytes(window: Window) -> int:
    run = window.kernel[1] * window.depth
    line = PIXELS * run if _gathered(window) else 0
    return window.kernel[0] * len(pairs_of(run)) * 4 * PIXELS + line


def _paired(weights: Array, rows: int, run: int) -> Array:
    """int64 `[o, steps, 2]`: weights w_a and w_b of each pair, an even number of outputs."""
    outputs = len(weights)
    filled = np.zeros((outputs + outputs % 2, rows, run + 1), np.int64)
    filled[:outputs, :, :run] = weights.reshape(outputs, rows, run)
    index = [(a, run if b is None else b) for a, b in pairs_of(run)]
    return filled[:, :, index].reshape(len(filled), -1, 2)


def split_pairs(halves: Array) -> tuple[Array, list[list[tuple[int, int]]]]:
    """Pairs that no inputs lead out of a half, `[o, steps, 2]`, and the repairs by output.

    A repair is the index of a pair and what its w_a lacks.
    """
    first, second = halves[..., 0], halves[..., 1]
    # The largest bracket has x_a + 129 of 256 or 1 and x_b of 127 or -128; so has the smallest.
    most = 2**15 - 1 - np.maximum(127 * second, -128 * second)
    least = -(2**15) - np.minimum(127 * second, -128 * second)
    kept = np.clip(first, -(-least // 256), most // 256)
    repairs = [
        [(int(i), int(lack[i])) for i in np.flatnonzero(lack)] for lack in np.asarray(first - kept)
    ]
    return np.stack([kept, second], axis=-1), repairs


def _stream(
    kept: Array, repairs: Sequence[Sequence[tuple[int, int]]], scaling: ShortScaling, in_words: bool
) -> Array:
    """int32: all constants of two outputs after those of the two before."""
    rows = np.zeros((2 * len(kept), scaling.rows.shape[1]), np.int64)
    rows[: len(scaling.rows)] = scaling.rows
    # Repairs have no w_b, so their first product is 0.
    starts = (kept[..., 1] < 0).sum(axis=2) - LIFT * kept[..., 0].sum(axis=2)
    parts: list[Array] = []
    for i, pair in enumerate(kept):
        mine = repairs[2 * i : 2 * i + 2]
        parts += [starts[i] - [LIFT * sum(lack for _, lack in r) for r in mine]]
        if in_words:
            parts.append((pair[..., 1] + (pair[..., 0] << 16)).T.ravel())
        else:
            low, high = pair[..., 1] + 128, pair[..., 0] + 128
            parts.append(low[0] | low[1] << 8 | high[0] << 16 | high[1] << 24)
        if any(repairs):
            for repair in mine:
                parts.append(np.asarray([len(repair)]))
                parts.append(
                    np.asarray([(at * 4 * PIXELS, lack << 16) for at, lack in repair], np.int64)
                    .reshape(-1)
                )  # fmt: skip
        parts.append(rows[2 * i : 2 * i + 2].ravel())
    return (np.concatenate(parts).astype(np.int64) & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
