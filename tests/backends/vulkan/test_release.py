"""Networks for target `vulkan` on a real driver, built as users build them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import strategies as st

from bench.vulkan_net import build_program
from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.boards import compile_project, open_device
from smelt.codegen.backends.vulkan import spirv
from smelt.errors import ConfigError, DeviceError, GraphError, ToolError
from smelt.ir import DType, Graph, evaluate, verify
from smelt.ops.core.convolution import Conv2D
from smelt.proof.rig import Rig
from smelt.proof.run import run
from smelt.proof.tolerances import FLOAT16_TOLERANCE
from smelt.samples import random_samples
from tests.support.graphs import TOLERANCE, assert_same, compile_graph
from tests.support.projects import SANITIZERS, counter, must, network_sources
from tests.support.random_networks import Builder, no_choice
from tests.support.shared import Network, networks, shared
from tests.support.spirv_words import DOT_PRODUCTS, HALF_STORAGE, HALVES, SHADER, needs_of
from tests.support.vulkan_tools import (
    MINIMA,
    MLPERF,
    ON_GPU,
    SHIMS,
    Built,
    Validation,
    branches,
    build,
    check_arena,
    on_gpu,
    program_of,
    requires_vulkan,
    shared_library,
)

pytestmark = requires_vulkan

QUIET = {"LP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return compile_graph(branches(), ON_GPU)


def check(
    artifact: Artifact,
    folder: Path,
    validation: Validation,
    cflags: str,
    tolerance: float = TOLERANCE,
) -> None:
    """Assert right outputs without messages of the validation layer."""
    samples = random_samples(artifact.graph, 2, 0)
    outputs = build(artifact, folder, cflags).run(samples, validation.environment)
    assert validation.messages() == ""
    expected = [evaluate(artifact.imported.graph, s).outputs for s in samples]
    assert_same(outputs, expected, "outputs", tolerance)


def check_modules(artifact: Artifact) -> None:
    """Assert no optional feature, no more shared memory than required, and no duplicate module."""
    gpu = program_of(artifact)
    assert gpu is not None
    assert len({tuple(m.sources.items()) for m in gpu.modules}) == len(gpu.modules)
    assert len({(p.module, p.local, p.values) for p in gpu.pipelines}) == len(gpu.pipelines)
    for module in gpu.modules:
        for variant, words in spirv.compile_all(module.sources).items():
            needs = needs_of(words.tolist())
            allowed = {SHADER, *{"dot": DOT_PRODUCTS, "half": HALVES}.get(variant, ())}
            allowed |= HALF_STORAGE if gpu.stores_halves else set()
            assert needs.capabilities <= allowed, (module.name, variant)
            assert needs.workgroup_bytes <= 16384, (module.name, variant)


@pytest.mark.quick(every=4)
@MLPERF
def test_networks_within_the_minima_of_vulkan(network: Network, tmp_path: Path) -> None:
    """With the required limits only; the layer reports nothing."""
    artifact = on_gpu(network)
    check_modules(artifact)
    check_arena(artifact)
    gpu = program_of(artifact)
    assert gpu is not None
    assert len(gpu.pipelines) < len(gpu.dispatches)
    check(artifact, tmp_path, Validation(tmp_path), f"-O0 {MINIMA}")


@pytest.mark.thorough
@networks("mlperf_tiny/ic_float32", "mlperf_tiny/ad_float32")
def test_float16_within_the_minima_of_vulkan(network: Network, tmp_path: Path) -> None:
    """Storage of float16 is the only feature that is needed."""
    artifact = compile_model(network.model, replace(ON_GPU, float16=True))
    check_modules(artifact)
    check_arena(artifact)
    flags, validation = "-O0 -DSMELT_VULKAN_MINIMA", Validation(tmp_path)
    check(artifact, tmp_path, validation, flags, FLOAT16_TOLERANCE)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT8])
def test_equal_layers_share_a_pipeline(dtype: DType) -> None:
    """Offsets and weights do not matter for sharing; numbers of channels may."""
    b = Builder(dtype, cast("st.DrawFn", no_choice), np.random.default_rng(0))
    x = b.input((1, 6, 6, 8))
    wide, narrow = (8, 1, 1, 8), (4, 1, 1, 8)
    first, second = (b.apply(Conv2D(), x, *b.weights(x, wide, 0)) for _ in range(2))
    other = b.apply(Conv2D(), second, *b.weights(second, narrow, 0))
    last = b.apply(Conv2D(), first, *b.weights(first, wide, 0))
    graph = verify(Graph("equal", (x,), (other, last), tuple(b.nodes)), "building a test")
    gpu = program_of(compile_graph(graph, ON_GPU))
    assert gpu is not None
    assert [d.pipeline for d in gpu.dispatches] == [0, 0, 1, 0]
    assert (len(gpu.pipelines), len(gpu.modules)) == (2, 1)
    starts = [d.pushed[: len(d.ranges)] for d in gpu.dispatches]
    assert len(set(starts)) == len(starts)
    if dtype is DType.FLOAT32:
        one, same, *_ = (d.pushed[len(d.ranges) :] for d in gpu.dispatches)
        assert one == same


def test_steps_run_one_by_one_with_trace(artifact: Artifact, tmp_path: Path) -> None:
    """With TRACE=1, each dispatch is submitted separately, and its result can be read."""
    built, validation = build(artifact, tmp_path), Validation(tmp_path)
    elf = compile_project(tmp_path / "project", artifact.platform, trace=True)
    (sample,) = random_samples(artifact.graph, 1, 0)
    values = evaluate(artifact.graph, sample).values
    found = 0
    with open_device(elf.path, "host", environment=validation.environment) as device:
        device.load_all([array.tobytes() for array in sample])
        for traced in device.trace():
            node = artifact.schedule.steps[traced.step].node
            expected = values[node.output]
            ours = np.frombuffer(traced.data, expected.dtype).reshape(expected.shape)
            np.testing.assert_allclose(ours, expected, atol=1e-5 * float(np.ptp(expected)))
            found += 1
    assert found == len(artifact.schedule.steps)
    assert validation.messages() == ""
    assert built.elf.path == elf.path


@pytest.mark.slow
@networks("mlperf_tiny/kws_*", "mlperf_tiny/ad_*")
def test_networks_under_gpu_assisted_validation(network: Network, tmp_path: Path) -> None:
    """The driver takes long to compile instrumented shaders."""
    artifact = on_gpu(network)
    check(artifact, tmp_path, Validation(tmp_path, ("GPU_ASSISTED",)), "-O0")


def test_gpu_assisted_validation(artifact: Artifact, tmp_path: Path) -> None:
    """Accesses stay inside arena and weights; a stray one would be reported."""
    validation = Validation(tmp_path, ("GPU_ASSISTED",))
    check(artifact, tmp_path, validation, "-O0")
    tables = tmp_path / "project" / f"{artifact.network.name}_gpu.c"
    wrong, count = re.subn(r"pushed_1\[\] = \{\s*", r"\g<0>1000000 + ", tables.read_text())
    assert count == 1
    tables.write_text(wrong)
    elf = compile_project(tmp_path / "project", artifact.platform, extra_cflags="-O0")
    samples = random_samples(artifact.graph, 1, 0)
    Built(artifact, elf, tmp_path).run(samples, validation.environment)
    assert "access out of bounds" in validation.messages()


@pytest.mark.quick(name=("branches",))
@pytest.mark.parametrize("name", ["branches", "ic_int8"])
def test_sanitizers(name: str, artifact: Artifact, tmp_path: Path) -> None:
    if name != "branches":
        artifact = compile_model(shared(f"models/mlperf_tiny/{name}.tflite"), ON_GPU)
    built = build(artifact, tmp_path, SANITIZERS, SANITIZERS)
    samples = random_samples(artifact.graph, 2, 0)
    outputs = built.run(samples, QUIET)
    assert_same(outputs, [evaluate(artifact.graph, s).outputs for s in samples], "sanitized")
    # Run to the end: anything not freed, including the driver's memory, is a leak.
    shim = shared_library("keep_loaded", tmp_path)
    done = subprocess.run(
        [built.elf.path],
        env={**os.environ, "LD_PRELOAD": str(shim), "ASAN_OPTIONS": "verify_asan_link_order=0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_two_contexts_in_one_process(artifact: Artifact, tmp_path: Path) -> None:
    artifact.write(tmp_path / "project")
    sources = [*network_sources(tmp_path / "project"), SHIMS / "session.c"]
    program = tmp_path / "session"
    must(
        *("cc", "-std=c99", f"-I{tmp_path / 'project'}", f"-DNETWORK={artifact.network.name}"),
        *(*map(str, sources), "-lvulkan", "-lm", "-o", str(program)),
    )
    done = subprocess.run([program, "2", "3"], capture_output=True, text=True, check=True)
    text = done.stdout.strip()
    pairs = [(text[i : i + 2], text[i + 2 : i + 4]) for i in range(0, len(text), 4)]
    # The second has in each turn what the first has in the next.
    assert [second for _, second in pairs[:-1]] == [first for first, _ in pairs[1:]]


def test_a_cache_of_another_driver_is_ignored(artifact: Artifact, tmp_path: Path) -> None:
    """A valid file, but for another driver."""
    built, cache = build(artifact, tmp_path), tmp_path / "cache"
    samples = random_samples(artifact.graph, 1, 0)
    environment = {**QUIET, "SMELT_VULKAN_CACHE": str(cache)}
    first = built.run(samples, environment)
    own = cache.read_bytes()
    data = own[8:16] + bytes(16) + own[32:] + bytes(100)
    checksum = 14695981039346656037
    for byte in data:
        checksum = (checksum ^ byte) * 1099511628211 % 2**64
    cache.write_bytes(checksum.to_bytes(8, "little") + data)
    assert_same(built.run(samples, environment), first, "cache")
    assert cache.read_bytes() == own


def test_the_drivers_cache_is_beside_the_cache_file(artifact: Artifact, tmp_path: Path) -> None:
    """Mesa's drivers use it beside the cache file, unless the environment names another folder."""
    built, cache, other = build(artifact, tmp_path), tmp_path / "cache", tmp_path / "other"
    samples = random_samples(artifact.graph, 1, 0)
    environment = {
        **QUIET,
        "XDG_CACHE_HOME": str(tmp_path / "home"),
        "MESA_SHADER_CACHE_DISABLE": "false",
        "SMELT_VULKAN_CACHE": str(cache),
    }
    expected = built.run(samples, environment)
    kept = _files(tmp_path / "cache.mesa")
    if not kept:
        pytest.skip("the driver keeps nothing by itself")
    assert_same(built.run(samples, environment), expected, "kept")
    assert _files(tmp_path / "cache.mesa") == kept
    assert not _files(tmp_path / "home")
    shutil.rmtree(tmp_path / "cache.mesa")
    built.run(samples, {**environment, "MESA_SHADER_CACHE_DIR": str(other)})
    assert _files(other)
    assert not (tmp_path / "cache.mesa").exists()


