"""The kernels that serve a node: what each costs, which one is best, and why a faster one lost.

What a candidate costs is estimated from the work that its call declares and from prices that were
measured on the target (`smelt.targets.prices`); one without prices comes after those with some.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import PurePosixPath

from smelt.codegen.lower.kernel import KernelCall
from smelt.ir import Node
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
            be faster lost; empty where there is nothing to say. Of later groups it tells once the
            choice is final (`Partitioner.explained`).
    """

    taken: Candidate
    lost: tuple[Candidate, ...] = ()
    reason: str = ""


def with_work(backend: str, node: Node, call: KernelCall) -> KernelCall:
    """The call with what it does not say: its template's name as form, what any kernel does."""
    form = call.form or f"{backend}_{PurePosixPath(call.template).stem}"
    if call.work:
        return replace(call, form=form)
    operands = [v.type.size for v in node.inputs if v is not None and v.data is None]
    elements = max([*operands, *(v.type.size for v in node.outputs)])
    return replace(call, form=form, work={"calls": 1, "elements": elements, "products": node.macs})


def expands(node: Node, call: KernelCall) -> bool:
    """Whether a product's constants are much larger than its weights and bias."""
    own = sum(v.type.bytes for v in node.inputs if v is not None and v.data is not None)
    return node.macs > 0 and call.constant_bytes > EXPANSION * own + _SMALL


_SMALL = 2048
"""Bytes that are no matter."""


def cycles_of(call: KernelCall, prices: Mapping[str, float] | None) -> int | None:
    """What a call costs in cycles; None where its form has no prices."""
    if prices is None:
        return None
    return round(sum(prices.get(unit, 0.0) * count for unit, count in call.work.items()))


def ranked(candidates: Sequence[Candidate], optimize: Optimize) -> list[Candidate]:
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


def not_better(answer: Sequence[Candidate], taken: Candidate) -> str:
    """That a preferred backend of the same group has nothing better; empty where it is faster."""
    if any(_is_faster(candidate, taken) for candidate in answer):
        return ""
    return f"{answer[0].text} is not better than {taken.text}."


def passed_over(lost: Sequence[Candidate], taken: Candidate, optimize: Optimize) -> Iterator[str]:
    """Why no faster candidate is taken: for each rule, the fastest that it bars, in a sentence."""
    barred: dict[bool, Candidate] = {}
    for candidate in sorted(lost, key=lambda c: inf if c.cycles is None else c.cycles):
        if _is_faster(candidate, taken):
            barred.setdefault(candidate.unwanted and not taken.plugin, candidate)
    for candidate in barred.values():
        yield _rule_against(candidate, taken, optimize)


def preferred(later: Sequence[Candidate], taken: Candidate, optimize: Optimize) -> str:
    """That --backends prefers what is taken to the fastest of a later group, and what takes that.

    Empty where none of them is faster.
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
