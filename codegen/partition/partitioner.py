"""Which backend's kernel computes each node, and why no other one does.

Backends stand in groups. A node goes to the first group that serves it; within a group all kernels
that serve it are candidates, and the best one for `--optimize` is taken. A target's own backends
are one group: only what they cost counts. Backends that are asked for by name are a group each:
their order is a preference.

What a candidate costs is estimated from the work that its call declares and from prices that were
measured on the target (`smelt.targets.prices`); one without prices comes after those with some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from math import inf
from pathlib import PurePosixPath

from smelt.codegen.lower.device import DeviceCall
from smelt.codegen.lower.offer import MOST_ENTRIES, Answers, Backend, KernelCall, Refusal, Request
from smelt.errors import ConfigError, UnsupportedError
from smelt.ir import Graph, Node
from smelt.targets import Optimize

EXPANSION = 2
"""How many times larger than the weights constants may be that are not asked to be."""

SLOWDOWN = 1.3
"""How much slower than the fastest candidate the smallest one may be to be taken for size."""


@dataclass(frozen=True)
class Candidate:
    """A kernel that serves a node.

    `cycles` is the estimate for one inference; None where the target has no prices for it.
    What a plugin serves is taken before anything else; what is `unwanted`, because its constants
    are much larger than the weights, only if there is nothing else.
    """

    backend: str
    call: KernelCall
    cycles: int | None
    plugin: bool = False
    unwanted: bool = False

    @property
    def text(self) -> str:
        """The candidate and what it takes, in words."""
        name = f"{self.backend}'s {self.call.form or self.call.stem}"
        return name if self.cycles is None else f"{name} ({self.cycles:,} cycles)"


@dataclass(frozen=True)
class Choice:
    """The candidate that computes a node.

    Attributes:
        taken: the one chosen.
        lost: the other candidates of its group, the better ones first.
        reason: why no backend of higher preference serves the node, and why a candidate that would
            be faster lost; empty where there is nothing to say.
    """

    taken: Candidate
    lost: tuple[Candidate, ...] = ()
    reason: str = ""


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


@dataclass(frozen=True)
class Partitioner:
    """Chooses among backends; each node is chosen for once.

    What it does not know yet, `dataclasses.replace` tells it later: `rooms`, `stays`. All that come
    from one share the answers of kernels, each of which is asked once about a node and a room.

    Attributes:
        groups: backends, by preference.
        request: what is asked of every kernel.
        placed: what must serve certain layers, by a layer's name or a pattern of it (`fnmatch`).
        rooms: `Request.room` of nodes that may take more scratch than others.
        stays: why a node must stay on the CPU beside an accelerator, empty where it need not.
        answers: what kernels have answered.
    """

    groups: Sequence[Sequence[Backend]]
    request: Request
    placed: Mapping[str, Place] = field(default_factory=dict[str, Place])
    rooms: Mapping[Node, int] = field(default_factory=dict[Node, int])
    stays: Callable[[Node], str] | None = None
    answers: Answers = field(default_factory=Answers)
    _known: dict[Node, Choice] = field(init=False, default_factory=dict[Node, Choice])
    _entries: list[int] = field(init=False, default_factory=list[int])

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
            self._group_of(choice)
            for node, choice in zip(asked, choices, strict=True)
            if node.macs or not multiplies
        ]
        known = [c.taken.cycles for c in choices]
        total = None if None in known else sum(count or 0 for count in known)
        return Standing(max(groups, default=0), total)

    def _group_of(self, choice: Choice) -> int:
        names = [{backend.name for backend in group} for group in self.groups]
        return next(i for i, group in enumerate(names) if choice.taken.backend in group)

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
            found = [self._candidates(backend, node) for backend in group]
            candidates = [c for answer in found if not isinstance(answer, str) for c in answer]
            if candidates:
                taken, *lost = _ranked(candidates, self.request.optimize)
                first = next(i for i, b in enumerate(group) if b.name == taken.backend)
                reasons += _passed_over(lost, taken, self.request.optimize)
                reasons += [
                    answer if isinstance(answer, str) else _not_better(answer, taken)
                    for answer in found[:first]
                ]
                return Choice(taken, tuple(lost), _together(reasons))
            reasons += [answer for answer in found if isinstance(answer, str)]
        raise self._refusal(node, "", _together(reasons))

    def _forced(self, node: Node, place: Place) -> Choice:
        name = place.backend.name
        where = f" by backend '{name}', where --place wants it"
        found = self._candidates(place.backend, node)
        if isinstance(found, str):
            raise self._refusal(node, where, found)
        taken, *lost = _ranked(found, self.request.optimize)
        if place.form:
            taken = next((c for c in found if c.call.form == place.form), None)
            lost = [c for c in found if c is not taken]
        if taken is None:
            forms = ", ".join(candidate.call.form for candidate in found)
            raise self._refusal(node, where, f"there it has {forms}, not {place.form}.")
        return Choice(taken, tuple(lost), "--place wants it so.")

    def _refusal(self, node: Node, where: str, reason: str) -> UnsupportedError:
        return UnsupportedError(
            f"{node.op.name} of {node.origin} cannot run on target '{self.request.target.name}'"
            f"{where}: {reason} See `smelt ops` for what each backend serves."
        )

    def _candidates(self, backend: Backend, node: Node) -> list[Candidate] | str:
        """What a backend offers, or why it offers nothing."""
        why = self.stays(node) if backend.on_device and self.stays else ""
        if why:
            return why
        request = replace(self.request, room=self.rooms.get(node, self.request.room))
        left = MOST_ENTRIES - sum(self._entries)
        offers = backend.offers(node, request, left, self.answers.ask)
        if isinstance(offers, Refusal):
            return offers.reason
        self._entries.append(offers.entries)
        prices, found = self.request.target.prices, list[Candidate]()
        for kernel, offered in offers.made:
            call = _with_work(backend.name, node, offered)
            if isinstance(call, DeviceCall):
                call = call.on(request.target)
            estimate = _cycles(call, prices.get(call.form))
            unwanted = not self.request.expand_weights and _expands(node, call)
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


def _with_work(backend: str, node: Node, call: KernelCall) -> KernelCall:
    """The call with what it does not say: its template's name as form, what any kernel does."""
    form = call.form or f"{backend}_{PurePosixPath(call.template).stem}"
    if call.work:
        return replace(call, form=form)
    operands = [v.type.size for v in node.inputs if v is not None and v.data is None]
    elements = max([*operands, *(v.type.size for v in node.outputs)])
    return replace(call, form=form, work={"calls": 1, "elements": elements, "products": node.macs})