def _files(folder: Path) -> dict[str, int]:
    """Return the files below a folder, with their sizes."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}


def test_a_warm_up_inference_changes_nothing() -> None:
    """It changes neither the state nor the measured latencies."""
    artifact = compile_graph(counter(), ON_GPU)
    assert program_of(artifact) is not None
    samples = random_samples(artifact.graph, 3, 0)
    result, on_cpu = run(artifact, samples), run(compile_graph(counter()), samples)
    assert_same(list(result.outputs), list(on_cpu.outputs), "counter")
    assert result.measured.latency is not None
    assert len(result.measured.latency.seconds) == len(samples)


def test_errors_of_opening_end_the_program(artifact: Artifact, tmp_path: Path) -> None:
    """The error message is the program's last output."""
    built = build(artifact, tmp_path)
    wrong = {text: f"SMELT_VULKAN_DEVICE={text}: that is no" for text in ("-1", "one", "", "1x")}
    messages = {
        ("VK_ICD_FILENAMES", "/nonexistent"): "no driver for Vulkan is installed",
        ("SMELT_VULKAN_DEVICE", "77"): "there is no Vulkan device 77",
        **{("SMELT_VULKAN_DEVICE", text): message for text, message in wrong.items()},
    }
    for (name, value), message in messages.items():
        with (
            pytest.raises(DeviceError, match=message),
            open_device(built.elf.path, "host", environment={name: value}),
        ):
            pass


