"""Checks for what target `vulkan` needs, and the validation layer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.boards import ElfInfo, compile_project, open_device
from smelt.codegen.backends.vulkan.calls import ShaderCall
from smelt.codegen.backends.vulkan.dispatches import DispatchProgram
from smelt.codegen.backends.vulkan.shaders import source
from smelt.codegen.backends.vulkan.spirv import compile_all
from smelt.codegen.lower.kernel import Scratch
from smelt.codegen.schedule.schedule import InBuffer
from smelt.ir import DType, Graph, Node, Origin, TensorType, Value, verify
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.concat import Concat
from smelt.samples import Sample
from tests.support.graphs import SampleOutputs
from tests.support.shared import Network, networks

SHIMS = Path(__file__).parent / "vulkan"
ON_GPU = Options(target="vulkan", backends=("vulkan",))
"""Give the GPU every layer that it serves, whatever the cost."""
MINIMA = "-DSMELT_VULKAN_MINIMA"
"""Use no optional device features."""
MLPERF = networks("mlperf_tiny/ic_*", "mlperf_tiny/kws_*", "mlperf_tiny/ad_*", "mlperf_tiny/vww_*")
LAYER = "VK_LAYER_KHRONOS_validation"

_CREATES_AN_INSTANCE = """
import ctypes
loader = ctypes.CDLL("libvulkan.so.1")
words = (ctypes.c_uint64 * 8)(1)
raise SystemExit(loader.vkCreateInstance(words, None, ctypes.byref(ctypes.c_void_p())) & 1)
"""


@cache
def _missing() -> str:
    """Return the requirements of target `vulkan` that this computer lacks; empty if none."""
    if not (shutil.which("glslc") or shutil.which("glslangValidator")):
        return "no glslc and no glslangValidator"
    if shutil.which("spirv-val") is None:
        return "no spirv-val"
    if not Path("/usr/include/vulkan/vulkan.h").exists():
        return "no headers of Vulkan"
    command = [sys.executable, "-c", _CREATES_AN_INSTANCE]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return "no driver for Vulkan"
    return ""


requires_vulkan = pytest.mark.skipif(bool(_missing()), reason=_missing())
"""Skip, with the reason, if networks for target `vulkan` cannot be built and run here."""


@cache
def on_gpu(network: Network) -> Artifact:
    """Compile a shared network once, with every layer on the GPU that it serves."""
    return compile_model(network.model, ON_GPU)


@dataclass(frozen=True)
class Validation:
    """The Khronos validation layer, writing to a file because the wire uses standard output.

    Attributes:
        folder: for its settings and its messages.
        checks: more checks to enable: `SYNCHRONIZATION_VALIDATION`, `GPU_ASSISTED`.
    """

    folder: Path
    checks: Sequence[str] = ()

    @property
    def environment(self) -> Mapping[str, str]:
        """Return environment variables for a program that runs under the layer."""
        path = self.folder / "vk_layer_settings.txt"
        checks = ",".join(f"VK_VALIDATION_FEATURE_ENABLE_{check}_EXT" for check in self.checks)
        lines = (
            "debug_action = VK_DBG_LAYER_ACTION_LOG_MSG",
            "report_flags = error,warn,perf",
            "enable_message_limit = false",
            f"log_filename = {self.log}",
            *([f"enables = {checks}"] if checks else []),
        )
        path.write_text("".join(f"khronos_validation.{line}\n" for line in lines))
        return {
            "VK_INSTANCE_LAYERS": LAYER,
            "VK_LAYER_SETTINGS_PATH": str(path),
            "VALIDATION_LOG": str(self.log),
            "LP_NUM_THREADS": "1",
        }

    def messages(self) -> str:
        """Return its new messages since the last call."""
        assert self.log.exists(), "the validation layer did not run"
        text = self.log.read_text()
        self.log.unlink()
        return text

    @property
    def log(self) -> Path:
        """Path of the file of messages."""
        return self.folder / "validation.txt"


@dataclass(frozen=True)
class Built:
    """A network compiled for target `vulkan` in `folder`."""

    artifact: Artifact
    elf: ElfInfo
    folder: Path

    def run(self, samples: Sequence[Sample], environment: Mapping[str, str]) -> SampleOutputs:
        """Return the outputs of each sample, from a program with more environment variables."""
        values, found = self.artifact.graph.outputs, list[tuple[np.ndarray, ...]]()
        with open_device(self.elf.path, "host", environment=environment) as device:
            for sample in samples:
                answers, _ = device.run([array.tobytes() for array in sample])
                found.append(
                    tuple(
                        np.frombuffer(data, v.type.dtype.numpy).reshape(v.type.shape)
                        for data, v in zip(answers, values, strict=True)
                    )
                )
        return found


def build(artifact: Artifact, folder: Path, cflags: str = "", ldflags: str = "") -> Built:
    """Write and compile a project, optionally with more flags."""
    artifact.with_firmware().write(folder / "project", force=True)
    elf = compile_project(
        folder / "project", artifact.platform, extra_cflags=cflags, extra_ldflags=ldflags
    )
    return Built(artifact, elf, folder)


def shared_library(name: str, folder: Path, output: str = "") -> Path:
    """Compile one of the shims in `tests/support/vulkan`."""
    path = folder / (output or f"{name}.so")
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command = ["cc", *flags, str(SHIMS / f"{name}.c"), "-o", str(path), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return path


ARENA_LIMIT = 1.05
"""Largest allowed ratio of the shared arena to its lower bound."""

WIDEST = 16
"""Size in bytes of the largest element in shaders; tensors are padded to multiples of it."""


def program_of(artifact: Artifact) -> DispatchProgram | None:
    """Return the GPU's work in an inference; None if there is none."""
    device = artifact.network.device
    assert device is None or isinstance(device, DispatchProgram)
    return device


