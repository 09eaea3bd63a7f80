"""What GPUs cost: the figures that the cut between GPU and CPU is weighed by, and kernels' sizes.

A profile is a rough model: so much for a submission, a dispatch, a product, a byte. Those that come
with Smelt are estimates from vendors' peak rates, a tenth to a quarter of which small layers reach;
only `lavapipe` was measured. `smelt tune` measures the user's own device instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from smelt.errors import ConfigError


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU, and the CPU beside it; times in nanoseconds.

    Attributes:
        name: as in `--gpu`.
        description: one line for tables.
        submit_ns: of submitting a region and waiting for it.
        dispatch_ns: of a dispatch, barrier included.
        products_per_ns: products of float32, and of int8, with their sums.
        bytes_per_ns: of reading and writing memory.
        cpu_products_per_ns: the same products by portable C on one core of the CPU.
        cpu_bytes_per_ns: of layers without products there.
        lanes: invocations that execute together; a workgroup should be a multiple of them.
    """

    name: str
    description: str
    submit_ns: float
    dispatch_ns: float
    products_per_ns: tuple[float, float]
    bytes_per_ns: float
    cpu_products_per_ns: tuple[float, float]
    cpu_bytes_per_ns: float
    lanes: int


_GPUS = (
    Gpu("generic", "any GPU", 60e3, 4e3, (30.0, 30.0), 5.0, (3.0, 2.0), 0.5, 32),
    Gpu("videocore6", "Raspberry Pi 4", 150e3, 15e3, (4.0, 3.0), 2.0, (3.0, 1.5), 0.5, 16),
    Gpu("videocore7", "Raspberry Pi 5", 100e3, 10e3, (10.0, 7.0), 4.0, (8.0, 4.0), 1.0, 16),
    Gpu("mali", "Arm Mali, Valhall", 120e3, 8e3, (50.0, 50.0), 8.0, (6.0, 3.0), 1.0, 16),
    Gpu("adreno", "Qualcomm Adreno", 100e3, 8e3, (80.0, 80.0), 10.0, (8.0, 4.0), 1.0, 64),
    Gpu("intel", "Intel, integrated", 60e3, 4e3, (60.0, 60.0), 15.0, (12.0, 6.0), 2.0, 16),
    Gpu("nvidia", "NVIDIA Jetson and larger", 40e3, 3e3, (200.0, 200.0), 40.0, (6.0, 3.0), 1.0, 32),
    Gpu("lavapipe", "Mesa's Vulkan on the CPU", 40e3, 3e3, (3.0, 4.0), 2.0, (6.0, 4.0), 1.0, 8),
)

_BY_NAME = {gpu.name: gpu for gpu in _GPUS}


def available() -> tuple[Gpu, ...]:
    """All profiles."""
    return _GPUS


def gpu_called(name: str) -> Gpu:
    """The profile of that name.

    Raises:
        ConfigError: there is none; the message lists those there are.
    """
    if name not in _BY_NAME:
        close = get_close_matches(name, _BY_NAME, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else "."
        raise ConfigError(f"unknown GPU '{name}'{hint} Known: {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
