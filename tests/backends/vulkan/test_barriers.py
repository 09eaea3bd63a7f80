"""Every hazard between dispatches has a barrier, and every barrier is needed.

Two methods check this. A replay of the bytes that each step accesses shares no code with the
analysis. And the Khronos layer's synchronization validation runs with descriptors of exactly the
ranges that each dispatch may access (`tests/support/vulkan/exact_ranges.c`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.api.artifact import Artifact
from smelt.codegen.backends.vulkan.calls import ShaderCall
from smelt.codegen.backends.vulkan.dispatches import (
    AccessRange,
    Dispatch,
    DispatchProgram,
    with_barriers,
)
from smelt.codegen.lower.kernel import Scratch
from smelt.codegen.schedule.schedule import Call, InBuffer
from smelt.ir import DType, evaluate
from smelt.samples import random_samples
from tests.support.graphs import TOLERANCE, Member, assert_same, combine, compile_graph
from tests.support.random_networks import PHASES, members
from tests.support.shared import Network
from tests.support.vulkan_tools import (
    MLPERF,
    ON_GPU,
    Validation,
    branches,
    build,
    exact_ranges,
    on_gpu,
    program_of,
    requires_vulkan,
    shared_library,
)


@dataclass
class Memory:
    """The number of barriers at the last read and the last write of each byte."""

    bytes: int
    now: int = 0
    read: np.ndarray = field(init=False)
    written: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.read = np.full(self.bytes, -1)
        self.written = np.full(self.bytes, -1)

    def touch(self, reads: Sequence[slice], writes: Sequence[slice]) -> bool:
        """Return whether a dispatch is safe beside the dispatches since the last barrier."""
        safe = all((self.written[r] < self.now).all() for r in reads) and all(
            (self.written[w] < self.now).all() and (self.read[w] < self.now).all() for w in writes
        )
        for r in reads:
            self.read[r] = self.now
        for w in writes:
            self.written[w] = self.now
        return safe


Touched = tuple[list[slice], list[slice]]
"""The ranges that a dispatch reads and writes."""


def unsafe(
    touched: Sequence[Touched], waits: Sequence[bool], regions: Sequence[tuple[int, int]], size: int
) -> list[int]:
    """Return the dispatches that may run beside one that they must follow."""
    memory, found = Memory(size), list[int]()
    for first, end in regions:
        memory.now += 1
        for number in range(first, end):
            memory.now += waits[number]
            if not memory.touch(*touched[number]):
                found.append(number)
    return found


def touched_by(artifact: Artifact, step: Call) -> Touched:
    """Return the arena ranges of a GPU step, from its node's tensors and its scratch.

    A shader's last element may extend beyond a tensor, up to the next multiple of 16 bytes.
    """
    storage, plan = artifact.schedule.storage, artifact.plan

    def place(buffer: str, size: int) -> slice:
        offset = plan[buffer].offset
        return slice(offset, offset + (size + 15) // 16 * 16)

    reads = [place(storage[v], v.type.bytes) for v in step.node.inputs if v and v.data is None]
    writes = [place(storage[v], v.type.bytes) for v in step.node.outputs]
    for operand, argument in zip(step.call.operands, step.arguments, strict=True):
        if isinstance(operand, Scratch) and isinstance(argument, InBuffer):
            writes.append(place(argument.buffer, operand.count * operand.dtype.size))
    return reads, writes


def check_barriers(artifact: Artifact) -> None:
    """Assert by replay that the program is safe, and unsafe without any one of its barriers."""
    gpu = program_of(artifact)
    assert gpu is not None
    steps = [s for s in artifact.schedule.calls if isinstance(s.call, ShaderCall)]
    assert [d.step for d in gpu.dispatches] == [s.index for s in steps]
    assert [n for first, end in gpu.regions for n in range(first, end)] == list(range(len(steps)))
    touched = [touched_by(artifact, step) for step in steps]
    size = gpu.arena_bytes
    for dispatch, (reads, writes) in zip(gpu.dispatches, touched, strict=True):
        for r in dispatch.ranges:
            assert (
                r.start % 16 == 0 <= r.start < r.end <= (gpu.weights_bytes if r.weights else size)
            )
            allowed = [*reads, *writes] if r.reads and not r.writes else writes
            assert r.weights or any(a.start == r.start and r.end <= a.stop for a in allowed)
    waits = [d.barrier for d in gpu.dispatches]
    assert unsafe(touched, waits, gpu.regions, size) == []
    for number in barriers_of(gpu):
        without = [wait and i != number for i, wait in enumerate(waits)]
        assert number in unsafe(touched, without, gpu.regions, size)


def barriers_of(program: DispatchProgram) -> list[int]:
    """Return the dispatches that wait."""
    return [number for number, dispatch in enumerate(program.dispatches) if dispatch.barrier]


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_library("exact_ranges", tmp_path_factory.mktemp("shim"))


def check_validation(
    artifact: Artifact, shim: Path, folder: Path, tolerance: float = TOLERANCE
) -> None:
    """Assert that the layer accepts the program, and rejects it without any one barrier."""
    program = program_of(artifact)
    assert program is not None
    built = build(artifact, folder, "-O0")
    validation = Validation(folder, ("SYNCHRONIZATION_VALIDATION",))
    exact_ranges(artifact, folder / "ranges")
    environment = {
        **validation.environment,
        "LD_PRELOAD": str(shim),
        "EXACT_RANGES": str(folder / "ranges"),
        "DROP_BARRIERS": str(folder / "dropped"),
    }
    samples = random_samples(artifact.graph, 1, 0)
    outputs = built.run(samples, environment)
    expected = [evaluate(artifact.graph, s).outputs for s in samples]
    assert_same(outputs, expected, "exact ranges", tolerance)
    lines = (folder / "dropped").read_text().splitlines() if barriers_of(program) else []
    dropped = {int(number): int(more) for number, more in map(str.split, lines)}
    assert sorted(dropped) == barriers_of(program)
    assert all(dropped.values()), f"nothing is said where one does not wait: {dropped}"
    said = validation.messages()
    assert len(said) == sum(dropped.values()), f"of the program itself: {said}"
    assert said.count("Validation Error: ") == said.count("Validation Error: [ SYNC-HAZARD-")
    if program.features:
        del environment["DROP_BARRIERS"]
        outputs = built.run(samples, {**environment, "FAST": "1"})
        assert validation.messages() == ""
        assert_same(outputs, expected, " and ".join(program.features), tolerance)


@pytest.mark.quick(every=4)
@requires_vulkan
@MLPERF
def test_networks(network: Network, shim: Path, tmp_path: Path) -> None:
    artifact = on_gpu(network)
    check_barriers(artifact)
    check_validation(artifact, shim, tmp_path)


@requires_vulkan
def test_branches_and_steps_in_place_have_barriers(shim: Path, tmp_path: Path) -> None:
    artifact = compile_graph(branches(), ON_GPU)
    program = program_of(artifact)
    assert program is not None
    # Of three convolutions that read one tensor, only the first waits for it.
    assert [d.barrier for d in program.dispatches[:4]] == [False, True, False, False]
    check_barriers(artifact)
    check_validation(artifact, shim, tmp_path)


def _telling_end(artifact: Artifact, range_: AccessRange) -> int:
    """Return how many bytes at a range's end (at least 16) show whether they read as zeros."""
    program = program_of(artifact)
    assert program is not None
    data = {
        upload.offset: artifact.schedule.constants[upload.constant].tobytes()
        for upload in program.uploads
        if range_.weights
    }.get(range_.start, b"\1")
    kept = (len(data.rstrip(b"\0")) - 1) // 16 * 16
    return max(16, -(-len(data) // 16) * 16 - kept)


@requires_vulkan
def test_shaders_access_only_their_ranges(shim: Path, tmp_path: Path) -> None:
    """Bytes outside a dispatch's ranges are neither read nor written: outputs would differ."""
    artifact = compile_graph(branches(), ON_GPU)
    program = program_of(artifact)
    assert program is not None
    built, ranges = build(artifact, tmp_path, "-O0"), tmp_path / "ranges"
    samples = random_samples(artifact.graph, 1, 0)
    expected = [evaluate(artifact.graph, s).outputs for s in samples]
    environment = {"LP_NUM_THREADS": "1", "LD_PRELOAD": str(shim), "EXACT_RANGES": str(ranges)}
    exact_ranges(artifact, ranges)
    words = np.fromfile(ranges, "<u4")
    first = len(words) - sum(1 + 3 * len(d.ranges) for d in program.dispatches)
    for number, range_ in enumerate(program.dispatches[0].ranges):
        less = words.copy()
        less[first + 3 * (number + 1)] -= _telling_end(artifact, range_)
        less.tofile(ranges)
        with pytest.raises(AssertionError):
            assert_same(built.run(samples, environment), expected, "less")


@pytest.mark.thorough
@requires_vulkan
@settings(max_examples=2, phases=PHASES)
@given(
    st.sampled_from([DType.FLOAT32, DType.INT8]).flatmap(
        lambda dtype: st.lists(members(dtype), min_size=6, max_size=6)
    )
)
def test_random_networks(
    shim: Path, tmp_path_factory: pytest.TempPathFactory, drawn: list[Member]
) -> None:
    artifact = compile_graph(combine("all", [member.graph for member in drawn]), ON_GPU)
    if program_of(artifact) is None:
        return
    check_barriers(artifact)
    check_validation(artifact, shim, tmp_path_factory.mktemp("random"))


def range_of(start: int, size: int, access: str) -> AccessRange:
    return AccessRange(False, 16 * start, 16 * (start + size), access != "w", access != "r")


RANGES = st.builds(
    range_of, st.integers(0, 5), st.integers(1, 3), st.sampled_from(["r", "w", "rw"])
)
LISTS = st.lists(st.lists(st.lists(RANGES, min_size=1, max_size=4), max_size=8), max_size=4)


@settings(max_examples=300)
@given(LISTS)
def test_barriers_of_random_dispatches(drawn: list[list[list[AccessRange]]]) -> None:
    dispatches = [
        Dispatch(0, 0, (), tuple(ranges), (1, 1, 1), False) for region in drawn for ranges in region
    ]
    ends = np.cumsum([len(region) for region in drawn]).tolist()
    regions = list(zip([0, *ends], ends, strict=False))
    found = with_barriers(dispatches, regions)
    assert [replace(d, barrier=False) for d in found] == dispatches
    touched: list[Touched] = [
        (
            [slice(r.start, r.end) for r in d.ranges if r.reads],
            [slice(r.start, r.end) for r in d.ranges if r.writes],
        )
        for d in found
    ]
    waits = [d.barrier for d in found]
    assert unsafe(touched, waits, regions, 128) == []
    for number, wait in enumerate(waits):
        if wait:
            without = [other and i != number for i, other in enumerate(waits)]
            assert number in unsafe(touched, without, regions, 128)


def test_weights_need_no_barriers() -> None:
    written = AccessRange(False, 0, 16, False, True)
    read = AccessRange(True, 0, 16, True, False)
    assert not written.conflicts(read)
