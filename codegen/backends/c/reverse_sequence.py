"""ReverseSequence."""

from __future__ import annotations

from dataclasses import replace

from typing_extensions import override

from smelt.codegen.lower.kernel import STORED_FLOATS, Input, Kernel, KernelCall, Output, Request
from smelt.codegen.lower.nested_loops import (
    ArrayLoop,
    LoopsParameters,
    block_copies,
    dense_strides,
    index,
    loops_call,
    nested,
)
from smelt.ir import Node
from smelt.ops.sequence.reverse_sequence import ReverseSequence


class ReverseSequenceKernel(Kernel[ReverseSequence]):
    """Copies element by element of each sequence; elements that stay neighbors are one block."""

    op = ReverseSequence
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[ReverseSequence], request: Request) -> KernelCall:
        op, x = node.op, node.input(0).type
        strides = dense_strides(x.shape)
        others = [a for a in range(len(x.shape)) if a not in (op.batch_axis, op.time_axis)]
        steps = [strides[axis] for axis in others]
        batch = ArrayLoop("b", x.shape[op.batch_axis], (strides[op.batch_axis],))
        time = ArrayLoop("t", x.shape[op.time_axis], (strides[op.time_axis],))
        copies = block_copies(
            [x.shape[axis] for axis in others],
            steps,
            steps,
            x.dtype.size,
            read=index((batch, replace(time, name="from")), 0),
            written=index((batch, time), 0),
        )
        length = f"const int32_t length = bounded(lengths[b], {time.size});"
        source = "const int32_t from = t < length ? length - 1 - t : t;"
        return loops_call(
            stem="reverse_sequence",
            form="c_reverse_sequence",
            parameters=LoopsParameters(
                (
                    f"ReverseSequence of {x}: for each index b of axis {op.batch_axis}, the first",
                    f"lengths[b] elements along axis {op.time_axis} are in reverse order.",
                ),
                nested((batch.head, time.head), ((), (length,), (source, *copies.lines))),
            ),
            operands=(Input(0, "input"), Input(1, "lengths"), Output(0, "output")),
            summary=copies.summary,
        )


KERNELS = (ReverseSequenceKernel(),)