def _expands(node: Node, call: KernelCall) -> bool:
    """Whether a product's constants are much larger than its weights and bias."""
    own = sum(v.type.bytes for v in node.inputs if v is not None and v.data is not None)
    return node.macs > 0 and call.constant_bytes > EXPANSION * own + _SMALL


_SMALL = 2048
"""Bytes that are no matter."""


def _cycles(call: KernelCall, prices: Mapping[str, float] | None) -> int | None:
    if prices is None:
        return None
    return round(sum(prices.get(unit, 0.0) * count for unit, count in call.work.items()))


def _ranked(candidates: Sequence[Candidate], optimize: Optimize) -> list[Candidate]:
    """The candidates, best first; those that cost the same, or nobody knows, stay in order."""
    known = [c.cycles for c in candidates if c.cycles is not None and not c.unwanted]
    allowed = SLOWDOWN * min(known, default=0)

    def key(candidate: Candidate) -> tuple[float, ...]:
        call, cycles = candidate.call, candidate.cycles
        if candidate.plugin:
            return (-1.0,)
        if cycles is None:
            return (2.0,)
        if candidate.unwanted:
            return 1.0, cycles
        match optimize:
            case "speed":
                return 0.0, cycles, call.constant_bytes
            case "ram":
                return 0.0, call.scratch_bytes, cycles
            case "size":
                too_slow = cycles > allowed
                return 0.0, too_slow, cycles if too_slow else call.constant_bytes, cycles

    return sorted(candidates, key=key)


def _not_better(answer: Sequence[Candidate], taken: Candidate) -> str:
    """That a preferred backend of the same group has nothing better; empty where it is faster."""
    if any(_is_faster(candidate, taken) for candidate in answer):
        return ""
    return f"{answer[0].text} is not better than {taken.text}."


def _passed_over(lost: Sequence[Candidate], taken: Candidate, optimize: Optimize) -> Iterator[str]:
    """Why no faster candidate is taken: for each rule, the fastest that it bars, in a sentence."""
    barred: dict[bool, Candidate] = {}
    for candidate in sorted(lost, key=lambda c: inf if c.cycles is None else c.cycles):
        if _is_faster(candidate, taken):
            barred.setdefault(candidate.unwanted and not taken.plugin, candidate)
    for candidate in barred.values():
        yield _rule_against(candidate, taken, optimize)


def _rule_against(lost: Candidate, taken: Candidate, optimize: Optimize) -> str:
    """The rule by which a faster candidate is not taken, and the option by which it is."""
    there, here = lost.call, taken.call
    option = "" if optimize == "speed" else "--optimize speed"
    if taken.plugin:
        rule = "a plugin serves the layer, which goes before anything else"
    elif lost.unwanted:
        rule = (
            f"has constants of {there.constant_bytes:,} bytes, more than {EXPANSION} times the "
            f"weights: {f'{option} --expand-weights'.lstrip()} chooses by cycles alone"
        )
    elif optimize == "ram":
        rule = f"takes {there.scratch_bytes:,} bytes of scratch, not {here.scratch_bytes:,}"
        rule = f"{rule}: {option} chooses by cycles"
    else:
        rule = f"has {there.constant_bytes:,} bytes of constants, not {here.constant_bytes:,}"
        rule = f"{rule}: {option} chooses by cycles"
    return f"{lost.text} would be faster, but {rule}."


def _is_faster(one: Candidate, other: Candidate) -> bool:
    """Whether both are estimated, and the first takes fewer cycles."""
    return one.cycles is not None and other.cycles is not None and one.cycles < other.cycles
