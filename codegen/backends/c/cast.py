"""Conversions of element types (Cast)."""

from __future__ import annotations

from typing_extensions import override

from smelt.codegen.lower.kernel import WIDE_FLOATS, Input, Kernel, KernelCall, Output, Request
from smelt.codegen.lower.nested_loops import each_element, loops_call
from smelt.ir import DType, Node
from smelt.ops.core.cast import Cast


class CastKernel(Kernel[Cast]):
    """One conversion for each element."""

    op = Cast
    floats = WIDE_FLOATS

    @override
    def offer(self, node: Node[Cast], request: Request) -> KernelCall:
        x, y = node.input(0).type, node.output.type
        return loops_call(
            stem=f"cast_{y.dtype.numpy.name}",
            form="c_elementwise",
            parameters=each_element("Cast", x, y, lambda i: _lines(x.dtype, y.dtype, i)),
            operands=(Input(0, "input"), Output(0, "output")),
            in_place=((0, 0),) if x.bytes == y.bytes else (),
            summary=f"{x.dtype.value} to {y.dtype.value}, one element at a time",
        )


def _lines(x: DType, y: DType, i: str) -> list[str]:
    """Return the C lines that convert element `i`."""
    if y is DType.BOOL:
        return [f"output[{i}] = input[{i}] != 0;"]
    if not x.is_float or not y.is_integer:
        return [f"output[{i}] = ({y.c_name})input[{i}];"]
    # C leaves the conversion of a float undefined if it does not fit the integer type.
    suffix = "f" if x is DType.FLOAT32 else ""
    least, greatest = y.limits
    macro = y.c_name.removesuffix("_t").upper()
    lowest = f"{macro}_MIN" if least else "0"
    return [
        f"const {x.c_name} x = input[{i}];",
        f"const {y.c_name} beyond = x > 0 ? {macro}_MAX : (x < 0 ? {lowest} : 0);",
        f"const int fits = x >= {float(least)}{suffix} && x < {float(greatest + 1)}{suffix};",
        f"output[{i}] = fits ? ({y.c_name})x : beyond;",
    ]


KERNELS = (CastKernel(),)
