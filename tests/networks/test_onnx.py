"""Whole ONNX networks in generated C, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.codegen.passes import run_passes
from smelt.frontend import InputOptions, load
from smelt.ir import evaluate
from smelt.ops.tensor.transpose import Transpose
from smelt.proof.run import run
from smelt.samples import Sample
from tests.support.graphs import SETUPS, assert_same
from tests.support.onnx_networks import session
from tests.support.semihosted import outputs_of
from tests.support.shared import ROOT, SHARED, nothing, shared
from tests.support.vulkan_tools import MINIMA, Validation, build, check_arena, requires_vulkan

DIGITS = ROOT / "examples/digits/digits.onnx"
FOLDERS = ("models/float", "models/face", "quant")
FOUND = sorted(path for folder in FOLDERS for path in SHARED.glob(f"{folder}/*.onnx"))
LONG = ("ultraface", "_dfq", "_outl")
"""Parts of names of networks that take long to simulate, or differ only in their weights."""


def each(*long: pytest.MarkDecorator) -> list[Any]:
    """Return all networks as parameters, with the given marks on those of `LONG`."""
    if not FOUND:
        return [pytest.param(DIGITS, id=DIGITS.stem), nothing("ONNX network")]
    return [
        pytest.param(p, id=p.stem, marks=long if any(name in p.stem for name in LONG) else ())
        for p in (DIGITS, *FOUND)
    ]


NETWORKS = each()
SIMULATED = ("m4", "m55")


def options(path: Path) -> InputOptions:
    """Return import options: the batch size of the networks in `quant` is open, and becomes 1."""
    return InputOptions(dims={"N": 1} if path.parent.name == "quant" else {})


def samples(path: Path, count: int) -> tuple[list[Sample], list[Sample]]:
    """Return random inputs and ONNX Runtime's outputs."""
    network: Any = session(path)
    rng = np.random.default_rng(5)
    inputs: list[Sample] = []
    outputs: list[Sample] = []
    for _ in range(count):
        feeds = {
            i.name: rng.uniform(-1, 1, [1 if d == "N" else d for d in i.shape]).astype(np.float32)
            for i in network.get_inputs()
        }
        inputs.append(tuple(feeds.values()))
        outputs.append(tuple(network.run(None, feeds)))
    return inputs, outputs


@pytest.mark.parametrize("path", NETWORKS)
def test_references_agree_with_onnxruntime(path: Path) -> None:
    inputs, expected = samples(path, 2)
    imported = load(path, inputs=options(path)).graph
    for what, graph in (("imported", imported), ("after the passes", run_passes(imported))):
        found = [evaluate(graph, sample).outputs for sample in inputs]
        assert_same(found, expected, f"{path.stem} {what}")


@pytest.mark.quick(every=5)
@pytest.mark.parametrize("path", NETWORKS)
def test_generated_code_agrees_on_the_host(path: Path) -> None:
    inputs, expected = samples(path, 2)
    artifact = compile_model(path, Options(inputs=options(path)))
    assert_same(list(run(artifact, inputs).outputs), expected, path.stem)


@pytest.mark.quick(setup=("m4",), every=12)
@pytest.mark.qemu
@pytest.mark.parametrize("setup", SIMULATED)
@pytest.mark.parametrize("path", each(pytest.mark.slow))
def test_generated_code_agrees_on_simulated_cores(path: Path, setup: str) -> None:
    inputs, expected = samples(path, 1)
    board = SETUPS[setup].board
    artifact = compile_model(path, Options(board=board, inputs=options(path)))
    assert_same(outputs_of(artifact, inputs), expected, f"{path.stem} on {setup}")


@pytest.mark.quick(relative=("quant/mbv3_0.onnx",))
@requires_vulkan
@pytest.mark.parametrize("relative", ["models/face/ultraface_slim_320.onnx", "quant/mbv3_0.onnx"])
def test_generated_code_agrees_on_the_gpu(relative: str, tmp_path: Path) -> None:
    """The partition follows the estimates, and the device uses no optional features."""
    path = shared(relative)
    inputs, expected = samples(path, 1)
    artifact = compile_model(path, Options(target="vulkan", inputs=options(path)))
    assert {step.backend for step in artifact.schedule.calls} == {"vulkan", "c"}
    check_arena(artifact)
    validation = Validation(tmp_path)
    found = build(artifact, tmp_path, f"-O1 {MINIMA}").run(inputs, validation.environment)
    assert validation.messages() == ""
    assert_same(found, expected, path.stem)


@pytest.mark.parametrize("path", NETWORKS)
def test_at_most_the_input_is_transposed(path: Path) -> None:
    """An image with channels first is transposed once.

    With one channel or channels last, there is no transpose.
    """
    given = options(path)
    (x,) = load(path, inputs=given).graph.inputs
    for layout in ("model", "nhwc") if len(x.type.shape) == 4 else ("model",):
        chosen = InputOptions(dims=given.dims, layout=layout)
        graph = run_passes(load(path, inputs=chosen).graph)
        left = [node for node in graph.nodes if isinstance(node.op, Transpose)]
        boundary = [node for node in left if node.inputs[0] in graph.inputs]
        # The 1-D network uses the image's rows as channels, which are not the input's last axis.
        if "c1d" not in path.stem:
            assert left == boundary, [str(node.origin) for node in left]
        assert len(left) <= 1
        assert layout == "model" or not left or path.stem in ("gru_0", "c1d_0")
