"""Table."""

from __future__ import annotations

from smelt.codegen.kernels.base import Kernel, KernelCall, Request
from smelt.codegen.kernels.c.unary import table_call
from smelt.ir import Node
from smelt.ops.table import Table
from smelt.targets import Target


class TableKernel(Kernel):
    """One look-up an element."""

    op = Table

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        if node.input(0).type.dtype.size == node.output.type.dtype.size == 1:
            return None
        return f"Table is served for 8-bit results, not for {node.output.type.dtype.value}."

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        x, y = node.input(0).type, node.output.type
        return table_call(node.input(1).array, x, y, node.origin.kind, "lookup")


KERNELS = (TableKernel(),)
