"""Decides which layers share one function body and which have their own.

The body of a single layer contains that layer's numbers as literals. A shared body reads them from
a struct. That takes a few more instructions, but fewer bytes if two or more layers share the body.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from smelt.codegen.lower.kernel import (
    InnerFunction,
    JointBody,
    KernelCall,
    LayerStruct,
    Packed,
    SharedBody,
)
from smelt.codegen.partition.candidates import Choice
from smelt.ir import Node
from smelt.targets import Optimize

MOST_SLOWDOWN = 0.01
"""With `--optimize speed`, a layer whose shared body is slower by this fraction has its own body.

The fraction is relative to the instructions of the layer's own body; see also `NEGLIGIBLE`.
"""

NEGLIGIBLE, NEGLIGIBLE_IN_LITTLE_RAM = 0.001, 0.01
"""Fraction of the network's cycles that all such layers together may lose for smaller code.

Where RAM is limited, layers are computed a few rows at a time, and different numbers of rows need
further functions. So more cycles may be lost there, to keep the code small.
"""


@dataclass(frozen=True, eq=False)
class _Sharer:
    """A layer, its choice, and the shared body that the chosen kernel offers."""

    node: Node
    choice: Choice
    body: SharedBody


def share(
    choices: Mapping[Node, Choice],
    optimize: Optimize,
    calls: Mapping[Node, int] | None = None,
    *,
    little_ram: bool = False,
) -> dict[Node, Choice]:
    """Return the choices in the same order, with shared bodies where they save flash.

    Args:
        choices: The choice for each layer of a network.
        optimize: With `speed`, a layer shares a body only if it then executes less than 1 % more
            instructions, or if the lost cycles are negligible for the network. Otherwise all layers
            share that can. In both cases, they share only if that makes the network smaller.
        calls: How many times each layer is called in an inference; None for once.
        little_ram: See `Request`.
    """
    groups: dict[Hashable, list[_Sharer]] = {}
    for node, choice in choices.items():
        body = choice.taken.call.shared
        if body is not None:
            groups.setdefault(body.key, []).append(_Sharer(node, choice, body))
    # The shared body of a single layer may be the smaller one, and then is used unless it is slow.
    flash, none = _Flash(choices if groups else {}), frozenset[Node]()
    able = [g for g in groups.values() if len(g) > 1 or _decided(g, none, flash)]
    sharers = [sharer for group in able for sharer in group]
    slow = set[Node]()
    if optimize != "size":
        negligible = NEGLIGIBLE_IN_LITTLE_RAM if little_ram else NEGLIGIBLE
        slow = _slowed(sharers, choices, calls or {}, negligible)
    found = dict(choices)
    for group in groups.values():
        found |= _decided(group, slow, flash)
    return found


def _slowed(
    sharers: Sequence[_Sharer],
    choices: Mapping[Node, Choice],
    calls: Mapping[Node, int],
    negligible: float,
) -> set[Node]:
    """Return the layers that a shared body would slow down noticeably."""
    slowdowns = {sharer.node: sharer.body.slowdown for sharer in sharers}
    slowed = {node for node, slowdown in slowdowns.items() if slowdown >= MOST_SLOWDOWN}
    cycles = {
        node: calls.get(node, 1) * (choice.taken.cycles or 0) for node, choice in choices.items()
    }
    left = negligible * sum(cycles.values())
    lost = {node: slowdowns[node] * cycles[node] for node in slowed if cycles[node]}
    for node in sorted(lost, key=lambda node: lost[node]):
        left -= lost[node]
        if left < 0:
            break
        slowed.remove(node)
    return slowed


def _decided(
    group: Sequence[_Sharer], slowed: AbstractSet[Node], flash: _Flash
) -> dict[Node, Choice]:
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
        saved = saved_bytes(flash, {sharer.node for sharer in some}, joint)
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


class _Flash:
    """The functions and constants of layers that have their own bodies.

    Attributes:
        pieces: For each layer, its functions and constants: their bytes by key.
        users: The layers that use each of them.
    """

    def __init__(self, choices: Mapping[Node, Choice]) -> None:
        self.pieces = {node: _pieces(choice.taken.call) for node, choice in choices.items()}
        self.users: dict[Hashable, set[Node]] = {}
        for node, pieces in self.pieces.items():
            for piece in pieces:
                self.users.setdefault(piece, set()).add(node)

    def only_of(self, pieces: Mapping[Hashable, int], nodes: AbstractSet[Node]) -> int:
        """Return the bytes of those pieces that no other layers use."""
        return sum(n for piece, n in pieces.items() if self.users.get(piece, set[Node]()) <= nodes)


def saved_bytes(flash: _Flash, nodes: AbstractSet[Node], joint: JointBody) -> int:
    """Return how many bytes less a network takes if these layers share a body.

    What other layers use too does not count, because it is in flash anyway.
    """
    before = {piece: n for node in nodes for piece, n in flash.pieces[node].items()}
    after = {joint.calls[0].key: joint.bytes - sum(joint.inner.values()), **joint.inner}
    for call in joint.calls:
        after |= _constants(call)
    structs = sum(
        operand.array.nbytes
        for call in joint.calls
        for operand in call.operands
        if isinstance(operand, LayerStruct)
    )
    return flash.only_of(before, nodes) - flash.only_of(after, nodes) - structs


def _pieces(call: KernelCall) -> dict[Hashable, int]:
    """Return the bytes of the functions and constants of a layer's own body, by their keys.

    Functions for which the kernel states no size have none.
    """
    found = _constants(call) | {inner.key: 0 for inner in _static_functions(call.inner)}
    if call.shared is None:
        return found | {call.key: 0}
    cost = call.shared.specialized
    own = cost.bytes - sum(cost.inner.values())
    return {**found, **cost.inner, call.shared.specialized_key or call.key: own}


def _static_functions(called: Sequence[InnerFunction]) -> Iterator[InnerFunction]:
    """Yield these functions and all that they call."""
    for inner in called:
        yield inner
        yield from _static_functions(inner.inner)


def _constants(call: KernelCall) -> dict[Hashable, int]:
    """Return the bytes of a call's constants by keys that are equal for equal arrays."""
    arrays = (operand.array for operand in call.operands if isinstance(operand, Packed))
    return {(a.dtype.str, a.shape, a.tobytes()): a.nbytes for a in arrays}


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
