"""Registers of a board after startup, executed on this computer with memory at their addresses."""

from __future__ import annotations

import platform as computer
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from smelt import boards
from smelt.codegen.emit.firmware import Firmware
from smelt.targets import Uart
from tests.support.fake_project import write_project

pytestmark = pytest.mark.skipif(
    computer.system() != "Linux" or computer.machine() != "x86_64" or not shutil.which("gcc"),
    reason="needs gcc on Linux, x86-64, where these addresses are free",
)

# A program that executes the setup of board and UART, and prints the registers at its arguments.
MAIN = """
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "board.h"
#include "port.h"
#include "receive.h"

void smelt_enable_interrupt(uint32_t number) { printf("irq %u\\n", number); }
int smelt_receive_room(void) { return 0; }
void smelt_received(uint8_t byte) { (void)byte; }
uint64_t smelt_timer_ticks(void) { return 0; }
uint32_t smelt_timer_hz(void) { return 1; }

int main(int count, char **addresses) {
    static const uint32_t regions[] = {0x10000000u, 0x40000000u, 0x50000000u, 0xe0000000u};
    for (unsigned i = 0; i < sizeof regions / sizeof *regions; i++) {
        const int fresh = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
        void *const wanted = (void *)(uintptr_t)regions[i];
        if (mmap(wanted, 0x10000000u, PROT_READ | PROT_WRITE, fresh, -1, 0) != wanted) {
            return 77;
        }
    }
#ifdef SMELT_BOARD_INIT
    smelt_board_init();
#endif
    smelt_uart_init();
    for (int i = 1; i < count; i++) {
        const uintptr_t address = strtoul(addresses[i], NULL, 0);
        printf("%s %" PRIu32 "\\n", addresses[i], *(volatile uint32_t *)(address & ~(uintptr_t)3));
    }
    return 0;
}
"""


@pytest.mark.quick(every=2)
@pytest.mark.parametrize("name", boards.available())
def test_registers_are_set_up(name: str, tmp_path: Path) -> None:
    board = boards.load(name)
    platform = board.platform()
    uart = platform.uart
    assert uart is not None
    expected = {step.address: 0 for step in platform.setup}
    for step in platform.setup:
        if step.action == "write":
            expected[step.address] = step.set
        elif step.action == "change":
            expected[step.address] = expected[step.address] & ~step.clear | step.set
    baud = BAUD_REGISTERS[uart.driver]
    found = run(tmp_path, name, [*expected, *(uart.base + offset for offset in baud)])
    assert found.pop("irq") == uart.irq
    values = {int(address, 16): value for address, value in found.items()}
    assert {address: values[address] for address in expected} == expected
    rate = baud_rate(uart, [values[uart.base + offset] for offset in baud])
    assert abs(rate / uart.baud - 1) < 0.015


def run(folder: Path, name: str, addresses: list[int]) -> dict[str, int]:
    """Return the value of each register after startup, and the enabled interrupt as `irq`."""
    platform = boards.load(name).platform()
    write_project(folder, platform)
    (folder / "main.c").write_text(MAIN)
    sources = [path for path in Firmware(platform).sources if re.search(r"/(board|uart_)", path)]
    # The firmware casts 32-bit numbers to pointers.
    casts = ["-Wno-int-to-pointer-cast", "-fno-pie", "-no-pie", "-fno-strict-aliasing"]
    command = ["gcc", "-O1", "-Wall", "-Werror", *casts, "-Ifirmware", "main.c", *sources]
    subprocess.run([*command, "-o", "registers"], cwd=folder, check=True)
    arguments = [f"{address:#x}" for address in addresses]
    done = subprocess.run(
        [str(folder / "registers"), *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode == 77:
        pytest.skip("the process uses a board's addresses for something else")
    assert done.returncode == 0
    return {key: int(value) for key, value in (line.split() for line in done.stdout.splitlines())}


# Offsets of the registers that contain the baud rate.
BAUD_REGISTERS = {
    "16550": (0x0,),
    "cmsdk": (0x10,),
    "nrf5": (0x524,),
    "pl011": (0x24, 0x28),
    "sifive": (0x18,),
    "stm32v1": (0x08,),
    "stm32v2": (0x0C,),
}


def baud_rate(uart: Uart, registers: list[int]) -> float:
    """Return the baud rate by the formula of the chip's reference manual."""
    (first, *rest), clock = registers, uart.clock_hz
    match uart.driver:
        case "stm32v1" | "cmsdk":
            return clock / first
        case "stm32v2":
            return (256 if uart.low_power else 1) * clock / first
        case "pl011":
            return clock / (16 * (first + rest[0] / 64))
        case "sifive":
            return clock / (first + 1)
        case "nrf5":
            return first * 16_000_000 / 2**32
        case "16550":
            # The divisor is below 256. Its upper byte is another register by now.
            return clock / (16 * (first & 0xFF))
        case driver:
            raise AssertionError(driver)
