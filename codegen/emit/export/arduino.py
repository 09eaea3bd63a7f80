"""Arduino: a library in the layout of its specification, revision 2.2."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.codegen.emit.export.base import Format, Library

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
"""Arduino's names of the families of boards with a Cortex-M."""
_RISCV = ("esp32",)
"""Those with a RISC-V core, which they share with other cores."""


class Arduino(Format):
    """A folder for `libraries/`: `library.properties`, `src`, an example, keywords."""

    name = "arduino"
    summary = "an Arduino library with an example sketch"
    folder = "src/"
    sets_flags = False  # A library cannot add flags to Arduino's.

    def facts(self, library: Library) -> Mapping[str, object]:
        """The families of boards that Arduino offers it for."""
        target = library.platform.target.name
        families = _ARM if target.startswith("cortex") else _RISCV
        return {"architectures": "*" if target == "host" else ",".join(families)}


FORMAT = Arduino()
