"""Description of one target, and of the libraries and devices that it uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from smelt.targets.prices import prices_of

Optimize = Literal["speed", "size", "ram"]

Feature = Literal[
    "unaligned",  # halfword and word accesses at any address
    "divide",  # SDIV, UDIV
    "long_multiply",  # SMULL, SMLAL
    "dsp",  # the DSP extension: SMLAD, SXTB16, SSAT
    "fpu",  # single precision
    "fma",  # fmaf is one instruction, at least as fast as a product and a sum
    "fpu_double",
    "simd_float",  # compilers may compute several floats per instruction
    "mve",  # Helium, integers
    "mve_float",  # Helium, half and single precision
    "loops",  # low-overhead branches: WLS, LE
]

_OPTIMIZE_FLAGS: dict[Optimize, str] = {"speed": "-O2", "size": "-Os", "ram": "-O2"}


@dataclass(frozen=True)
class DeviceProfile:
    """Profile of an accelerator beside the CPU; its backend defines subclasses with more data.

    Attributes:
        name: name for `--gpu`.
        description: one line for tables.
        noun: word for such a device in messages.
    """

    name: str
    description: str
    noun: str = field(default="accelerator", kw_only=True)


@dataclass(frozen=True)
class HostLibrary:
    """A system library that generated programs use.

    Attributes:
        name: name for linkers and CMake.
        header: one of its headers.
        package: Debian package that installs the library and the header.
    """

    name: str
    header: str
    package: str


@dataclass(frozen=True)
class PackComponent:
    """A component of a CMSIS-Pack, identified by its names in pack descriptions."""

    vendor: str
    name: str
    component_class: str
    group: str


@dataclass(frozen=True, kw_only=True)
class ExternalLibrary:
    """A C library that a backend's kernels call. The user provides it; it is built with them.

    Attributes:
        name: name of the backend, as in `--backends`.
        title: official name.
        maker: name of the company that makes it.
        url: URL of its repository.
        tag: tag of the version to download if the user gives no folder.
        include: folder of its headers.
        header: header that generated code includes.
        source: folder of its C files.
        pack: its component in CMSIS-Packs.
        templates: folder of the templates for make (`make_sources.j2`) and CMake
            (`cmake_sources.j2`), which list the C files to compile in `MACRO_SOURCES`.
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
        """Return the tag in the form that package managers use for versions."""
        return self.tag.removeprefix("v")

    @property
    def compatible_versions(self) -> str:
        """Return a pattern of compatible versions."""
        return f"{self.version.partition('.')[0]}.x"

    @property
    def header_path(self) -> str:
        """Return the path of the header within the library's folder."""
        return f"{self.include}/{self.header}"

    @property
    def macro(self) -> str:
        """Return the prefix of its variables in make and CMake."""
        return self.name.upper()

    @property
    def variable(self) -> str:
        """Return the name of the variable for its folder, in make, CMake and the environment."""
        return f"{self.macro}_DIR"

    @property
    def target(self) -> str:
        """Return the library's name for linkers and CMake."""
        return self.name.replace("_", "-")

    @property
    def option(self) -> str:
        """Return the command line option for its folder."""
        return f"--{self.target}"


@dataclass(frozen=True)
class Target:
    """A kind of processor that code is generated for.

    Attributes:
        name: name for `--target`.
        description: one line for tables.
        arch_flags: flags that select the architecture in the compiler and linker.
        cross: prefix of the compiler's name; empty for the host's own compiler.
        features: features of the instruction set that kernels depend on.
        backends: backends that compete for each layer; the last one supports every layer.
        libraries: backends that call external libraries; used only on request.
        runs_code_of: other targets whose code this machine can execute.
        alignment: alignment of the arena and of each buffer in it, in bytes.
        device: profile of the accelerator beside the CPU, or None.
        host_libraries: libraries that programs using the accelerator link with.
        granularity: number of channels that kernels compute at a time; unused channels are removed
            in groups of this size.
        priced_as: target whose prices it uses, or None if it has its own.
        interrupts: number of a core's interrupts, without its exceptions.
        cmsis_cores: CMSIS names of the cores with exactly these instructions.
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
        """Return whether this is a RISC-V processor."""
        return self.name.startswith("rv")

    @property
    def prices(self) -> Mapping[str, Mapping[str, float]]:
        """Return the cycles per unit of work, by form of kernel and unit."""
        return prices_of(self.priced_as or self.name)

    def runs(self, other: Target) -> bool:
        """Return whether this target can execute code that was generated for `other`."""
        return other.name == self.name or other.name in self.runs_code_of

    def compile_flags(self, optimize: Optimize) -> tuple[str, ...]:
        """Return flags besides `arch_flags`.

        Products and sums are not fused, for bit-exact results. The types of accesses do not say
        which memory differs: the arena, an array of bytes, holds tensors of several types in turn.
        """
        return (
            "-std=c99",
            _OPTIMIZE_FLAGS[optimize],
            "-ffp-contract=off",
            "-fno-strict-aliasing",
            "-ffunction-sections",
            "-fdata-sections",
        )
