"""With CMSIS-NN in CMSIS_NN_DIR, its functions compute what the reference does.

Operators and whole networks run on simulated cores that detect every stray access.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smelt.api.compile import compile_model
from smelt.codegen.backends.cmsis_nn import buffers
from smelt.codegen.backends.cmsis_nn.buffers import Variant
from smelt.codegen.backends.cmsis_nn.single_row import gathers_rows
from smelt.codegen.lower.kernel import KernelCall, Operand, Packed, Scratch
from smelt.codegen.lower.window import Window
from smelt.ir import DType, Graph, evaluate
from smelt.proof.run import run
from smelt.samples import random_samples
from smelt.targets import Target
from tests.backends.test_cases import member_of, pairs
from tests.support.cmsis_nn import (
    EACH_CORE,
    HEADER,
    TARGETS,
    archive,
    entry_of,
    host_objects,
    is_served,
    library,
    options,
    random_graphs,
    simple,
    target_of,
)
from tests.support.graphs import Member, assert_same, run_together
from tests.support.guarded import CORES, Run, said_on
from tests.support.kernels_host import OUTPUT, SANITIZERS, build_programs, compile_c
from tests.support.library_nodes import samples_of
from tests.support.shared import Network, networks

NETWORKS = tuple(f"mlperf_tiny/{name}_int8" for name in ("kws", "vww", "ic", "ad"))
WRAPPERS_CODE = 2000
"""Bytes of code that only a network with the library's functions exceeds."""


def check(members: Sequence[tuple[str, Member]], setup: str) -> None:
    """Run members together and assert exact outputs."""
    with_library = replace(options(setup), cmsis_nn=library())
    found = run_together([member for _, member in members], with_library)
    for (name, member), outputs in zip(members, found, strict=True):
        expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
        assert_same(outputs, expected, f"{name} on {setup}: {member!r}")


@pytest.mark.parametrize("setup", EACH_CORE)
def test_every_case_of_every_operator(setup: str) -> None:
    library()
    made = [(str(c), member_of(c, dtype)) for c, dtype in pairs() if dtype is DType.INT8]
    served = [(name, m) for name, m in made if is_served(m.graph, target_of(setup))]
    assert len(served) > 80
    check(served, setup)


@pytest.mark.parametrize("setup", EACH_CORE)
def test_random_nodes(setup: str) -> None:
    library()
    rng = np.random.default_rng(5)
    graphs = random_graphs(6, 120, target_of(setup))
    check([(str(g.nodes[0].op), Member(g, samples_of(g, rng))) for g in graphs], setup)


@pytest.mark.slow
@pytest.mark.parametrize("setup", EACH_CORE)
@pytest.mark.parametrize("seed", range(100, 105))
def test_many_random_nodes(setup: str, seed: int) -> None:
    library()
    rng = np.random.default_rng(seed)
    graphs = random_graphs(seed, 150, target_of(setup))
    check([(str(g.nodes[0].op), Member(g, samples_of(g, rng))) for g in graphs], setup)


@pytest.mark.parametrize("setup", EACH_CORE)
@networks(*NETWORKS)
def test_networks(network: Network, setup: str) -> None:
    """There is no fallback, and the network's size includes the library's code."""
    artifact = compile_model(network.model, replace(options(setup), cmsis_nn=library()))
    samples = random_samples(artifact.graph, 1, 0)
    samples += [tuple(np.full_like(x, end) for x in samples[0]) for end in (-128, 127)]
    result = run(artifact, samples)
    expected = [evaluate(artifact.imported.graph, sample).outputs for sample in samples]
    assert_same(list(result.outputs), expected, f"{network} on {setup}")
    assert {layer["backend"] for layer in result.report["layers"]} == {"cmsis_nn"}
    weights = result.report["weights"]["bytes"]
    assert result.report["flash"]["network"] > weights + WRAPPERS_CODE


def runs_of(graphs: Sequence[Graph], target: Target) -> list[Run]:
    """Return runs of the graphs, each with a random sample and an extreme one."""
    rng, found = np.random.default_rng(7), list[Run]()
    for graph in graphs:
        samples = samples_of(graph, rng)[::3]
        expected = [evaluate(graph, sample).outputs[0] for sample in samples]
        found.append(Run(str(graph.nodes[0].op), entry_of(graph, target), samples, expected))
    return found


@pytest.mark.qemu
@pytest.mark.parametrize("core", CORES)
def test_only_operands_are_read_or_written(core: str, tmp_path: Path) -> None:
    built = str(archive(core, tmp_path / "library"))
    flags = ("-isystem", str(library() / "Include"), built)
    runs = runs_of(random_graphs(8, 80, target_of(core)), target_of(core))
    assert said_on(CORES[core], runs, tmp_path, flags) == "passed"
    # The test would detect a wrong result.
    (right,) = runs_of([simple()], target_of(core))
    for kind, said in ((Packed, "fault"), (Scratch, "guard")):
        wrong = replace(right, entry=replace(right.entry, call=_short(right.entry.call, kind)))
        assert said_on(CORES[core], [wrong], tmp_path, flags).startswith(said)


def _short(call: KernelCall, kind: type) -> KernelCall:
    """Return the call with a bias, or working memory, that is too short."""

    def cut(operand: Operand) -> Operand:
        match operand:
            case Packed("bias", array) if kind is Packed:
                return Packed("bias", array[:-1])
            case Scratch(name, dtype, count) if kind is Scratch:
                return Scratch(name, dtype, count - 64)
            case _:
                return operand

    return replace(call, operands=tuple(map(cut, call.operands)))


