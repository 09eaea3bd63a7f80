"""GridSample."""

from __future__ import annotations

from math import prod

from typing_extensions import override

from smelt.codegen.kernels.base import Input, Kernel, KernelCall, Output, Refusal, Request
from smelt.codegen.kernels.c.loops import dense_strides, total
from smelt.codegen.kernels.c.store import helpers_in
from smelt.codegen.render import c_float
from smelt.ir import Node
from smelt.ops.grid_sample import TAPS, GridSample

_NAMES = ("z", "y", "x")
"""C variables of the coordinates, the innermost axis last."""


class GridSampleKernel(Kernel[GridSample]):
    """Positions and weights along each axis, then whole pixels weighted and summed."""

    op = GridSample

    @override
    def offer(self, node: Node[GridSample], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.output.type
        sizes, taps = x.shape[1:-1], TAPS[op.mode]
        rank = len(sizes)
        if rank > len(_NAMES):
            return Refusal(f"{op.name} is served for images of up to 3 axes, not {rank}.")
        names = _NAMES[-rank:]
        axes = [
            {
                "name": name,
                "lines": _coordinate(
                    op, name, a if op.coordinates == "pixels" else rank - 1 - a, size
                ),
                "position": _position(op, size),
            }
            for a, (name, size) in enumerate(zip(names, sizes, strict=True))
        ]
        strides = [size * x.shape[-1] for size in dense_strides(sizes)]
        element = [
            f"{name}_at[t{name}]" + ("" if stride == 1 else f" * {stride}")
            for name, stride in zip(names, strides, strict=True)
        ]
        cubic = "cubic_weights(" if taps == 4 else ""
        text = [line for axis in axes for line in axis["lines"]]
        return KernelCall(
            template="c/grid_sample.j2",
            stem=f"grid_sample_{op.mode}",
            parameters={
                "op": op,
                "x": x,
                "y": y,
                "axes": axes,
                "rank": rank,
                "taps": taps,
                "before": (taps - 1) // 2,
                "batch": x.shape[0],
                "image": prod(x.shape[1:]),
                "points": prod(y.shape[1:-1]),
                "channels": x.shape[-1],
                "weights": [f"{name}_weights[t{name}]" for name in names],
                "pixel": total(("input", *element)),
            },
            operands=(Input(0, "input"), Input(1, "grid"), Output(0, "output")),
            helpers=helpers_in([*text, *(str(a["position"]) for a in axes), cubic]),
            summary=f"{taps**rank} pixels a result",
        )


def _coordinate(op: GridSample, name: str, column: int, size: int) -> list[str]:
    """C lines that find where along an axis a point lies, in pixels, within what can be read."""
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
    return [f"const float {name} = within({at}, {c_float(low)}, {c_float(high)});"]


def _position(op: GridSample, size: int) -> str:
    """The C expression of the pixel that stands for position `i`; -1 where zeros lie."""
    if op.padding == "zeros":
        return f"i >= 0 && i < {size} ? i : -1"
    if op.padding == "border":
        return f"clamp(i, 0, {size - 1})"
    period, total_ = op.mirror(size)
    return f"mirrored(i, {size}, {period}, {total_})"


KERNELS = (GridSampleKernel(),)
