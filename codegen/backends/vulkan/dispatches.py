"""The GPU's program: dispatches with operand offsets, barriers, and regions.

A region is a run of dispatches without a CPU step in between, which is recorded into one command
buffer. A device may run its dispatches concurrently or in any order, except across a barrier. A
dispatch needs a barrier if it accesses bytes that another dispatch since the last barrier accessed,
and one of the two writes them. This is known at compile time, because the plan gives every operand
a range of the arena.

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
"""Invocations per workgroup that every device supports (maxComputeWorkGroupInvocations)."""

MAX_LOCAL = (128, 128, 64)
"""Workgroup size in x, y and z that every device supports (maxComputeWorkGroupSize)."""

MAX_PUSH_BYTES = 128
"""Bytes of push constants that every device supports (maxPushConstantsSize)."""

MAX_RANGE = 1 << 27
"""Bytes of a storage buffer that every device can bind (maxStorageBufferRange)."""


@dataclass(frozen=True)
class AccessRange:
    """Bytes that a dispatch accesses: `start <= byte < end`.

    Attributes:
        weights: Whether the bytes are in the buffer of weights; otherwise they are in the arena.
        start: First byte.
        end: Byte after the last one.
        reads: Whether the dispatch reads them.
        writes: Whether the dispatch writes them.
    """

    weights: bool
    start: int
    end: int
    reads: bool
    writes: bool

    def conflicts(self, other: AccessRange) -> bool:
        """Return whether the ranges overlap and at least one access writes."""
        apart = self.weights != other.weights or self.end <= other.start or other.end <= self.start
        return not apart and (self.writes or other.writes)


@dataclass(frozen=True)
class Dispatch:
    """One dispatch.

    Attributes:
        step: Index of its step in the schedule.
        pipeline: Index of its pipeline.
        pushed: Push constants: the offset of each operand, in elements of its view, then the
            numbers of the call.
        ranges: The bytes that each operand accesses.
        groups: Workgroups in x, y and z.
        barrier: Whether it must wait for the dispatches before it.
    """

    step: int
    pipeline: int
    pushed: tuple[int, ...]
    ranges: tuple[AccessRange, ...]
    groups: tuple[int, int, int]
    barrier: bool


@dataclass(frozen=True)
class Upload:
    """A constant array and its offset and size, in bytes, in the device's buffer of weights."""

    constant: str
    offset: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class DispatchProgram(DeviceProgram):
    """The GPU's part of a network.

    Attributes:
        modules: GLSL modules.
        pipelines: Specialized modules.
        dispatches: In the order of execution.
        regions: Half-open ranges of dispatches without a CPU step in between.
        uploads: Constants that are copied to the device's buffer of weights.
        arena_bytes: Bytes of the arena.
        weights_bytes: Bytes of the buffer of weights.
        stores_halves: Whether shaders read or write float16, which not every device supports.
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
    refusal = "it runs on a GPU, and projects of this format cannot link the Vulkan loader"

    @override
    def statement(self, step: int) -> str:
        return f"GPU_STEP({self._numbers[step]});"

    @override
    def end(self, step: int) -> str:
        region = self._region_ends.get(self._numbers[step])
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
        """Index of each dispatch by its step."""
        return {dispatch.step: number for number, dispatch in enumerate(self.dispatches)}

    @cached_property
    def _region_ends(self) -> Mapping[int, int]:
        """Index of each region by its last dispatch."""
        return {end - 1: number for number, (_, end) in enumerate(self.regions)}

    @property
    def features(self) -> tuple[str, ...]:
        """Names in C of the device features for which some modules have a faster variant."""
        return tuple(dict.fromkeys(m.feature for m in self.modules if m.fast))

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """The first dispatch of each region, and the number of its dispatches."""
        return tuple((first, end - first) for first, end in self.regions)

    @property
    def barriers(self) -> int:
        """Number of dispatches with a barrier."""
        return sum(dispatch.barrier for dispatch in self.dispatches)

    @property
    def push_bytes(self) -> int:
        """Bytes of push constants of the dispatch that has most."""
        return 4 * max(len(dispatch.pushed) for dispatch in self.dispatches)

    @property
    def group_invocations(self) -> int:
        """Invocations of the largest workgroup."""
        return max(prod(pipeline.local) for pipeline in self.pipelines)


@dataclass(frozen=True)
class ProgramParameters(Parameters):
    """Variables of the templates of a network's GPU program, besides `ShaderParameters`.

    Attributes:
        net: The network's names.
        gpu: The program.
        comments: A description of each step of the network.
    """

    net: NetworkNames
    gpu: DispatchProgram
    comments: tuple[str, ...]


def program(schedule: Schedule, plan: arena.Plan, alignment: int = 16) -> DispatchProgram | None:
    """Return the GPU program of a planned schedule; None if no step runs on a GPU.

    Args:
        schedule: The schedule.
        plan: Offsets of its buffers.
        alignment: Alignment of each constant among the weights, in bytes.

    Raises:
        UnsupportedError: The arena, the weights or a dispatch exceeds what every device supports.
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
        arena_bytes=_rounded_up(
            max(next(use.bytes for use in plan.memories if use.name == ARENA), 1), alignment
        ),
        weights_bytes=alignment
        if last is None
        else last.offset + _rounded_up(max(last.bytes, 1), alignment),
        stores_halves=any(view in HALVES for _, call in calls for view in call.views.values()),
    )
    _require_limits(made, schedule)
    return made