def test_plain_variant_under_sanitizers(tmp_path: Path) -> None:
    objects = host_objects(tmp_path / "library", "-fsanitize=address")
    flags = (*SANITIZERS, "-isystem", str(library() / "Include"), *objects)
    graphs, rng = random_graphs(9, 100, TARGETS["host"]), np.random.default_rng(1)
    entries = [entry_of(graph, TARGETS["host"]) for graph in graphs]
    programs = build_programs(entries, tmp_path, flags, "gcc")  # the library's own compiler
    for graph, program in zip(graphs, programs, strict=True):
        samples = samples_of(graph, rng)
        for sample in samples:
            for value, array in zip(graph.inputs, sample, strict=True):
                program.write(graph.nodes[0].inputs.index(value), 0, array)
            program.call()
            program.read(OUTPUT, 0, graph.outputs[0].type.size)
        for found, sample in zip(program.run(), samples, strict=True):
            wanted = evaluate(graph, sample).outputs[0].ravel()
            np.testing.assert_array_equal(found, wanted, str(graph.nodes[0].op))


SIZES = """
#include <stdio.h>
#include <{header}>
#include <arm_nnsupportfunctions.h>
int main(void) {{
    int h, w, c, kernel_h, kernel_w, out_w, out_c, stride, pad;
    while (scanf("%d %d %d %d %d %d %d %d %d", &h, &w, &c, &kernel_h, &kernel_w, &out_w, &out_c,
                 &stride, &pad) == 9) {{
        const cmsis_nn_dims input = {{1, h, w, c}}, filter = {{out_c, kernel_h, kernel_w, c}};
        const cmsis_nn_dims output = {{1, h, out_w, out_c}}, columns = {{c, 1, 1, out_c}};
        const cmsis_nn_conv_params p = {{
            0, 0, {{stride, 1}}, {{pad, h > 1}}, {{1, 1}}, {{0, 0}}
        }};
        printf("%d %d %d %d %d %d %d %d %d\\n",
            (int)arm_convolve_s8_get_buffer_size(&input, &filter),
            (int)arm_convolve_wrapper_s8_get_buffer_size_dsp(&p, &input, &filter, &output),
            (int)arm_convolve_wrapper_s8_get_buffer_size_mve(&p, &input, &filter, &output),
            (int)arm_depthwise_conv_s8_opt_get_buffer_size_dsp(&input, &filter),
            (int)arm_depthwise_conv_s8_opt_get_buffer_size_mve(&input, &filter),
            (int)arm_fully_connected_s8_get_buffer_size_dsp(&columns),
            (int)arm_fully_connected_s8_get_buffer_size_mve(&columns),
            (int)arm_avgpool_s8_get_buffer_size_dsp(out_w, c),
            (int)arm_avgpool_s8_get_buffer_size_mve(out_w, c));
    }}
    return 0;
}}
"""
VARIANTS: tuple[Variant, ...] = ("dsp", "mve")


def _convolution_of_a_row(rng: np.random.Generator) -> Window:
    """Return a convolution that the MVE variant splits into parts, with right results."""
    while True:
        width, kernel, stride, before, after = (int(n) for n in rng.integers(0, 9, 5))
        padding = (0, 0), (before, after)
        window = Window(
            kernel=(1, kernel),
            stride=(1, stride),
            padding=padding,
            dilation=(1, 1),
            size=(1, width),
            depth=int(rng.integers(1, 20)),
            outputs=1,
        )
        if kernel > 1 and stride and width >= kernel and gathers_rows(window, window.depth):
            return window


def _convolution_of_an_image(rng: np.random.Generator) -> Window:
    height, width, channels = (int(n) for n in rng.integers(5, 40, 3))
    kernel = int(rng.integers(1, 6)), int(rng.integers(1, 6))
    return Window(
        kernel=kernel,
        stride=(1, 1),
        padding=((1, 1), (1, 1)),
        dilation=(1, 1),
        size=(height, width),
        depth=channels,
        outputs=1,
    )


def test_scratch_equals_the_librarys_request(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    windows = [_convolution_of_an_image(rng) for _ in range(200)]
    windows += [_convolution_of_a_row(rng) for _ in range(200)]
    lines: list[str] = []
    expected: list[list[int]] = []
    for window in windows:
        (before, after), stride, outputs = window.padding[1], window.stride[1], 7 + window.depth
        across = (window.size[1] + before + after - window.kernel[1]) // stride + 1
        numbers = *window.size, window.depth, *window.kernel, across, outputs, stride, before
        lines.append(" ".join(map(str, numbers)))
        mve = buffers.convolve("mve", window.taps, window.depth)
        if window.size[0] == 1:
            total = (across - 1) * stride + window.kernel[1] - window.size[1]
            mve = buffers.convolve_row(window.kernel[1], stride, before, window.depth, total)
        expected.append(
            [
                buffers.convolve("plain", window.taps, window.depth),
                buffers.convolve("dsp", window.taps, window.depth),
                mve,
                *(buffers.depthwise(variant, window.taps, window.depth) for variant in VARIANTS),
                *(buffers.matmul(variant, outputs) for variant in VARIANTS),
                *(buffers.average_pool(variant, window.depth) for variant in VARIANTS),
            ]
        )
    source, program = tmp_path / "sizes.c", tmp_path / "sizes"
    source.write_text(SIZES.format(header=HEADER))
    objects, include = host_objects(tmp_path / "library"), str(library() / "Include")
    compile_c(source, ("gcc", "-std=c99", "-isystem", include, *objects, "-o", str(program)))
    text = "\n".join(lines) + "\n"
    said = subprocess.run([program], input=text, capture_output=True, text=True, check=True).stdout
    found = [[int(n) for n in line.split()] for line in said.splitlines()]
    for line, ours, theirs in zip(lines, expected, found, strict=True):
        assert ours == theirs, line
