"""Timings of each core's instructions, from Arm's documentation.

The tables describe the core alone: memory has no wait states unless they are given. If Arm gives a
range, the tables use its middle, rounded up: 2 cycles to refill the pipeline (1 to 3), 7 for a
division (2 to 12), on a Cortex-M3 4 for a 64-bit product (3 to 5) and 6 with a sum (4 to 7).

Sources: Cortex-M0 TRM (DDI 0432C) table 3-1, with the fast multiplier; Cortex-M0+ TRM (DDI 0484C)
table 3-1; Cortex-M3 TRM (DDI 0337H) table 3-1 and section 3.3.2; Cortex-M4 TRM (DDI 0439D) tables
3-1, 3-2 and 7-1.

The other cores' timings are estimates from what is known of their pipelines:

- Cortex-M23: a product takes 1 or 32 cycles and a division 17 or 34, depending on the chip's
  configuration (not checked). The tables assume the fast ones, and otherwise the timings of the
  Cortex-M0+, which has two pipeline stages too.
- Cortex-M7 issues two instructions per cycle and predicts branches.
- Cortex-M33 issues some pairs of 16-bit instructions.
- Cortex-M55 computes two beats (64 bits) of a vector per cycle. So a vector instruction takes two
  cycles, and one of them overlaps with a neighbor that uses another unit (Armv8-M Architecture
  Reference Manual, DDI 0553, on beats).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from smelt.errors import ConfigError
from smelt.targets.instructions import Instruction, Kind

TimingRule = Callable[["Core", Sequence[Instruction]], list[int]]
"""Return the cycles of each instruction in a basic block, considering its neighbors."""


@dataclass(frozen=True)
class Core:
    """Timings of one core.

    Attributes:
        name: name of the target.
        cycles: cycles by kind. For transfers of many words, cycles besides one for each word.
        rule: function that applies `cycles` to neighboring instructions.
        taken: additional cycles of a taken branch, for kinds that differ from `refill`.
        refill: additional cycles of a taken branch, for all other kinds.
        mispredicted: cycles of a mispredicted conditional branch, assumed to happen as often as the
            branch's less frequent direction; 0 on cores without branch prediction.
        misaligned: additional cycles of a misaligned access.
        issues_wide: whether 32-bit instructions and products can be dual-issued too.
        estimate: whether the timings are estimates, not from a table of Arm's.
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
    """Return the timings of a target's core.

    Raises:
        ConfigError: there are none, for example for the host.
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


def _cycles_alone(core: Core, instruction: Instruction) -> int:
    """Return the cycles of an instruction that does not overlap with its neighbors."""
    base = core.cycles.get(instruction.kind, 1)
    if instruction.kind in _MANY:
        return base + instruction.registers
    return 2 * base if instruction.double else base


def _in_order(core: Core, line: Sequence[Instruction]) -> list[int]:
    """Return the cycles of instructions on a core without overlap."""
    return [_cycles_alone(core, instruction) for instruction in line]


def _pipelined_accesses(core: Core, line: Sequence[Instruction]) -> list[int]:
    """Return cycles on Cortex-M3 and M4, where neighboring loads and stores overlap.

    A store to base plus immediate takes one cycle. A load or store after a load also takes one
    cycle, unless its address depends on that load, or either of them writes its base register.
    """
    found: list[int] = []
    before: Instruction | None = None
    for this in line:
        alone = _cycles_alone(core, this)
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
    """Return cycles on Cortex-M7, M33 and M55, which issue some pairs of instructions together.

    The second instruction of a pair takes no cycle. The result of a load is available one cycle
    late. A vector instruction on a Cortex-M55 occupies its unit for two cycles, but another unit or
    a scalar instruction can start after one.
    """
    found: list[int] = []
    before: Instruction | None = None
    alone = False
    for this in line:
        unit = _unit(this)
        if before is not None and alone and unit is None and _can_pair(core, before, this):
            found.append(0)
            alone = False
        elif unit is None:
            found.append(
                _cycles_alone(core, this) + (before is not None and _waits_for_load(before, this))
            )
            alone = True
        else:
            busy = before is not None and _unit(before) is unit
            gathers = this.kind is Kind.VECTOR_GATHER
            found.append(this.registers if gathers else 1 + busy)
            alone = False
        before = this
    return found


def _waits_for_load(first: Instruction, second: Instruction) -> bool:
    """Return whether `second` needs the loaded value. A base register is updated in time."""
    loaded = first.writes - first.reads if first.writes_back else first.writes
    return first.kind is Kind.LOAD and bool(loaded & second.reads)


_MULTIPLIES = (Kind.MUL, Kind.MLA, Kind.DSP_MUL, Kind.LONG_MUL, Kind.LONG_MLA)
_ACCESSES = (Kind.LOAD, Kind.STORE)
_PAIRED = frozenset({Kind.ALU, Kind.BRANCH, Kind.CONDITIONAL, Kind.IT, Kind.HINT, *_ACCESSES})


def _can_pair(core: Core, first: Instruction, second: Instruction) -> bool:
    """Return whether both instructions can be issued in one cycle."""
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
    """Return the unit that a vector instruction occupies: memory, products or other arithmetic."""
    match instruction.kind:
        case Kind.VECTOR_MEMORY | Kind.VECTOR_GATHER:
            return Kind.VECTOR_MEMORY
        case Kind.VECTOR_MUL | Kind.VECTOR:
            return instruction.kind
        case _:
            return None


# Kinds that are not listed take one cycle. ARMv6-M:
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
# ARMv7-M: a transfer of N words takes 1 + N cycles, including LDRD and STRD.
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
    # The loop-end branch is cached: only the first iteration executes it.
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
