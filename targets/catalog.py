"""The table of all targets."""

from __future__ import annotations

from difflib import get_close_matches

from smelt.errors import ConfigError
from smelt.targets.target import DeviceProfile, Feature, HostLibrary, Target

_HOST: frozenset[Feature] = frozenset(
    {"unaligned", "divide", "long_multiply", "fpu", "fpu_double", "simd_float"}
)
_V7M: frozenset[Feature] = frozenset({"unaligned", "divide", "long_multiply"})
_V7EM: frozenset[Feature] = _V7M | frozenset[Feature]({"dsp", "fpu", "fma"})


def _cortex_m(
    core: str,
    description: str,
    *,
    features: frozenset[Feature] = frozenset(),
    kernels: tuple[str, ...],
    runs: tuple[str, ...] = (),
    fpu: str | None = None,
    flags: tuple[str, ...] = (),
    interrupts: int = 480,
    cmsis: tuple[str, ...],
    priced_as: str | None = None,
) -> Target:
    """Return a Cortex-M target.

    Args:
        core: name of the core, as in `cortex-CORE`.
        description: one line about the core.
        features: features of its instruction set.
        kernels: backends for it, besides the portable one.
        runs: other cores whose code it can execute.
        fpu: gcc's name of the FPU, or None without an FPU.
        flags: additional compiler flags.
        interrupts: number of the core's interrupts.
        cmsis: CMSIS names of the cores with exactly these instructions.
        priced_as: core whose prices it uses, or None if it has its own.
    """
    floats = ("-mfloat-abi=soft",) if fpu is None else ("-mfloat-abi=hard", f"-mfpu={fpu}")
    return Target(
        name=f"cortex-{core}",
        description=description,
        arch_flags=(f"-mcpu=cortex-{core}", "-mthumb", *floats, *flags),
        features=features,
        backends=(*kernels, "c"),
        libraries=("cmsis_nn",),
        runs_code_of=tuple(f"cortex-{lesser}" for lesser in runs),
        priced_as=priced_as and f"cortex-{priced_as}",
        interrupts=interrupts,
        cmsis_cores=cmsis,
    )


_TARGETS = (
    Target(
        name="host",
        description="this computer, with its own C compiler",
        cross="",
        features=_HOST,
    ),
    Target(
        name="vulkan",
        description="a GPU with Vulkan 1.1, besides this computer's CPU",
        cross="",
        features=_HOST,
        backends=("vulkan", "c"),
        device=DeviceProfile("default", "unspecified", noun="GPU"),
        host_libraries=(HostLibrary("vulkan", "vulkan/vulkan.h", "libvulkan-dev"),),
        granularity=4,
    ),
    _cortex_m(
        "m0",
        "Armv6-M: no division, aligned access only",
        kernels=("armv6m",),
        runs=("m0plus",),
        interrupts=32,
        cmsis=("Cortex-M0", "Cortex-M1", "SC000"),
    ),
    _cortex_m(
        "m0plus",
        "Armv6-M, two pipeline stages",
        kernels=("armv6m",),
        runs=("m0",),
        interrupts=32,
        cmsis=("Cortex-M0+",),
        priced_as="m0",
    ),
    _cortex_m(
        "m23",
        "Armv8-M Baseline: as Armv6-M, with division",
        features=frozenset({"divide"}),
        kernels=("armv8m_baseline", "armv6m"),
        runs=("m0", "m0plus"),
        interrupts=240,
        cmsis=("Cortex-M23",),
    ),
    _cortex_m(
        "m3",
        "Armv7-M",
        features=_V7M,
        kernels=("armv7m",),
        runs=("m0", "m0plus"),
        interrupts=240,
        cmsis=("Cortex-M3", "SC300"),
    ),
    _cortex_m(
        "m4",
        "Armv7E-M: DSP extension, single-precision FPU",
        features=_V7EM,
        kernels=("dsp",),
        runs=("m0", "m0plus", "m3"),
        fpu="fpv4-sp-d16",
        interrupts=240,
        cmsis=("Cortex-M4",),
    ),
    _cortex_m(
        "m7",
        "Armv7E-M, dual issue: DSP extension, single-precision FPU",
        features=_V7EM,
        kernels=("dsp",),
        runs=("m0", "m0plus", "m3", "m4"),
        fpu="fpv5-sp-d16",
        interrupts=240,
        cmsis=("Cortex-M7",),
    ),
    _cortex_m(
        "m33",
        "Armv8-M: DSP extension, single-precision FPU",
        features=_V7EM,
        kernels=("dsp",),
        runs=("m0", "m0plus", "m23", "m3", "m4", "m7"),
        fpu="fpv5-sp-d16",
        cmsis=("Cortex-M33", "Cortex-M35P"),
    ),
    _cortex_m(
        "m55",
        "Armv8.1-M: Helium (MVE), FPU, low-overhead loops",
        features=_V7EM | frozenset[Feature]({"fpu_double", "mve", "mve_float", "loops"}),
        kernels=("helium",),
        runs=("m0", "m0plus", "m23", "m3", "m4", "m7", "m33"),
        fpu="auto",
        # Work around bugs of gcc 12.2 and binutils 2.40. The assembler mistakes the conditional
        # conversion VCVTNE.F32.S32 for Helium's VCVTN and rejects it. The loop vectorizer compiles
        # a constant Helium predicate to one that is true in every lane.
        flags=("-fno-if-conversion2", "-fno-tree-loop-vectorize"),
        cmsis=("Cortex-M55", "Cortex-M52", "Cortex-M85"),
    ),
    Target(
        name="rv32imac",
        description="RISC-V, 32 bits: multiplication, compressed instructions",
        # Without _zicsr: otherwise Debian's compiler does not find its 32-bit libraries.
        arch_flags=("-march=rv32imac", "-mabi=ilp32"),
        cross="riscv64-unknown-elf-",
        features=frozenset({"divide"}),
        backends=("armv6m", "c"),
        priced_as="cortex-m0",
    ),
)

_BY_NAME = {target.name: target for target in _TARGETS}


def available() -> tuple[Target, ...]:
    """Return all targets, with the least capable cores first."""
    return _TARGETS


def get(name: str) -> Target:
    """Return the target of that name.

    Raises:
        ConfigError: there is no such target; the message lists all targets.
    """
    if name not in _BY_NAME:
        cores = [known for known in _BY_NAME if known.endswith(f"-{name.lower()}")]
        close = cores or get_close_matches(name, _BY_NAME, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else "."
        raise ConfigError(f"unknown target '{name}'{hint} Known targets: {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