def with_barriers(
    dispatches: Sequence[Dispatch], regions: Sequence[tuple[int, int]]
) -> tuple[Dispatch, ...]:
    """Return the dispatches with a barrier before each one that conflicts with an earlier one.

    Regions need no barriers between them: the CPU waits for the end of each region, and the
    recorded commands of a region begin with a barrier.
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
                end = upload.offset + _rounded_up(max(upload.bytes, 1), element)
                ranges.append(AccessRange(True, upload.offset, end, True, False))
            case InBuffer(buffer):
                place = plan[buffer]
                scratch = isinstance(operand, Scratch)
                writes = scratch or isinstance(operand, Output)
                end = place.offset + _rounded_up(place.size, element)
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
        offset += _rounded_up(max(size, 1), alignment)
    return tuple(uploads)


def _rounded_up(size: int, unit: int) -> int:
    """Round a size up to whole units."""
    return -(-size // unit) * unit


def _regions(schedule: Schedule, steps: Sequence[Call]) -> tuple[tuple[int, int], ...]:
    """Return the runs of GPU steps that are consecutive in the outermost block."""
    place = {x.index: i for i, x in enumerate(schedule.actions) if isinstance(x, Call)}
    cuts = [
        i for i, (a, b) in enumerate(pairwise(steps), 1) if place[b.index] != place[a.index] + 1
    ]
    return tuple(pairwise([0, *cuts, len(steps)]))


def _require_limits(program: DispatchProgram, schedule: Schedule) -> None:
    """Check that the program stays within the limits that every Vulkan 1.1 device supports.

    Raises:
        UnsupportedError: It does not.
    """
    if program.arena_bytes > MAX_RANGE:
        raise UnsupportedError(
            f"the arena, which the GPU and the CPU share, needs {program.arena_bytes:,} bytes, but "
            f"every device can bind only {MAX_RANGE:,}. Use smaller inputs, or compute "
            "everything on the CPU with --backends c"
        )
    if program.weights_bytes > MAX_RANGE:
        on_gpu = (step for step in schedule.calls if isinstance(step.call, ShaderCall))
        heaviest = max(on_gpu, key=_weights)
        raise UnsupportedError(
            f"the weights of the GPU's layers need {program.weights_bytes:,} bytes, but every "
            f"device can bind only {MAX_RANGE:,}. Keep the largest layers on the CPU: "
            f"--place {heaviest.node.name}=c saves {_weights(heaviest):,}"
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
                f"{len(dispatch.pushed)} push constants, but every device can run only "
                f"{MAX_GROUPS} workgroups in each direction of {MAX_INVOCATIONS} invocations, and "
                f"{MAX_PUSH_BYTES // 4} push constants. Keep it on the CPU with --place "
                f"{node.name}=c"
            )


def _weights(step: Call) -> int:
    return step.call.constant_bytes
