"""The tables of a board file."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from smelt.targets import Part, RegisterStep

_UNITS = {"K": 1024, "M": 1024**2}
_SIZE = re.compile(r"[0-9]+[KM]")


def _bytes(value: object) -> object:
    if isinstance(value, str) and _SIZE.fullmatch(value):
        return int(value[:-1]) * _UNITS[value[-1]]
    if isinstance(value, str):
        raise ValueError('give a number of bytes, or a text with unit K or M, such as "512K"')
    return value


Size = Annotated[int, BeforeValidator(_bytes), Field(gt=0, lt=2**32)]
Reserve = Annotated[int, BeforeValidator(_bytes), Field(ge=0, lt=2**32)]
RegisterAddress = Annotated[int, Field(gt=0, lt=2**32, multiple_of=4)]
"""Word-aligned address of a device's first register; 0, C's null pointer, is excluded."""
Word = Annotated[int, Field(ge=0, lt=2**32)]
BitMask = Annotated[int, Field(gt=0, lt=2**32)]
Hertz = Annotated[int, Field(ge=32_768, lt=2**32)]
"""Clock frequency; the minimum is that of a watch crystal."""
Interrupt = Annotated[int, Field(ge=0, lt=480)]
Identifier = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")]
Comment = Annotated[str, Field(min_length=1, pattern=r"^[^\x00-\x1f\x7f*/\\]*$")]
"""Text that appears in a comment of the generated C."""
Stm32Pin = Annotated[str, Field(pattern=r"^P[A-K]([0-9]|1[0-5])$")]
UsbId = Annotated[str, Field(pattern=r"^[0-9a-f]{4}:[0-9a-f]{4}$")]

UartDriver = Literal["16550", "cmsdk", "nrf5", "pl011", "sifive", "stm32v1", "stm32v2"]
Runner = Literal[
    "bossac",
    "dfu",
    "drag",
    "esptool",
    "gdb",
    "jlink",
    "openocd",
    "picotool",
    "probe-rs",
    "pyocd",
    "st-flash",
    "uf2",
]


_NEEDS_CHIP_NAME = ("esptool", "jlink", "probe-rs", "pyocd")
"""Runners that need the chip's name (`target`)."""


class BoardTable(BaseModel):
    """Base of all tables of a board file: immutable, with known keys of exact types only."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class MemoryTable(BoardTable):
    """`[[memory]]`: an address range, and the parts of the firmware that may be placed there.

    Attributes:
        name, origin, size: its name, first address and bytes.
        wait_states: cycles that each access of a word (4 bytes) waits.
        reserve: bytes that tensors and weights leave free: for code, variables, and the user's own
            program.
        holds: parts of the firmware.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    origin: Annotated[int, Field(ge=0, lt=2**32, multiple_of=8)]
    size: Annotated[Size, Field(multiple_of=8)]
    wait_states: Annotated[int, Field(ge=0, le=1000)] = 0
    reserve: Reserve = 0
    holds: list[Part] = []

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.origin + self.size > 2**32:
            raise ValueError("origin + size exceeds 32 bits")
        if self.reserve >= self.size:
            raise ValueError(
                f"reserve: {self.reserve} bytes are all of the {self.size} bytes of the memory"
            )
        if len(set(self.holds)) < len(self.holds):
            raise ValueError("holds: a part is listed twice")
        return self


class UartTable(BoardTable):
    """`[uart]`: the serial port of the wire protocol.

    Attributes:
        driver: name of the template `uart_DRIVER.c`.
        base, irq: base address and interrupt number.
        clock_hz: clock that the baud rate is derived from; None means the core's clock.
        tx_pin, rx_pin: pin numbers, counted across all ports; required for `nrf5`, else forbidden.
        low_power: whether it is an LPUART of an STM32.
    """

    driver: UartDriver
    base: RegisterAddress
    irq: Interrupt
    clock_hz: Hertz | None = None
    baud: Annotated[int, Field(ge=1200, le=4_000_000)] = 115_200
    tx_pin: Annotated[int, Field(ge=0, le=63)] | None = None
    rx_pin: Annotated[int, Field(ge=0, le=63)] | None = None
    low_power: bool = False

    @model_validator(mode="after")
    def _check_driver_fields(self) -> Self:
        if self.driver == "nrf5" and (self.tx_pin is None or self.rx_pin is None):
            raise ValueError("driver 'nrf5' needs tx_pin and rx_pin")
        _check_pins("tx_pin", self.tx_pin, "rx_pin", self.rx_pin)
        if self.low_power and self.driver != "stm32v2":
            raise ValueError("low_power: only driver 'stm32v2' supports it")
        return self

    def check_divisor(self, core_hz: int) -> None:
        """Raise a `ValueError` if the clock cannot be divided down to the baud rate."""
        driver = "lpuart" if self.low_power else self.driver
        if driver not in _DIVISORS:
            return
        clock = self.clock_hz or core_hz
        least, most = (self.baud * times for times in _DIVISORS[driver])
        if not least <= clock <= most:
            raise ValueError(
                f"uart: {self.baud} baud need a clock of {least} to {most} Hz, not {clock} Hz"
            )


_DIVISORS = {
    "16550": (16, 16 * (2**16 - 1)),
    "cmsdk": (16, 2**20 - 1),
    "lpuart": (3, 2**12 - 1),
    "pl011": (16, 16 * (2**16 - 1)),
    "sifive": (16, 2**20),
    "stm32v1": (16, 2**16 - 1),
    "stm32v2": (16, 2**16 - 1),
}
"""Minimum and maximum clock divisor of each driver's UART; an nRF UART needs no divisor."""


