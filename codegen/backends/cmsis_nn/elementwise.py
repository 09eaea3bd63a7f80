"""Binary (sums and products), and Unary, for which the library has no exact int8 function."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.cmsis_nn.calls import (
    LibraryScaling,
    call,
    refuse_data,
    refuse_sums,
)
from smelt.codegen.lower.kernel import Input, Kernel, KernelCall, Output, Refusal, Request
from smelt.ir import Node
from smelt.ops.arithmetic.fixed_point import clamp_limits
from smelt.ops.core.binary import Binary
from smelt.ops.core.binary_integer import Multiplier, add_scaling, mul_scaling
from smelt.ops.core.unary import Unary

_FUNCTIONS = {"add": "arm_elementwise_add_s8", "mul": "arm_elementwise_mul_s8"}
_CLAMPS = {
    "relu": "arm_relu_q7 clamps stored numbers to 0 and more",
    "relu6": "arm_relu6_s8 clamps stored numbers to 0 and 6",
}
"""Why the library's functions do not compute a standalone activation."""


class CmsisBinaryKernel(Kernel[Binary]):
    """Sums and products of tensors of equal shapes."""

    op = Binary

    @override
    def offer(self, node: Node[Binary], request: Request) -> KernelCall | Refusal:
        op, a, b, y = node.op, node.input(0).type, node.input(1).type, node.output.type
        if op.kind not in _FUNCTIONS:
            return Refusal(f"CMSIS-NN has no {op.name}.")
        what = _FUNCTIONS[op.kind]
        if refusal := refuse_data(node, what, inputs=2):
            return refusal
        if a.shape != b.shape:
            return Refusal(f"{what} takes tensors of equal shapes, not {a} and {b}.")
        first, second = str(-a.zero_point), str(-b.zero_point)
        if op.kind == "mul":
            offsets, scale = [first, second], mul_scaling(a, b, y)
            parts, largest = [scale], 255 * 255
        else:
            scaling = add_scaling(a, b, y)
            scale = scaling.output
            offsets = [first, *map(str, scaling.a), second, *map(str, scaling.b)]
            offsets.append(str(scaling.left_shift))
            parts, largest = [scaling.a, scaling.b, scale], 255 << 20
            if any(shift > 0 for _, shift in parts):
                return Refusal(f"{what} shifts only to the right, but these scales shift left.")
        for part in parts:
            if refusal := refuse_sums(what, _scaling(part), _range(largest)):
                return refusal
        limits = clamp_limits(op.activation, y, node.rounding)
        last = map(str, (y.zero_point, *scale, *limits, y.size))
        return call(
            _FUNCTIONS[op.kind],
            f"{'Sum' if op.kind == 'add' else 'Product'} of two tensors",
            arguments=("left", "right", *offsets, "output", *last),
            operands=(Input(0, "left"), Input(1, "right"), Output(0, "output")),
            in_place=((0, 0), (0, 1)),
            form=op.kind,
            stem=op.kind,
            work={"outputs": y.size},
        )


class CmsisUnaryKernel(Kernel[Unary]):
    """Refuses all nodes with a reason."""

    op = Unary

    @override
    def offer(self, node: Node[Unary], request: Request) -> Refusal:
        if node.op.kind in _CLAMPS:
            return Refusal(f"{_CLAMPS[node.op.kind]}, whatever the scale and the zero point.")
        return Refusal(f"CMSIS-NN has no {node.op.name}.")


def _scaling(scaling: Multiplier) -> LibraryScaling:
    return LibraryScaling(*(np.array([part], np.int32) for part in scaling))


def _range(largest: int) -> tuple[np.ndarray, np.ndarray]:
    return np.array([-largest], np.int64), np.array([largest], np.int64)


KERNELS = (CmsisBinaryKernel(), CmsisUnaryKernel())
