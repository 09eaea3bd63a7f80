"""int8 pools on cores without the DSP extension: four channels per word, in plain C.

Sums of two channels share a word. Maxima compare four bytes at once; carries stay within each byte.
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
"""The shift that leaves exactly the upper 8 bits of a word, so that no masking is needed."""


@lru_cache(maxsize=64)
def _quotients(p: Pooling) -> Quotients | None:
    """Return the quotients for sums of numbers from 0 to 255."""
    whole = p.quotients((_WHOLE,), start=128, wraps=True)
    return whole or p.quotients(range(_WHOLE - 1, 9, -1), start=128)


_CORE = WordCore("lower/plain_pool.j2", "plain", _quotients, lambda p: 128 * max(p.kinds))


class PlainPool(Kernel[Pool2D | Reduce]):
    """Maxima and averages of four or more channels; a multiple of four if words must be aligned."""

    op = Pool2D | Reduce

    @override
    def offer(self, node: Node[Pool2D | Reduce], request: Request) -> KernelCall | Refusal:
        p, aligned = pooling(node), "unaligned" not in request.target.features
        if isinstance(p, Refusal):
            return p
        if p.channels < 4 or (p.channels % 4 and aligned):
            return Refusal(
                f"{node.op.name} in words supports four channels or more, "
                "a multiple of four where words must be aligned."
            )
        return pool_words(p, request, _CORE, aligned=aligned)
