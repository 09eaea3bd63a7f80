"""What is known about registers where code runs: the stack pointer, addresses and constants.

`Machine.execute` follows one instruction, of a Cortex-M or of RISC-V. A value is known if it is a
constant, a place on the stack, or the address that the function returns to; all others are left
out. Of the words on the stack, only those that hold that address are known, because other code
must not change them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache

from smelt.targets.instructions import ALIASES, Instruction, listed_registers


@dataclass(frozen=True)
class OnStack:
    """An address: the stack pointer at the function's entry plus `offset` bytes."""

    offset: int


class Link(Enum):
    """The address that a function returns to."""

    RETURN = "return"


KnownValue = int | OnStack | Link
Known = Mapping[str | int, KnownValue]
"""The known values, by register, and by the offset of a word on the stack."""

_WORD = 4
_MASK = 0xFFFF_FFFF


def _sum(a: KnownValue, b: KnownValue) -> KnownValue | None:
    if isinstance(a, int) and isinstance(b, int):
        return (a + b) & _MASK
    for base, other in ((a, b), (b, a)):
        if isinstance(base, OnStack) and isinstance(other, int):
            return OnStack(base.offset + _signed(other))
    return None


def _difference(a: KnownValue, b: KnownValue) -> KnownValue | None:
    return _sum(a, -b & _MASK) if isinstance(b, int) else None


def _reversed(a: KnownValue, b: KnownValue) -> KnownValue | None:
    return _difference(b, a)


def _shifted(a: KnownValue, b: KnownValue) -> KnownValue | None:
    return (a << b) & _MASK if isinstance(a, int) and isinstance(b, int) and b < 32 else None


def _top(a: KnownValue, b: KnownValue) -> KnownValue | None:
    return a & 0xFFFF | b << 16 if isinstance(a, int) and isinstance(b, int) else None


def _copy(a: KnownValue) -> KnownValue:
    return a


def _negative(a: KnownValue) -> KnownValue | None:
    return -a & _MASK if isinstance(a, int) else None


def _inverse(a: KnownValue) -> KnownValue | None:
    return ~a & _MASK if isinstance(a, int) else None


def _upper(a: KnownValue) -> KnownValue | None:
    return (a << 12) & _MASK if isinstance(a, int) else None


def _signed(number: int) -> int:
    return number - (1 << 32) if number & 1 << 31 else number


_UNARY: dict[str, Callable[[KnownValue], KnownValue | None]] = {
    "mov": _copy, "movs": _copy, "movw": _copy, "mv": _copy, "li": _copy,
    "mvn": _inverse, "mvns": _inverse, "negs": _negative, "neg": _negative, "lui": _upper,
}  # fmt: skip
_BINARY: dict[str, Callable[[KnownValue, KnownValue], KnownValue | None]] = {
    "add": _sum, "adds": _sum, "addw": _sum, "addi": _sum,
    "sub": _difference, "subs": _difference, "subw": _difference,
    "rsb": _reversed, "rsbs": _reversed, "movt": _top,
    "lsl": _shifted, "lsls": _shifted, "slli": _shifted,
}  # fmt: skip
_CONDITIONS = ("eq", "ne", "cs", "cc", "mi", "pl", "vs", "vc", "hi", "ls", "ge", "lt", "gt", "le")


@dataclass(frozen=True)
class Transfer:
    """A load or store of words.

    Attributes:
        load: whether it loads.
        registers: the registers, in the order of their words; those of a vector unit are empty.
        base: the register with the address.
        offset: bytes from that address to the first word.
        change: what is added to the base register.
    """

    load: bool
    registers: tuple[str, ...]
    base: str
    offset: int
    change: int


_MANY = re.compile(r"(?:(\w+)(!?), )?\{(.*)\}")
_ONE = re.compile(r"(.*), \[(\w+)(?:, #(-?\d+))?\](!?)(?:, #(-?\d+))?")
_RISCV = re.compile(r"(\w+),(-?\d+)\((\w+)\)")
_PLACE = re.compile(r"(-?\d+)\((\w+)\)")
_MANY_NAMES = re.compile(r"v?(?:push|pop|(?:ld|st)m(?:ia|db)?)")
_ONE_NAMES = re.compile(r"(?:ldr|str)d?|v(?:ldr|str)\w?")


@cache
def transfer(instruction: Instruction) -> Transfer | None:
    """Return the words that an instruction loads or stores, or None if it is another one."""
    name, text = base_name(instruction), instruction.operands
    if found := _RISCV.fullmatch(text) if name in ("lw", "sw") else None:
        register, offset, base = found.groups()
        return Transfer(name == "lw", (register,), base, int(offset), 0)
    if found := _MANY.fullmatch(text) if _MANY_NAMES.fullmatch(name) else None:
        base, back, listed = found.groups()
        stacked = base is None
        down, load = name.endswith(("push", "db")), "pop" in name or "ld" in name
        size = _WORD * instruction.registers
        names = ("",) * instruction.registers if name.startswith("v") else tuple(
            map(_register, listed_registers(listed))
        )  # fmt: skip
        change = (-size if down else size) if stacked or back else 0
        return Transfer(load, names, _register(base or "sp"), -size if down else 0, change)
    if found := _ONE.fullmatch(text) if _ONE_NAMES.fullmatch(name) else None:
        listed, base, offset, back, after = found.groups()
        names = tuple("" if name.startswith("v") else _register(n) for n in listed.split(", "))
        at = int(offset or 0)
        change = at if back else int(after or 0)
        return Transfer("ld" in name, names, _register(base), at, change)
    return None


