"""The host side of Vulkan when calls fail, with a fake loader that fails on request.

The fake loader (`tests/support/vulkan/fake_vulkan.c`) allocates objects by malloc, so that
AddressSanitizer detects each object that is leaked, freed twice or used after it was freed, for a
failure of any call.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from smelt.api.artifact import Artifact
from smelt.codegen.backends.vulkan.dispatches import DispatchProgram
from tests.support.graphs import compile_graph
from tests.support.projects import SANITIZERS, must, network_sources
from tests.support.vulkan_tools import (
    ON_GPU,
    SHIMS,
    branches,
    dense,
    program_of,
    requires_vulkan,
    shared_library,
)

pytestmark = requires_vulkan

OUT_OF_MEMORY = -2
BEST_EFFORT = ("vkGetPipelineCacheData", "vkDeviceWaitIdle")
"""Functions whose failure does no harm."""


@dataclass(frozen=True)
class Ended:
    """How a session ended, its messages, and those of the loader."""

    status: int
    said: str
    calls: int
    failed: str
    caches: tuple[int, ...]
    recorded: tuple[str, ...]
    extensions: int
    times: Mapping[str, int]


@dataclass(frozen=True)
class Session:
    """A program that opens a network's devices, runs it and closes them; see `session.c`."""

    program: Path
    artifact: Artifact

    def __call__(
        self, devices: int = 1, cache: Path | None = None, inferences: int = 2, **variables: int
    ) -> Ended:
        """Run it repeatedly on each device; nothing may leak, whatever happens."""
        command = [self.program, str(devices), str(inferences)]
        command += [] if cache is None else [str(cache)]
        environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        end = re.search(r"fake: (\d+) calls, failed (\w*), live (\d+)\n\Z", done.stderr)
        assert end is not None, done.stderr
        assert int(end[3]) == 0, done.stderr
        caches = tuple(int(size) for size in re.findall(r"cache of (\d+)", done.stderr))
        recorded = tuple(re.findall(r"recorded (\w+)", done.stderr))
        enabled = re.search(r"fake: (\d+) extensions", done.stderr)
        assert enabled is not None
        said, count = done.stdout.strip(), int(enabled[1])
        found = re.findall(r"fake: (\d+) times (.+)", done.stderr)
        times = {what: int(number) for number, what in found}
        return Ended(done.returncode, said, int(end[1]), end[2], caches, recorded, count, times)

    @property
    def gpu(self) -> DispatchProgram:
        """Return the options of the fake device."""
        program = program_of(self.artifact)
        assert program is not None
        return program


def compiled(artifact: Artifact, folder: Path) -> Session:
    artifact.write(folder / "project")
    shared_library("fake_vulkan", folder, "libvulkan.so")
    must(
        *("cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion"),
        *SANITIZERS.split(),
        *(f"-I{folder / 'project'}", f"-DNETWORK={artifact.network.name}"),
        *map(str, (*network_sources(folder / "project"), SHIMS / "session.c")),
        *(f"-L{folder}", f"-Wl,-rpath,{folder}", "-lvulkan", "-lm", "-o", str(folder / "session")),
    )
    return Session(folder / "session", artifact)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    artifact = compile_graph(branches(), replace(ON_GPU, float16=True))
    return compiled(artifact, tmp_path_factory.mktemp("fake"))


