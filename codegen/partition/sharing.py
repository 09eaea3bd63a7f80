"""Decides which layers share one function body and which have their own.

The body of a single layer contains that layer's numbers as literals. A shared body reads them from
a struct. That takes a few more instructions, but fewer bytes if two or more layers share the body.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from smelt.codegen.lower.kernel import KernelCall, SharedBody
from smelt.codegen.partition.candidates import Choice
from smelt.ir import Node
from smelt.targets import Optimize

MOST_SLOWDOWN = 0.01
"""With `--optimize speed`, a layer whose shared body is slower by this fraction has its own body.

The fraction is relative to the instructions of the layer's own body; see also `NEGLIGIBLE`.
"""

NEGLIGIBLE = 0.001
"""Fraction of the network's cycles that all such layers together may lose for smaller code."""


@dataclass(frozen=True, eq=False)
class _Sharer:
    """A layer, its choice, and the shared body that the chosen kernel offers."""

    node: Node
    choice: Choice
    body: SharedBody


def share(
    choices: Mapping[Node, Choice], optimize: Optimize, calls: Mapping[Node, int] | None = None
) -> dict[Node, Choice]:
    """Return the choices in the same order, with shared bodies where they save flash.

    Args:
        choices: The choice for each layer of a network.
        optimize: With `speed`, a layer shares a body only if it then executes less than 1 % more
            instructions, or if the lost cycles are negligible for the network. Otherwise all layers
            share that can. In both cases, they share only if that makes the network smaller.
        calls: How many times each layer is called in an inference; None for once.
    """
    groups: dict[Hashable, list[_Sharer]] = {}
    for node, choice in choices.items():
        body = choice.taken.call.shared
        if body is not None:
            groups.setdefault(body.key, []).append(_Sharer(node, choice, body))
    # The shared body of a single layer may be the smaller one, and then is used unless it is slow.
    able = [group for group in groups.values() if len(group) > 1 or _decided(group, frozenset())]
    sharers = [sharer for group in able for sharer in group]
    slow = _slowed(sharers, choices, calls or {}) if optimize != "size" else set[Node]()
    found = dict(choices)
    for group in groups.values():
        found |= _decided(group, slow)
    return found


def _slowed(
    sharers: Sequence[_Sharer], choices: Mapping[Node, Choice], calls: Mapping[Node, int]
) -> set[Node]:
    """Return the layers that a shared body would slow down noticeably."""
    slowdowns = {sharer.node: sharer.body.slowdown for sharer in sharers}
    slowed = {node for node, slowdown in slowdowns.items() if slowdown >= MOST_SLOWDOWN}
    cycles = {
        node: calls.get(node, 1) * (choice.taken.cycles or 0) for node, choice in choices.items()
    }
    left = NEGLIGIBLE * sum(cycles.values())
    lost = {node: slowdowns[node] * cycles[node] for node in slowed if cycles[node]}
    for node in sorted(lost, key=lambda node: lost[node]):
        left -= lost[node]
        if left < 0:
            break
        slowed.remove(node)
    return slowed


def _decided(group: Sequence[_Sharer], slowed: AbstractSet[Node]) -> dict[Node, Choice]:
    """Return the changed choices of layers that one body can compute.

    Layers in `slowed` keep their own body, and so do those that would make the body too large.
    """
    sharers = sorted(
        (sharer for sharer in group if sharer.node not in slowed),
        key=lambda sharer: sharer.body.cost.bytes,
    )
    calls: dict[Node, KernelCall] = {}
    most = 0
    for count in range(1, len(sharers) + 1):
        if count < len(sharers) and _equally_large(sharers[count - 1 : count + 1]):
            continue
        some = sharers[:count]
        joint = some[0].body.joined([sharer.body for sharer in some])
        saved = _specialized_bytes(some) - joint.bytes - _struct_bytes(some)
        if saved > 0 and saved >= most:
            most = saved
            calls = {sharer.node: call for sharer, call in zip(some, joint.calls, strict=True)}
    if not calls:
        return {}
    found: dict[Node, Choice] = {}
    for sharer in group:
        if sharer.node in calls:
            found[sharer.node] = _sharing(sharer, calls[sharer.node], len(calls) - 1)
        elif sharer.node in slowed:
            slower = f"{sharer.body.slowdown:.1%} more instructions"
            reason = f"Code shared with other layers would take an estimated {slower}."
            found[sharer.node] = _explained(sharer.choice, reason)
    return found


def _equally_large(sharers: Sequence[_Sharer]) -> bool:
    """Return whether the bodies of these layers have one size."""
    return len({sharer.body.cost.bytes for sharer in sharers}) == 1


def _struct_bytes(sharers: Sequence[_Sharer]) -> int:
    """Return the bytes of flash for a struct for each of these layers."""
    return sum(sharer.body.struct_bytes for sharer in sharers)


def _specialized_bytes(sharers: Sequence[_Sharer]) -> int:
    """Return the bytes of flash for separate bodies; layers with equal numbers share one."""
    bodies = {
        s.body.specialized_key or s.choice.taken.call.key: s.body.specialized.bytes for s in sharers
    }
    return sum(bodies.values())


def _sharing(sharer: _Sharer, call: KernelCall, others: int) -> Choice:
    """Return the choice with this call of the shared body."""
    taken = sharer.choice.taken
    own = taken.call
    call = replace(call, in_place=own.in_place, form=own.form, work=own.work, missed=own.missed)
    slower = f"{max(sharer.body.slowdown, 0):.1%} more instructions"
    layers = f"{others} other layer{'s' if others > 1 else ''}"
    reason = f"Shares its code with {layers}, at an estimated {slower}."
    if not others:
        reason = f"Its code is smaller at an estimated {slower}."
    return _explained(replace(sharer.choice, taken=replace(taken, call=call)), reason)


def _explained(choice: Choice, reason: str) -> Choice:
    """Return the choice with an additional reason."""
    return replace(choice, reason=f"{choice.reason} {reason}".lstrip())
