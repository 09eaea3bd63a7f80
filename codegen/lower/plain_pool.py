"""int8 pools on cores without the DSP extension, four channels a word, in plain C.

Sums of two channels share a word; maxima compare four bytes by carries that stay within each.
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

_WHOLE = 24
"""The shift that leaves 8 bits: nothing need be cut off."""


@lru_cache(maxsize=64)
def _quotients(p: Pooling) -> Quotients | None:
    """Of sums of numbers from 0 to 255."""
    whole = p.quotients((_WHOLE,), start=128, wraps=True)
    return whole or p.quotients(range(_WHOLE - 1, 9, -1), start=128)


_CORE = WordCore("lower/plain_pool.j2", "plain", _quotients, lambda p: 128 * max(p.kinds))


class PlainPool(Kernel[Pool2D | Reduce]):
    """Maxima and averages of four channels or more, a multiple where words must be aligned."""

    op = Pool2D | Reduce

    @override
    def offer(self, node: Node[Pool2D | Reduce], request: Request) -> KernelCall | Refusal:
        p, aligned = pooling(node), "unaligned" not in request.target.features
        if isinstance(p, Refusal):
            return p
        if p.channels < 4 or (p.channels % 4 and aligned):
            return Refusal(
                f"{node.op.name} is served in words for four channels or more, "
                "a multiple of four where words must be aligned."
            )
        return pool_words(p, request, _CORE, aligned=aligned)
