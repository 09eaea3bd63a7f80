"""int8 pools on Helium: 8 or 16 channels at a time; an average is one multiply-add of the sum."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.helium.assembly import AssemblyLines
from smelt.codegen.backends.helium.pool_assembly import RoundingSteps, SumNarrowing, assembly
from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Operand,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.lower.pool_loops import PoolLoops, walks, work
from smelt.codegen.lower.pool_walk import PoolWalk
from smelt.codegen.lower.pooling import Pooling, pooling
from smelt.codegen.text.literals import c_int
from smelt.ir import Node, Rounding
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.reduce import Reduce, reduce_multiplier

_SHIFTS = range(23, 9, -1)
"""Shifts to try: a first one by up to 16 narrows to halfwords, one by 8 narrows to bytes."""


@lru_cache(maxsize=64)
def _narrowing(p: Pooling) -> SumNarrowing | None:
    """Return an exact multiply-add of the sum that does not overflow 32 bits, or None."""
    for shift in _SHIFTS:
        quotients = p.quotients((shift,))
        if quotients is not None:
            found = SumNarrowing(quotients)
            low = np.asarray([-128 * taps for taps in p.kinds]) * quotients.factors
            if int((low + quotients.addends).min()) - found.rounding >= -(2**31):
                return found
    return None


def _steps(p: Pooling) -> RoundingSteps | None:
    """Return a reduction's rounding steps; None for other operators or if a step shifts left."""
    op, x, y = p.node.op, p.node.input(0).type, p.node.output.type
    if not isinstance(op, Reduce) or p.node.rounding is not Rounding.TFLM:
        return None
    multiplier, shift = reduce_multiplier(op.kind, x, y, op.count(x))
    return (
        RoundingSteps(-x.zero_point * op.count(x), multiplier, -shift, y.zero_point)
        if -32 < shift <= 0
        else None
    )


@dataclass(frozen=True)
class SumProduct:
    """An average as C: `(sum * factor + addend) >> shift`."""

    factor: str
    addend: str
    shift: int

    @staticmethod
    def of(narrowing: SumNarrowing, *, varies: bool) -> SumProduct:
        """Return the product of a narrowing; `varies`: `scale` holds the factor and addend."""
        shift, rounding = narrowing.quotients.shift, narrowing.rounding
        if varies:
            return SumProduct("scale[0]", f"(scale[1] + {rounding})", shift)
        factor, start = narrowing.table.tolist()
        return SumProduct(str(factor), c_int(start + rounding), shift)


@dataclass(frozen=True)
class HeliumPoolFunction:
    """A function that pools neighboring windows.

    Attributes:
        name: suffix of its name, "run" or "edge".
        parameters: parameters of the C function.
        body: the assembly.
        rows, columns: C texts: rows and columns of a window.
    """

    name: str
    parameters: tuple[str, ...]
    body: AssemblyLines
    rows: str
    columns: str

    @staticmethod
    def of(
        name: str,
        loops: PoolLoops,
        p: Pooling,
        scaling: SumNarrowing | RoundingSteps | None,
        lanes: int,
    ) -> HeliumPoolFunction:
        """Return the function with these loops over the taps of a window."""
        return HeliumPoolFunction(
            name,
            loops.parameters(varies=p.varies),
            assembly(p, loops, scaling, lanes).body,
            "rows" if loops.rows is None else str(loops.rows),
            "columns" if loops.columns is None else str(loops.columns),
        )


@dataclass(frozen=True)
class HeliumPoolParameters(Parameters):
    """Variables of `backends/helium/pool.j2`.

    Attributes:
        walk: the loops over windows.
        notes: further lines of the function's comment.
        functions: the functions that the loops call.
        is_max: whether this is a maximum pool.
        channels: channels of a pixel.
        row: elements of a row of the image.
        step: elements from one window to the next in a row.
        product: an average as one product of the sum, or None.
        steps: an average by gemmlowp's steps, or None.
        low, high: smallest and largest output.
    """

    walk: PoolWalk
    notes: tuple[str, ...]
    functions: tuple[HeliumPoolFunction, ...]
    is_max: bool
    channels: int
    row: int
    step: int
    product: SumProduct | None
    steps: RoundingSteps | None
    low: int
    high: int


class HeliumPool(Kernel[Pool2D | Reduce]):
    """Maximum and average pools, and reductions, over windows without dilation."""

    op = Pool2D | Reduce

    @override
    def offer(self, node: Node[Pool2D | Reduce], request: Request) -> KernelCall | Refusal:
        p = pooling(node)
        if isinstance(p, Refusal):
            return p
        narrowing = None if p.is_max else _narrowing(p)
        steps = None if p.is_max or narrowing is not None else _steps(p)
        if not p.is_max and narrowing is None and steps is None:
            return Refusal(f"{node.op.name}: no multiply-add of the sum gives the exact results.")
        operands: list[Operand] = [Input(0, "input")]
        if narrowing is not None and p.varies:
            operands.append(Packed("scales", narrowing.table))
        product = None if narrowing is None else SumProduct.of(narrowing, varies=p.varies)
        lanes, found = _lanes(p), walks(p, request.optimize)
        return KernelCall(
            template="backends/helium/pool.j2",
            stem=p.stem,
            parameters=HeliumPoolParameters(
                walk=PoolWalk.of(p),
                notes=_notes(lanes, product),
                functions=tuple(
                    HeliumPoolFunction.of(name, loops, p, steps or narrowing, lanes)
                    for name, loops in found.items()
                ),
                is_max=p.is_max,
                channels=p.channels,
                row=p.row,
                step=p.columns.stride * p.channels,
                product=product,
                steps=steps,
                low=p.limits[0],
                high=p.limits[1],
            ),
            operands=(*operands, Output(0, "output")),
            summary=f"{lanes} channels at a time",
            form=f"helium_{'max' if p.is_max else 'average'}_pool{'_steps' if steps else ''}",
            work=work(p, found, lanes, 16 if p.is_max else 8),
            uses=frozenset({"SMELT_NAKED"}),
        )


def _notes(lanes: int, product: SumProduct | None) -> tuple[str, ...]:
    note = f"{lanes} channels at a time."
    if product is None:
        return (note,)
    return note, (
        f"Results: (sum * {product.factor} + {product.addend}) >> {product.shift}, "
        "proved equal to the rounded quotient for every sum."
    )


def _lanes(p: Pooling) -> int:
    """Return the channels of a group.

    Sums of 16 channels take five instructions per pixel, sums of 8 channels take three.
    """
    if p.is_max:
        return 16
    groups_of_16, groups_of_8 = -(-p.channels // 16), -(-p.channels // 8)
    return 16 if p.channels >= 16 and 5 * groups_of_16 <= 3 * groups_of_8 else 8


KERNELS = (HeliumPool(),)
