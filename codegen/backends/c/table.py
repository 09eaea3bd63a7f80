"""Table."""

from __future__ import annotations

from typing_extensions import override

from smelt.codegen.backends.c.unary import table_call
from smelt.codegen.lower.kernel import Kernel, KernelCall, Request
from smelt.ir import Node
from smelt.ops.core.table import Table


class TableKernel(Kernel[Table]):
    """Looks up each element in a table."""

    op = Table

    @override
    def offer(self, node: Node[Table], request: Request) -> KernelCall:
        x, y = node.input(0).type, node.output.type
        return table_call(node.input(1).array, x, y, node.origin.kind, "lookup")


KERNELS = (TableKernel(),)
