"""The candidate kernels for a node: their cost, their ranking, and why a faster one was rejected.

The cost is estimated from the work that the kernel call declares and from prices measured on the
target (`smelt.targets.prices`). Candidates without prices rank last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import PurePosixPath

from smelt.codegen.lower.kernel import MORE_RAM, KernelCall
from smelt.ir import Node
from smelt.targets import Optimize

EXPANSION = 2
"""Candidates with constants above this multiple of the weights are chosen last (but see
`with_expansions`)."""

WORTH_FLASH = 2
"""How many times as fast a kernel must be for its constants to be much larger than the weights."""

SLOWDOWN = 1.3
"""Largest slowdown, relative to the fastest candidate, that `--optimize size` accepts."""


@dataclass(frozen=True)
class Candidate:
    """A kernel that can compute a node.

    Attributes:
        backend: The name of the backend.
        call: The kernel call.
        cycles: The estimate for one inference; None if the target has no prices for the call's
            form.
        plugin: Whether a plugin provides the kernel. Such kernels rank first.
        unwanted: Whether the constants are much larger than the weights, and not worth it. Such
            kernels are chosen only if there is no other.
        saved: Bytes of an operand that its results may overwrite; 0 if the operand is read later.
        memory: Bytes that it needs beside operands and results: its scratch, and those of its
            results that could overwrite an operand if another candidate were chosen.
        excess: Bytes of `memory` beyond a limit that has precedence over cost (`Request.limited`).
    """

    backend: str
    call: KernelCall
    cycles: int | None
    plugin: bool = False
    unwanted: bool = False
    saved: int = 0
    memory: int = 0
    excess: int = 0

    @property
    def text(self) -> str:
        """The candidate and its cycles, for messages."""
        name = f"{self.backend}'s {self.call.form or self.call.stem}"
        return name if self.cycles is None else f"{name} ({self.cycles:,} cycles)"


@dataclass(frozen=True)
class Choice:
    """The candidate that computes a node.

    Attributes:
        taken: The chosen candidate.
        lost: The other candidates of its group, best first.
        reason: Why preferred backends do not serve the node and why faster candidates lost. Empty
            if there is nothing to explain. Candidates of later groups are included only in the
            result of `Partitioner.explained`.
    """

    taken: Candidate
    lost: tuple[Candidate, ...] = ()
    reason: str = ""


def with_work(backend: str, node: Node, call: KernelCall) -> KernelCall:
    """Return the call with defaults for a missing form (the template's name) and missing work."""
    if call.form and call.work:
        return call
    form = call.form or f"{backend}_{PurePosixPath(call.template).stem}"
    if call.work:
        return replace(call, form=form)
    operands = [v.type.size for v in node.inputs if v is not None and v.data is None]
    elements = max([*operands, *(v.type.size for v in node.outputs)])
    return replace(call, form=form, work={"calls": 1, "elements": elements, "products": node.macs})


def expands(node: Node, call: KernelCall) -> bool:
    """Return whether a call's constants are much larger than the node's weights and bias."""
    own = sum(v.type.bytes for v in node.inputs if v is not None and v.data is not None)
    return node.macs > 0 and call.constant_bytes > EXPANSION * own + _SMALL


_SMALL = 2048
"""Expansion below this number of bytes is ignored."""


def cycles_of(call: KernelCall, prices: Mapping[str, float] | None) -> int | None:
    """Return the estimated cycles of a call; None if its form has no prices."""
    if prices is None:
        return None
    return round(sum(prices.get(unit, 0.0) * count for unit, count in call.work.items()))


def with_expansions(candidates: Sequence[Candidate], optimize: Optimize) -> list[Candidate]:
    """Return the candidates of a group; large constants are accepted if they bring much speed.

    They are accepted, except for size, if a backend has no kernel with smaller constants, and the
    candidate is at least `WORTH_FLASH` times as fast as the kernels of other backends with smaller
    constants.
    """
    wanted = [c for c in candidates if not c.unwanted]
    cycles = [c.cycles for c in wanted if c.cycles is not None]
    if optimize == "size" or not cycles:
        return list(candidates)
    most, backends = min(cycles) / WORTH_FLASH, {c.backend for c in wanted}

    def accepted(c: Candidate) -> bool:
        return c.backend not in backends and c.cycles is not None and c.cycles <= most

    return [replace(c, unwanted=c.unwanted and not accepted(c)) for c in candidates]


def with_memory(candidates: Sequence[Candidate], limit: float) -> list[Candidate]:
    """Return the candidates of a group with `memory`, and with its excess over a limit in bytes."""
    most = max((candidate.saved for candidate in candidates), default=0)
    found: list[Candidate] = []
    for candidate in candidates:
        memory = candidate.call.scratch_bytes + most - candidate.saved
        excess = max(memory - limit, 0)
        found.append(replace(candidate, memory=memory, excess=int(excess)))
    return found


def ranked(candidates: Sequence[Candidate], optimize: Optimize) -> list[Candidate]:
    """Return the candidates, best first; the sort is stable."""
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
        if optimize == "size":
            too_slow = cycles > allowed
            order = too_slow, cycles if too_slow else call.constant_bytes, cycles
        else:
            order = cycles, call.constant_bytes, call.scratch_bytes
        return 0.0, candidate.excess, *order

    return sorted(candidates, key=key)


def why_not_chosen(answer: Sequence[Candidate], taken: Candidate) -> str:
    """Return why a preferred backend of the same group was not chosen; empty if it is faster."""
    if any(_is_faster(candidate, taken) for candidate in answer):
        return ""
    return f"{answer[0].text} is not better than {taken.text}."


def why_faster_lost(
    lost: Sequence[Candidate], taken: Candidate, optimize: Optimize
) -> Iterator[str]:
    """Yield a sentence for each rule that excludes a faster candidate: it names the fastest one."""
    barred: dict[bool, Candidate] = {}
    for candidate in sorted(lost, key=lambda c: inf if c.cycles is None else c.cycles):
        if _is_faster(candidate, taken):
            barred.setdefault(candidate.unwanted and not taken.plugin, candidate)
    for candidate in barred.values():
        yield _rule_against(candidate, taken, optimize)


def why_not_later_group(later: Sequence[Candidate], taken: Candidate, optimize: Optimize) -> str:
    """Return why `--backends` excludes the fastest candidate of a later group, with the remedy.

    Returns an empty string if no candidate of that group is faster.
    """
    faster = [candidate for candidate in later if _is_faster(candidate, taken)]
    if not faster:
        return ""
    fastest = min(faster, key=lambda c: c.cycles or 0)
    name, remedy = fastest.backend, f"--place LAYER={fastest.backend}:{fastest.call.form}"
    if ranked(later, optimize)[0] is fastest:
        remedy = f"name {name} before it there, or --place LAYER={name}"
    return f"{fastest.text} would be faster, but --backends prefers {taken.backend}: {remedy}."


def _rule_against(lost: Candidate, taken: Candidate, optimize: Optimize) -> str:
    """Return which rule excludes a faster candidate, and the option that would choose it."""
    there, here = lost.call, taken.call
    option = "" if optimize == "speed" else "--optimize speed"
    if taken.plugin:
        rule = "a plugin serves the layer, which goes before anything else"
    elif lost.unwanted:
        rule = (
            f"has constants of {there.constant_bytes:,} bytes, more than {EXPANSION} times the "
            f"weights: {f'{option} --expand-weights'.lstrip()} chooses by cycles alone"
        )
    elif lost.excess:
        rule = "cannot overwrite its input, which enlarges the arena"
        if lost.saved >= taken.saved:
            rule = f"takes {there.scratch_bytes:,} bytes of scratch, which enlarge the arena"
        rule = f"{rule}: {MORE_RAM} allows it"
    else:
        rule = f"has {there.constant_bytes:,} bytes of constants, not {here.constant_bytes:,}"
        rule = f"{rule}: {option} chooses by cycles"
    return f"{lost.text} would be faster, but {rule}."


def _is_faster(one: Candidate, other: Candidate) -> bool:
    """Return whether both candidates have estimates and the first takes fewer cycles."""
    return one.cycles is not None and other.cycles is not None and one.cycles < other.cycles
