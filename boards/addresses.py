"""Address and interrupt checks for a board's registers and memories."""

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
"""Size of the registers that each UART driver uses (`templates/emit/project/uart_*.c`)."""
_PORT_BYTES = 0x400
_PLIC_BYTES, _CLINT_BYTES = 0x20_0008, 0xC000
_NRF5_BYTES = 0x1000
_NRF5_CLOCK, _NRF5_TIMER, _NRF5_GPIO = 0x4000_0000, 0x4000_8000, 0x5000_0000
_CORE, _CORE_BYTES = 0xE000_0000, 0x10_0000
"""Address and size of the registers that every Cortex-M core has."""

_MANUAL = "see the memory map in the chip's reference manual"


@dataclass(frozen=True)
class Registers:
    """An address range of a peripheral.

    Attributes:
        key: table and key of the board file that define it.
        what: name of the peripheral in messages.
        origin: first address.
        size: size in bytes.
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
    """Return the registers that the firmware uses, besides those that `setup` lists."""
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
    """Raise a `ValueError` if two address ranges overlap."""
    for device in devices:
        if device.origin + device.size > 2**32:
            raise ValueError(
                f"{device.key}: the registers of {device.what}, {device.size:#x} bytes from "
                f"{device.origin:#x}, exceed 32-bit addresses; {_MANUAL}"
            )
        for memory in memories:
            if _overlaps(device.origin, device.size, memory):
                raise ValueError(
                    f"{device.key}: the registers of {device.what} at "
                    f"{_from_to(device.origin, device.size)} overlap {_label(memory)}; {_MANUAL}"
                )
    for one, other in combinations(devices, 2):
        if one.origin < other.origin + other.size and other.origin < one.origin + one.size:
            raise ValueError(
                f"{one.key}: the registers of {one.what} at {_from_to(one.origin, one.size)} "
                f"overlap those of {other.what} ({other.key}); {_MANUAL}"
            )
    for index, row in enumerate(setup):
        for memory in memories:
            if _overlaps(row.address, 4, memory):
                raise ValueError(
                    f"setup.{index}.address: {row.address:#x} ('{row.does}') is within "
                    f"{_label(memory)}, so it is not a register; {_MANUAL}"
                )


def check_interrupts(target: Target, uart: UartTable, timer: TimerTable) -> None:
    """Raise a `ValueError` if the core does not have the interrupts of the UART and timer."""
    least = 1 if target.is_riscv else 0  # a PLIC's interrupts begin with number 1
    most = target.interrupts - 1
    for key, irq in (("uart.irq", uart.irq), ("timer.irq", timer.irq)):
        if irq is not None and not least <= irq <= most:
            raise ValueError(
                f"{key}: {irq}: target '{target.name}' has interrupts {least} to {most}, not "
                "counting the core's exceptions"
            )
    if uart.irq == timer.irq:
        raise ValueError(
            f"uart.irq: {uart.irq} equals timer.irq: each peripheral has its own interrupt, see "
            "the chip's reference manual"
        )


def _overlaps(origin: int, size: int, memory: MemoryTable) -> bool:
    return origin < memory.origin + memory.size and memory.origin < origin + size


def _from_to(origin: int, size: int) -> str:
    return f"{origin:#x} to {origin + size - 1:#x}"


def _label(memory: MemoryTable) -> str:
    return f"memory '{memory.name}' ({_from_to(memory.origin, memory.size)})"
