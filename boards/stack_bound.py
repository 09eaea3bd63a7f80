"""The most stack that a function of a linked program can use, from its machine code alone.

The ELF is the only source that contains everything: C functions, functions in assembly, and those
of the compiler's library and the C library. The compiler's own tables (`-fstack-usage`,
`-fcallgraph-info`) have no numbers for assembly and libraries, and the linker may have removed or
merged functions that they describe.

Every path through a function's instructions is followed from its entry, with the stack pointer and
other known values of registers (`register_values`). Jumps, also those to other functions, continue
the same path. Called functions are bounded on their own, so that recursion is found. There is no
bound if a function calls itself, directly or through others, calls an address that comes from
outside of the code, or moves the stack pointer by a number that is known at run time only.

If the address of a call is not known, the call may lead to each function whose address the code
stores, passes as an argument, or has in a table that it reads. The same holds if a function has
released its stack and ends with a jump to an unknown address. All other jumps to unknown addresses
are in assembly: they lead to another place of the same function, or to another function in assembly
that continues with the same stack. We assume that such a jump leads to all instructions of its
function that no other path reaches, and that an address that is popped is the return address.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile

from smelt.boards.disassembly import disassemble
from smelt.boards.elf import pointed_functions
from smelt.boards.firmware_bytes import Contents
from smelt.boards.register_values import Machine
from smelt.boards.stack_paths import Linked, NoBoundError
from smelt.targets import Target

_INTERRUPTS = ("SysTick_Handler", "smelt_uart_interrupt", "smelt_timer_interrupt")
"""Functions of the firmware for a Cortex-M that interrupt others; only one runs at a time."""

_RISCV_INTERRUPT = "smelt_interrupt"

_FRAME, _FLOAT_FRAME, _ALIGNMENT = 32, 104, 4
"""Bytes that a Cortex-M pushes for an interrupt: without FPU, with FPU, and for alignment."""

StackPath = tuple[tuple[str, int], ...]
"""Functions of a chain of calls, each with the bytes that it uses itself."""


@dataclass(frozen=True)
class StackBound:
    """The most stack that a function and all that it calls can use.

    Attributes:
        bytes: the bound in bytes without interrupts, or None if there is none.
        path: the functions of the deepest chain of calls, each with the bytes that it uses itself.
        reason: why there is no bound, naming the function; empty if there is one.
        interrupts: the most bytes that an interrupt of the firmware uses in addition, or None if
            they have no bound.
    """

    bytes: int | None
    path: StackPath = ()
    reason: str = ""
    interrupts: int | None = None


def stack_bound(elf: Path, objects: Iterable[Path], target: Target, function: str) -> StackBound:
    """Return the bound of one function of a linked program for a Cortex-M or RISC-V.

    Args:
        elf: the program.
        objects: object files with the function and all pointers to functions that it uses. Their
            relocations show which numbers are pointers.
        target: the processor.
        function: name of the function.

    Raises:
        ToolError: the disassembler is missing or failed, or there is no such function.
    """
    code = disassemble(elf, target)
    with elf.open("rb") as file:
        contents = Contents.of(ELFFile(file))
    program = Linked(code, _machine(target, contents), contents, pointed_functions(objects))
    entry = code.function(function)
    try:
        path = _deepest(program, entry)
    except NoBoundError as error:
        return StackBound(None, reason=str(error))
    return StackBound(_total(path), path, "", _interrupts(program, target))


def _machine(target: Target, contents: Contents) -> Machine:
    if target.is_riscv:
        return Machine(0, contents.word, "ra", _names("a", range(8)), _names("s", range(12)))
    return Machine(1, contents.word, "lr", _names("r", range(4)), _names("r", range(4, 12)))


def _names(letter: str, numbers: Iterable[int]) -> frozenset[str]:
    return frozenset(f"{letter}{number}" for number in numbers)


def _interrupts(program: Linked, target: Target) -> int | None:
    """Return the most bytes that one of the firmware's interrupts uses; None if not bounded."""
    frame = 0
    names = (_RISCV_INTERRUPT,) if target.is_riscv else _INTERRUPTS
    if not target.is_riscv:
        frame = _ALIGNMENT + (_FLOAT_FRAME if "fpu" in target.features else _FRAME)
    handlers = [a for a, name in program.code.functions.items() if name in names]
    try:
        return frame + max(_total(_deepest(program, a)) for a in handlers) if handlers else 0
    except NoBoundError:
        return None


def _deepest(program: Linked, entry: int) -> StackPath:
    """Return the deepest chain of calls.

    Raises:
        NoBoundError: there is no bound.
    """
    while True:
        known = len(program.callable)
        found = _CallGraph(program).deepest(entry)
        if len(program.callable) == known:  # otherwise unknown calls may reach more functions
            return found
        program.forget()


class _CallGraph:
    """The deepest chain of calls from each function."""

    def __init__(self, program: Linked) -> None:
        self._program = program
        self._active: list[int] = []
        self._found: dict[int, StackPath] = {}

    def deepest(self, entry: int) -> StackPath:
        """Return the deepest chain of calls from a function."""
        if entry in self._found:
            return self._found[entry]
        name = self._program.code.function_at(entry)
        if entry in self._active:
            raise NoBoundError(f"{name} calls itself, directly or through others")
        self._active.append(entry)
        paths = self._program.paths(entry)
        paths.follow_jumps()
        inner = self._program.code.function_at(paths.deepest_address)
        own = ((name, paths.depth),)
        found = own if inner == name else ((name, 0), (inner, paths.depth))
        for callee, depth in paths.callees():
            found = max(found, ((name, depth), *self.deepest(callee)), key=_total)
        self._active.remove(entry)
        self._found[entry] = found
        return found


def _total(path: StackPath) -> int:
    return sum(bytes_ for _, bytes_ in path)
