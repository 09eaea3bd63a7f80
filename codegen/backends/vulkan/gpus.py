"""Profiles of GPUs: costs that decide the placement of layers and the choice of blocks.

A profile is a rough model: times of a submission, a dispatch, a product and a byte, and the costs
of loads and registers for the choice of blocks. Smelt's profiles are estimates from vendors' peak
rates, of which small layers reach a tenth to a quarter, and from published numbers of lanes,
registers and threads. Only `lavapipe` was measured. `smelt tune` measures the user's own device.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from smelt.errors import ConfigError
from smelt.targets import DeviceProfile


@dataclass(frozen=True)
class BlockCosts:
    """Costs of a convolution's work on a kind of GPU, in cycles of a vector of invocations.

    Attributes:
        lanes: Invocations per vector (warp, wave); unused lanes of a workgroup cost as much.
        local: Workgroup sizes that are worth trying: multiples of `lanes` up to 128, which every
            device supports. The first is used if nothing was measured.
        busy: Invocations that keep the device busy.
        sums: Largest number of vectors of four sums per invocation; twice as many if taps share
            inputs.
        written: Largest number of products of such vectors that are unrolled per load of inputs.
            Drivers take time to compile in proportion to it.
        halves: Largest number of vectors of four sums that an invocation stores as float16. On
            devices without an instruction for the conversion, its code is repeated for each number.
        load: Cycles of a load whose address differs between invocations.
        shared: Cycles of a load whose address is the same for a workgroup.
        word: Cycles of each 32-bit word of a load.
        multiply: Cycles of a scalar multiply-add.
        unpack: Cycles to unpack the four bytes of a word.
        start: Cycles of an invocation besides its products.
        reuse_margin: A block that other layers use is preferred to the cheapest one if it costs at
            most this many times as much, because drivers take long to compile another pipeline.
        reals: Whether int8 values are multiplied as floats if the sums stay exact.
    """

    lanes: int
    local: tuple[int, ...]
    busy: int
    sums: int
    written: int
    halves: int
    load: float
    shared: float
    word: float
    multiply: float
    unpack: float
    start: float
    reuse_margin: float
    reals: bool


@dataclass(frozen=True)
class Gpu(DeviceProfile):
    """A kind of GPU, and the CPU of the same device.

    Attributes:
        submit_ns: Nanoseconds to submit a region and wait for it.
        dispatch_ns: Nanoseconds of a dispatch, including a barrier.
        products_per_ns: Multiply-adds per nanosecond of float32, and of int8.
        bytes_per_ns: Bytes per nanosecond that are read or written.
        cpu_products_per_ns: The same multiply-adds in portable C on one core of the CPU.
        cpu_bytes_per_ns: Bytes per nanosecond of layers without products on that core.
        blocks: The costs by which blocks are chosen.
    """

    submit_ns: float
    dispatch_ns: float
    products_per_ns: tuple[float, float]
    bytes_per_ns: float
    cpu_products_per_ns: tuple[float, float]
    cpu_bytes_per_ns: float
    blocks: BlockCosts
    noun: str = field(default="GPU", kw_only=True)

    @property
    def local(self) -> int:
        """Workgroup size for kernels that work with any: two vectors, but at least 64."""
        return max(64, 2 * self.blocks.lanes)


_COMMON = BlockCosts(
    lanes=32,
    local=(64, 32, 128),
    busy=4096,
    sums=8,
    written=96,
    halves=32,
    load=8.0,
    shared=2.0,
    word=2.0,
    multiply=1.0,
    unpack=4.0,
    start=40.0,
    reuse_margin=1.1,
    reals=True,
)
"""Costs of a typical GPU: loads of one address for all are nearly free, registers are few."""

_VIDEO6 = replace(
    _COMMON,
    lanes=16,
    local=(32, 16, 64),
    busy=512,
    sums=4,
    load=16.0,
    shared=6.0,
    word=4.0,
    unpack=10.0,
    start=60.0,
)
"""VideoCore VI: 16 lanes in four cycles; 64 registers, which two or four threads of a unit share;
loads through the texture units, with a long latency. It has eight units, VideoCore VII twelve."""

_VIDEO7 = replace(_VIDEO6, busy=768)

_MALI = replace(_COMMON, lanes=16, shared=6.0, unpack=2.0)
"""Valhall: warps of 16; bytes of a register can be operands; storage has no uniform loads."""

_ADRENO = replace(_COMMON, lanes=64, local=(64, 128), shared=4.0)
"""Waves of 64 or 128; the larger ones need twice the invocations to keep busy."""

_INTEL = replace(_COMMON, lanes=16, local=(32, 16, 64, 128), busy=2688, shared=1.0)
"""Vectors of 8 to 32, mostly of 16; 24 units of seven threads; uniform loads are scalar."""

_NVIDIA = replace(_COMMON, busy=8192, sums=16, shared=4.0)
"""Warps of 32; 255 registers for each invocation; eight multiprocessors in an Orin Nano."""

_LAVAPIPE = BlockCosts(
    lanes=8,
    local=(8, 16),
    busy=16,
    sums=32,
    written=48,
    halves=16,
    load=20.0,
    shared=20.0,
    word=12.5,
    multiply=1.65,
    unpack=6.0,
    start=200.0,
    reuse_margin=2.0,
    reals=False,
)
"""Mesa's driver for CPUs: loads are done lane by lane, and sums are in the cache, not registers.

