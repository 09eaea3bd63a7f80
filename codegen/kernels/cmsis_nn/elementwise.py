"""Binary (sum and product) and Unary, of which the library has no int8 function that is exact."""

from __future__ import annotations

import numpy as np

from smelt.codegen.kernels.base import Input, Kernel, KernelCall, Output, Request
from smelt.codegen.kernels.cmsis_nn.calls import Scaling, call, clamp, refuse_data, refuse_sums
from smelt.ir import Node
from smelt.ops.binary import Binary
from smelt.ops.binary_integer import CommonScale, Multiplier, add_scaling, mul_scaling
from smelt.ops.unary import Unary
from smelt.targets import Target

_FUNCTIONS = {"add": "arm_elementwise_add_s8", "mul": "arm_elementwise_mul_s8"}
_CLAMPS = {
    "relu": "arm_relu_q7 clamps stored numbers to 0 and more",
    "relu6": "arm_relu6_s8 clamps stored numbers to 0 and 6",
}
"""What the library does in place of a function that stands alone."""


class BinaryKernel(Kernel):
    """Sums and products of tensors of one shape."""

    op = Binary

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        op, a, b, y = node.op, node.input(0).type, node.input(1).type, node.output.type
        if not isinstance(op, Binary) or op.kind not in _FUNCTIONS:
            return f"CMSIS-NN has no {op.name}."
        what = _FUNCTIONS[op.kind]
        reason = refuse_data(node, what, inputs=2)
        if reason is not None:
            return reason
        if a.shape != b.shape:
            return f"{what} takes tensors of one shape, not {a} and {b}."
        if op.kind == "mul":
            return refuse_sums(what, _scaling(mul_scaling(a, b, y)), _range(255 * 255))
        scaling, largest = add_scaling(a, b, y), _range(255 << 20)
        for part in (scaling.a, scaling.b, scaling.output):
            if part[1] > 0:
                return f"{what} shifts to the right only."
        parts = (scaling.a, scaling.b, scaling.output)
        return next(filter(None, (refuse_sums(what, _scaling(p), largest) for p in parts)), None)

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        op, a, b, y = node.op, node.input(0).type, node.input(1).type, node.output.type
        if not isinstance(op, Binary):
            raise TypeError(f"{op.name} is no Binary")
        first, second = str(-a.zero_point), str(-b.zero_point)
        if op.kind == "mul":
            offsets, scale = [first, second], mul_scaling(a, b, y)
        else:
            scaling: CommonScale = add_scaling(a, b, y)
            scale = scaling.output
            offsets = [first, *map(str, scaling.a), second, *map(str, scaling.b)]
            offsets.append(str(scaling.left_shift))
        limits = clamp(node, op.activation)[0].strip("{}").split(", ")
        last = [str(y.zero_point), *map(str, scale), *limits, str(y.size)]
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


class UnaryKernel(Kernel):
    """Says why none is served."""

    op = Unary

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        op = node.op
        if isinstance(op, Unary) and op.kind in _CLAMPS:
            return f"{_CLAMPS[op.kind]}, whatever scale and zero point are."
        return f"CMSIS-NN has no {op.name}."

    def lower(self, node: Node, request: Request) -> KernelCall:
        """Raises TypeError: no node is served."""
        raise TypeError(f"CMSIS-NN has no {node.op.name} on {request.target.name}")


def _scaling(scaling: Multiplier) -> Scaling:
    return Scaling(*(np.array([part], np.int32) for part in scaling))


def _range(largest: int) -> tuple[np.ndarray, np.ndarray]:
    return np.array([-largest], np.int64), np.array([largest], np.int64)


KERNELS = (BinaryKernel(), UnaryKernel())
