"""Resample: copies or weighted sums along one axis."""

from __future__ import annotations

from math import prod

import numpy as np
from typing_extensions import override

from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Operand,
    Output,
    Packed,
    Refusal,
    Request,
)
from smelt.codegen.lower.loop_heads import looped
from smelt.codegen.lower.nested_loops import (
    LoopsParameters,
    copy,
    loops_call,
    nested,
)
from smelt.codegen.text.expressions import offset, times
from smelt.codegen.text.literals import c_elements
from smelt.ir import Array, Node
from smelt.ops.tensor.resample import Resample


class ResampleKernel(Kernel[Resample]):
    """Copies or sums contiguous rows: all elements along the axes after the resampled one."""

    op = Resample

    @override
    def offer(self, node: Node[Resample], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.output.type
        if not all(v.is_constant for v in node.inputs[1:] if v is not None):
            return Refusal(f"{op.name} is served for constant positions and weights only.")
        positions, weights = node.input(1).array, node.optional(2)
        taps, width = positions.shape[1], prod(x.shape[op.axis + 1 :])
        outer, step = prod(x.shape[: op.axis]), prod(x.shape[op.axis :])
        heads = [f"for (int32_t o = 0; o < {y.shape[op.axis]}; ++o, output += {width}) {{"]
        if outer > 1:
            heads.insert(0, f"for (int32_t n = 0; n < {outer}; ++n, input += {step}) {{")
        tables: list[Operand] = [Packed("positions", _small(positions))]
        if weights is None:
            how, absent = "a copy", "where there is no element"
            lines = [copy("0", times("positions[o]", width), width, x.dtype.size)]
        else:
            how = f"a weighted sum of {taps} element{'s' if taps > 1 else ''}"
            absent, lines = "where there are none", _weighted(taps, width)
            tables.append(Packed("weights", weights.array))
        if (positions[:, 0] < 0).any():
            (fill,) = c_elements(np.full(1, op.fill, x.dtype.numpy))
            how += f", or {fill} {absent}"
            lines = [*_filled(fill, _at(taps, 0), width), *lines]
        return loops_call(
            stem="resample",
            form="c_resample",
            parameters=LoopsParameters(
                (
                    f"Resizes axis {op.axis}: {x} -> {y}.",
                    f"Each result is {how}.",
                ),
                nested(heads, (*(() for _ in heads), lines)),
            ),
            operands=(Input(0, "input"), *tables, Output(0, "output")),
            summary=f"{width} elements at a time, each from {taps} input{'s' if taps > 1 else ''}",
        )


def _at(taps: int, tap: int) -> str:
    """Return the C index of a tap of output `o` in the tables."""
    return offset(times("o", taps), tap)


def _filled(fill: str, position: str, width: int) -> tuple[str, ...]:
    """Return C lines that fill a result without inputs, and continue with the next one."""
    lines = looped("i", width, lambda i: [f"output[{i}] = {fill};"])
    return nested((f"if (positions[{position}] < 0) {{",), ((), (*lines, "continue;")))


def _weighted(taps: int, width: int) -> list[str]:
    """Return C lines that compute a result as a weighted sum."""
    columns = range(taps)
    sources = [times(f"positions[{_at(taps, t)}]", width) for t in columns]

    def total(i: str) -> str:
        return " + ".join(f"w{t} * x{t}[{i}]" for t in columns)

    return [
        *(f"const float *x{t} = input + {source};" for t, source in enumerate(sources)),
        *(f"const float w{t} = weights[{_at(taps, t)}];" for t in columns),
        *looped("i", width, lambda i: [f"output[{i}] = {total(i)};"]),
    ]


def _small(positions: Array) -> Array:
    """Return positions in the smallest element type that can hold them."""
    for kind in (np.uint8, np.int16):
        if np.array_equal(positions.astype(kind), positions):
            return positions.astype(kind)
    return positions


KERNELS = (ResampleKernel(),)
