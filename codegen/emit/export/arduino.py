"""Arduino: a library in the layout of its specification, revision 2.2."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from smelt.codegen.emit.export.base import Format, Library
from smelt.codegen.text.parameters import Parameters

_ARM = (
    "mbed",
    "mbed_edge",
    "mbed_giga",
    "mbed_nano",
    "mbed_nicla",
    "mbed_opta",
    "mbed_portenta",
    "mbed_rp2040",
    "nrf52",
    "renesas_portenta",
    "renesas_uno",
    "rp2040",
    "sam",
    "samd",
    "stm32",
    "teensy",
    "zephyr",
)
"""Arduino's names of the board families with a Cortex-M."""
_RISCV = ("esp32",)
"""Arduino's names of the board families with a RISC-V core; some of their boards have another."""


@dataclass(frozen=True)
class ArduinoParameters(Parameters):
    """The board families that Arduino offers the library for."""

    architectures: str


class Arduino(Format):
    """A folder for `libraries/`: `library.properties`, `src`, an example, keywords."""

    name = "arduino"
    summary = "an Arduino library with an example sketch"
    folder = "src/"
    sets_flags = False  # A library cannot add flags to Arduino's.

    @override
    def parameters(self, library: Library) -> ArduinoParameters:
        target = library.platform.target.name
        families = _ARM if target.startswith("cortex") else _RISCV
        return ArduinoParameters("*" if target == "host" else ",".join(families))


FORMAT = Arduino()
