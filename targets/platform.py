"""What code generation must know of the place where the code will run.

A `Platform` is all that `codegen` sees of a board: a small value, made by `smelt.boards` from a
board file, or one of the two that need no board.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from smelt.targets.catalogue import get
from smelt.targets.target import Optimize, Target

Part = Literal["code", "weights", "data", "stack", "arena"]
"""Of the firmware."""


@dataclass(frozen=True)
class PlatformMemory:
    """A named stretch of addresses, in bytes."""

    name: str
    origin: int
    size: int


@dataclass(frozen=True)
class FirmwarePlacement:
    """The memory that each part of the firmware goes to, by name."""

    code: str
    weights: str
    data: str
    stack: str
    arena: str


@dataclass(frozen=True)
class Uart:
    """The serial port of the wire, its driver being the template `uart_DRIVER.c`.

    `irq` is the number of its interrupt for received bytes, `clock_hz` what the baud rate is
    divided from; the pins and `low_power` matter to some drivers only.
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
    """What inferences are timed with, its driver being the template `timer_DRIVER.c`.

    `irq` is the number of its interrupt, None where that is an exception of the core.
    """

    driver: str
    hz: int
    irq: int | None = None


@dataclass(frozen=True)
class RiscvCore:
    """Addresses of a RISC-V core's interrupt controller and timer, and the timer's rate."""

    plic: int
    clint: int
    mtime_hz: int


@dataclass(frozen=True)
class RegisterStep:
    """What is done to one register at startup.

    `write`: it gets the value `set`; `change`: its bits `clear` become 0, then its bits `set` 1;
    `wait` until all bits of `set` are 1. `does` is a comment.
    """

    action: Literal["write", "change", "wait"]
    address: int
    does: str
    clear: int = 0
    set: int = 0


@dataclass(frozen=True)
class Platform:
    """Where the generated code will run.

    Attributes:
        name: of the board; `host`, or the target's name, where there is none.
        description: one line, which appears in the generated files.
        target: what code is generated for.
        firmware: `host`: a program of the host's system; `cortexm`, `riscv`: an image with its own
            startup; None: the network alone, as a library.
        memories, placement, stack_bytes, clock_hz, uart, timer: of the board; empty without one.
        setup: what is done to registers before anything else runs.
        boot: what the chip's ROM wants to find beside the program: the template `boot_BOOT.c`.
        riscv: of a RISC-V core.
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
        """The memory that a part of the firmware goes to; None where nothing limits it."""
        if self.placement is None:
            return None
        name: str = getattr(self.placement, part)
        return next(memory for memory in self.memories if memory.name == name)

    @property
    def last_irq(self) -> int:
        """The highest number of an interrupt that the firmware uses; -1 without any."""
        numbers = (self.uart and self.uart.irq, self.timer and self.timer.irq)
        return max((number for number in numbers if number is not None), default=-1)

    @property
    def bare(self) -> bool:
        """Whether the firmware has the machine to itself."""
        return self.firmware in ("cortexm", "riscv")

    def without_firmware(self) -> Platform:
        """The same machine for a network alone, as a library."""
        return replace(self, firmware=None, description=self.target.description)

    def link_flags(self, optimize: Optimize) -> tuple[str, ...]:
        """Flags for the linker beside the target's `arch_flags`.

        Small code takes the small C library too, whose `memcpy` copies byte by byte.
        """
        if not self.bare:
            return ("-Wl,--gc-sections",)
        small = optimize != "speed" and self.firmware == "cortexm"
        library = ("--specs=nano.specs",) if small else ()
        return ("-nostartfiles", "-Wl,--gc-sections", *library)


HOST = Platform(
    name="host", description="standard input and output", target=get("host"), firmware="host"
)
"""The computer that Smelt runs on."""


def stand_in(target: Target) -> Platform:
    """This computer in place of a device: code for `target`, assembly in its plain-C form."""
    here = replace(target, arch_flags=(), cross="")
    if target == HOST.target:
        return HOST
    return replace(
        HOST, description=f"{HOST.description}, with code for {target.name}", target=here
    )


def library(target: Target) -> Platform:
    """The network alone for `target`, as a library: no board, so no startup and no linker script.

    For the host, and for an accelerator beside it, a program that runs on this computer.
    """
    if target.name == HOST.target.name:
        return HOST
    if target.device:
        description = f"{HOST.description}, beside a GPU"
        return replace(HOST, name=target.name, description=description, target=target)
    return Platform(name=target.name, description=target.description, target=target, firmware=None)
