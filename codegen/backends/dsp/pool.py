"""int8 pools on cores with the DSP extension.

Maxima compare four bytes at once (SSUB8, SEL). The sums of four channels are the halfwords of two
words (SXTAB16). One multiplication of 32 by 16 bits (SMLAWB) turns a sum into an average.
"""

from __future__ import annotations

from functools import lru_cache

from typing_extensions import override

from smelt.codegen.lower.exact_division import Quotients
from smelt.codegen.lower.kernel import Kernel, KernelCall, Refusal, Request
from smelt.codegen.lower.pool_words import WordCore, pool_words
from smelt.codegen.lower.pooling import Pooling, pooling
from smelt.ir import Node
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.reduce import Reduce

_SHIFTS = 32, 30, 29
"""Right shifts of the products, tried in order. With 32, results are in upper halfwords. The other
two also serve windows of one pixel."""

_HALF = 0x8000
"""Number by which 16-bit sums are increased, so that they are not negative."""


@lru_cache(maxsize=64)
def _quotients(p: Pooling) -> Quotients | None:
    return p.quotients(_SHIFTS, unit=1 << 16)


_CORE = WordCore(
    "backends/dsp/pool.j2", "dsp", _quotients, lambda _: _HALF, frozenset({"SMELT_DSP"})
)


class DspPool(Kernel[Pool2D | Reduce]):
    """Maxima and averages of four channels or more."""

    op = Pool2D | Reduce

    @override
    def offer(self, node: Node[Pool2D | Reduce], request: Request) -> KernelCall | Refusal:
        p = pooling(node)
        if isinstance(p, Refusal):
            return p
        if p.channels < 4:
            return Refusal(f"{node.op.name} in words needs at least four channels.")
        return pool_words(p, request, _CORE)


KERNELS = (DspPool(),)
