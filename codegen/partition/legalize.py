"""Operators rewritten for backends that do not serve them, or not well."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.partition.legalizations import LEGALIZATIONS
from smelt.codegen.partition.partitioner import Partitioner
from smelt.codegen.passes.subgraphs import Names
from smelt.ir import Graph, Node, Origin, Rewrite, verify


@dataclass(frozen=True)
class Legalized:
    """An operator that was rewritten, how, and what that brings, in a sentence."""

    origin: Origin
    operator: str
    rewrite: str
    why: str


def legalize(graph: Graph, partitioner: Partitioner) -> tuple[Graph, tuple[Legalized, ...]]:
    """Rewrite what that brings to a better place; see `Standing`.

    Args:
        graph: after the passes.
        partitioner: tells where a node is served, and what that costs.

    Returns:
        The graph, verified, and what was done to it.
    """
    names = Names(graph)
    done: list[Legalized] = []

    def rewrite(node: Node) -> Rewrite:
        if partitioner.is_placed(node):
            return None
        before = best = partitioner.standing([node])
        nodes, name = None, ""
        for candidate, legalization in LEGALIZATIONS.items():
            made = legalization(node, names)
            if made is None:
                continue
            standing = partitioner.standing(made)
            if standing.better_than(best):
                best, nodes, name = standing, made, candidate
        if nodes is None:
            return None
        done.append(Legalized(node.origin, node.op.name, name, best.gain(before)))
        return nodes, node.outputs

    if graph.lengths:
        return graph, ()
    changed = graph.rewrite(rewrite)
    return verify(changed, "legalize"), tuple(done)
