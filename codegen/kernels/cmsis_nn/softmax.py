"""Softmax."""

from __future__ import annotations

from smelt.codegen.kernels.base import Input, Kernel, KernelCall, Output, Request
from smelt.codegen.kernels.cmsis_nn.calls import call, refuse_data
from smelt.ir import Node
from smelt.ops.softmax import Softmax, difference_scaling
from smelt.targets import Target

_LONGEST_ROW = 255
"""Elements of a row whose exponentials surely sum to so little that the quotient's shift is 30."""

_LEFTMOST = 30


class SoftmaxKernel(Kernel):
    """Exponentials by gemmlowp's fixed-point arithmetic, twice for each element."""

    op = Softmax

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        op, x, what = node.op, node.input(0).type, "arm_softmax_s8"
        reason = refuse_data(node, what)
        if reason is not None or not isinstance(op, Softmax):
            return reason
        if x.shape[-1] > _LONGEST_ROW:
            return (
                f"{what} is exact for rows of at most {_LONGEST_ROW} elements, not {x.shape[-1]}: "
                "then it may shift by 31 and more."
            )
        if not 0 <= difference_scaling(x.scale, op.beta).shift <= _LEFTMOST:
            return f"{what} has no multiplier for the input scale {x.scale}."
        return None

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        op, x = node.op, node.input(0).type
        if not isinstance(op, Softmax):
            raise TypeError(f"{op.name} is no Softmax")
        scaling = difference_scaling(x.scale, op.beta)
        numbers = (x.size // x.shape[-1], x.shape[-1], scaling.multiplier, scaling.shift)
        return call(
            "arm_softmax_s8",
            f"Softmax of {x.shape[-1]} elements",
            arguments=("input", *map(str, numbers), str(scaling.lowest), "output"),
            operands=(Input(0, "input"), Output(0, "output")),
            form="softmax",
            stem="softmax",
            work={"outputs": x.size},
        )


KERNELS = (SoftmaxKernel(),)
