"""Where a board's registers are, apart from its memories and each other; and its interrupts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from smelt.boards.schema import (
    MemoryTable,
    RiscvTable,
    SetupTable,
    Stm32Table,
    TimerTable,
    UartTable,
)
from smelt.targets import Target

UART_BYTES = {
    "16550": 0x8,
    "cmsdk": 0x14,
    "nrf5": 0x528,
    "pl011": 0x3C,
    "sifive": 0x1C,
    "stm32v1": 0x10,
    "stm32v2": 0x2C,
}
"""How far the registers reach that a driver of a UART uses (`templates/emit/project/uart_*.c`)."""
_PORT_BYTES = 0x400
_PLIC_BYTES, _CLINT_BYTES = 0x20_0008, 0xC000
_NRF5_BYTES = 0x1000
_NRF5_CLOCK, _NRF5_TIMER, _NRF5_GPIO = 0x4000_0000, 0x4000_8000, 0x5000_0000
_CORE, _CORE_BYTES = 0xE000_0000, 0x10_0000
"""The registers of every Cortex-M itself."""

_MANUAL = "the chip's reference manual has a map of its addresses"


@dataclass(frozen=True)
class Registers:
    """A stretch of addresses that belongs to a device.

    Attributes:
        key: table and key of the board file that put it there.
        what: for messages.
        origin: its first address.
        size: in bytes.
    """

    key: str
    what: str
    origin: int
    size: int


def registers(
    uart: UartTable,
    timer: TimerTable,
    stm32: Stm32Table | None,
    riscv: RiscvTable | None,
) -> list[Registers]:
    """All that the firmware reads and writes, besides what `setup` names word by word."""
    found = [Registers("uart.base", "the UART", uart.base, UART_BYTES[uart.driver])]
    if uart.driver == "nrf5":
        found.append(Registers("uart.driver", "the pins", _NRF5_GPIO, _NRF5_BYTES))
    if timer.driver == "nrf5":
        found.append(Registers("timer.driver", "the clock", _NRF5_CLOCK, _NRF5_BYTES))
        found.append(Registers("timer.driver", "TIMER0", _NRF5_TIMER, _NRF5_BYTES))
    if stm32 is not None:
        for letter in sorted({stm32.tx[1], stm32.rx[1]}):
            origin = stm32.gpio + _PORT_BYTES * (ord(letter) - ord("A"))
            found.append(Registers("stm32.gpio", f"port {letter}", origin, _PORT_BYTES))
    if riscv is None:
        found.append(Registers("startup", "the core", _CORE, _CORE_BYTES))
    else:
        found.append(Registers("riscv.plic", "the PLIC", riscv.plic, _PLIC_BYTES))
        found.append(Registers("riscv.clint", "the CLINT", riscv.clint, _CLINT_BYTES))
    return found


def check_apart(
    memories: Sequence[MemoryTable], devices: Sequence[Registers], setup: Sequence[SetupTable]
) -> None:
    """Make sure that no two stretches share an address; `ValueError` where they do."""
    for device in devices:
        if device.origin + device.size > 2**32:
            raise ValueError(
                f"{device.key}: the registers of {device.what}, {device.size:#x} bytes from "
                f"{device.origin:#x}, exceed 32 bits; {_MANUAL}"
            )
        for memory in memories:
            if _shared(device.origin, device.size, memory):
                raise ValueError(
                    f"{device.key}: {_from_to(device.origin, device.size)}, the registers of "
                    f"{device.what}, lie in {_named(memory)}: correct one of them; {_MANUAL}"
                )
    for one, other in combinations(devices, 2):
        if one.origin < other.origin + other.size and other.origin < one.origin + one.size:
            raise ValueError(
                f"{one.key}: {_from_to(one.origin, one.size)}, the registers of {one.what}, are "
                f"also those of {other.what} ({other.key}): correct one of them; {_MANUAL}"
            )
    for index, row in enumerate(setup):
        for memory in memories:
            if _shared(row.address, 4, memory):
                raise ValueError(
                    f"setup.{index}.address: {row.address:#x} ('{row.does}') lies in "
                    f"{_named(memory)}, and is no register: correct one of them; {_MANUAL}"
                )


def check_interrupts(target: Target, uart: UartTable, timer: TimerTable) -> None:
    """Make sure that the core has the devices' interrupts; `ValueError` where it has not."""
    least = 1 if target.is_riscv else 0  # a PLIC has none of number 0
    most = target.interrupts - 1
    for key, irq in (("uart.irq", uart.irq), ("timer.irq", timer.irq)):
        if irq is not None and not least <= irq <= most:
            raise ValueError(
                f"{key}: {irq}: the interrupts of target '{target.name}' are numbered from {least} "
                f"to {most}, without the core's own exceptions"
            )
    if uart.irq == timer.irq:
        raise ValueError(
            f"uart.irq: {uart.irq} is timer.irq too: each device has an interrupt of its own, "
            "which the chip's reference manual lists"
        )


def _shared(origin: int, size: int, memory: MemoryTable) -> bool:
    return origin < memory.origin + memory.size and memory.origin < origin + size


def _from_to(origin: int, size: int) -> str:
    return f"{origin:#x} to {origin + size - 1:#x}"


def _named(memory: MemoryTable) -> str:
    return f"memory '{memory.name}' ({_from_to(memory.origin, memory.size)})"
