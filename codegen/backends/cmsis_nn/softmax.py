"""Softmax."""

from __future__ import annotations

from typing_extensions import override

from smelt.codegen.backends.cmsis_nn.calls import call, refuse_data
from smelt.codegen.lower.kernel import Input, Kernel, KernelCall, Output, Refusal, Request
from smelt.ir import Node
from smelt.ops.core.softmax import Softmax, difference_scaling

_LONGEST_ROW = 255
"""Longest row for which the sum of exponentials is always so small that the shift is at most 30."""

_LARGEST_SHIFT = 30


class CmsisSoftmaxKernel(Kernel[Softmax]):
    """Softmax; the library computes each exponential twice, in gemmlowp's fixed-point numbers."""

    op = Softmax

    @override
    def offer(self, node: Node[Softmax], request: Request) -> KernelCall | Refusal:
        op, x, what = node.op, node.input(0).type, "arm_softmax_s8"
        if refusal := refuse_data(node, what):
            return refusal
        if x.shape[-1] > _LONGEST_ROW:
            return Refusal(
                f"{what} is exact for rows of at most {_LONGEST_ROW} elements, not {x.shape[-1]}: "
                "for longer ones, it may shift by 31 or more."
            )
        scaling = difference_scaling(x.scale, op.beta)
        if not 0 <= scaling.shift <= _LARGEST_SHIFT:
            return Refusal(f"{what} has no multiplier for the input scale {x.scale}.")
        numbers = (x.size // x.shape[-1], x.shape[-1], scaling.multiplier, scaling.shift)
        return call(
            what,
            f"Softmax of {x.shape[-1]} elements",
            arguments=("input", *map(str, numbers), str(scaling.lowest), "output"),
            operands=(Input(0, "input"), Output(0, "output")),
            form="softmax",
            stem="softmax",
            work={"outputs": x.size},
        )


KERNELS = (CmsisSoftmaxKernel(),)
