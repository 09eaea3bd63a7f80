"""Estimated cycles and memory of a node's kernels, for the search for segments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from smelt.codegen.partition.partitioner import Partitioner
from smelt.ir import Node


@dataclass(frozen=True)
class KernelCost:
    """Bytes beside operands and results, and estimated cycles, of one call of a node.

    `in_place` tells whether the first result may have the address of the first operand.
    """

    memory: int
    cycles: float
    in_place: bool = False


class KernelCosts:
    """The costs of nodes' kernels; the partitioner is asked only for those that are needed."""

    def __init__(self, partitioner: Partitioner) -> None:
        """Store the partitioner, which chooses the kernels."""
        self._partitioner = partitioner
        self._limited = partitioner.limited()
        limits = partitioner.scratch_limits
        self._most_scratch = max((partitioner.request.scratch_limit, *limits.values()))
        self._known: dict[Node, list[KernelCost | None]] = {}

    def fastest(self, node: Node) -> KernelCost:
        """Return the costs of a node's fastest kernel."""
        return next(self._kernels(node))

    def fastest_within(self, node: Node, memory: int) -> KernelCost | None:
        """Return the costs of a node's fastest kernel within a number of bytes, or None."""
        return next((k for k in self._kernels(node) if k.memory <= memory), None)

    def most_in_place(self, node: Node) -> int:
        """Return the most scratch with which the fastest kernel can compute a node in place.

        Returns -1, less than any kernel takes, if a kernel that cannot is always faster.
        """
        return next((kernel.memory for kernel in self._kernels(node) if kernel.in_place), -1)

    def most_saved(self, node: Node) -> int:
        """Return the most bytes of an operand that the results of a kernel can overwrite."""
        choice = self._limited.choose(node)
        return max(candidate.saved for candidate in (choice.taken, *choice.lost))

    def _kernels(self, node: Node) -> Iterator[KernelCost]:
        """Yield the costs of a node's kernels: the fastest one, and so on with less memory."""
        if node.op.is_view:
            yield KernelCost(0, 0)
            return
        known = self._known.setdefault(node, [])
        position, kernel = 0, None
        while position == 0 or kernel is not None:
            if position == len(known):
                known.append(self._less_memory(node, kernel))
            kernel = known[position]
            position += 1
            if kernel is not None:
                yield kernel

    def _less_memory(self, node: Node, more: KernelCost | None) -> KernelCost | None:
        """Return the costs of the fastest kernel with less memory than another, or None."""
        if more is None:
            limits = self._partitioner.scratch_limits
            if node not in limits:  # it computes a few rows, and its layer may take more scratch
                limits = {node: self._most_scratch}
            return _cost(node, replace(self._partitioner, scratch_limits=limits))
        if more.memory == 0:
            return None
        limits = {node: more.memory - 1}
        found = _cost(node, replace(self._limited, scratch_limits=limits))
        return found if found.memory < more.memory else None


def _cost(node: Node, partitioner: Partitioner) -> KernelCost:
    """Return the costs of the kernel that a partitioner chooses.

    Without an estimate, the cycles are the number of products and results.
    """
    taken = partitioner.choose(node).taken
    cycles = node.macs + node.outputs[0].type.size if taken.cycles is None else taken.cycles
    return KernelCost(taken.memory, cycles, (0, 0) in taken.call.in_place)
