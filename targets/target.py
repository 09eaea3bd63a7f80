"""The description of one target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
        noun: what messages call such a device.
    """

    name: str
    description: str
    noun: str = field(default="accelerator", kw_only=True)


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
class PackComponent:
    """A component of a CMSIS-Pack, as descriptions of packs that need it name it."""

    vendor: str
    name: str
    component_class: str
    group: str


@dataclass(frozen=True, kw_only=True)
class ExternalLibrary:
    """A C library that a backend's kernels call and the user provides; it is built with them.

    Attributes:
        name: as in `--backends`.
        title: what its makers call it.
        maker: who makes it.
        url: of its repository.
        tag: of the version that is fetched where the user names no folder.
        include: its folder of headers.
        header: the one that what calls it includes.
        source: its folder of C files.
        pack: where pack installers find it.
        templates: folder of the templates that say to make (`make_sources.j2`) and CMake
            (`cmake_sources.j2`) which C files are compiled, in the variable `MACRO_SOURCES`.
    """

    name: str
    title: str
    maker: str
    url: str
    tag: str
    include: str
    header: str
    source: str
    pack: PackComponent
    templates: str

    @property
    def version(self) -> str:
        """The tag as package managers write versions."""
        return self.tag.removeprefix("v")

    @property
    def later(self) -> str:
        """The versions that serve too."""
        return f"{self.version.partition('.')[0]}.x"

    @property
    def header_path(self) -> str:
        """Where the header is in the library's folder."""
        return f"{self.include}/{self.header}"

    @property
    def macro(self) -> str:
        """What its variables of make and CMake begin with."""
        return self.name.upper()

    @property
    def variable(self) -> str:
        """The variable, of the environment too, that says where its folder is."""
        return f"{self.macro}_DIR"

    @property
    def target(self) -> str:
        """The library as linkers and CMake have it."""
        return self.name.replace("_", "-")

    @property
    def option(self) -> str:
        """The option of the command line that says where its folder is."""
        return f"--{self.target}"


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
    device: DeviceProfile | None = None
    host_libraries: tuple[HostLibrary, ...] = ()
    granularity: int = 1
    priced_as: str | None = None
    interrupts: int = 480
    cmsis_cores: tuple[str, ...] = ()

    @property
    def is_riscv(self) -> bool:
        """Whether it is a RISC-V processor."""
        return self.name.startswith("rv")

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
