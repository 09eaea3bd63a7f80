"""Programs require only what every Vulkan 1.1 device supports; the rest is refused or on the CPU.

Each limit alone is lowered to just below what a small network needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from smelt.api.artifact import Artifact
from smelt.api.options import Options
from smelt.boards import compile_project, open_device
from smelt.codegen.backends.vulkan import dispatches, shaders
from smelt.codegen.backends.vulkan.calls import MAX_CONSTANTS, ShaderCall
from smelt.codegen.backends.vulkan.dispatches import DispatchProgram, program
from smelt.codegen.backends.vulkan.elementwise import MAX_LOOPS
from smelt.codegen.backends.vulkan.shaders import Module, Pipeline, Shaders
from smelt.codegen.lower.device import DeviceFunctions
from smelt.errors import DeviceError, UnsupportedError
from smelt.ir import DType, Graph, Node, Op, Origin, TensorType, Value, verify
from smelt.ops.core.binary import Binary
from smelt.ops.core.matmul import MatMul
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.transpose import Transpose
from smelt.samples import random_samples
from tests.support.graphs import compile_graph
from tests.support.vulkan_tools import (
    MINIMA,
    ON_GPU,
    branches,
    build,
    dense,
    program_of,
    requires_vulkan,
)

pytestmark = requires_vulkan

REFUSAL = "every device can"


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return compile_graph(branches(), ON_GPU)


def gpu_of(artifact: Artifact) -> DispatchProgram:
    program = program_of(artifact)
    assert program is not None
    return program


LIMITS: dict[str, Callable[[DispatchProgram], int]] = {
    "MAX_GROUPS": lambda gpu: max(max(d.groups) for d in gpu.dispatches),
    "MAX_INVOCATIONS": lambda gpu: gpu.group_invocations,
    "MAX_PUSH_BYTES": lambda gpu: gpu.push_bytes,
    "MAX_RANGE": lambda gpu: max(gpu.arena_bytes, gpu.weights_bytes),
}


@pytest.mark.parametrize("graph", [branches, dense])
@pytest.mark.parametrize("limit", LIMITS)
def test_each_lowered_limit_is_refused(
    limit: str, graph: Callable[[], Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the two networks has more weights than arena."""
    artifact = compile_graph(graph(), ON_GPU)
    needed = LIMITS[limit](gpu_of(artifact))
    monkeypatch.setattr(dispatches, limit, needed)
    assert program(artifact.schedule, artifact.plan) == gpu_of(artifact)
    monkeypatch.setattr(dispatches, limit, needed - 1)
    with pytest.raises(UnsupportedError, match=REFUSAL):
        program(artifact.schedule, artifact.plan)


class _Resized(Shaders):
    """The shaders of a network in workgroups of another size."""

    def __init__(self, shaders: DeviceFunctions[Any] | None, local: tuple[int, int, int]) -> None:
        super().__init__()
        assert isinstance(shaders, Shaders)
        self._own, self._local = shaders, local

    @property
    @override
    def modules(self) -> tuple[Module, ...]:
        return self._own.modules

    @property
    @override
    def pipelines(self) -> tuple[Pipeline, ...]:
        return tuple(replace(pipeline, local=self._local) for pipeline in self._own.pipelines)


@pytest.mark.parametrize(
    ("local", "fits"),
    [
        ((128, 1, 1), True),
        ((1, 128, 1), True),
        ((1, 2, 64), True),
        ((129, 1, 1), False),
        ((1, 1, 65), False),
        ((2, 65, 1), False),
    ],
)
def test_sizes_of_workgroups(local: tuple[int, int, int], fits: bool, artifact: Artifact) -> None:
    schedule = replace(artifact.schedule, device=_Resized(artifact.schedule.device, local))
    if fits:
        program(schedule, artifact.plan)
        return
    with pytest.raises(UnsupportedError, match=r" invocations .*Keep it .* --place v0=c"):
        program(schedule, artifact.plan)


def test_constants_of_a_module(artifact: Artifact) -> None:
    """As many as the C array can contain."""
    call = artifact.schedule.calls[0].call
    assert isinstance(call, ShaderCall)
    most = MAX_CONSTANTS
    runtime = artifact.project.files["smelt_vulkan.c"]
    assert re.findall(r"#define MAX_CONSTANTS \((\d+)\)", str(runtime)) == [str(most)]
    constants = {f"C{i}": i for i in range(most + 1)}
    shaders.Shaders().add("here", replace(call, constants=dict(list(constants.items())[:-1])))
    with pytest.raises(ValueError, match=f"more than {most} specialization constants"):
        shaders.Shaders().add("here", replace(call, constants=constants))


