"""With `--cpu-fallback`, a GPU network computes the same without a GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.boards import open_device
from smelt.codegen.backends.vulkan.calls import ShaderCall
from smelt.errors import ConfigError, DeviceError
from smelt.ir import evaluate
from smelt.samples import random_samples
from tests.support.cli_runner import Smelt, runner
from tests.support.graphs import assert_same, compile_graph
from tests.support.projects import SANITIZERS, counter
from tests.support.shared import Network, networks
from tests.support.tflite_networks import DIGITS
from tests.support.vulkan_tools import Built, branches, build, requires_vulkan

pytestmark = requires_vulkan

FALLBACK = Options(target="vulkan", backends=("vulkan",), cpu_fallback=True)
NO_GPU = {"VK_ICD_FILENAMES": "/nonexistent"}
A_GPU = {"LP_NUM_THREADS": "1"}


def check(artifact: Artifact, folder: Path, flags: str = "-O0") -> None:
    """Assert right outputs with a GPU, and without."""
    on_gpu = [s for s in artifact.schedule.calls if isinstance(s.call, ShaderCall)]
    assert on_gpu
    assert all(step.fallback is not None for step in on_gpu)
    samples = random_samples(artifact.graph, 2, 0)
    expected = [evaluate(artifact.graph, s).outputs for s in samples]
    built = build(artifact, folder, flags, flags)
    for environment in (A_GPU, NO_GPU):
        assert_same(built.run(samples, environment), expected, str(environment))
        assert computes(built, environment) == (environment is A_GPU)


def computes(built: Built, environment: Mapping[str, str]) -> bool:
    """Return whether a GPU computes."""
    with open_device(built.elf.path, "host", environment=environment) as device:
        assert device.info.accelerator is not None
        return bool(device.info.accelerator)


@pytest.mark.quick(every=3)
@networks("mlperf_tiny/ic_*", "mlperf_tiny/kws_*")
def test_networks(network: Network, tmp_path: Path) -> None:
    check(compile_model(network.model, FALLBACK), tmp_path)


@pytest.mark.quick(every=2)
@pytest.mark.parametrize("flags", ["-O2", SANITIZERS])
def test_branches(flags: str, tmp_path: Path) -> None:
    check(compile_graph(branches(), FALLBACK), tmp_path, flags)


def test_layers_stay_where_place_puts_them(tmp_path: Path) -> None:
    """Layers placed on the CPU stay there; layers placed on the GPU use it if present."""
    *_, first, last = (node.name for node in branches().nodes)
    options = Options(target="vulkan", place={first: "vulkan", last: "c"}, cpu_fallback=True)
    check(compile_graph(branches(), options), tmp_path)


def test_state(tmp_path: Path) -> None:
    """State is in the arena of the device that computes."""
    graph = counter()
    artifact = compile_graph(graph, FALLBACK)
    samples = random_samples(graph, 3, 0)
    found: list[list[list[bytes]]] = []
    built = build(artifact, tmp_path)
    for environment in (A_GPU, NO_GPU):
        assert computes(built, environment) == (environment is A_GPU)
        with open_device(built.elf.path, "host", environment=environment) as device:
            device.reset()
            found.append([device.run([a.tobytes() for a in sample])[0] for sample in samples])
    assert found[0] == found[1]
    assert len({outputs[0] for outputs in found[0]}) == 3


def test_without_a_fallback_a_gpu_is_needed(tmp_path: Path) -> None:
    artifact = compile_graph(branches(), Options(target="vulkan", backends=("vulkan",)))
    assert all(step.fallback is None for step in artifact.schedule.calls)
    built = build(artifact, tmp_path)
    with (
        pytest.raises(DeviceError, match="no driver for Vulkan is installed"),
        open_device(built.elf.path, "host", environment=NO_GPU),
    ):
        pass


@pytest.fixture
def smelt(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Smelt:
    return runner(tmp_path, monkeypatch, capfd)


@pytest.mark.quick(every=2)
@pytest.mark.parametrize(
    ("drivers", "device", "said"),
    [
        ({}, (), r"this computer \((?!no GPU).+\): bit-exact"),
        (NO_GPU, (), r"this computer \(no GPU: the CPU computed all layers\): bit-exact"),
        ({}, ("--device", "7"), "there is no Vulkan device 7"),
        (NO_GPU, ("--device", "0"), "no driver for Vulkan is installed"),
    ],
    ids=["a GPU", "none", "not that one", "not even one"],
)
def test_messages_say_which_device_computed(
    smelt: Smelt,
    monkeypatch: pytest.MonkeyPatch,
    drivers: dict[str, str],
    device: tuple[str, ...],
    said: str,
) -> None:
    """A device that was requested by its number must be present."""
    for name, value in drivers.items():
        monkeypatch.setenv(name, value)
    model = DIGITS / "digits_int8.tflite"
    options = ("--target", "vulkan", "--backends", "vulkan,c", "--cpu-fallback", *device)
    ran = smelt("verify", model, *options)
    assert re.search(said, ran.out + ran.err)
    assert ran.code == (1 if device else 0)


def test_errors() -> None:
    graph = branches()
    with pytest.raises(ConfigError, match="'host' has none"):
        compile_graph(graph, Options(cpu_fallback=True))
    with pytest.raises(ConfigError, match="--no-fallback leaves no backend"):
        compile_graph(
            graph,
            Options(target="vulkan", backends=("vulkan",), fallback=False, cpu_fallback=True),
        )
