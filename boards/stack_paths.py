"""Every path through one function's machine code: the stack that it uses, and what it calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from smelt.boards.disassembly import Code
from smelt.boards.firmware_bytes import Contents
from smelt.boards.register_values import (
    Known,
    KnownValue,
    Link,
    Machine,
    OnStack,
    base_name,
    transfer,
)
from smelt.targets.instructions import Instruction, Kind

_PADDING = ("nop", "movs r0, r0", "unimp")
"""What linkers write between functions."""

_MOST_DEPTHS = 64
"""If more different depths reach one instruction, a loop takes stack in each iteration."""

_UNKNOWN = "is known at run time only"


class NoBoundError(Exception):
    """Why there is no bound, as a sentence without a period."""


class Linked:
    """A linked program, and the functions that its code can call through pointers."""

    def __init__(
        self, code: Code, machine: Machine, contents: Contents, pointed: AbstractSet[str]
    ) -> None:
        """Set up.

        Args:
            code: the machine code.
            machine: computes what is known after an instruction.
            contents: all bytes of the program.
            pointed: names of the functions to which the program has pointers. A number that equals
                the address of any other function is not a pointer to it.
        """
        self.code, self.machine, self._contents, self._pointed = code, machine, contents, pointed
        self.callable: set[int] = set()
        self._seen: set[int] = set()
        self._paths: dict[int, Paths] = {}
        self._instructions: dict[int, list[Instruction]] = {}
        for instruction in code.instructions.values():
            start = code.start_of(instruction.address)
            self._instructions.setdefault(start, []).append(instruction)

    def function(self, start: int) -> list[Instruction]:
        """Return the instructions of the function at an address."""
        return self._instructions[start]

    def paths(self, entry: int) -> Paths:
        """Return the paths of a function; `Paths.follow_jumps` adds jumps to unknown addresses."""
        if entry not in self._paths:
            self._paths[entry] = Paths(self, entry)
        return self._paths[entry]

    def forget(self) -> None:
        """Forget all paths, because more functions can be called through pointers than before."""
        self._paths.clear()

    def callees(self) -> list[int]:
        """Return the functions that a call of an unknown address may reach."""
        return [entry for entry in sorted(self.callable) if not self.paths(entry).is_continuation]

    def continuations(self) -> list[int]:
        """Return the functions that a jump from another function, with its stack, may reach."""
        found = ((entry, self.paths(entry)) for entry in sorted(self.callable))
        return [
            entry for entry, paths in found if paths.is_continuation or paths.has_indirect_tail_call
        ]

    def add_pointers(self, values: Iterable[KnownValue | None]) -> None:
        """Record functions whose addresses the code stores, or passes as arguments of a call."""
        self._add(value for value in values if isinstance(value, int))

    def add_tables(self, state: Known) -> None:
        """Record functions whose addresses are in tables that known values point to."""
        for value in state.values():
            if isinstance(value, int) and value not in self._seen:
                self._seen.add(value)
                self._add(self._contents.words_at(value))

    def _add(self, numbers: Iterable[int]) -> None:
        bit, names = self.machine.address_bit, self.code.functions
        starts = {number - bit for number in numbers} & names.keys()
        self.callable |= {start for start in starts if names[start] in self._pointed}


@dataclass(frozen=True)
class _Jump:
    """A jump to an address that is not known.

    Attributes:
        instruction: the instruction.
        state: what is known of the stack and the address to return to.
    """

    instruction: Instruction
    state: Known


class Paths:
    """All paths from the entry of one function to its returns.

    Attributes:
        depth: the most bytes of stack that it uses itself, without those of the functions it calls.
        deepest_address: address of an instruction at which it uses `depth` bytes.
        calls: for each called function, the largest depth of the stack at a call of it; under key
            None, the largest depth at calls of unknown addresses.
        is_continuation: whether it is assembly that uses the stack of functions that jump to it.
        has_indirect_tail_call: whether it releases its stack and then jumps to an unknown address.
    """

    def __init__(self, program: Linked, entry: int) -> None:
        self._program, self._code, self._machine = program, program.code, program.machine
        self._name = self._code.function_at(entry)
        self.depth, self.deepest_address = 0, entry
        self.calls: dict[int | None, int] = {}
        self.is_continuation = self.has_indirect_tail_call = False
        self._states: dict[int, dict[int, Known]] = {}
        self._work: list[tuple[Instruction, Known]] = []
        self._jumps: list[_Jump] = []
        self._follow(entry, program.machine.entry())

    def callees(self) -> Iterator[tuple[int, int]]:
        """Yield the functions that are called, with the largest depth of the stack at calls.

        Raises:
            NoBoundError: an address is called that is known at run time only.
        """
        for callee, depth in self.calls.items():
            if callee is not None:
                yield callee, depth
                continue
            found = self._program.callees()
            if not found:
                raise NoBoundError(f"{self._name} calls an address that {_UNKNOWN}")
            yield from ((address, depth) for address in found)

    def follow_jumps(self) -> None:
        """Also follow jumps to unknown addresses.

        Raises:
            NoBoundError: there is no bound.
        """
        for jump in self._jumps:  # a followed path may append jumps to the list
            is_table = jump.instruction.kind is Kind.TABLE
            has_frame = is_table or _depth(jump.state) > 0
            functions = () if is_table else self._candidates(jump, has_frame=has_frame)
            for address in functions:
                self._follow(address, jump.state)
            start = self._code.start_of(jump.instruction.address)
            for instruction in self._program.function(start) if has_frame else ():
                unseen = instruction.address not in self._states
                if unseen and str(instruction) not in _PADDING:
                    self._follow(instruction.address, jump.state)

    def _candidates(self, jump: _Jump, *, has_frame: bool) -> list[int]:
        """Return the functions that a jump may lead to; `has_frame` if its function uses stack."""
        if has_frame:
            return self._program.continuations()
        found = self._program.callees()
        if jump.state.get(self._machine.link) is not Link.RETURN or not found:
            raise NoBoundError(f"{self._name} jumps to an address that {_UNKNOWN}")
        return found

    def _follow(self, entry: int, state: Known) -> None:
        self._reach(entry, state)
        while self._work:
            instruction, known = self._work.pop()
            for address, after in self._successors(instruction, known):
                self._reach(address, after)

    def _reach(self, address: int, state: Known) -> None:
        """Record that an instruction is reached in a state; queue it if the state is new.

        States with equal stack pointers are merged: a value stays known only if all agree on it.
        """
        instruction = self._code.instructions.get(address)
        if instruction is None:
            return  # data behind the last instruction
        pointer = state.get("sp")
        if not isinstance(pointer, OnStack):
            raise NoBoundError(f"{self._name} moves the stack pointer by a number that {_UNKNOWN}")
        states = self._states.setdefault(address, {})
        if len(states) > _MOST_DEPTHS:
            raise NoBoundError(f"{self._name} takes more stack in each iteration of a loop")
        if -pointer.offset > self.depth:
            self.depth, self.deepest_address = -pointer.offset, address
        known = states.get(pointer.offset)
        if known is not None:
            state = {key: value for key, value in known.items() if state.get(key) == value}
            if len(state) == len(known):
                return
        states[pointer.offset] = state
        self._work.append((instruction, state))

    def _successors(self, i: Instruction, state: Known) -> Iterator[tuple[int, Known]]:
        """Yield the addresses that execution may continue at, with what is known there."""
        new = self._machine.execute(i, state)
        moved = transfer(i)
        self._program.add_tables(new)
        if moved is not None and not moved.load:
            self._program.add_pointers(map(state.get, moved.registers))
        if i.address in self._code.conditional:
            yield i.after, state
        if i.kind is Kind.CALL and i.target is not None:
            yield from self._call_successors(i, i.target, new)
        elif i.target is not None:
            yield i.target, new
            if i.kind is not Kind.BRANCH:
                yield i.after, new
        elif i.kind is Kind.JUMP or "pc" in i.writes:
            yield from self._jump_successors(i, new)
        elif i.kind is Kind.TABLE:
            self._jumps.append(_Jump(i, _frame(new)))
        else:
            yield i.after, new

    def _call_successors(
        self, i: Instruction, target: int, new: Known
    ) -> Iterator[tuple[int, Known]]:
        """Yield what follows a direct call."""
        link, comma, _ = i.operands.partition(",")
        same = self._code.start_of(target) == self._code.start_of(i.address)
        if comma and link != self._machine.link:
            yield target, {**new, link: i.after}  # a library function that saves registers
        elif same and target not in self._code.functions:
            yield target, new  # `bl` as a jump: Armv6-M has no other that far
        else:
            yield from self._record_call(i, target, new)

    def _record_call(
        self, i: Instruction, target: int | None, new: Known
    ) -> Iterator[tuple[int, Known]]:
        """Record a call, and yield the address that it returns to."""
        self.calls[target] = max(self.calls.get(target, 0), _depth(new))
        names = (name for name in self._machine.arguments if name != i.operands)
        self._program.add_pointers(map(new.get, names))
        if i.after not in self._code.functions:  # else the called function never returns
            yield i.after, self._machine.after_call(new)

    def _jump_successors(self, i: Instruction, new: Known) -> Iterator[tuple[int, Known]]:
        """Yield where a jump or call through a register or memory leads to."""
        target = self._machine.target(i, new)
        if base_name(i) in ("blx", "jalr"):
            known = target & ~1 if isinstance(target, int) else None
            yield from self._record_call(i, known, new)
        elif isinstance(target, int):
            yield target & ~1, new
        elif target is Link.RETURN:
            if _depth(new) != 0:
                raise NoBoundError(
                    f"{self._name} returns with another stack pointer than at its entry"
                )
        elif i.mnemonic != "mret":
            self._record_jump(i, new)

    def _record_jump(self, i: Instruction, new: Known) -> None:
        """Record a jump to an unknown address; if the address was popped, the function returns."""
        moved = transfer(i)
        if moved is not None and moved.change:
            self.is_continuation |= _depth(new) != 0
            return
        self._jumps.append(_Jump(i, _frame(new)))
        if _depth(new) <= 0:
            returns = new.get(self._machine.link) is Link.RETURN
            self.is_continuation |= not returns
            self.has_indirect_tail_call |= returns


def _frame(state: Known) -> Known:
    """Return what is known about the stack and the address to return to."""
    return {key: value for key, value in state.items() if not isinstance(value, int)}


def _depth(state: Known) -> int:
    """Return the bytes between the stack pointer and its value at the function's entry."""
    pointer = state["sp"]
    assert isinstance(pointer, OnStack)
    return -pointer.offset
