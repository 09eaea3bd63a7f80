"""Targets: instruction set, compiler flags, backends, platforms and prices of kernels.

May import nothing else of Smelt; `boards`, `codegen`, `api`, `proof`, `cli` and `bench` may import
it.
"""

from smelt.targets.catalog import available, get
from smelt.targets.platform import (
    HOST,
    FirmwarePlacement,
    Part,
    Platform,
    PlatformMemory,
    RegisterStep,
    RiscvCore,
    Timer,
    Uart,
    host_platform,
    library_platform,
)
from smelt.targets.target import (
    DeviceProfile,
    ExternalLibrary,
    Feature,
    HostLibrary,
    Optimize,
    PackComponent,
    Target,
)

__all__ = [
    "HOST",
    "DeviceProfile",
    "ExternalLibrary",
    "Feature",
    "FirmwarePlacement",
    "HostLibrary",
    "Optimize",
    "PackComponent",
    "Part",
    "Platform",
    "PlatformMemory",
    "RegisterStep",
    "RiscvCore",
    "Target",
    "Timer",
    "Uart",
    "available",
    "get",
    "host_platform",
    "library_platform",
]
