"""int8 pools on Helium: sixteen channels at a time, averages by one multiply-add of the sum."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from typing_extensions import override

from smelt.codegen.kernels.base import (
    Input,
    KernelCall,
    Operand,
    Output,
    Packed,
    Refusal,
    Request,
)
from smelt.codegen.kernels.cortexm.cores import HeliumKernel
from smelt.codegen.kernels.cortexm.mve_pool_assembly import RoundingSteps, SumNarrowing, assembly
from smelt.codegen.kernels.cortexm.pool_loops import walks, work
from smelt.codegen.kernels.cortexm.pooling import Pooling, pooling
from smelt.ir import Node, Rounding
from smelt.ops.pool import Pool2D
from smelt.ops.reduce import Reduce, reduce_multiplier

_SHIFTS = range(23, 9, -1)
"""A shift by up to 16 that narrows to halfwords, then one by 8 that narrows to bytes."""


@lru_cache(maxsize=64)
def _narrowing(p: Pooling) -> SumNarrowing | None:
    for shift in _SHIFTS:
        quotients = p.quotients((shift,))
        if quotients is not None:
            found = SumNarrowing(quotients)
            low = np.asarray([-128 * taps for taps in p.kinds]) * quotients.factors
            if int((low + quotients.addends).min()) - found.rounding >= -(2**31):
                return found
    return None


def _steps(p: Pooling) -> RoundingSteps | None:
    """The steps of a reduction, where none of them shifts left."""
    op, x, y = p.node.op, p.node.input(0).type, p.node.output.type
    if not isinstance(op, Reduce) or p.node.rounding is not Rounding.TFLM:
        return None
    multiplier, shift = reduce_multiplier(op.kind, x, y, op.count(x))
    return (
        RoundingSteps(-x.zero_point * op.count(x), multiplier, -shift, y.zero_point)
        if -32 < shift <= 0
        else None
    )


class MvePool(HeliumKernel[Pool2D | Reduce]):
    """Maxima and averages of windows without gaps."""

    op = Pool2D | Reduce

    @override
    def offer(self, node: Node[Pool2D | Reduce], request: Request) -> KernelCall | Refusal:
        p = pooling(node)
        if isinstance(p, str):
            return Refusal(p)
        narrowing = None if p.largest else _narrowing(p)
        steps = None if p.largest or narrowing is not None else _steps(p)
        if not p.largest and narrowing is None and steps is None:
            return Refusal(f"{node.op.name} is not one exact multiply-add of the sum.")
        operands: list[Operand] = [Input(0, "input")]
        if narrowing is not None and p.varies:
            operands.append(Packed("scales", narrowing.table))
        lanes, found = _lanes(p), walks(p, request.optimize)
        return KernelCall(
            template="cortexm/mve_pool.j2",
            stem=p.stem,
            parameters={
                "p": p,
                "narrowing": narrowing,
                "steps": steps,
                "scale": [] if narrowing is None else narrowing.table.tolist(),
                "functions": [
                    (name, w, assembly(p, w, steps or narrowing, lanes).body)
                    for name, w in found.items()
                ],
                "notes": _notes(lanes, narrowing),
            },
            operands=(*operands, Output(0, "output")),
            summary=f"{lanes} channels at a time",
            form="mve_max_pool" if p.largest else "mve_average_pool" + ("_steps" if steps else ""),
            work=work(p, found, lanes, 16 if p.largest else 8),
        )


def _notes(lanes: int, narrowing: SumNarrowing | None) -> list[str]:
    notes = [f"{lanes} channels at a time."]
    if narrowing is not None:
        shift = narrowing.quotients.shift
        notes.append(
            f"Results: (sum * factor + start + {narrowing.rounding}) >> {shift}, proved equal to "
            "the rounded quotient for every sum."
        )
    return notes


def _lanes(p: Pooling) -> int:
    """Channels of a group: sums of sixteen take five instructions a pixel, those of eight three."""
    if p.largest:
        return 16
    sixteen, eight = -(-p.channels // 16), -(-p.channels // 8)
    return 16 if p.channels >= 16 and 5 * sixteen <= 3 * eight else 8


KERNELS = (MvePool(),)
