"""The choice of a kernel for each node, and why others were not chosen.

Backends are in groups. The first group that serves a node computes it. Within a group, all kernels
that serve the node are candidates, and the best one for `--optimize` is chosen. The target's own
backends form one group, so that only cost matters. Backends named in `--backends` form a group
each, so that their order is a preference. See `candidates` for costs and ranking.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from math import inf

from smelt.codegen.lower.backend import Backend, OfferCache
from smelt.codegen.lower.device import DeviceCall, DeviceShare
from smelt.codegen.lower.kernel import MOST_ENTRIES, Refusal, Request
from smelt.codegen.partition.candidates import (
    Candidate,
    Choice,
    cycles_of,
    expands,
    ranked,
    why_faster_lost,
    why_not_chosen,
    why_not_later_group,
    with_expansions,
    with_memory,
    with_work,
)
from smelt.codegen.partition.scratch import saved_in_place
from smelt.errors import ConfigError, UnsupportedError
from smelt.ir import Graph, Node


@dataclass(frozen=True)
class Place:
    """The backend that must serve a layer, and the form of its kernel if `form` is not empty."""

    backend: Backend
    form: str = ""


@dataclass(frozen=True)
class PartitionScore:
    """How well some nodes are served together.

    Attributes:
        group: The index of the last group that one of them needs; None if one is not served.
        cycles: The sum of their cycles; None if one is unknown.
    """

    group: int | None
    cycles: int | None

    def better_than(self, other: PartitionScore) -> bool:
        """Return whether a preferred group serves the nodes, or the same group in fewer cycles."""
        if self.group is None or other.group is None:
            return self.group is not None
        if self.group != other.group:
            return self.group < other.group
        ours, theirs = self.cycles, other.cycles
        return ours is not None and theirs is not None and ours < theirs

    def gain(self, before: PartitionScore) -> str:
        """Return a sentence that says why this score is better than the score `before`."""
        if before.group is None:
            return "No backend serves the original operator."
        if self.group != before.group:
            return "A backend that --backends prefers serves the rewritten nodes."
        return f"The rewrite takes {self.cycles or 0:,} cycles instead of {before.cycles or 0:,}."


@dataclass(frozen=True)
class Partitioner:
    """Chooses a kernel for each node, once per node.

    Settings that are known only later (`scratch_limits`, `share`) are added by
    `dataclasses.replace`. The resulting partitioners share the kernels' answers, so that each
    kernel is asked once about a node and a scratch limit.

    Attributes:
        groups: The backends, preferred groups first.
        request: The question that every kernel is asked.
        placed: What `--place` requires, by layer name or `fnmatch` pattern.
        scratch_limits: `Request.scratch_limit` of nodes for which it is not the common one.
        last_reads: For each node, the indices of operands that may be overwritten, because no later
            node reads them.
        share: The nodes that an accelerator computes, with reasons; None for all that it serves.
        answers: The kernels' answers so far.
    """

    groups: Sequence[Sequence[Backend]]
    request: Request
    placed: Mapping[str, Place] = field(default_factory=dict[str, Place])
    scratch_limits: Mapping[Node, int] = field(default_factory=dict[Node, int])
    last_reads: Mapping[Node, AbstractSet[int]] = field(
        default_factory=dict[Node, AbstractSet[int]]
    )
    share: DeviceShare | None = None
    answers: OfferCache = field(default_factory=OfferCache)
    _known: dict[Node, Choice] = field(init=False, default_factory=dict[Node, Choice])
    _explained: dict[Node, Choice] = field(init=False, default_factory=dict[Node, Choice])
    _entries: list[int] = field(init=False, default_factory=list[int])
    _explained_entries: list[int] = field(init=False, default_factory=list[int])

    def limited(self) -> Partitioner:
        """Return the same partitioner, restricted to calls without `Candidate.memory`.

        For a node without such a call, it chooses the call with the least. To allow a node more,
        add `scratch_limits`.
        """
        request = replace(self.request, limited=True, scratch_limit=0)
        return replace(self, request=request, scratch_limits={})

    def in_little_ram(self) -> Partitioner:
        """Return the same partitioner for layers that are computed a few rows at a time."""
        if self.request.little_ram:
            return self
        return replace(self, request=replace(self.request, little_ram=True))

    def on_cpu(self) -> Partitioner:
        """Return the same partitioner without the backends of accelerators.

        Raises:
            ConfigError: No backend is left.
        """
        groups = [[backend for backend in group if not backend.on_device] for group in self.groups]
        if not any(groups):
            raise ConfigError("--no-fallback leaves no backend that computes on the CPU")
        placed = {p: place for p, place in self.placed.items() if not place.backend.on_device}
        return replace(self, groups=[group for group in groups if group], placed=placed)

    def choose(self, node: Node) -> Choice:
        """Return the choice for a node.

        Raises:
            UnsupportedError: No backend serves it; the message has each backend's reason.
        """
        if node not in self._known:
            self._known[node] = self._choose(node)
        return self._known[node]

    def explained(self, node: Node) -> Choice:
        """Return the choice for a node, with a reason that includes faster kernels of later groups.

        Later groups are asked only here, so call this only for nodes that are actually computed.
        Their table entries are counted separately, so that they do not change other choices.

        Raises:
            UnsupportedError: No backend serves it.
        """
        if node not in self._explained:
            choice = self.choose(node)
            reasons = [choice.reason, *self._preferred(node, choice.taken)]
            self._explained[node] = replace(choice, reason=_together(reasons))
        return self._explained[node]

    def _preferred(self, node: Node, taken: Candidate) -> Iterator[str]:
        """Yield, for each later group, why its faster kernel is not chosen."""
        if taken.cycles is None or self.is_placed(node):
            return
        for group in self.groups[self._group_of(taken) + 1 :]:
            found = [self._candidates(backend, node, self._explained_entries) for backend in group]
            candidates = [c for answer in found if not isinstance(answer, Refusal) for c in answer]
            yield why_not_later_group(candidates, taken, self.request.optimize)

    def is_placed(self, node: Node) -> bool:
        """Return whether `--place` forces the node's backend."""
        return any(_matches(node.name, pattern) for pattern in self.placed)

    def score(self, nodes: Sequence[Node]) -> PartitionScore:
        """Return how well the backends serve these nodes together.

        If any node multiplies, only those that multiply determine the group. Views cost nothing and
        need no kernel.
        """
        computed = [node for node in nodes if not node.op.is_view]
        try:
            choices = [self.choose(node) for node in computed]
        except UnsupportedError:
            return PartitionScore(None, None)
        multiplies = any(node.macs for node in computed)
        groups = [
            self._group_of(choice.taken)
            for node, choice in zip(computed, choices, strict=True)
            if node.macs or not multiplies
        ]
        known = [c.taken.cycles for c in choices]
        total = None if None in known else sum(count or 0 for count in known)
        return PartitionScore(max(groups, default=0), total)

    def _group_of(self, taken: Candidate) -> int:
        names = [{backend.name for backend in group} for group in self.groups]
        return next(i for i, group in enumerate(names) if taken.backend in group)

    def require_layers(self, graph: Graph, before: Graph) -> None:
        """Check that each pattern of `placed` matches a layer, possibly inside a branch or loop.

        Args:
            graph: The graph with the layers that are computed.
            before: The graph without the layers that only convert to and from float16. Only its
                names are suggested, because no other backend serves the conversions.

        Raises:
            ConfigError: A pattern matches no layer; the message suggests similar names.
        """
        layers = [*graph.nodes, *nodes_inside(graph)]
        control = [node.name for node in layers if node.op.subgraphs]
        names = [node.name for node in layers if not node.op.subgraphs]
        useful = [n.name for n in (*before.nodes, *nodes_inside(before)) if not n.op.subgraphs]
        for pattern in self.placed:
            if not any(_matches(name, pattern) for name in names):
                if any(_matches(name, pattern) for name in control):
                    raise ConfigError(
                        f"--place {pattern}=…: branches and loops run on the CPU and have no "
                        "kernel; the layers inside them can be placed"
                    )
                close = get_close_matches(pattern, useful, n=3, cutoff=0.3) or useful[:3]
                raise ConfigError(
                    f"--place {pattern}=…: no layer has this name; there are "
                    f"{', '.join(repr(name) for name in close)}, … (`smelt partition` lists all)"
                )

    def _choose(self, node: Node) -> Choice:
        forced = next((b for p, b in self.placed.items() if _matches(node.name, p)), None)
        if forced is not None:
            return self._forced(node, forced)
        reasons: list[str] = []
        for group in self.groups:
            found = [self._candidates(backend, node, self._entries) for backend in group]
            candidates = [c for answer in found if not isinstance(answer, Refusal) for c in answer]
            if candidates:
                candidates = with_expansions(candidates, self.request.optimize)
                candidates = with_memory(candidates, self._most_memory(node))
                taken, *lost = ranked(candidates, self.request.optimize)
                first = next(i for i, b in enumerate(group) if b.name == taken.backend)
                reasons += [taken.call.missed, *why_faster_lost(lost, taken, self.request.optimize)]
                if self.share is not None and isinstance(taken.call, DeviceCall):
                    reasons.append(self.share.goes(node))
                reasons += [
                    answer.reason if isinstance(answer, Refusal) else why_not_chosen(answer, taken)
                    for answer in found[:first]
                ]
                return Choice(taken, tuple(lost), _together(reasons))
            reasons += [answer.reason for answer in found if isinstance(answer, Refusal)]
        raise self._refusal(node, "", _together(reasons))

    def _forced(self, node: Node, place: Place) -> Choice:
        name = place.backend.name
        where = f" by backend '{name}', which --place requires"
        found = self._candidates(place.backend, node, self._entries)
        if isinstance(found, Refusal):
            raise self._refusal(node, where, found.reason)
        found = with_memory(found, self._most_memory(node))
        taken, *lost = ranked(found, self.request.optimize)
        reasons = ["--place requires this backend."]
        if place.form:
            taken = next((c for c in found if c.call.form == place.form), None)
            lost = [c for c in found if c is not taken]
        else:
            reasons += why_faster_lost(lost, taken, self.request.optimize)
        if taken is None:
            forms = ", ".join(candidate.call.form for candidate in found)
            raise self._refusal(node, where, f"the backend offers {forms}, not {place.form}.")
        reasons.append(taken.call.missed)
        return Choice(taken, tuple(lost), _together(reasons))

    def _refusal(self, node: Node, where: str, reason: str) -> UnsupportedError:
        return UnsupportedError(
            f"{node.op.name} of {node.origin} cannot run on target '{self.request.target.name}'"
            f"{where}: {reason} See `smelt ops` for what each backend serves."
        )

    def _candidates(
        self, backend: Backend, node: Node, entries: list[int]
    ) -> list[Candidate] | Refusal:
        """Return a backend's candidates or its refusal; count their table entries in `entries`."""
        why = self.share.stays(node) if backend.on_device and self.share else ""
        if why:
            return Refusal(why)
        request = replace(self.request, scratch_limit=self._scratch_limit(node))
        left = MOST_ENTRIES - sum(entries)
        offers = backend.offers(node, request, left, self.answers.ask)
        if isinstance(offers, Refusal):
            return offers
        entries.append(offers.entries)
        prices, found = self.request.target.prices, list[Candidate]()
        for kernel, offered in offers.made:
            call = with_work(backend.name, node, offered)
            if isinstance(call, DeviceCall):
                call = call.on(request.target)
            estimate = cycles_of(call, prices.get(call.form))
            unwanted = not self.request.expand_weights and expands(node, call)
            plugin = kernel in backend.plugins
            saved = saved_in_place(call, node, self.last_reads.get(node, ()))
            found.append(Candidate(backend.name, call, estimate, plugin, unwanted, saved))
        return found

    def _scratch_limit(self, node: Node) -> int:
        return self.scratch_limits.get(node, self.request.scratch_limit)

    def _most_memory(self, node: Node) -> float:
        """Return the limit of `Candidate.memory` that takes precedence over cost."""
        return self._scratch_limit(node) if self.request.limited else inf


def nodes_inside(graph: Graph) -> Iterator[Node]:
    """Yield the nodes of a graph's branches and loops, at any depth."""
    for node in graph.nodes:
        for subgraph in node.op.subgraphs:
            yield from subgraph.nodes
            yield from nodes_inside(subgraph)


def _together(reasons: Sequence[str]) -> str:
    """Join the reasons, each once: several backends may give the same reason."""
    return " ".join(dict.fromkeys(filter(None, reasons)))


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)
