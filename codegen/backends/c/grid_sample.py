"""Images sampled at the points of a grid (GridSample)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from typing_extensions import override

from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Output,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.lower.nested_loops import dense_strides, total
from smelt.codegen.text.expressions import times
from smelt.codegen.text.helpers import uses_in, when
from smelt.codegen.text.literals import c_float
from smelt.ir import Node
from smelt.ops.tensor.grid_sample import TAPS, GridSample

_NAMES = ("z", "y", "x")
"""C variables of the coordinates, innermost axis last."""


@dataclass(frozen=True)
class SampledAxis:
    """An axis of an image.

    Attributes:
        name: C variable of a point's coordinate along the axis.
        indent: spaces by which the loop over taps is indented more than that of the first axis.
        coordinate: C line that defines that variable.
        position: C expression of the pixel to read, from a position that can be outside: that of
            tap `i`, or the rounded coordinate if there is one tap.
    """

    name: str
    indent: str
    coordinate: str
    position: str


@dataclass(frozen=True)
class GridSampleParameters(Parameters):
    """Variables of `grid_sample.j2`.

    Attributes:
        comment: lines of the function's comment.
        images: condition and increments of the C loop over images; empty for a single image.
        points: points of a grid.
        rank: coordinates of a point.
        channels: channels of a pixel.
        bytes: size of a pixel in bytes.
        axes: axes of an image, outermost first.
        indent: spaces by which the body of the loops over all axes is indented more than the first
            loop.
        taps: pixels along an axis that contribute to a result.
        before: how many of these come before the pixel at or just below the point.
        skips: whether pixels outside of the image are skipped, since they count as zeros.
        outside: C condition that the pixel is outside of the image, if there is one tap.
        pixel: C expression of the address of a tap's pixel.
        weight: C expression of a tap's weight, if there are several.
    """

    comment: tuple[str, ...]
    images: str
    points: int
    rank: int
    channels: int
    bytes: int
    axes: tuple[SampledAxis, ...]
    indent: str
    taps: int
    before: int
    skips: bool
    outside: str
    pixel: str
    weight: str


class GridSampleKernel(Kernel[GridSample]):
    """For each point, positions and weights along each axis, then a weighted sum of pixels."""

    op = GridSample

    @override
    def offer(self, node: Node[GridSample], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.output.type
        sizes, taps = x.shape[1:-1], TAPS[op.mode]
        rank = len(sizes)
        if rank > len(_NAMES):
            return Refusal(f"{op.name} supports images of at most 3 axes, not {rank}.")
        names = _NAMES[-rank:]
        columns = range(rank) if op.coordinates == "pixels" else reversed(range(rank))
        axes = tuple(
            SampledAxis(
                name,
                "    " * a,
                _coordinate(op, name, column, size),
                _position(op, size, f"{name}_rounded" if taps == 1 else "i"),
            )
            for a, (name, column, size) in enumerate(zip(names, columns, sizes, strict=True))
        )
        strides = [size * x.shape[-1] for size in dense_strides(sizes)]
        element = [
            times(f"{name}_at" if taps == 1 else f"{name}_at[t{name}]", stride)
            for name, stride in zip(names, strides, strict=True)
        ]
        text = [line for axis in axes for line in (axis.coordinate, axis.position)]
        return KernelCall(
            template="backends/c/grid_sample.j2",
            stem=f"grid_sample_{op.mode}",
            parameters=GridSampleParameters(
                comment=(
                    f"{x} sampled at the points of a grid: {y}, {op.mode} interpolation.",
                    f"Outside of the image: {op.padding}. Coordinates: {op.coordinates}.",
                ),
                images=f"n < {x.shape[0]}; ++n, input += {prod(x.shape[1:])}"
                if x.shape[0] > 1
                else "",
                points=prod(y.shape[1:-1]),
                rank=rank,
                channels=x.shape[-1],
                bytes=x.shape[-1] * x.dtype.size,
                axes=axes,
                indent="    " * rank,
                taps=taps,
                before=(taps - 1) // 2,
                skips=op.padding == "zeros",
                outside=" || ".join(f"{name}_at < 0" for name in names),
                pixel=total(("input", *element)),
                weight=" * ".join(f"{name}_weights[t{name}]" for name in names),
            ),
            operands=(Input(0, "input"), Input(1, "grid"), Output(0, "output")),
            uses=uses_in(text)
            | {"math.h", "string.h"}
            | when(taps > 1, "SMELT_ARRAY")
            | when(taps == 4, "cubic_weights"),
            summary=f"{taps**rank} pixels per result",
        )


def _coordinate(op: GridSample, name: str, column: int, size: int) -> str:
    """Return the C line that defines a point's coordinate along an axis, in pixels.

    It is clamped to limits beyond which results do not change.
    """
    at = f"grid[{column}]"
    match op.coordinates:
        case "corners":
            at = f"(({at} + 1.0f) / 2.0f) * {c_float(size - 1)}"
        case "edges":
            at = f"(({at} + 1.0f) * {c_float(size)} - 1.0f) / 2.0f"
        case _:
            pass
    if op.mode == "nearest":
        at = f"rintf({at})"
    low, high = op.limits(size)
    if op.padding == "reflection" and high > low:
        at = f"reflected({at}, {c_float(low)}, {c_float(high)})"
    return f"const float {name} = within({at}, {c_float(low)}, {c_float(high)});"


def _position(op: GridSample, size: int, i: str) -> str:
    """Return the C expression of the pixel to read for position `i`; it is -1 for zeros outside."""
    if op.padding == "zeros":
        return f"{i} >= 0 && {i} < {size} ? {i} : -1"
    if op.padding == "border":
        return f"clamp({i}, 0, {size - 1})"
    period, total_ = op.mirror(size)
    return f"mirrored({i}, {size}, {period}, {total_})"


KERNELS = (GridSampleKernel(),)
