"""int8 dense layers of one row, with two outputs in one 64-bit multiply-add.

A 32-bit word holds the weights of four outputs for one input: bytes a, b, c, d from the low end.
Masks and a rotation extract two weights of different outputs at a time:

    word & 0xFF0000FF                   = a + 2^24 * d
    rotated(word, 16 bits) & 0xFF0000FF = c + 2^24 * b

The product of an input and such a pair is added to a 64-bit accumulator, which then holds two sums,
24 bits apart. The masks clear the sign bits of a and c, so these are stored as weight + 128. Their
sums therefore start at -128 times the sum of all inputs, which is computed once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from smelt.codegen.backends.c.block_sums import COPIES
from smelt.codegen.lower.image_loops import Frame
from smelt.codegen.lower.kernel import (
    BodyCost,
    Input,
    KernelCall,
    Output,
    Packed,
    Parameters,
    Request,
)
from smelt.codegen.lower.layer_sizes import LayerSizes
from smelt.codegen.lower.loop_heads import loop_head
from smelt.codegen.lower.nested_loops import braced
from smelt.codegen.lower.output_stage import OutputStage
from smelt.codegen.lower.requantization import sum_range
from smelt.codegen.lower.window import Window
from smelt.codegen.text.expressions import offset
from smelt.codegen.text.helpers import when
from smelt.ir import Array, DType, Node
from smelt.targets import Target

_LIMIT = 2**23
"""Exclusive bound of the magnitude of the lower sum of an accumulator."""


def serves_words(node: Node, target: Target) -> bool:
    """Return whether this form serves a dense layer with constant, symmetric weights."""
    if node.output.type.dtype is not DType.INT8 or "long_multiply" not in target.features:
        return False
    return fits_words(node.input(1).array)


def fits_words(weights: Array) -> bool:
    """Return whether all sums of weights `[o, k]` times int8 inputs stay within ±`_LIMIT`."""
    low, high = sum_range(np.zeros(len(weights), np.int64), weights)
    return bool((low > -_LIMIT).all() and (high < _LIMIT).all())


def four_sums(elements: str, weights: str, start: str, depth: int) -> tuple[str, ...]:
    """Return C lines that sum the products of int8 elements and the weights of four outputs.

    The lines define `total_ad` and `total_cb`, with two sums each.

    Args:
        elements: name of the pointer to the first element.
        weights: name of the pointer to the words, advanced to those of the next four outputs.
        start: name of the initial value of the lower sums: -128 times the sum of the elements.
        depth: number of elements.
    """
    unrolled = max(min(int(depth) // 2, 8), 1)
    looped = depth // unrolled * unrolled if depth > unrolled else 0
    lines = [
        f"const int8_t *x = {elements};",
        f"uint64_t total_ad = (uint64_t){start};",
        f"uint64_t total_cb = (uint64_t){start};",
    ]
    if looped:
        iteration = _unrolled_products(unrolled, weights)
        lines += [*braced("do {", iteration)[:-1], f"}} while (x != {elements} + {looped});"]
    if depth > looped:
        rest = _unrolled_products(depth - looped, weights)
        lines += braced("{", rest) if looped else rest
    return tuple(lines)


def _unrolled_products(length: int, weights: str) -> list[str]:
    """Return C lines that add the products of `length` elements to the totals, unrolled.

    The products are added to local copies of the totals: on Cortex-M4, gcc then inserts fewer moves
    between registers.
    """
    lines = [COPIES]
    lines += ["int64_t sum_ad = (int64_t)total_ad;", "int64_t sum_cb = (int64_t)total_cb;"]
    lines += ["uint32_t abcd;", "uint32_t cdab;"]
    for k in range(length):
        lines += [
            f"abcd = (uint32_t){weights}[{k}];",
            "cdab = abcd >> 16 | abcd << 16;",
            f"sum_ad += (int64_t)x[{k}] * (int32_t)(abcd & 0xFF0000FFu);",
            f"sum_cb += (int64_t)x[{k}] * (int32_t)(cdab & 0xFF0000FFu);",
        ]
    lines += [f"x += {length};", f"{weights} += {length};"]
    return [*lines, "total_ad = (uint64_t)sum_ad;", "total_cb = (uint64_t)sum_cb;"]


@dataclass(frozen=True)
class WordOutputs:
    """Outputs that are computed together: four, or the remainder.

    Attributes:
        loop: C line that opens the loop over blocks of four; empty for a single block.
        stores: C lines that store the outputs.
    """

    loop: str
    stores: tuple[str, ...]

    @staticmethod
    def of(count: int, finish: OutputStage, loop: str, first: int) -> WordOutputs:
        """Return blocks of `count` outputs; `first` is the first output of a single block."""
        sums = ("low", "ad"), ("high", "cb"), ("low", "cb"), ("high", "ad")
        outputs: list[tuple[str, list[tuple[str, str]]]] = []
        for j, (half, words) in zip(range(count), sums, strict=False):
            at = offset("o" if loop else str(first), j)
            outputs.append((at, [(f"output[{at}]", f"{half}_sum_24(total_{words})")]))
        return WordOutputs(loop, finish.stores_in_order(outputs))


@dataclass(frozen=True)
class DenseWordsParameters(Parameters):
    """Variables of `dense_words.j2`; texts are C.

    Attributes:
        title: text of the function's comment.
        depth: number of inputs.
        inputs: number of inputs that one iteration of the loop over `i` adds up.
        sums: lines that compute the sums of four outputs.
        outputs: outputs in blocks of four, then the remainder.
    """

    title: str
    depth: int
    inputs: int
    sums: tuple[str, ...]
    outputs: tuple[WordOutputs, ...]


def dense_words(
    node: Node, finish: OutputStage, weights: Array, request: Request, *, stem: str
) -> KernelCall:
    """Return the call that computes a dense layer of one row.

    Args:
        node: the dense layer; its input is one row.
        finish: output stage; its bias includes the input's zero point.
        weights: int8 `[o, k]`.
        request: its `optimize` selects unrolled or small code.
        stem: stem of the function's name.
    """
    outputs, depth = weights.shape
    small = request.optimize == "size"
    title = f"{node.op.name}: {node.input(0).type} -> {node.output.type}"
    call = KernelCall(
        template="backends/c/dense_words.j2",
        stem=stem,
        details=finish.details,
        parameters=_parameters(title, depth, outputs, finish, small=small),
        operands=(
            Input(0, "input"),
            Packed("weights", words_of(weights)),
            *finish.operands,
            Output(0, "output"),
        ),
        uses=finish.uses | {"low_sum_24"} | when(len(weights) > 1, "high_sum_24"),
        summary="two outputs in one multiply-add, 4 outputs at a time",
    )
    if not small:
        return call
    sizes = LayerSizes.of(Window.dense(1, depth, outputs), Frame.of_rows(node), finish)
    depth, outputs = sizes.window.depth, sizes.window.outputs
    parameters = _parameters(sizes.title(node), depth, outputs, sizes.finish, small=True)
    cost = BodyCost(3 * node.macs, 200 * len(parameters.outputs))
    return replace(call, shared=sizes.shared(call, parameters, cost, parameters))


def _parameters(
    title: str, depth: int, outputs: int, finish: OutputStage, *, small: bool
) -> DenseWordsParameters:
    """Return the template's variables; `small` if the code is to be small rather than fast."""
    whole, rest = outputs // 4 * 4, int(outputs) % 4
    parts = [WordOutputs.of(4, finish, loop_head("o", whole, step=4), 0)] if whole else []
    if rest:
        parts.append(WordOutputs.of(rest, finish, "", whole))
    return DenseWordsParameters(
        title=title,
        depth=depth,
        inputs=4 if depth % 4 == 0 and not small else 1,
        sums=four_sums("input", "weights", "start", depth),
        outputs=tuple(parts),
    )


def words_of(weights: Array) -> Array:
    """Return int32 words `[o / 4, k]`, each with the weights of four outputs for one input.

    The first output's weight is in the low byte. The first and third are stored as weight + 128.
    """
    outputs, depth = weights.shape
    padded = np.zeros((-(-outputs // 4) * 4, depth), np.int64)
    padded[:outputs] = weights
    padded[0::4] += 128
    padded[2::4] += 128
    low_bytes = (padded & 0xFF).reshape(-1, 4, depth)
    words = sum(low_bytes[:, i] << (8 * i) for i in range(4))
    return np.asarray(words, np.uint32).astype(np.int32)
