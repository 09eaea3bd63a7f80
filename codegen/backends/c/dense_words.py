"""int8 dense layers of one row, with two outputs in one 64-bit multiply-add.

As in `depthwise_pairs`, with the roles exchanged: here it is two weights of different outputs that
share a word. They are masked out of four packed ones, so that nothing is unpacked byte by byte. A
lower weight has no sign bits in the mask's gap, so it is stored 128 up; the sum of the inputs,
taken once, corrects that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.codegen.lower.kernel import Input, KernelCall, Output, Packed, Parameters
from smelt.codegen.lower.output_stage import OutputStage
from smelt.codegen.lower.requantization import sum_range
from smelt.codegen.text.helpers import when
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


def four_sums(elements: str, weights: str, start: str, depth: int) -> tuple[str, ...]:
    """C lines that multiply int8 elements by the weights of four outputs, and sum up.

    Args:
        elements: name of the pointer to the first of them.
        weights: name of the pointer to words; it moves on to the next four outputs.
        start: name of what 128 in every other weight will add to the sums, negated.
        depth: how many elements there are.
    """
    unrolled = max(min(depth // 2, 8), 1)
    looped = depth - depth % unrolled if depth > unrolled else 0
    lines = [
        f"const int8_t *x = {elements};",
        f"uint64_t total_ad = (uint64_t){start};",
        f"uint64_t total_cb = (uint64_t){start};",
    ]
    if looped:
        turn = _stretch(unrolled, weights)
        lines += ["do {", *turn, f"}} while (x != {elements} + {looped});"]
    if depth > looped:
        lines += ["{", *_stretch(depth - looped, weights), "}"]
    return tuple(lines)


def _stretch(length: int, weights: str) -> list[str]:
    """C lines that add so many products to the totals; copies keep gcc from moving registers."""
    lines = ["int64_t sum_ad = (int64_t)total_ad;", "int64_t sum_cb = (int64_t)total_cb;"]
    for k in range(length):
        lines += [
            "{",
            f"    const uint32_t abcd = (uint32_t){weights}[{k}];",
            "    const uint32_t cdab = abcd >> 16 | abcd << 16;",
            f"    sum_ad += (int64_t)x[{k}] * (int32_t)(abcd & 0xFF0000FFu);",
            f"    sum_cb += (int64_t)x[{k}] * (int32_t)(cdab & 0xFF0000FFu);",
            "}",
        ]
    lines += [f"x += {length};", f"{weights} += {length};"]
    lines += ["total_ad = (uint64_t)sum_ad;", "total_cb = (uint64_t)sum_cb;"]
    return [f"    {line}" for line in lines]


@dataclass(frozen=True)
class WordOutputs:
    """Up to four outputs, of which C statements store each.

    `loop` opens the loop over them; it is empty for those at the end, the first of which is
    `first`.
    """

    loop: str
    first: int
    stores: tuple[tuple[str, ...], ...]

    @staticmethod
    def of(count: int, finish: OutputStage, loop: str, first: int) -> WordOutputs:
        """So many outputs."""
        sums = ("lower", "ad"), ("upper", "cb"), ("lower", "cb"), ("upper", "ad")
        at = ["o", *(f"o + {j}" for j in range(1, count))]
        return WordOutputs(
            loop,
            first,
            tuple(
                finish.stores(channel, (f"output[{channel}]", f"{half}_sum(total_{words})"))
                for channel, (half, words) in zip(at, sums, strict=False)
            ),
        )


@dataclass(frozen=True)
class DenseWordsParameters(Parameters):
    """Variables of `dense_words.j2`; texts are C.

    Attributes:
        title: for the function's comment.
        depth: inputs.
        inputs: indices of those that are added in a turn of the loop over inputs from `i` on.
        sums: lines that sum up the products of four outputs.
        outputs: four at a time, and those at the end.
    """

    title: str
    depth: int
    inputs: tuple[str, ...]
    sums: tuple[str, ...]
    outputs: tuple[WordOutputs, ...]


def dense_words(node: Node, finish: OutputStage, weights: Array, *, stem: str) -> KernelCall:
    """The call that computes one row of a dense layer.

    Args:
        node: what is computed; its input is one row.
        finish: what follows each sum; its bias holds the input's zero point.
        weights: int8 `[o, k]`.
        stem: of the function's name.
    """
    outputs, depth = weights.shape
    rest = outputs % 4
    whole = outputs - rest
    head = f"for (int32_t o = 0; o < {whole}; o += 4) {{"
    parts = [WordOutputs.of(4, finish, head, 0)] if whole else []
    if rest:
        parts.append(WordOutputs.of(rest, finish, "", whole))
    parameters = DenseWordsParameters(
        title=f"{node.op.name}: {node.input(0).type} -> {node.output.type}",
        depth=depth,
        inputs=("i", "i + 1", "i + 2", "i + 3") if depth % 4 == 0 else ("i",),
        sums=four_sums("input", "weights", "start", depth),
        outputs=tuple(parts),
    )
    return KernelCall(
        template="backends/c/dense_words.j2",
        stem=stem,
        parameters=parameters,
        operands=(
            Input(0, "input"),
            Packed("weights", words_of(weights)),
            *finish.operands,
            Output(0, "output"),
        ),
        uses=finish.uses | {"lower_sum"} | when(len(weights) > 1, "upper_sum"),
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
