"""Which layers are computed by one shared body, and which by a body of their own.

A body of one layer has that layer's numbers in its text; a shared one reads them from a struct,
which takes a few more instructions and, from the second layer on, fewer bytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from smelt.codegen.lower.kernel import SharedBody
from smelt.codegen.partition.candidates import Choice
from smelt.ir import Node
from smelt.targets import Optimize

MOST_SLOWDOWN = 0.01
"""With `--optimize speed`, a layer keeps a body of its own that saves this share of what the shared
one executes for it."""


@dataclass(frozen=True, eq=False)
class _Sharer:
    """A layer, the choice for it, and the shared body that the chosen kernel offers."""

    node: Node
    choice: Choice
    body: SharedBody


def share(choices: Mapping[Node, Choice], optimize: Optimize) -> dict[Node, Choice]:
    """The choices, in the same order, in which layers of one shared body call it where that pays.

    Args:
        choices: what computes each layer of a network.
        optimize: with `speed`, layers share whose shared body takes less than 1 % more
            instructions; else all do. In either case only if that makes the network smaller.
    """
    groups: dict[Hashable, list[_Sharer]] = {}
    for node, choice in choices.items():
        body = choice.taken.call.shared
        if body is not None:
            groups.setdefault(body.call.key, []).append(_Sharer(node, choice, body))
    found = dict(choices)
    for group in groups.values():
        found |= _decided(group, optimize)
    return found


def _decided(group: Sequence[_Sharer], optimize: Optimize) -> dict[Node, Choice]:
    """The choices of layers that one body can compute."""
    fast = optimize == "speed"
    sharers = [s for s in group if not fast or s.body.slowdown < MOST_SLOWDOWN]
    if _shared_bytes(sharers) >= _specialized_bytes(sharers):
        return {}
    found: dict[Node, Choice] = {}
    for sharer in group:
        if sharer in sharers:
            found[sharer.node] = _sharing(sharer, len(sharers) - 1)
        else:
            slower = f"{sharer.body.slowdown:.1%}"
            reason = f"Code shared with other layers would take {slower} more instructions."
            found[sharer.node] = _explained(sharer.choice, reason)
    return found


def _shared_bytes(sharers: Sequence[_Sharer]) -> int:
    """Flash that one body takes, with the numbers of these layers."""
    structs = sum(sharer.body.struct_bytes for sharer in sharers)
    return max((sharer.body.cost.bytes for sharer in sharers), default=0) + structs


def _specialized_bytes(sharers: Sequence[_Sharer]) -> int:
    """Flash that the bodies of their own take; layers of equal numbers have one."""
    bodies = {s.choice.taken.call.key: s.body.specialized.bytes for s in sharers}
    return sum(bodies.values())


def _sharing(sharer: _Sharer, others: int) -> Choice:
    """The choice in which the layer calls the shared body."""
    taken = sharer.choice.taken
    own = taken.call
    call = replace(sharer.body.call, form=own.form, work=own.work, missed=own.missed)
    with_others = f" with {others} other{'s' if others > 1 else ''}" if others else ""
    slower = f"{max(sharer.body.slowdown, 0):.1%}"
    reason = f"Shares its code{with_others}, at {slower} more instructions."
    return _explained(replace(sharer.choice, taken=replace(taken, call=call)), reason)


def _explained(choice: Choice, reason: str) -> Choice:
    """The choice with one more reason."""
    return replace(choice, reason=f"{choice.reason} {reason}".lstrip())
