"""Which backend's kernel computes each node, and why no other one does.

Backends stand in groups. A node goes to the first group that serves it; within a group all kernels
that serve it are candidates, and the best one for `--optimize` is taken. A target's own backends
are one group: only what they cost counts. Backends that are asked for by name are a group each:
their order is a preference. What candidates cost, and which is best, is in `candidates`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

from smelt.codegen.lower.backend import Answers, Backend
from smelt.codegen.lower.device import DeviceCall, DeviceShare
from smelt.codegen.lower.kernel import MOST_ENTRIES, Refusal, Request
from smelt.codegen.partition.candidates import (
    Candidate,
    Choice,
    cycles_of,
    expands,
    not_better,
    passed_over,
    preferred,
    ranked,
    with_work,
)
from smelt.errors import ConfigError, UnsupportedError
from smelt.ir import Graph, Node


@dataclass(frozen=True)
class Place:
    """What must serve a layer: a backend, and one form of its kernels where `form` is not empty."""

    backend: Backend
    form: str = ""


@dataclass(frozen=True)
class Standing:
    """How well nodes are served together.

    Attributes:
        group: the last group that one of them needs; None where one is not served at all.
        cycles: what they take together; None where that is not known of all.
    """

    group: int | None
    cycles: int | None

    def better_than(self, other: Standing) -> bool:
        """Whether a group of higher preference serves, or the same one in fewer cycles."""
        if self.group is None or other.group is None:
            return self.group is not None
        if self.group != other.group:
            return self.group < other.group
        ours, theirs = self.cycles, other.cycles
        return ours is not None and theirs is not None and ours < theirs

    def gain(self, before: Standing) -> str:
        """What nodes bring that stand better than those before them, in a sentence."""
        if before.group is None:
            return "No backend serves it as it is."
        if self.group != before.group:
            return "A backend that --backends prefers serves it so."
        return f"It takes {self.cycles or 0:,} cycles so, not {before.cycles or 0:,}."


@dataclass(frozen=True)
class Partitioner:
    """Chooses among backends; each node is chosen for once.

    What it does not know yet, `dataclasses.replace` tells it later: `rooms`, `share`. All that come
    from one share the answers of kernels, each of which is asked once about a node and a room.

    Attributes:
        groups: backends, by preference.
        request: what is asked of every kernel.
        placed: what must serve certain layers, by a layer's name or a pattern of it (`fnmatch`).
        rooms: `Request.room` of nodes that may take more scratch than others.
        share: which nodes an accelerator computes beside the CPU, and why; None: all it serves.
        answers: what kernels have answered.
    """

    groups: Sequence[Sequence[Backend]]
    request: Request
    placed: Mapping[str, Place] = field(default_factory=dict[str, Place])
    rooms: Mapping[Node, int] = field(default_factory=dict[Node, int])
    share: DeviceShare | None = None
    answers: Answers = field(default_factory=Answers)
    _known: dict[Node, Choice] = field(init=False, default_factory=dict[Node, Choice])
    _explained: dict[Node, Choice] = field(init=False, default_factory=dict[Node, Choice])
    _entries: list[int] = field(init=False, default_factory=list[int])
    _explaining: list[int] = field(init=False, default_factory=list[int])

    def on_cpu(self) -> Partitioner:
        """The same partitioner without the backends of accelerators.

        Raises:
            ConfigError: no other is left.
        """
        groups = [[backend for backend in group if not backend.on_device] for group in self.groups]
        if not any(groups):
            raise ConfigError("without --fallback no backend is left that computes on the CPU")
        placed = {p: place for p, place in self.placed.items() if not place.backend.on_device}
        return replace(self, groups=[group for group in groups if group], placed=placed)

    def choose(self, node: Node) -> Choice:
        """The choice for a node.

        Raises:
            UnsupportedError: no backend serves it; names the node and each backend's reason.
        """
        if node not in self._known:
            self._known[node] = self._choose(node)
        return self._known[node]

    def explained(self, node: Node) -> Choice:
        """The choice for a node; its reason tells of faster kernels in groups of lower preference.

        These groups are asked for that alone, so only about nodes that are going to be computed.
        What their tables take is counted apart: it must not change what is chosen for others.

        Raises:
            UnsupportedError: no backend serves it.
        """
        if node not in self._explained:
            choice = self.choose(node)
            reasons = [choice.reason, *self._preferred(node, choice.taken)]
            self._explained[node] = replace(choice, reason=_together(reasons))
        return self._explained[node]

    def _preferred(self, node: Node, taken: Candidate) -> Iterator[str]:
        """Of each later group, why a kernel that would be faster is not taken."""
        if taken.cycles is None or self.is_placed(node):
            return
        for group in self.groups[self._group_of(taken) + 1 :]:
            found = [self._candidates(backend, node, self._explaining) for backend in group]
            candidates = [c for answer in found if not isinstance(answer, Refusal) for c in answer]
            yield preferred(candidates, taken, self.request.optimize)

    def is_placed(self, node: Node) -> bool:
        """Whether a certain backend must serve the node."""
        return any(_matches(node.name, pattern) for pattern in self.placed)

    def standing(self, nodes: Sequence[Node]) -> Standing:
        """How well nodes are served; only those that multiply decide the group, if there are any.

        Views cost nothing and are not asked about.
        """
        asked = [node for node in nodes if not node.op.is_view]
        try:
            choices = [self.choose(node) for node in asked]
        except UnsupportedError:
            return Standing(None, None)
        multiplies = any(node.macs for node in asked)
        groups = [
            self._group_of(choice.taken)
            for node, choice in zip(asked, choices, strict=True)
            if node.macs or not multiplies
        ]
        known = [c.taken.cycles for c in choices]
        total = None if None in known else sum(count or 0 for count in known)
        return Standing(max(groups, default=0), total)

    def _group_of(self, taken: Candidate) -> int:
        names = [{backend.name for backend in group} for group in self.groups]
        return next(i for i, group in enumerate(names) if taken.backend in group)

    def require_layers(self, graph: Graph, before: Graph) -> None:
        """Check that each pattern of `placed` is that of a layer, in a branch or loop perhaps.

        Args:
            graph: with the layers that are computed.
            before: without those that only convert to float16 and back, which no other backend has,
                so that their names are of no use to whoever places layers.

        Raises:
            ConfigError: it is not; the message names layers of similar names.
        """
        layers = [*graph.nodes, *nodes_inside(graph)]
        control = [node.name for node in layers if node.op.subgraphs]
        names = [node.name for node in layers if not node.op.subgraphs]
        useful = [n.name for n in (*before.nodes, *nodes_inside(before)) if not n.op.subgraphs]
        for pattern in self.placed:
            if not any(_matches(name, pattern) for name in names):
                if any(_matches(name, pattern) for name in control):
                    raise ConfigError(
                        f"--place {pattern}=…: branches and loops are the CPU's and have no "
                        "kernel; the layers inside them can be placed"
                    )
                close = get_close_matches(pattern, useful, n=3, cutoff=0.3) or useful[:3]
                raise ConfigError(
                    f"--place {pattern}=…: no layer is called so; there are "
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
                taken, *lost = ranked(candidates, self.request.optimize)
                first = next(i for i, b in enumerate(group) if b.name == taken.backend)
                reasons += [taken.call.missed, *passed_over(lost, taken, self.request.optimize)]
                if self.share is not None and isinstance(taken.call, DeviceCall):
                    reasons.append(self.share.goes(node))
                reasons += [
                    answer.reason if isinstance(answer, Refusal) else not_better(answer, taken)
                    for answer in found[:first]
                ]
                return Choice(taken, tuple(lost), _together(reasons))
            reasons += [answer.reason for answer in found if isinstance(answer, Refusal)]
        raise self._refusal(node, "", _together(reasons))

    def _forced(self, node: Node, place: Place) -> Choice:
        name = place.backend.name
        where = f" by backend '{name}', where --place wants it"
        found = self._candidates(place.backend, node, self._entries)
        if isinstance(found, Refusal):
            raise self._refusal(node, where, found.reason)
        taken, *lost = ranked(found, self.request.optimize)
        reasons = ["--place wants it so."]
        if place.form:
            taken = next((c for c in found if c.call.form == place.form), None)
            lost = [c for c in found if c is not taken]
        else:
            reasons += passed_over(lost, taken, self.request.optimize)
        if taken is None:
            forms = ", ".join(candidate.call.form for candidate in found)
            raise self._refusal(node, where, f"there it has {forms}, not {place.form}.")
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
        """What a backend offers, or why it offers nothing; its tables are counted in `entries`."""
        why = self.share.stays(node) if backend.on_device and self.share else ""
        if why:
            return Refusal(why)
        request = replace(self.request, room=self.rooms.get(node, self.request.room))
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
            found.append(Candidate(backend.name, call, estimate, plugin, unwanted))
        return found


def nodes_inside(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph's branches and loops, at whatever depth."""
    for node in graph.nodes:
        for subgraph in node.op.subgraphs:
            yield from subgraph.nodes
            yield from nodes_inside(subgraph)


def _together(reasons: Sequence[str]) -> str:
    """Each reason once: several backends may have the same."""
    return " ".join(dict.fromkeys(filter(None, reasons)))


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)
