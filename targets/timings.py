"""How long each core takes for an instruction, by the timings that Arm publishes.

Tables are of the core alone: memory answers at once, unless wait states are given. Where Arm gives
a range, the tables take its middle, rounded up: two cycles to refill the pipeline (of one to
three), seven for a division (of two to twelve), on a Cortex-M3 four for a 64-bit product (of three
to five) and six with a sum (of four to seven).

Sources: Cortex-M0 TRM (DDI 0432C) table 3-1, with the fast multiplier; Cortex-M0+ TRM (DDI 0484C)
table 3-1; Cortex-M3 TRM (DDI 0337H) table 3-1 and section 3.3.2; Cortex-M4 TRM (DDI 0439D) tables
3-1, 3-2 and 7-1. The others' are estimates from what is known of their pipelines. Of Cortex-M23
a product is taken to be 1 cycle or 32 and a division 17 or 34, as configured (not checked): here
with the fast ones, and all else as on a Cortex-M0+, which has two pipeline stages too. Cortex-M7
issues two instructions a cycle and predicts branches; Cortex-M33 issues some pairs of 16-bit
instructions; Cortex-M55 computes two beats (64 bits) of a vector a cycle, so that a vector
instruction takes two cycles, of which one overlaps with a neighbour that uses another unit (Armv8-M
Architecture Reference Manual, DDI 0553, on beats).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from smelt.errors import ConfigError
from smelt.targets.instructions import Instruction, Kind

TimingRule = Callable[["Core", Sequence[Instruction]], list[int]]
"""The cycles of each instruction of a straight line of code, as far as neighbours matter."""


@dataclass(frozen=True)
class Core:
    """How long instructions take on one core.

    Attributes:
        name: of the target.
        cycles: by kind; where many words are transferred, those beside one for each word.
        rule: applies `cycles` to neighbours.
        taken: cycles more of a taken branch; by kind where they differ from `refill`.
        refill: the same for all other kinds.
        mispredicted: cycles of a conditional branch whose direction was predicted wrongly, taken to
            be as often as its less frequent direction; 0 on cores without prediction.
        misaligned: cycles more of an access that is not aligned.
        issues_wide: whether 32-bit instructions and products go in pairs too.
        estimate: whether the timings are not those of a table of Arm's.
    """

    name: str
    cycles: Mapping[Kind, int]
    rule: TimingRule
    refill: int
    taken: Mapping[Kind, int]
    mispredicted: int = 0
    misaligned: int = 1
    issues_wide: bool = False
    estimate: bool = False


def core(target: str) -> Core:
    """The timings of a target's core.

    Raises:
        ConfigError: there are none, as on the host.
    """
    if target not in _CORES:
        raise ConfigError(
            f"no timings are known for target '{target}'; cycles can be estimated for "
            + ", ".join(_CORES)
        )
    return _CORES[target]


_MANY = frozenset(
    {Kind.LOAD_PAIR, Kind.STORE_PAIR, Kind.LOAD_MANY, Kind.STORE_MANY, Kind.RETURN_MANY}
    | {Kind.FLOAT_LOAD_MANY, Kind.FLOAT_STORE_MANY}
)


def _alone(core: Core, instruction: Instruction) -> int:
    """Cycles of an instruction between others that it does not overlap with."""
    base = core.cycles.get(instruction.kind, 1)
    if instruction.kind in _MANY:
        return base + instruction.registers
    return 2 * base if instruction.double else base


def _in_order(core: Core, line: Sequence[Instruction]) -> list[int]:
    """One after the other."""
    return [_alone(core, instruction) for instruction in line]


def _pipelined_accesses(core: Core, line: Sequence[Instruction]) -> list[int]:
    """Cortex-M3 and M4: neighbouring loads overlap, a store is done beside what follows it.

    A store whose address is base and immediate takes one cycle; a load or store behind a load takes
    one too, unless its address comes from that load or either of them writes its base register.
    """
    found: list[int] = []
    before: Instruction | None = None
    for this in line:
        alone = _alone(core, this)
        single = this.kind in (Kind.LOAD, Kind.STORE)
        if (this.kind is Kind.STORE and not this.indexed) or (
            single
            and before is not None
            and before.kind is Kind.LOAD
            and not before.writes & this.reads
            and not (before.writes_back or this.writes_back)
        ):
            alone = 1
        found.append(alone)
        before = this
    return found


def _overlapping_issue(core: Core, line: Sequence[Instruction]) -> list[int]:
    """Cortex-M7, M33, M55: an instruction takes no cycle where it goes beside the one before it.

    The result of a load is there one cycle late. A vector instruction of a Cortex-M55 holds its
    unit for two cycles, of which one passes before another unit or a scalar instruction goes on.
    """
    found: list[int] = []
    before: Instruction | None = None
    alone = False
    for this in line:
        unit = _unit(this)
        if before is not None and alone and unit is None and _pairs(core, before, this):
            found.append(0)
            alone = False
        elif unit is None:
            found.append(_alone(core, this) + (before is not None and _waits(before, this)))
            alone = True
        else:
            busy = before is not None and _unit(before) is unit
            gathers = this.kind is Kind.VECTOR_GATHER
            found.append(this.registers if gathers else 1 + busy)
            alone = False
        before = this
    return found


def _waits(first: Instruction, second: Instruction) -> bool:
    """Whether the second needs what the first loads; a changed base register is there in time."""
    loaded = first.writes - first.reads if first.writes_back else first.writes
    return first.kind is Kind.LOAD and bool(loaded & second.reads)


_MULTIPLIES = (Kind.MUL, Kind.MLA, Kind.DSP_MUL, Kind.LONG_MUL, Kind.LONG_MLA)
_ACCESSES = (Kind.LOAD, Kind.STORE)
_PAIRED = frozenset({Kind.ALU, Kind.BRANCH, Kind.CONDITIONAL, Kind.IT, Kind.HINT, *_ACCESSES})


def _pairs(core: Core, first: Instruction, second: Instruction) -> bool:
    """Whether both can be issued in one cycle."""
    kinds = (first.kind, second.kind)
    if first.writes & (second.reads | second.writes) or first.branches:
        return False
    if core.issues_wide:
        able = _PAIRED | frozenset(_MULTIPLIES)
        twice = kinds == (Kind.STORE, Kind.STORE) or all(k in _MULTIPLIES for k in kinds)
        return not twice and all(kind in able for kind in kinds)
    accesses = sum(kind in _ACCESSES for kind in kinds)
    return first.size == second.size == 2 and accesses < 2 and all(k in _PAIRED for k in kinds)


def _unit(instruction: Instruction) -> Kind | None:
    """What a vector instruction occupies: the unit for memory, for products or for the rest."""
    match instruction.kind:
        case Kind.VECTOR_MEMORY | Kind.VECTOR_GATHER:
            return Kind.VECTOR_MEMORY
        case Kind.VECTOR_MUL | Kind.VECTOR:
            return instruction.kind
        case _:
            return None


# Kinds that are absent take one cycle. ARMv6-M:
_M0 = {
    Kind.LOAD: 2,
    Kind.STORE: 2,
    Kind.LOAD_MANY: 1,
    Kind.STORE_MANY: 1,
    Kind.RETURN_MANY: 2,
    Kind.CALL: 2,
    Kind.BARRIER: 4,
    Kind.SYSTEM: 4,
}
_M0PLUS = _M0 | {Kind.BARRIER: 3, Kind.SYSTEM: 3}
_M23 = _M0PLUS | {Kind.DIV: 17}
# ARMv7-M: a transfer of N words takes 1 + N, which is also what LDRD and STRD take.
_V7M = {
    Kind.DIV: 7,
    Kind.LOAD: 2,
    Kind.STORE: 2,
    Kind.LOAD_PAIR: 1,
    Kind.STORE_PAIR: 1,
    Kind.LOAD_MANY: 1,
    Kind.STORE_MANY: 1,
    Kind.RETURN_MANY: 1,
    Kind.TABLE: 2,
    Kind.BARRIER: 4,
    Kind.SYSTEM: 2,
}
_M3 = _V7M | {Kind.MLA: 2, Kind.LONG_MUL: 4, Kind.LONG_MLA: 6}
_FPV4 = {
    Kind.FLOAT_MLA: 3,
    Kind.FLOAT_DIV: 14,
    Kind.FLOAT_SQRT: 14,
    Kind.FLOAT_LOAD: 2,
    Kind.FLOAT_STORE: 2,
    Kind.FLOAT_LOAD_MANY: 1,
    Kind.FLOAT_STORE_MANY: 1,
}
_M33 = (
    _V7M
    | _FPV4
    | {Kind.LOAD: 1, Kind.STORE: 1, Kind.FLOAT_LOAD: 1, Kind.FLOAT_STORE: 1}
    | {Kind.LOAD_PAIR: 0, Kind.STORE_PAIR: 0, Kind.LOAD_MANY: 0, Kind.STORE_MANY: 0}
)
_M7 = _M33 | {Kind.LOAD_PAIR: -1, Kind.STORE_PAIR: -1, Kind.FLOAT_MLA: 1}
_M55 = _M33 | {
    Kind.LOAD_PAIR: -1,
    Kind.STORE_PAIR: -1,
    Kind.SHIFT_LONG: 2,
    Kind.FLOAT_MLA: 1,
    # The end of a loop is remembered: only its first turn executes it.
    Kind.LOOP_END: 0,
}
_CORES = {
    found.name: found
    for found in (
        Core("cortex-m0", _M0, _in_order, 2, {}),
        Core("cortex-m0plus", _M0PLUS, _in_order, 1, {}),
        Core("cortex-m23", _M23, _in_order, 1, {}, estimate=True),
        Core("cortex-m3", _M3, _pipelined_accesses, 2, {}),
        Core("cortex-m4", _V7M | _FPV4, _pipelined_accesses, 2, {}),
        Core(
            "cortex-m7",
            _M7,
            _overlapping_issue,
            refill=0,
            taken={Kind.JUMP: 1},
            mispredicted=6,
            issues_wide=True,
            estimate=True,
        ),
        Core("cortex-m33", _M33, _overlapping_issue, 2, {}, estimate=True),
        Core("cortex-m55", _M55, _overlapping_issue, 2, {Kind.LOOP_END: 0}, estimate=True),
    )
}