@dataclass(frozen=True)
class Machine:
    """Follows instructions.

    Attributes:
        address_bit: 1 if the addresses of functions are odd, else 0.
        word: returns the word at an address of the program, or None if it is not known.
        link: the register with the address to return to.
        arguments: the registers with the arguments of a call.
        preserved: the registers that calls preserve, besides the stack pointer.
    """

    address_bit: int
    word: Callable[[int], int | None]
    link: str
    arguments: frozenset[str]
    preserved: frozenset[str]

    def entry(self) -> Known:
        """Return what is known at the entry of a function."""
        return {"sp": OnStack(0), self.link: Link.RETURN}

    def after_call(self, state: Known) -> Known:
        """Return what is known after a call that returned."""
        kept = self.preserved | {"sp"}
        return {key: v for key, v in state.items() if isinstance(key, int) or key in kept}

    def target(self, jump: Instruction, state: Known) -> KnownValue | None:
        """Return the address that a jump through a register or memory leads to, if it is known.

        `state` is what is known after the jump.
        """
        if "pc" in jump.writes:
            return state.get("pc")
        if not jump.operands:
            return state.get(self.link) if jump.mnemonic == "ret" else None
        found = _PLACE.fullmatch(jump.operands)
        offset, register = found.groups() if found else ("0", _register(jump.operands))
        value = state.get(register)
        return None if value is None else _sum(value, int(offset)) if found else value

    def execute(self, instruction: Instruction, state: Known) -> Known:
        """Return what is known after an instruction, which may have written `pc`."""
        moved = transfer(instruction)
        if moved is not None:
            return self._moved(instruction, moved, state)
        new = {key: v for key, v in state.items() if key not in instruction.writes}
        result = _result(instruction)
        value = None if result is None else self._value(instruction, state)
        if result is not None and value is not None:
            new[result] = value
        return new

    def _moved(self, instruction: Instruction, moved: Transfer, state: Known) -> Known:
        new = dict(state)
        base = self._read(moved.base, instruction, state)
        for index, register in enumerate(moved.registers):
            place = None if base is None else _sum(base, (moved.offset + _WORD * index) & _MASK)
            if moved.load:
                value = self._loaded(place, state)
                new.pop(register, None)
                if register and value is not None:
                    new[register] = value
            elif isinstance(place, OnStack):
                new.pop(place.offset, None)
                if state.get(register) is Link.RETURN:
                    new[place.offset] = Link.RETURN
        if moved.change:
            after = None if base is None else _sum(base, moved.change & _MASK)
            new.pop(moved.base, None)
            if after is not None:
                new[moved.base] = after
        return new

    def _loaded(self, place: KnownValue | None, state: Known) -> KnownValue | None:
        if isinstance(place, OnStack):
            return state.get(place.offset)
        return self.word(place) if isinstance(place, int) else None

    def _value(self, instruction: Instruction, state: Known) -> KnownValue | None:
        """Return the result of arithmetic, or None if it is not known."""
        name, texts = base_name(instruction), _operands(instruction)
        result, *sources = texts
        values = [self._read(text, instruction, state) for text in sources]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        if name == "auipc":
            upper = _upper(known[0])
            return None if upper is None else _sum(upper, instruction.address)
        if name in _UNARY and len(known) == 1:
            return _UNARY[name](known[0])
        if name in _BINARY and len(known) == 1:
            first = self._read(result, instruction, state)
            return None if first is None else _BINARY[name](first, known[0])
        return _BINARY[name](*known) if name in _BINARY and len(known) == 2 else None

    @staticmethod
    def _read(text: str, instruction: Instruction, state: Known) -> KnownValue | None:
        """Return the value of an operand: a number or a register."""
        if found := _NUMBER.fullmatch(text):
            return int(found.group(1), 0) & _MASK
        if text == "pc":
            aligned = "pc" not in instruction.writes
            return (instruction.address + 4) & (~3 if aligned else ~0)
        return state.get(text)


_NUMBER = re.compile(r"#?(-?(?:0x[0-9a-f]+|\d+))")


def _result(instruction: Instruction) -> str | None:
    """Return the register with the result of arithmetic, or None for other instructions."""
    name = base_name(instruction)
    known = name in _UNARY or name in _BINARY or name == "auipc"
    return _operands(instruction)[0] if known else None


@cache
def _operands(instruction: Instruction) -> tuple[str, ...]:
    return tuple(_register(text.strip()) for text in instruction.operands.split(","))


@cache
def base_name(instruction: Instruction) -> str:
    """Return the mnemonic without its width, and without its condition after IT."""
    name = instruction.mnemonic.partition(".")[0]
    if name in _UNARY or name in _BINARY or not name.endswith(_CONDITIONS):
        return name
    return name[:-2]


def _register(name: str) -> str:
    return ALIASES.get(name, name)
