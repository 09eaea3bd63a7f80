"""What GPUs cost: the figures that the cut between GPU and CPU is weighed by, and kernels' sizes.

A profile is a rough model: so much for a submission, a dispatch, a product, a byte, and what loads
and registers are worth when blocks are chosen. Those that come with Smelt are estimates, from
vendors' peak rates, a tenth to a quarter of which small layers reach, and from what is public of
their lanes, registers and threads; only `lavapipe` was measured. `smelt tune` measures the user's
own device instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from smelt.errors import ConfigError
from smelt.targets import DeviceProfile


@dataclass(frozen=True)
class BlockCosts:
    """What the work of a product costs on a kind of GPU, in cycles of its vectors.

    Attributes:
        lanes: invocations that run in step; those that a workgroup does not need cost as much.
        local: sizes of workgroups that are worth trying, multiples of `lanes` up to the 128 that
            every device has; the first is taken where nothing was measured.
        busy: invocations that it takes to keep the device busy.
        sums: most vectors of four sums that an invocation keeps; twice as many where taps share
            inputs.
        written: most of their products that are written out for a load of inputs: drivers'
            compilers take longer in proportion.
        halves: most vectors of four sums that an invocation stores as float16: where there is no
            instruction for it, it is written out for each number.
        load: cycles of a load that each invocation makes for itself.
        shared: cycles of a load that is the same for a workgroup.
        word: cycles of each 32-bit word of a load.
        multiply: cycles of a multiply-add of single numbers.
        unpack: cycles of taking a word of four bytes apart.
        start: cycles of an invocation beside its products.
        alike: how much longer than by the cheapest block a layer may take by one that others have
            too: drivers take long to compile a pipeline.
        reals: whether bytes are multiplied as floats where the sums stay exact.
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
    alike: float
    reals: bool


@dataclass(frozen=True)
class Gpu(DeviceProfile):
    """A kind of GPU, and the CPU beside it; times in nanoseconds.

    Attributes:
        submit_ns: of submitting a region and waiting for it.
        dispatch_ns: of a dispatch, barrier included.
        products_per_ns: products of float32, and of int8, with their sums.
        bytes_per_ns: of reading and writing memory.
        cpu_products_per_ns: the same products by portable C on one core of the CPU.
        cpu_bytes_per_ns: of layers without products there.
        blocks: what the blocks of products are chosen by.
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
        """Invocations of a workgroup that share nothing: two vectors, and no fewer than 64."""
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
    alike=1.1,
    reals=True,
)
"""What GPUs have in common: loads of one address for all are nearly free, registers are few."""

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
"""16 lanes in four cycles; 64 registers, which two or four threads of a unit divide; loads by the
texture units, which answer late. Eight units in a VideoCore VI, twelve in a VII."""

_VIDEO7 = replace(_VIDEO6, busy=768)

_MALI = replace(_COMMON, lanes=16, shared=6.0, unpack=2.0)
"""Valhall: warps of 16; a register's bytes can be operands; loads of storage are not uniform."""

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
    alike=2.0,
    reals=False,
)
"""Mesa's driver for CPUs: every load goes lane by lane, and there is cache in place of registers.

Measured with vectors of eight (AVX2, AVX-512VL and VNNI, which products of halfwords become).
"""

_GENERIC = Gpu("generic", "any GPU", 60e3, 4e3, (30.0, 30.0), 5.0, (3.0, 2.0), 0.5, _COMMON)

DEFAULT = replace(_GENERIC, name="default", description="not said which", blocks=_LAVAPIPE)
"""What a target has where no device is named: layers go to it as to any GPU, blocks are
lavapipe's, the device that everybody has, and the one that is slowest with those of others."""

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