def floats(name: str, *shape: int) -> Value:
    return Value(name, TensorType(shape, DType.FLOAT32))


def chain(*ops: Op, inputs: tuple[Value, ...]) -> Graph:
    """Return consecutive nodes; the first has all inputs."""
    nodes: list[Node] = []
    operands = inputs
    for number, op in enumerate(ops):
        (type_,) = op.infer([v.type for v in operands])
        result = Value(f"v{number}", type_)
        nodes.append(Node(op, operands, (result,), Origin(op.name, number)))
        operands = (result,)
    return verify(Graph("chain", inputs, operands, tuple(nodes)), "a test")


def backends(artifact: Artifact) -> set[str]:
    return {step.backend for step in artifact.schedule.calls}


def test_elementwise_operators_of_many_axes() -> None:
    """No axis can be merged with the next."""
    for axes, backend in ((MAX_LOOPS, "vulkan"), (MAX_LOOPS + 1, "c")):
        a, b = ([2 if i % 2 == own else 1 for i in range(axes)] for own in (0, 1))
        graph = chain(Binary("add"), inputs=(floats("a", *a), floats("b", *b)))
        artifact = compile_graph(graph, ON_GPU)
        assert backends(artifact) == {backend}
        (step,) = artifact.schedule.calls
        assert (f"over more than {MAX_LOOPS} axes" in step.reason) == (backend == "c")


def test_axes_of_products() -> None:
    for axes, backend in ((MAX_LOOPS, "vulkan"), (MAX_LOOPS + 1, "c")):
        a, b = ([2 if i % 2 == own else 1 for i in range(axes - 2, 0, -1)] for own in (0, 1))
        graph = chain(MatMul(), inputs=(floats("a", *a, 2, 3), floats("b", *b, 3, 2)))
        artifact = compile_graph(graph, ON_GPU)
        assert backends(artifact) == {backend}


@pytest.mark.parametrize("options", [Options(target="vulkan"), ON_GPU], ids=["default", "vulkan"])
def test_a_tensor_above_the_required_range_is_left_to_the_cpu(options: Options) -> None:
    """The CPU computes everything, and the reason is reported."""
    graph = chain(Unary("exp"), Unary("neg"), inputs=(floats("x", 6000, 6000),))
    artifact = compile_graph(graph, options)
    assert program_of(artifact) is None
    for step in artifact.schedule.calls:
        assert step.reason == (
            "'x' has 144,000,000 bytes in the arena, which a GPU would share, but every device can "
            "bind only 134,217,728."
        )


def test_an_arena_above_the_required_range_is_refused() -> None:
    """Each tensor is small enough, but not the arena; the suggested option helps."""
    graph = chain(Transpose((1, 0)), inputs=(floats("x", 5000, 5000),))
    with pytest.raises(UnsupportedError, match=r"200,000,000 bytes, .* with --backends c"):
        compile_graph(graph, Options(target="vulkan", backends=("vulkan",)))
    artifact = compile_graph(graph, Options(target="vulkan", backends=("c",)))
    assert backends(artifact) == {"c"}


def test_weights_above_the_required_range_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the layer with the most weights, and its remedy helps."""
    needed = gpu_of(compile_graph(dense(), ON_GPU)).weights_bytes
    monkeypatch.setattr(dispatches, "MAX_RANGE", needed - 1)
    with pytest.raises(UnsupportedError, match=r"--place v1=c saves 4,\d+"):
        compile_graph(dense(), ON_GPU)
    assert backends(compile_graph(dense(), replace(ON_GPU, place={"v1": "c"}))) == {"vulkan", "c"}


def test_a_device_limited_to_the_minima_refuses_larger_programs(
    artifact: Artifact, tmp_path: Path
) -> None:
    """Optional features of this computer's device are then refused."""
    (sample,) = random_samples(artifact.graph, 1, 0)
    build(artifact, tmp_path)
    tables = tmp_path / "project" / f"{artifact.network.name}_gpu.c"
    text = tables.read_text()
    assert "    64, /* invocations" in text
    tables.write_text(text.replace("    64, /* invocations", "    129, /* invocations"))
    for held in (False, True):
        flags = MINIMA if held else ""
        elf = compile_project(tmp_path / "project", artifact.platform, extra_cflags=flags)
        refusal = pytest.raises(DeviceError, match="exceeds the limits") if held else nullcontext()
        with refusal, open_device(elf.path, "host") as device:
            device.run([array.tobytes() for array in sample])
