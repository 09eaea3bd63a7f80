"""Rewriting of operators that a backend does not serve, or serves faster in another form."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.partition.legalizations import LEGALIZATIONS
from smelt.codegen.partition.partitioner import Partitioner
from smelt.codegen.passes.subgraphs import Names
from smelt.ir import Graph, Node, Origin, Rewrite, verify


@dataclass(frozen=True)
class Legalized:
    """A rewritten operator, the name of the rewrite, and its benefit in a sentence."""

    origin: Origin
    operator: str
    rewrite: str
    why: str


def legalize(graph: Graph, partitioner: Partitioner) -> tuple[Graph, tuple[Legalized, ...]]:
    """Apply the rewrites that improve a node's `PartitionScore`.

    Args:
        graph: The graph after the passes.
        partitioner: Chooses a kernel for each candidate node and estimates its cost.

    Returns:
        The graph, verified, and the list of rewrites.
    """
    names = Names(graph)
    done: list[Legalized] = []

    def rewrite(node: Node) -> Rewrite:
        if partitioner.is_placed(node):
            return None
        before = best = partitioner.score([node])
        nodes, name = None, ""
        # Where RAM is limited, layers are computed a few rows at a time, which views prevent.
        in_rows = partitioner.request.little_ram and before.group is not None and _has_rows(node)
        for candidate, legalization in LEGALIZATIONS.items():
            made = legalization(node, names)
            if made is None or (in_rows and any(part.op.is_view for part in made)):
                continue
            score = partitioner.score(made)
            if score.better_than(best):
                best, nodes, name = score, made, candidate
        if nodes is None:
            return None
        done.append(Legalized(node.origin, node.op.name, name, best.gain(before)))
        return nodes, node.outputs

    if graph.lengths:
        return graph, ()
    changed = graph.rewrite(rewrite)
    return verify(changed, "legalize"), tuple(done)


def _has_rows(node: Node) -> bool:
    """Return whether a node has a result that can be computed a few rows at a time."""
    shape = node.outputs[0].type.shape
    return len(shape) > 2 and max(shape[1:-1]) > 1