Measured with vectors of eight lanes (AVX2, AVX-512VL and VNNI, used for products of halfwords).
"""

_GENERIC = Gpu("generic", "any GPU", 60e3, 4e3, (30.0, 30.0), 5.0, (3.0, 2.0), 0.5, _COMMON)

DEFAULT = replace(_GENERIC, name="default", description="no device named", blocks=_LAVAPIPE)
"""The profile if no device is named. Layers are placed as for any GPU. Blocks are those of
lavapipe, because everybody can run it, and because it is the slowest with blocks of other GPUs."""

_GPUS = (
    DEFAULT,
    _GENERIC,
    Gpu("videocore6", "Raspberry Pi 4", 150e3, 15e3, (4.0, 3.0), 2.0, (3.0, 1.5), 0.5, _VIDEO6),
    Gpu("videocore7", "Raspberry Pi 5", 100e3, 10e3, (10.0, 7.0), 4.0, (8.0, 4.0), 1.0, _VIDEO7),
    Gpu("mali", "Arm Mali, Valhall", 120e3, 8e3, (50.0, 50.0), 8.0, (6.0, 3.0), 1.0, _MALI),
    Gpu("adreno", "Qualcomm Adreno", 100e3, 8e3, (80.0, 80.0), 10.0, (8.0, 4.0), 1.0, _ADRENO),
    Gpu("intel", "Intel, integrated", 60e3, 4e3, (60.0, 60.0), 15.0, (12.0, 6.0), 2.0, _INTEL),
    Gpu("nvidia", "NVIDIA, Jetson too", 40e3, 3e3, (200.0, 200.0), 40.0, (6.0, 3.0), 1.0, _NVIDIA),
    Gpu("lavapipe", "Mesa's, on the CPU", 40e3, 3e3, (3.0, 4.0), 2.0, (6.0, 4.0), 1.0, _LAVAPIPE),
)

_BY_NAME = {gpu.name: gpu for gpu in _GPUS}


def available() -> tuple[Gpu, ...]:
    """Return all profiles."""
    return _GPUS


def gpu_called(name: str) -> Gpu:
    """Return the profile with this name.

    Raises:
        ConfigError: There is none; the message lists all names.
    """
    if name not in _BY_NAME:
        close = get_close_matches(name, _BY_NAME, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else "."
        raise ConfigError(f"unknown GPU '{name}'{hint} Known: {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