def test_a_device_is_chosen_by_its_number(artifact: Artifact) -> None:
    samples = random_samples(artifact.graph, 1, 0)
    assert_same(
        list(run(artifact, samples, Rig(device_number=0)).outputs),
        [evaluate(artifact.graph, s).outputs for s in samples],
        "device 0",
    )
    with pytest.raises(DeviceError, match="there is no Vulkan device 77"):
        run(artifact, samples, Rig(device_number=77))
    with pytest.raises(ConfigError, match="--device 0 selects one of this computer's GPUs"):
        run(compile_graph(branches()), samples, Rig(device_number=0))


def test_hints_if_vulkan_is_not_installed(artifact: Artifact, tmp_path: Path) -> None:
    project = tmp_path / "project"
    artifact.with_firmware().write(project)
    with pytest.raises(ToolError, match="apt-get install libvulkan-dev"):
        compile_project(project, artifact.platform, extra_ldflags="-static")
    header = project / "smelt_vulkan.h"
    header.write_text(header.read_text().replace("<vulkan/", "<absent/vulkan/"))
    with pytest.raises(ToolError, match="apt-get install libvulkan-dev"):
        compile_project(project, artifact.platform)


@pytest.mark.parametrize(
    ("hidden", "message"),
    [
        ({"glslc"}, ""),
        ({"glslc", "glslangValidator"}, "neither is installed"),
        ({"glslc", "spirv-opt"}, "neither is installed"),
        ({"spirv-val"}, "'spirv-val' is not installed"),
    ],
)
def test_either_shader_compiler_suffices(
    hidden: set[str], message: str, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either compiler suffices; without both, or without the validator, the error has a hint."""
    gpu = program_of(artifact)
    assert gpu is not None
    sources = {module.name: module.sources[""] for module in gpu.modules}
    find = shutil.which

    def which(name: str) -> str | None:
        return None if name in hidden else find(name)

    if not message and find("glslangValidator") is None:
        pytest.skip("glslangValidator is not installed")
    monkeypatch.setattr(spirv.shutil, "which", which)
    monkeypatch.setattr(spirv, "_compiled", {})
    spirv.compiler.cache_clear()
    try:
        if message:
            with pytest.raises(ToolError, match=f"{message}.*: apt-get install .*spirv-tools"):
                spirv.compile_all(sources)
        else:
            assert all(words[0] == 0x07230203 for words in spirv.compile_all(sources).values())
    finally:
        spirv.compiler.cache_clear()


@pytest.mark.parametrize("hidden", ["", "glslc"])
def test_a_wrong_shader_is_named(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the shader, of several, that the compiler rejects, and the line."""
    find = shutil.which

    def which(name: str) -> str | None:
        return None if name == hidden else find(name)

    monkeypatch.setattr(spirv.shutil, "which", which)
    spirv.compiler.cache_clear()
    right = "#version 450\nlayout(local_size_x = 8) in;\nvoid main() {}\n"
    sources = {"one": right, "two": right.replace("()", "("), "three": right + "\n"}
    message = r"rejects [^:]*two\.comp.*: [\s\S]*two\.comp"
    try:
        with pytest.raises(GraphError, match=message):
            spirv.compile_all(sources)
    finally:
        spirv.compiler.cache_clear()


@pytest.mark.parametrize("writes", ["", 'echo text > "$out.spv"'])
def test_a_broken_shader_compiler_is_named(
    writes: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """This compiler accepts everything, but writes nothing, or no SPIR-V."""
    fake = tmp_path / "glslc"
    fake.write_text(f"#!/bin/sh\nfor out; do :; done\n{writes}\nexit 0\n")
    fake.chmod(0o755)
    monkeypatch.setattr(spirv, "compiler", lambda: spirv.Compiler("glslc", str(fake), ""))
    with pytest.raises(ToolError, match=f"'{fake}' wrote no SPIR-V for shader 'one'"):
        spirv.compile_all({"one": "not seen before"})


def test_the_report_names_the_compiler(artifact: Artifact) -> None:
    version = artifact.report["shader_compiler"]
    assert version == spirv.compiler().version
    assert str(version) in artifact.project.files[f"{artifact.network.name}_shaders.c"]
    assert compile_graph(branches()).report["shader_compiler"] is None


@pytest.mark.quick(every=3)
@pytest.mark.parametrize(
    ("network", "options"),
    [
        ("ic_int8", ON_GPU),
        ("kws_float32", ON_GPU),
        ("ic_float32", replace(ON_GPU, float16=True)),
        ("ic_int8", replace(ON_GPU, cpu_fallback=True)),
    ],
)
def test_portability(network: str, options: Options, tmp_path: Path) -> None:
    """gcc and clang, C99 and C++17, with TRACE=1 and without."""
    artifact = compile_model(shared(f"models/mlperf_tiny/{network}.tflite"), options)
    project = tmp_path / "project"
    artifact.write(project)
    warnings = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion", "-fsyntax-only"]
    sources = [str(path) for path in network_sources(project)]
    for compiler in filter(shutil.which, ("gcc", "clang")):
        for defines in ([], ["-DSMELT_STEP_CALLBACK"]):
            must(compiler, "-std=c99", *warnings, *defines, f"-I{project}", *sources)
            must(
                *(compiler, "-x", "c++", "-std=c++17", *warnings, *defines),
                *(f"-I{project}", *sources),
            )


@pytest.mark.quick(every=2)
@pytest.mark.parametrize(
    ("relative", "float16"),
    [
        ("models/float/mobilenet_v1_025_96.onnx", True),
        ("models/mlperf_tiny/vww_int8.tflite", False),
    ],
)
def test_program_bytes_are_counted(relative: str, float16: bool, tmp_path: Path) -> None:
    """Counted as `bench vulkan` does: modules, host and CPU layers, but not the weights."""
    artifact = compile_model(shared(relative), Options(target="vulkan", float16=float16))
    gpu = program_of(artifact)
    assert gpu is not None
    assert build_program(artifact, tmp_path, "cc").stat().st_size - gpu.weights_bytes <= 120_000


def test_two_builds_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    model = shared("models/mlperf_tiny/ic_int8.tflite")
    first = compile_model(model, ON_GPU)
    monkeypatch.setattr(spirv, "_compiled", {})
    second = compile_model(model, ON_GPU)
    assert dict(first.project.files) == dict(second.project.files)
    assert program_of(first) is not None


def test_networks_without_gpu_layers_need_no_vulkan(tmp_path: Path) -> None:
    artifact = compile_graph(branches(), Options(target="vulkan", backends=("c",)))
    artifact.write(tmp_path / "project")
    texts = [p.read_text() for p in (tmp_path / "project").glob("*") if p.is_file()]
    assert not any("lvulkan" in text or "vulkan.h" in text for text in texts)
    samples = random_samples(artifact.graph, 1, 0)
    outputs = list(run(artifact, samples).outputs)
    assert_same(outputs, [evaluate(artifact.graph, s).outputs for s in samples], "c")
