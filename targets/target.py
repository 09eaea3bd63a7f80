"""The description of one target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from smelt.targets.prices import prices_of

Optimize = Literal["speed", "size", "ram"]

Feature = Literal[
    "unaligned",  # halfwords and words may lie at any address
    "divide",  # SDIV, UDIV
    "long_multiply",  # SMULL, SMLAL
    "dsp",  # the DSP extension: SMLAD, SXTB16, SSAT
    "fpu",  # single precision
    "fma",  # fmaf is one instruction, no slower than a product and a sum
    "fpu_double",
    "simd_float",  # compilers may compute several floats at a time
    "mve",  # Helium, integers
    "mve_float",  # Helium, half and single precision
    "loops",  # low-overhead branches: WLS, LE
]

_OPTIMIZE_FLAGS: dict[Optimize, str] = {"speed": "-O2", "size": "-Os", "ram": "-Os"}


@dataclass(frozen=True)
class DeviceProfile:
    """What is known of a device that computes beside the CPU; its backend knows what else.

    Attributes:
        name: as in `--gpu`.
        description: one line for tables.
    """

    name: str
    description: str


@dataclass(frozen=True)
class HostLibrary:
    """A library of the system that generated programs use.

    Attributes:
        name: as linkers and CMake have it.
        header: a header of it.
        package: what installs both on Debian and its like.
    """

    name: str
    header: str
    package: str


@dataclass(frozen=True)
class Target:
    """What code is generated for.

    Attributes:
        name: as in `--target`.
        description: one line for tables.
        arch_flags: what tells the compiler and the linker which machine this is.
        cross: prefix of the compiler's name, empty for the host's own.
        features: of the instruction set, in so far as kernels may care.
        backends: names of the sets of kernels that compete for each layer; the last serves
            everything.
        libraries: names of those that call another's library, taken only where asked for.
        runs_code_of: targets whose code this machine executes too.
        alignment: bytes, of the arena and of every buffer in it.
        endianness: of numbers in memory.
        device: what computes beside the CPU, if something does.
        host_libraries: what a program links with that uses it.
        granularity: channels that kernels like to compute at a time: dead ones go in such groups.
        priced_as: the target whose prices it takes; None if it has its own.
        interrupts: how many a core has, without its own exceptions.
        cmsis_cores: what CMSIS calls the cores that have exactly these instructions.
    """

    name: str
    description: str
    arch_flags: tuple[str, ...] = ()
    cross: str = "arm-none-eabi-"
    features: frozenset[Feature] = frozenset()
    backends: tuple[str, ...] = ("c",)
    libraries: tuple[str, ...] = ()
    runs_code_of: tuple[str, ...] = ()
    alignment: int = 16
    endianness: Literal["little", "big"] = "little"
    device: DeviceProfile | None = None
    host_libraries: tuple[HostLibrary, ...] = ()
    granularity: int = 1
    priced_as: str | None = None
    interrupts: int = 480
    cmsis_cores: tuple[str, ...] = ()

    @property
    def prices(self) -> Mapping[str, Mapping[str, float]]:
        """Cycles that each unit of work takes, by form of kernel and unit."""
        return prices_of(self.priced_as or self.name)

    def runs(self, other: Target) -> bool:
        """Whether a device with this target can execute code that was made for `other`."""
        return other.name == self.name or other.name in self.runs_code_of

    def compile_flags(self, optimize: Optimize) -> tuple[str, ...]:
        """Flags beside `arch_flags`; no fused multiply-add, so that targets agree to the bit."""
        return (
            "-std=c99",
            _OPTIMIZE_FLAGS[optimize],
            "-ffp-contract=off",
            "-ffunction-sections",
            "-fdata-sections",
        )