@pytest.fixture(scope="module")
def session_in_two_parts(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Return a session with weights larger than its arena, and a CPU layer between the GPU's."""
    options = replace(ON_GPU, place={"v3": "c"})
    return compiled(compile_graph(dense(), options), tmp_path_factory.mktemp("two_parts"))


def test_every_failing_call_is_reported(session: Session, tmp_path: Path) -> None:
    """Each call fails in turn: its name and Vulkan's error are printed, and everything is freed."""
    calls = session(cache=tmp_path / "cache").calls
    seen: dict[str, int] = {}
    for number in range(calls):
        ended = session(cache=tmp_path / "cache", FAKE_FAIL=number, FAKE_RESULT=OUT_OF_MEMORY)
        seen[ended.failed] = ended.status
        if ended.failed in BEST_EFFORT:
            assert ended.status == 0
        else:
            assert ended.status > 0
            assert ended.said.endswith(f"{ended.failed}: VK_ERROR_OUT_OF_DEVICE_MEMORY")
    assert {name for name, status in seen.items() if status == 2} == {
        "vkQueueSubmit",
        "vkWaitForFences",
        "vkResetFences",
    }
    assert len(seen) > 20


def test_two_networks_without_memory_for_one_buffer(session: Session) -> None:
    """If the second device cannot be opened, the first is still closed."""
    calls = session().calls
    ended = session(devices=2, FAKE_FAIL=calls - 8, FAKE_RESULT=OUT_OF_MEMORY)
    assert ended.status == 1
    assert "VK_ERROR_OUT_OF_DEVICE_MEMORY" in ended.said


@pytest.mark.parametrize(
    ("result", "name"),
    [
        (-1, "VK_ERROR_OUT_OF_HOST_MEMORY"),
        (-3, "VK_ERROR_INITIALIZATION_FAILED"),
        (-4, "VK_ERROR_DEVICE_LOST"),
        (-7, "VK_ERROR_EXTENSION_NOT_PRESENT"),
        (-13, "VK_ERROR_UNKNOWN"),
        (-999, "an unknown error of Vulkan"),
    ],
)
def test_names_of_vulkan_errors(session: Session, result: int, name: str) -> None:
    assert session(FAKE_FAIL=3, FAKE_RESULT=result).said == f"vkCreateDevice: {name}"


@pytest.mark.parametrize(
    ("fakes", "what", "result"),
    [
        (
            {"FAKE_FAIL": 0, "FAKE_RESULT": -9},
            "no driver for Vulkan is installed",
            ": VK_ERROR_INCOMPATIBLE_DRIVER",
        ),
        (
            {"FAKE_FAIL": 1, "FAKE_RESULT": -3},
            "no installed driver finds a Vulkan device",
            ": VK_ERROR_INITIALIZATION_FAILED",
        ),
        ({"FAKE_DEVICES": 0}, "there is no Vulkan device", ""),
    ],
)
def test_a_missing_driver_is_explained(
    session: Session, fakes: dict[str, int], what: str, result: str
) -> None:
    """The message says what is missing, what helps, and everything that Vulkan reports."""
    ended = session(1, None, **fakes)
    assert ended.status == 1
    assert re.fullmatch(
        rf"{what} \(.*mesa-vulkan-drivers; --cpu-fallback [a-z ]+\){result}", ended.said
    )


def test_device_numbers_are_checked(session: Session) -> None:
    assert session(FAKE_DEVICES=3, DEVICE=2).status == 0
    for number in (3, -2):
        ended = session(FAKE_DEVICES=3, DEVICE=number)
        assert ended.status == 1
        assert ended.said == f"there is no Vulkan device {number}: they are numbered from 0 to 2"


def test_more_devices_and_extensions_than_arrays_hold(session: Session) -> None:
    """VK_INCOMPLETE is not a failure."""
    assert session(FAKE_DEVICES=40, FAKE_EXTENSIONS=600).status == 0


def test_devices_with_low_limits_are_refused(
    session: Session, session_in_two_parts: Session
) -> None:
    """A limit is too small by one byte or one invocation."""
    one, other = session.gpu, session_in_two_parts.gpu
    assert one.arena_bytes > one.weights_bytes
    assert other.arena_bytes < other.weights_bytes
    for run, name, needed in (
        (session, "FAKE_PUSH_BYTES", one.push_bytes),
        (session, "FAKE_INVOCATIONS", one.group_invocations),
        (session, "FAKE_RANGE", one.arena_bytes),
        (session_in_two_parts, "FAKE_RANGE", other.weights_bytes),
    ):
        assert run(1, None, **{name: needed}).status == 0
        ended = run(1, None, **{name: needed - 1})
        assert (ended.status, ended.said) == (
            1,
            "the network exceeds the limits of the Vulkan device",
        )


def test_command_buffers_begin_and_end_with_barriers(
    session: Session, session_in_two_parts: Session
) -> None:
    """First for earlier submissions; between, if planned; last, so that the host can read."""
    assert session.gpu.barriers > 0
    assert len(session_in_two_parts.gpu.regions) == 2
    for run in (session, session_in_two_parts):
        expected = tuple(
            "B" + "".join("BD" if d.barrier else "D" for d in run.gpu.dispatches[first:end]) + "H"
            for first, end in run.gpu.regions
        )
        assert run().recorded == expected


def test_objects_are_created_once(session: Session, session_in_two_parts: Session) -> None:
    """Everything is made before the first inference, which only submits and waits.

    There is one memory for arena and weights, one descriptor set, and a recorded command buffer for
    each region.
    """
    for run in (session, session_in_two_parts):
        regions, inferences = len(run.gpu.regions), 5
        times = run(inferences=inferences).times
        each = dict.fromkeys(("vkQueueSubmit", "vkWaitForFences", "vkResetFences"), regions)
        none = run(inferences=0).times
        assert times == {**none, **{name: inferences * n for name, n in each.items()}}
        expected = {
            "vkAllocateMemory": 1,
            "vkMapMemory": 1,
            "vkCreateBuffer": 2,
            "vkBindBufferMemory": 2,
            "vkCreateDescriptorSetLayout": 1,
            "vkCreateDescriptorPool": 1,
            "vkAllocateDescriptorSets": 1,
            "descriptor set": 1,
            "vkCreatePipelineLayout": 1,
            "vkCreatePipelineCache": 1,
            "vkCreateShaderModule": len(run.gpu.pipelines),
            "vkCreateComputePipelines": len(run.gpu.pipelines),
            "pipeline": len(run.gpu.pipelines),
            "vkCreateCommandPool": 1,
            "vkAllocateCommandBuffers": 1,
            "command buffer": regions,
            "vkBeginCommandBuffer": regions,
            "vkEndCommandBuffer": regions,
            "vkCmdBindDescriptorSets": regions,
            "vkCmdPushConstants": len(run.gpu.dispatches),
            "vkCreateFence": 1,
            "vkCreateDevice": 1,
            "vkCreateInstance": 1,
        }
        made = ("vkCreate", "vkAllocate", "vkBind", "vkMap", "vkBegin", "vkEnd", "vkCmd")
        assert {n: t for n, t in none.items() if n.startswith(made) or n in expected} == expected


DISCRETE_GPU = 2


def test_a_device_that_cannot_store_halves_is_refused(session: Session) -> None:
    ended = session(FAKE_HALF_STORAGE=0)
    assert ended.status == 1
    assert "(storageBuffer16BitAccess): build it without --float16" in ended.said


def test_halves_are_computed_where_that_is_fast(session: Session) -> None:
    """If the GPU supports it and the options do not decline it."""
    assert session().extensions == 0
    assert session(FAKE_TYPE=DISCRETE_GPU).extensions == 1
    assert session(FAKE_TYPE=DISCRETE_GPU, FAKE_EXTENSIONS=1).extensions == 0
    assert session(FAKE_TYPE=DISCRETE_GPU, PLAIN=1).extensions == 0


def test_two_networks_at_a_time(session: Session) -> None:
    assert session(devices=2).status == 0


def test_a_cache_is_read_back_unchanged(session: Session, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert session(cache=cache, FAKE_CACHE=5000).caches == (0,)
    stored = cache.stat().st_mtime_ns
    assert session(cache=cache, FAKE_CACHE=5000).caches == (5000,)
    assert cache.stat().st_mtime_ns == stored  # it is not written again


@pytest.mark.parametrize("damaged", ["flipped", "cut", "longer", "empty", "huge", "other"])
def test_a_damaged_cache_is_replaced(session: Session, damaged: str, tmp_path: Path) -> None:
    """The driver never reads the damaged cache, and the next start has a valid one."""
    cache = tmp_path / "cache"
    session(cache=cache, FAKE_CACHE=5000)
    data = cache.read_bytes()
    changed = {
        "flipped": data[:1000] + bytes([data[1000] ^ 1]) + data[1001:],
        "cut": data[:-1],
        "longer": data + b"\0",
        "empty": b"",
        "huge": data * 500,
        "other": os.urandom(300),
    }
    cache.write_bytes(changed[damaged])
    ended = session(cache=cache, FAKE_CACHE=5000)
    assert (ended.status, ended.caches) == (0, (0,))
    assert session(cache=cache, FAKE_CACHE=5000).caches == (5000,)


def test_a_cache_that_cannot_be_written_does_no_harm(session: Session, tmp_path: Path) -> None:
    assert session(cache=tmp_path).status == 0
    assert session(cache=tmp_path / "none" / "cache").status == 0


def test_a_cache_that_is_too_large_is_not_written(session: Session, tmp_path: Path) -> None:
    assert session(cache=tmp_path / "cache", FAKE_CACHE=2_000_000).status == 0
    assert not (tmp_path / "cache").exists()
