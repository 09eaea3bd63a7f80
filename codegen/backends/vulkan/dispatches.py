"""What a GPU is told to do: dispatches with the addresses of the plan, barriers, regions.

Dispatches of one region are recorded into one command buffer. A device may run them at the same
time, or in any order, except where a barrier stands between. One is needed where a dispatch
touches bytes that an earlier one touched since the last barrier, and either of them wrote: a static
fact, because the plan gives every operand its range of the arena.

Source: Vulkan 1.1 specification, chapter 7 (synchronization).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod

from typing_extensions import override

from smelt.codegen import arena
from smelt.codegen.accelerator import DeviceProgram, NetworkNames
from smelt.codegen.backends.vulkan.calls import MAX_GROUPS, ShaderCall
from smelt.codegen.backends.vulkan.emission import (
    HOST_HEADER,
    HOST_INTERNAL,
    HOST_SOURCES,
    arrays_of,
    render_program,
    sources_of,
)
from smelt.codegen.backends.vulkan.shaders import ELEMENT_BYTES, HALVES, Module, Pipeline, Shaders
from smelt.codegen.backends.vulkan.spirv import compiler
from smelt.codegen.lower.kernel import Output, Scratch
from smelt.codegen.schedule.schedule import ARENA, Call, InBuffer, InFlash, Schedule
from smelt.codegen.text.parameters import Parameters
from smelt.errors import UnsupportedError
from smelt.ir import Array

MAX_INVOCATIONS = 128
"""Invocations of a workgroup that every device can run."""

MAX_LOCAL = (128, 128, 64)
"""Sizes of a workgroup that every device can run."""

MAX_PUSH_BYTES = 128
"""Bytes of push constants that every device has."""

MAX_RANGE = 1 << 27
"""Bytes of one buffer that every device can bind."""


@dataclass(frozen=True)
class AccessRange:
    """Bytes `start <= byte < end` of the arena, or of the weights, that a dispatch touches."""

    weights: bool
    start: int
    end: int
    reads: bool
    writes: bool

    def conflicts(self, other: AccessRange) -> bool:
        """Whether the order of two accesses matters."""
        apart = self.weights != other.weights or self.end <= other.start or other.end <= self.start
        return not apart and (self.writes or other.writes)


@dataclass(frozen=True)
class Dispatch:
    """One dispatch.

    Attributes:
        step: index of its step.
        pipeline: index of its pipeline.
        pushed: push constants: where its operands start, each in elements of its view, and the
            numbers of its call.
        ranges: what each operand touches.
        groups: workgroups in x, y and z.
        barrier: whether it must wait for what was dispatched before.
    """

    step: int
    pipeline: int
    pushed: tuple[int, ...]
    ranges: tuple[AccessRange, ...]
    groups: tuple[int, int, int]
    barrier: bool


@dataclass(frozen=True)
class Upload:
    """A constant array and where it lies among the weights on the device, in bytes."""

    constant: str
    offset: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class DispatchProgram(DeviceProgram):
    """Everything that the device needs to know.

    `regions` are half-open ranges of dispatches without a step of the CPU between them;
    `stores_halves` tells whether shaders read or write float16, which not every device can.
    """

    modules: tuple[Module, ...]
    pipelines: tuple[Pipeline, ...]
    dispatches: tuple[Dispatch, ...]
    regions: tuple[tuple[int, int], ...]
    uploads: tuple[Upload, ...]
    arena_bytes: int
    weights_bytes: int
    stores_halves: bool

    templates = "backends/vulkan/network"
    absent = "ctx->gpu == 0"
    refusal = "it runs on a GPU, whose loader users of this format could not link"

    @override
    def statement(self, step: int) -> str:
        return f"GPU_STEP({self._numbers[step]});"

    @override
    def end(self, step: int) -> str:
        region = self._ends.get(self._numbers[step])
        return "" if region is None else f"GPU_REGION({region});"

    @override
    def headers(self, name: str) -> tuple[str, ...]:
        return (f"{name}_gpu.h", HOST_HEADER)

    @override
    def sources(self, name: str) -> tuple[str, ...]:
        return (f"{name}_gpu.c", f"{name}_shaders.c", *HOST_SOURCES)

    @override
    def internal(self, name: str) -> tuple[str, ...]:
        shaders = (f"shaders/{shader}.comp" for shader in sources_of(self.modules))
        return (f"{name}_shaders.h", HOST_INTERNAL, *shaders)

    @override
    def render(self, net: NetworkNames, comments: Sequence[str]) -> Callable[[], dict[str, str]]:
        own = ProgramParameters(net, self, tuple(comments))
        return render_program(net.name, self.modules, own)

    @override
    def arrays(self, name: str) -> Mapping[str, Array]:
        return arrays_of(self.modules, name)

    @property
    @override
    def compiler(self) -> str:
        return compiler().version

    @cached_property
    def _numbers(self) -> Mapping[int, int]:
        """Numbers of dispatches by their steps."""
        return {dispatch.step: number for number, dispatch in enumerate(self.dispatches)}

    @cached_property
    def _ends(self) -> Mapping[int, int]:
        """Numbers of regions by their last dispatches."""
        return {end - 1: number for number, (_, end) in enumerate(self.regions)}

    @property
    def features(self) -> tuple[str, ...]:
        """What C calls the features of devices that some of its modules are faster with."""
        return tuple(dict.fromkeys(m.feature for m in self.modules if m.fast))

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """The first dispatch of each region, and how many they are."""
        return tuple((first, end - first) for first, end in self.regions)

    @property
    def barriers(self) -> int:
        """How many dispatches wait."""
        return sum(dispatch.barrier for dispatch in self.dispatches)

    @property
    def push_bytes(self) -> int:
        """Push constants of the dispatch that has most."""
        return 4 * max(len(dispatch.pushed) for dispatch in self.dispatches)

    @property
    def group_invocations(self) -> int:
        """Invocations of the largest workgroup."""
        return max(prod(pipeline.local) for pipeline in self.pipelines)


@dataclass(frozen=True)
class ProgramParameters(Parameters):
    """Variables of the templates of a network's program, beside `ShaderParameters`.

    Attributes:
        net: what the network is called.
        gpu: the program.
        comments: what each step of the network computes.
    """

    net: NetworkNames
    gpu: DispatchProgram
    comments: tuple[str, ...]


def program(schedule: Schedule, plan: arena.Plan, alignment: int = 16) -> DispatchProgram | None:
    """The program of a planned schedule; None where no step runs on a GPU.

    Raises:
        UnsupportedError: arena, weights or a dispatch exceed what every device can do.
    """
    shaders = schedule.device
    calls = [(x, x.call) for x in schedule.calls if isinstance(x.call, ShaderCall)]
    if not calls or not isinstance(shaders, Shaders):
        return None
    steps = [step for step, _ in calls]
    uploads = _uploads(schedule, steps, alignment)
    offsets = {upload.constant: upload for upload in uploads}
    numbers = {pipeline.name: i for i, pipeline in enumerate(shaders.pipelines)}
    dispatches = [_dispatch(step, call, plan, offsets, numbers) for step, call in calls]
    regions = _regions(schedule, steps)
    last = uploads[-1] if uploads else None
    made = DispatchProgram(
        modules=shaders.modules,
        pipelines=shaders.pipelines,
        dispatches=with_barriers(dispatches, regions),
        regions=regions,
        uploads=uploads,
        arena_bytes=_up(
            max(next(use.bytes for use in plan.memories if use.name == ARENA), 1), alignment
        ),
        weights_bytes=alignment
        if last is None
        else last.offset + _up(max(last.bytes, 1), alignment),
        stores_halves=any(view in HALVES for _, call in calls for view in call.views.values()),
    )
    _require_limits(made, schedule)
    return made


def with_barriers(
    dispatches: Sequence[Dispatch], regions: Sequence[tuple[int, int]]
) -> tuple[Dispatch, ...]:
    """The dispatches with barriers where, and only where, a hazard needs one.

    The CPU waits for a region before it goes on, and a region begins with a barrier of its own.
    """
    done: list[Dispatch] = []
    for first, end in regions:
        pending: list[AccessRange] = []
        for dispatch in dispatches[first:end]:
            hazard = any(a.conflicts(b) for a in pending for b in dispatch.ranges)
            pending = [*([] if hazard else pending), *dispatch.ranges]
            done.append(
                Dispatch(
                    dispatch.step,
                    dispatch.pipeline,
                    dispatch.pushed,
                    dispatch.ranges,
                    dispatch.groups,
                    hazard,
                )
            )
    return tuple(done)


def _dispatch(
    step: Call,
    call: ShaderCall,
    plan: arena.Plan,
    uploads: dict[str, Upload],
    numbers: dict[str, int],
) -> Dispatch:
    ranges: list[AccessRange] = []
    for operand, argument in zip(call.operands, step.arguments, strict=True):
        element = ELEMENT_BYTES[call.views[operand.name]]
        match argument:
            case InFlash(constant):
                upload = uploads[constant]
                end = upload.offset + _up(max(upload.bytes, 1), element)
                ranges.append(AccessRange(True, upload.offset, end, True, False))
            case InBuffer(buffer):
                place = plan[buffer]
                scratch = isinstance(operand, Scratch)
                writes = scratch or isinstance(operand, Output)
                end = place.offset + _up(place.size, element)
                ranges.append(AccessRange(False, place.offset, end, scratch or not writes, writes))
    return Dispatch(
        step.index,
        numbers[step.function],
        (
            *(
                range_.start // ELEMENT_BYTES[call.views[operand.name]]
                for operand, range_ in zip(call.operands, ranges, strict=True)
            ),
            *call.numbers.values(),
        ),
        tuple(ranges),
        call.groups,
        barrier=False,
    )


def _uploads(schedule: Schedule, steps: Sequence[Call], alignment: int) -> tuple[Upload, ...]:
    names = dict.fromkeys(a.constant for s in steps for a in s.arguments if isinstance(a, InFlash))
    uploads: list[Upload] = []
    offset = 0
    for name in names:
        size = schedule.constants[name].nbytes
        uploads.append(Upload(name, offset, size))
        offset += _up(max(size, 1), alignment)
    return tuple(uploads)


def _up(size: int, unit: int) -> int:
    """The size in whole units."""
    return -(-size // unit) * unit


def _regions(schedule: Schedule, steps: Sequence[Call]) -> tuple[tuple[int, int], ...]:
    """Runs of GPU steps that stand side by side in the outermost block."""
    place = {x.index: i for i, x in enumerate(schedule.actions) if isinstance(x, Call)}
    cuts = [
        i for i, (a, b) in enumerate(pairwise(steps), 1) if place[b.index] != place[a.index] + 1
    ]
    return tuple(pairwise([0, *cuts, len(steps)]))


def _require_limits(program: DispatchProgram, schedule: Schedule) -> None:
    """Check what every device of Vulkan 1.1 can do."""
    if program.arena_bytes > MAX_RANGE:
        raise UnsupportedError(
            f"the arena, which the GPU and the CPU share, would have {program.arena_bytes:,} "
            f"bytes; {MAX_RANGE:,} is what every device can bind. Use smaller inputs, or have the "
            "CPU compute everything with --backends c"
        )
    if program.weights_bytes > MAX_RANGE:
        on_gpu = (step for step in schedule.calls if isinstance(step.call, ShaderCall))
        heaviest = max(on_gpu, key=_weights)
        raise UnsupportedError(
            f"the weights of the GPU's layers would have {program.weights_bytes:,} bytes; "
            f"{MAX_RANGE:,} is what every device can bind. Keep the layers with most on the CPU: "
            f"--place {heaviest.node.name}=c has {_weights(heaviest):,} less"
        )
    for dispatch in program.dispatches:
        local = program.pipelines[dispatch.pipeline].local
        fits = (
            max(dispatch.groups) <= MAX_GROUPS
            and prod(local) <= MAX_INVOCATIONS
            and all(size <= most for size, most in zip(local, MAX_LOCAL, strict=True))
            and 4 * len(dispatch.pushed) <= MAX_PUSH_BYTES
        )
        if not fits:
            node = schedule.steps[dispatch.step].node
            raise UnsupportedError(
                f"{node.origin} needs {dispatch.groups} workgroups of {local} invocations and "
                f"{len(dispatch.pushed)} push constants; every device can run {MAX_GROUPS} in each "
                f"direction, {MAX_INVOCATIONS} and {MAX_PUSH_BYTES // 4}. Keep it on the CPU with "
                f"--place {node.name}=c"
            )


def _weights(step: Call) -> int:
    return step.call.constant_bytes