def check_arena(artifact: Artifact) -> None:
    """Assert that the arena is little more than the planner's bound and the busiest step's use.

    The use is computed from the operands of the steps alone. So a lifetime that is too long, which
    would increase the bound too, is found.
    """
    gpu = program_of(artifact)
    assert gpu is not None
    (memory,) = artifact.plan.memories
    bounds = {"the lower bound": memory.lower_bound, "in use at once": _most_in_use(artifact)}
    for what, least in bounds.items():
        assert gpu.arena_bytes <= ARENA_LIMIT * least, f"{gpu.arena_bytes}, {least} is {what}"


def _most_in_use(artifact: Artifact) -> int:
    """Return the maximum over all steps of the bytes that are live or touched at the step."""
    graph, schedule = artifact.graph, artifact.schedule
    touched: list[tuple[str, int, int]] = []

    def touch(time: int, *values: Value | None) -> None:
        data = [v for v in values if v is not None and v.data is None]
        touched.extend((schedule.storage[v], v.type.bytes, time) for v in data)

    touch(0, *graph.inputs)
    for time, step in enumerate(schedule.calls):
        touch(time, *step.node.inputs, *step.node.outputs)
        for operand, argument in zip(step.call.operands, step.arguments, strict=True):
            if isinstance(operand, Scratch) and isinstance(argument, InBuffer):
                touched.append((argument.buffer, operand.count * operand.dtype.size, time))
    touch(len(schedule.steps), *graph.outputs)
    times: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    for buffer, size, time in touched:
        times.setdefault(buffer, []).append(time)
        sizes[buffer] = -(-size // WIDEST) * WIDEST
    return max(
        sum(sizes[b] for b, used in times.items() if min(used) <= now <= max(used))
        for now in range(len(schedule.steps) + 1)
    )


def exact_ranges(artifact: Artifact, path: Path) -> None:
    """Write the file that the shim `exact_ranges` reads."""
    program = program_of(artifact)
    assert program is not None
    calls = [step.call for step in artifact.schedule.calls]
    shaders = [(c, v) for c in calls if isinstance(c, ShaderCall) for v in c.variants]
    pairs = dict.fromkeys((source(c, v), source(c, v, "exact")) for c, v in shaders)
    ours = compile_all({str(i): text for i, (text, _) in enumerate(pairs)})
    theirs = compile_all({str(i): text for i, (_, text) in enumerate(pairs)})
    modules = {ours[i].tobytes(): theirs[i].tobytes() for i in ours}
    words = [len(modules)]
    for pair in modules.items():
        for code in pair:
            words += [len(code) // 4, *np.frombuffer(code, "<u4").tolist()]
    words.append(len(program.dispatches))
    for dispatch in program.dispatches:
        words.append(len(dispatch.ranges))
        for r in dispatch.ranges:
            words += [int(r.weights), r.start, r.end - r.start]
    np.array(words, "<u4").tofile(path)


def branches() -> Graph:
    """Return parallel convolutions that are joined, with in-place steps between."""
    rng = np.random.default_rng(0)
    nodes: list[Node] = []

    def emit(op: Conv2D | Binary | Unary | Concat, channels: int, *operands: Value) -> Value:
        y = Value(f"v{len(nodes)}", TensorType((1, 6, 6, channels), DType.FLOAT32))
        nodes.append(Node(op, operands, (y,), Origin(op.name.upper(), len(nodes))))
        return y

    def conv(x: Value, channels: int) -> Value:
        weights = rng.normal(size=(channels, 1, 1, x.type.shape[3])).astype(np.float32)
        bias = rng.normal(size=channels).astype(np.float32)
        n = len(nodes)
        constants = Value.constant(f"w{n}", weights), Value.constant(f"b{n}", bias)
        return emit(Conv2D(), channels, x, *constants)

    x = Value("x", TensorType((1, 6, 6, 4), DType.FLOAT32))
    start = conv(x, 8)
    left, right, middle = conv(start, 4), conv(start, 8), conv(start, 4)
    further = emit(Unary("abs"), 8, conv(right, 8))
    total = emit(Binary("add"), 4, left, emit(Unary("neg"), 4, middle))
    joined = emit(Concat(3), 12, total, further)
    y, z = conv(conv(joined, 8), 4), conv(total, 8)
    return verify(Graph("branches", (x,), (y, z), tuple(nodes)), "test")


def dense() -> Graph:
    """Return a layer with many weights, v1, and three elementwise ones after it, v2 to v4."""
    rng = np.random.default_rng(0)
    data = rng.normal(size=(64, 16)), rng.normal(size=64)
    types = [TensorType((1, size), DType.FLOAT32) for size in (16, 64, 64, 64, 64)]
    x, *values = (Value(f"v{i}", type_) for i, type_ in enumerate(types))
    weights, bias = (Value.constant(f"w{i}", a.astype(np.float32)) for i, a in enumerate(data))
    nodes: list[Node] = [Node(FullyConnected(), (x, weights, bias), (values[0],), Origin("FC", 0))]
    for number, kind in enumerate(("neg", "exp", "abs"), 1):
        ends = values[number - 1 : number + 1]
        nodes.append(Node(Unary(kind), (ends[0],), (ends[1],), Origin(kind, number)))
    return verify(Graph("dense", (x,), (values[-1],), tuple(nodes)), "test")
