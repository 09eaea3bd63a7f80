"""Pad: a constant border around a tensor of any rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.lower.kernel import (
    STORED_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Refusal,
    Request,
)
from smelt.codegen.lower.nested_loops import (
    ALL_NAMES,
    ArrayLoop,
    LoopsParameters,
    copy,
    in_loops,
    loops_call,
)
from smelt.codegen.text.literals import c_elements
from smelt.ir import Node, TensorType
from smelt.ops.tensor.pad import Pad


@dataclass(frozen=True)
class _Border:
    """The element that fills a border.

    Attributes:
        value: C expression of the element.
        byte: the value of each of its bytes; None if they differ or are not known.
        size: size of the element in bytes.
    """

    value: str
    byte: int | None
    size: int

    def lines(
        self, axes: list[tuple[int, int, int]], level: int = 0, *, more: bool = False
    ) -> list[str]:
        """Return C lines that write the output and advance the pointers.

        Args:
            axes: the axis at `level` and those inside it, as `_axes` returns them.
            level: number of loops around these lines.
            more: whether more is written after these lines.
        """
        (before, steps, after), *inner = axes
        lines = self._fill(before)
        lines += [f"output += {before};"] if before else []
        if inner and steps == 1:
            lines += self.lines(inner, level, more=more or after > 0)
        elif inner:
            loop = ArrayLoop(ALL_NAMES[level], steps, ())
            lines += in_loops((loop,), self.lines(inner, level + 1, more=True))
        else:
            lines.append(copy("0", "0", steps, self.size))
            lines += [f"output += {steps};"] if more or after else []
            lines += [f"input += {steps};"] if level else []
        lines += self._fill(after)
        return [*lines, f"output += {after};"] if after and more else lines

    def _fill(self, count: int) -> list[str]:
        if not count:
            return []
        if count == 1:
            return [f"output[0] = {self.value};"]
        if self.byte is not None:
            return [f"memset(output, {self.byte}, {count * self.size});"]
        return list(in_loops((ArrayLoop("f", count, ()),), (f"output[f] = {self.value};",)))


class PadKernel(Kernel[Pad]):
    """Writes the output from its first element to its last: fills and block copies."""

    op = Pad
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[Pad], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.output.type
        if op.mode != "constant":
            return Refusal(f"another kernel serves mode '{op.mode}'.")
        is_read = node.optional(1) is not None
        element = np.asarray(op.stored_value(y), y.dtype.numpy).reshape(1)
        content = element.tobytes()
        border = _Border(
            "value[0]" if is_read else c_elements(element)[0],
            content[0] if len(set(content)) == 1 and not is_read else None,
            element.itemsize,
        )
        return loops_call(
            stem="pad",
            form="c_pad",
            parameters=LoopsParameters(
                (
                    f"Pad: {x} -> {y}.",
                    f"{', '.join(map(str, op.padding))} elements of {border.value} "
                    "before and after each axis.",
                ),
                tuple(border.lines(_axes(op, x))),
            ),
            operands=(
                Input(0, "input"),
                *((Input(1, "value"),) if is_read else ()),
                Output(0, "output"),
            ),
            summary="fills and block copies in order",
        )


def _axes(op: Pad, x: TensorType) -> list[tuple[int, int, int]]:
    """Return for each axis: elements of the border before it, its size, elements after it.

    An axis without a border is merged into the axis outside it.
    """
    joined: list[tuple[int, int, int]] = []
    for size, (before, after) in zip(x.shape, op.padding, strict=True):
        if joined and not before and not after:
            joined[-1] = joined[-1][0] * size, joined[-1][1] * size, joined[-1][2] * size
        else:
            joined.append((before, size, after))
    width = 1
    axes: list[tuple[int, int, int]] = []
    for before, size, after in reversed(joined):
        axes.insert(0, (before * width, size, after * width))
        width *= before + size + after
    return [axis for axis in axes[:-1] if axis != (0, 1, 0)] + (axes[-1:] or [(0, 1, 0)])


KERNELS = (PadKernel(),)
