"""int8 sums and differences of two tensors, on cores with the DSP extension.

SMLAWB and SMLAWT multiply 16 by 32 bits and drop the lowest 16 bits of each product. The results
are checked for all pairs of inputs with these bits dropped (see `additions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.dsp.assembly import repeated
from smelt.codegen.backends.dsp.scaling import saturated
from smelt.codegen.lower.additions import addition, one_element, refuse_addition
from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.text.helpers import when
from smelt.ir import Array, Node
from smelt.ops.core.binary import Binary

_SHIFTS = (22, 21, 20, 19, 18)
"""Right shifts of the sums, in the order in which they are tried."""

_STEPS = sorted(product(range(-2, 3), repeat=2), key=lambda step: abs(step[0]) + abs(step[1]))
"""Differences from the nearest two factors, in the order in which they are tried."""

_UNROLLED = {"speed": 4, "size": 1, "ram": 4}
"""Words of four outputs in one iteration of the loop."""


@dataclass(frozen=True)
class SumScaling:
    """An addition as two products, a sum and a shift.

    The output is limited to `low` ... `high`:

        ((256 * a * factors[0] >> 16) + (256 * b * factors[1] >> 16) + addend) >> right
    """

    factors: tuple[int, int]
    addend: int
    right: int
    low: int
    high: int

    def constants(self, count: int, unrolled: int) -> Array:
        """Return int32 `[5]`: the factors, the addend, the iterations of the loop, and `count`.

        Args:
            count: Outputs of the layer.
            unrolled: Words of four outputs in an iteration.
        """
        numbers = *self.factors, self.addend, count // 4 // unrolled, count
        return np.array(numbers, np.int64).astype(np.int32)

    def lines(self, words: int, unrolled: int) -> list[str]:
        """Return instructions that compute `words` words of four outputs.

        r0, r1: inputs; r2: constants; r3: outputs. Then r2, r4: factors; r5: addend; r6: mask; lr:
        iterations.
        """
        iterations, rest = divmod(words, unrolled)
        lines = ["push {r4-r11, lr}", "ldm r2, {r2, r4, r5, lr}", f"mov r6, #{_MASK}"]
        lines += repeated(rest, self._four())
        if iterations:
            lines += ["1:", *repeated(unrolled, self._four()), "subs lr, lr, #1", "bne 1b"]
        return [*lines, "pop {r4-r11, pc}"]

    def _four(self) -> list[str]:
        """Return the instructions for four outputs.

        Each input is masked into the upper byte of a halfword, which is 256 times its value.
        """
        lines = ["ldr r8, [r0], #4", "ldr r9, [r1], #4", "and r10, r6, r8", "and r11, r6, r9"]
        lines += ["and r8, r6, r8, lsl #8", "and r9, r6, r9, lsl #8"]
        sources = ("b", "r8", "r9"), ("b", "r10", "r11"), ("t", "r8", "r9"), ("t", "r10", "r11")
        for i, (half, a, b) in enumerate(sources):
            total = "r7" if i else "r12"
            lines += [f"smlaw{half} {total}, r2, {a}, r5", f"smlaw{half} {total}, r4, {b}, {total}"]
            lines += saturated(total, self.right, self.low, self.high)
            lines += [f"bfi r12, r7, #{8 * i}, #8"] if i else []
        return [*lines, "str r12, [r3], #4"]


_MASK = "0xff00ff00"
"""The upper bytes of both halfwords."""


@dataclass(frozen=True)
class DspAddParameters(Parameters):
    """Variables of `backends/dsp/add.j2`; layers that differ in other numbers share the function.

    Attributes:
        title: What the function computes, for the comment.
        right: Shift of the sums.
        low: Smallest output.
        high: Largest output.
        tail: Some outputs remain after the words of four.
        lines: Instructions for the words of four; empty if there are none.
    """

    title: str
    right: int
    low: int
    high: int
    tail: bool
    lines: tuple[str, ...]


@lru_cache(maxsize=128)
def sum_scaling(node: Node[Binary]) -> SumScaling | None:
    """Return a scaling that is exact for every pair of inputs; None if none is found."""
    pairs = addition(node)
    wanted, (low, high) = pairs.outputs, pairs.limits
    for right in _SHIFTS:
        nearest = [round(scale * 2.0 ** (8 + right)) for scale in pairs.slopes]
        for steps in _STEPS:
            factors = nearest[0] + steps[0], nearest[1] + steps[1]
            if max(map(abs, factors)) >= 2**31:
                break
            sums = (pairs.a * 256 * factors[0] >> 16) + (pairs.b * 256 * factors[1] >> 16)
            least = ((wanted << right) - sums)[wanted > low].max(initial=-(2**40))
            most = (((wanted + 1) << right) - 1 - sums)[wanted < high].min(initial=2**40)
            addend = int(np.clip(0, least, most))
            if abs(least) < 2**32 and abs(most) < 2**32:
                addend = int(least + most) >> 1
            fits = max(abs(int(sums.min()) + addend), abs(int(sums.max()) + addend)) < 2**31
            if least <= most and fits and abs(addend) < 2**30:
                return SumScaling(factors, addend, right, low, high)
    return None


class DspAdd(Kernel[Binary]):
    """Sums and differences of tensors of equal shapes, four elements at a time."""

    op = Binary

    @override
    def offer(self, node: Node[Binary], request: Request) -> KernelCall | Refusal:
        if refusal := refuse_addition(node):
            return refusal
        op, y = node.op, node.output.type
        scaling = sum_scaling(one_element(node))
        if scaling is None:
            return Refusal(f"{op.name} has scales for which two products are never exact.")
        words, unrolled = y.size // 4, _UNROLLED[request.optimize]
        return KernelCall(
            template="backends/dsp/add.j2",
            stem=op.kind,
            details={"right": f"right{scaling.right}"},
            parameters=DspAddParameters(
                title=f"{op.name} of int8 tensors.",
                right=scaling.right,
                low=scaling.low,
                high=scaling.high,
                tail=y.size % 4 > 0,
                lines=tuple(scaling.lines(words, unrolled)) if words else (),
            ),
            operands=(
                Input(0, "a"),
                Input(1, "b"),
                Packed("constants", scaling.constants(y.size, unrolled)),
                Output(0, "output"),
            ),
            in_place=((0, 0), (0, 1)),
            summary="two products per output, four outputs at a time",
            form="dsp_add",
            work={"outputs": y.size, "calls": 1},
            uses=when(words, "SMELT_DSP"),
        )


KERNELS = (DspAdd(),)