class TimerTable(BoardTable):
    """`[timer]`: the timer that measures inferences; the default of `hz` is the core's clock."""

    driver: Literal["systick", "mcycle", "nrf5"] = "systick"
    hz: Hertz | None = None
    irq: Interrupt | None = None

    @model_validator(mode="after")
    def _interrupt(self) -> Self:
        if (self.driver == "nrf5") != (self.irq is not None):
            raise ValueError("irq: required for driver 'nrf5', forbidden for others")
        return self


class SetupTable(BoardTable):
    """A row of `setup`: an action on one register before anything else runs.

    Exactly one of: `write` sets a value; `clear` and `set` change bits, in this order; `wait` polls
    until all its bits are 1, with a limit (see `templates/emit/project/board.c.j2`).
    """

    address: Word
    does: Comment
    write: Word | None = None
    clear: BitMask | None = None
    set: BitMask | None = None
    wait: BitMask | None = None

    @model_validator(mode="after")
    def _check_one_action(self) -> Self:
        changes = self.clear is not None or self.set is not None
        if (self.write is not None) + changes + (self.wait is not None) != 1:
            raise ValueError("needs exactly one of: write; clear and set, or one of them; wait")
        if self.address % 4 != 0:
            raise ValueError(f"{self.address:#x} is not a word address: give a multiple of 4")
        return self

    @property
    def step(self) -> RegisterStep:
        """Return the action in the form that code generation takes."""
        if self.write is not None:
            return RegisterStep("write", self.address, self.does, set=self.write)
        if self.wait is not None:
            return RegisterStep("wait", self.address, self.does, set=self.wait)
        return RegisterStep("change", self.address, self.does, self.clear or 0, self.set or 0)


class Stm32Table(BoardTable):
    """`[stm32]`: the UART's pins, for all STM32 families except the F1.

    Attributes:
        gpio: address of port A; the other ports follow at intervals of 0x400.
        tx, rx: pins, as `PA2`.
        alternate: number of the alternate function that connects both pins to the UART.
    """

    gpio: RegisterAddress
    tx: Stm32Pin
    rx: Stm32Pin
    alternate: Annotated[int, Field(ge=0, le=15)]

    @model_validator(mode="after")
    def _check_two_pins(self) -> Self:
        _check_pins("tx", self.tx, "rx", self.rx)
        return self

    @property
    def steps(self) -> tuple[RegisterStep, ...]:
        """Return the actions that connect the pins; the RX pin has a pull-up in case it floats."""
        return (*self._pin(self.tx, "TX", pull=0), *self._pin(self.rx, "RX", pull=1))

    def _pin(self, name: str, role: str, pull: int) -> tuple[RegisterStep, ...]:
        base, number = self.gpio + 0x400 * (ord(name[1]) - ord("A")), int(name[2:])
        two, four = 2 * number, 4 * (number % 8)
        function = base + (0x20 if number < 8 else 0x24)
        return (
            _field(function, four, 0xF, self.alternate, f"{name}, {role}: AF{self.alternate}"),
            _field(base + 0x0C, two, 3, pull, f"{name}: {'pulled up' if pull else 'not pulled'}"),
            _field(base, two, 3, 2, f"{name}: alternate function"),
        )


def _check_pins(
    send: str, sends: str | int | None, receive: str, receives: str | int | None
) -> None:
    """Raise a `ValueError` if two keys name the same pin."""
    if sends is not None and sends == receives:
        raise ValueError(
            f"{send} and {receive} are both {sends}, but a UART sends and receives on two pins; "
            "see the board's schematic"
        )


def _field(register: int, shift: int, ones: int, value: int, does: str) -> RegisterStep:
    return RegisterStep("change", register, does, ones << shift, value << shift)


class RiscvTable(BoardTable):
    """`[riscv]`: addresses of the PLIC and the CLINT, and the frequency of the CLINT's timer."""

    plic: RegisterAddress
    clint: RegisterAddress
    mtime_hz: Hertz


class FlashTable(BoardTable):
    """`[[flash]]`: a program that flashes the board; the first table is the preferred one.

    Attributes:
        runner: the program; `drag` copies a file to the USB drive that the board appears as.
        target: the program's name for the chip, if it needs one.
        config: OpenOCD's configuration files, in order.
        family: UF2 family id.
        offset: offset in flash of the image that the chip's boot loader starts (esptool).
    """

    runner: Runner
    target: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+$")] | None = None
    config: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_./-]+\.cfg$")]] = []
    family: Word | None = None
    offset: Word | None = None

    @model_validator(mode="after")
    def _check_runner_fields(self) -> Self:
        for key, runner in (("config", "openocd"), ("family", "uf2")):
            if (self.runner == runner) != bool(getattr(self, key)):
                raise ValueError(f"{key}: required for runner '{runner}', forbidden for others")
        if (self.runner == "esptool") != (self.offset is not None):
            raise ValueError("offset: required for runner 'esptool', forbidden for others")
        if (self.runner in _NEEDS_CHIP_NAME) != (self.target is not None):
            runners = ", ".join(_NEEDS_CHIP_NAME)
            raise ValueError(f"target: required for runners {runners}, forbidden for others")
        return self


class QemuTable(BoardTable):
    """`[qemu]`: QEMU's machine that simulates the board, and more arguments for QEMU."""

    machine: Identifier
    arguments: list[str] = []
