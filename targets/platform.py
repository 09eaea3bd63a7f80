"""Platforms: what code generation needs to know about the machine that runs the code.

A `Platform` is the only form in which `codegen` sees a board. `smelt.boards` creates it from a
board file; `host_platform` and `library_platform` create the platforms without a board.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from smelt.targets.catalog import get
from smelt.targets.target import Optimize, Target

Part = Literal["code", "weights", "data", "stack", "arena"]
"""Part of the firmware that is placed in a memory."""


@dataclass(frozen=True)
class PlatformMemory:
    """A named range of addresses.

    Attributes:
        name: name in the board's file and in the linker script.
        origin, size: in bytes.
        wait_states: cycles that each access of a word (4 bytes) waits.
        reserve: bytes that buffers and constants leave free, for code, variables, or the user.
        holds: parts of the firmware that may be placed in it.
    """

    name: str
    origin: int
    size: int
    wait_states: int = 0
    reserve: int = 0
    holds: tuple[Part, ...] = ()


@dataclass(frozen=True)
class FirmwarePlacement:
    """Name of the memory for each part of the firmware.

    If several memories may hold weights or arena, it is that of the most bytes of them.
    """

    code: str
    weights: str
    data: str
    stack: str
    arena: str


@dataclass(frozen=True)
class Uart:
    """Serial port of the wire protocol, with its driver in template `uart_DRIVER.c`.

    `irq` is the number of the receive interrupt. `clock_hz` is the clock that the baud rate is
    derived from. The pins and `low_power` are used by some drivers only.
    """

    driver: str
    base: int
    irq: int
    clock_hz: int
    baud: int
    tx_pin: int | None = None
    rx_pin: int | None = None
    low_power: bool = False


@dataclass(frozen=True)
class Timer:
    """Timer that measures inferences, with its driver in template `timer_DRIVER.c`.

    `irq` is the number of its interrupt, or None if it uses an exception of the core.
    """

    driver: str
    hz: int
    irq: int | None = None


@dataclass(frozen=True)
class RiscvCore:
    """Addresses of a RISC-V core's interrupt controller and timer, and the timer's frequency."""

    plic: int
    clint: int
    mtime_hz: int


@dataclass(frozen=True)
class RegisterStep:
    """One action on a register at startup.

    `write` sets it to `set`. `change` clears the bits `clear`, then sets the bits `set`. `wait`
    waits until all bits of `set` are 1. `does` is the comment in the generated code.
    """

    action: Literal["write", "change", "wait"]
    address: int
    does: str
    clear: int = 0
    set: int = 0


@dataclass(frozen=True)
class Platform:
    """Machine that the generated code runs on.

    Attributes:
        name: name of the board; without a board, `host` or the target's name.
        description: one line for the generated files.
        target: target that code is generated for.
        firmware: `host` for a program of this computer's operating system, `cortexm` or `riscv` for
            an image with its own startup code, None for the network alone as a library.
        memories, placement, stack_bytes, clock_hz, uart, timer: properties of the board; empty
            without one.
        setup: register actions that run before anything else.
        boot: block that the chip's boot ROM needs, with its code in template `boot_BOOT.c`.
        riscv: properties of a RISC-V core.
    """

    name: str
    description: str
    target: Target
    firmware: Literal["host", "cortexm", "riscv"] | None
    memories: tuple[PlatformMemory, ...] = ()
    placement: FirmwarePlacement | None = None
    stack_bytes: int = 0
    clock_hz: int = 0
    uart: Uart | None = None
    timer: Timer | None = None
    setup: tuple[RegisterStep, ...] = ()
    boot: str | None = None
    riscv: RiscvCore | None = None

    def memory_of(self, part: Part) -> PlatformMemory | None:
        """Return the memory for a part of the firmware, or None if there is no placement."""
        if self.placement is None:
            return None
        name: str = getattr(self.placement, part)
        return next(memory for memory in self.memories if memory.name == name)

    def memories_of(self, part: Part) -> tuple[PlatformMemory, ...]:
        """Return the memories that may hold a part of the firmware; none without a board."""
        return tuple(memory for memory in self.memories if part in memory.holds)

    def room(self, memory: PlatformMemory) -> int:
        """Return the bytes of a memory for buffers and constants, beside stack and reserve."""
        stack = self.stack_bytes if memory == self.memory_of("stack") else 0
        return max(memory.size - memory.reserve - stack, 0)

    @property
    def last_irq(self) -> int:
        """Return the highest interrupt number that the firmware uses, or -1."""
        numbers = (self.uart and self.uart.irq, self.timer and self.timer.irq)
        return max((number for number in numbers if number is not None), default=-1)

    @property
    def is_bare_metal(self) -> bool:
        """Return whether the firmware runs without an operating system."""
        return self.firmware in ("cortexm", "riscv")

    def without_firmware(self) -> Platform:
        """Return the same machine for a network alone, as a library."""
        return replace(self, firmware=None, description=self.target.description)

    def link_flags(self, optimize: Optimize) -> tuple[str, ...]:
        """Return flags for the linker, besides the target's `arch_flags`.

        Code optimized for size links newlib-nano, which is smaller but copies memory byte by
        byte.
        """
        if not self.is_bare_metal:
            return ("-Wl,--gc-sections",)
        small = optimize == "size" and self.firmware == "cortexm"
        library = ("--specs=nano.specs",) if small else ()
        return ("-nostartfiles", "-Wl,--gc-sections", *library)


HOST = Platform(
    name="host", description="standard input and output", target=get("host"), firmware="host"
)
"""The computer that Smelt runs on."""


def host_platform(target: Target) -> Platform:
    """Return this computer as a platform for `target`'s code, with assembly replaced by C."""
    here = replace(target, arch_flags=(), cross="")
    if target == HOST.target:
        return HOST
    return replace(
        HOST, description=f"{HOST.description}, with code for {target.name}", target=here
    )


def library_platform(target: Target) -> Platform:
    """Return a platform without a board: the network as a library for `target`.

    For the host, and for an accelerator of the host, it is a program that runs on this computer.
    """
    if target.name == HOST.target.name:
        return HOST
    if target.device:
        description = f"{HOST.description}, beside a GPU"
        return replace(HOST, name=target.name, description=description, target=target)
    return Platform(name=target.name, description=target.description, target=target, firmware=None)
