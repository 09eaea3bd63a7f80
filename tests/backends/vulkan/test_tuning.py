"""Block sizes of GPU convolutions: choices by profile, `smelt tune`, and builds with a tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.codegen.backends.vulkan.calls import Block, ShaderCall
from smelt.codegen.backends.vulkan.gpus import DEFAULT, Gpu, available, gpu_called
from smelt.codegen.backends.vulkan.tuning import (
    TunedLayer,
    Tuning,
    load_tuning,
    neighbors,
    worth_measuring,
)
from smelt.codegen.lower.backend import backend
from smelt.codegen.lower.device import layer_key
from smelt.codegen.lower.kernel import Refusal, Request, Tiling
from smelt.errors import ConfigError
from smelt.ir import DType, Graph, evaluate
from smelt.ops.case import build
from smelt.proof.tune import LayerKind, ProgramTimes, TunedRun, kinds_of, tune
from smelt.targets import get
from tests.backends.test_cases import member_of
from tests.backends.vulkan.test_products import convolution, dense, depthwise_case
from tests.support.cli_runner import runner
from tests.support.graphs import assert_same, combine, compile_graph, run_together
from tests.support.shared import Network
from tests.support.tflite_networks import DIGITS
from tests.support.vulkan_tools import MLPERF, ON_GPU, requires_vulkan

pytestmark = requires_vulkan

MODEL = DIGITS / "digits_int8.tflite"
SAME = ((1, 1), (1, 1))
CASES = (
    convolution((1, 9, 18, 4), (32, 3, 3, 4), padding=SAME),
    convolution((1, 5, 17, 8), (16, 1, 1, 8)),
    depthwise_case((1, 9, 10, 8), (1, 3, 3, 8), stride=(1, 2), padding=SAME),
    dense((3, 40), (32, 40)),
)


def with_blocks(blocks: dict[str, Block], gpu: str = "default") -> Tuning:
    """Return a tuning that contains only blocks."""
    layers = {key: TunedLayer(gpu_ns=0, cpu_ns=1e9, block=block) for key, block in blocks.items()}
    return Tuning(gpu=gpu, device="a test", submit_ns=0, layers=layers)


def shaders(graph: Graph, gpu: Gpu) -> list[ShaderCall]:
    """Return how the GPU computes all layers of a graph that it serves."""
    target = replace(get("vulkan"), device=gpu)
    kernels, found = backend("vulkan"), list[ShaderCall]()
    for node in graph.nodes:
        call = kernels.find(node, Request(target))
        if not isinstance(call, Refusal):
            assert isinstance(call, ShaderCall)
            found.append(call.on(target))
    return found


@MLPERF
def test_every_profile_has_blocks_that_every_device_can_run(network: Network) -> None:
    graph = compile_model(network.model, ON_GPU).schedule.graph
    for gpu in available():
        calls = shaders(graph, gpu)
        blocks = [call for call in calls if call.block is not None]
        assert blocks, gpu.name
        for call in calls:
            assert prod(call.workgroup) <= 128, gpu.name
            assert max(call.groups) <= 65535, gpu.name
        for call in blocks:
            assert call.candidates[0] == call.block, gpu.name
            assert 1 < len(set(call.candidates)) == len(call.candidates), gpu.name
            assert {b.local for b in call.candidates} == set(gpu.blocks.local), gpu.name
            for block in call.candidates:
                assert block.local <= 128, gpu.name


def test_large_images_have_blocks_of_few_workgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of workgroups ends at a small limit, here 8."""
    monkeypatch.setattr("smelt.codegen.backends.vulkan.blocks.MAX_GROUPS", 8)
    graph = build(convolution((1, 64, 32, 4), (4, 1, 1, 4)), DType.INT8)
    for gpu in available():
        (call,) = shaders(graph, gpu)
        along = [block for block in call.candidates if not block.across]
        assert all(-(-64 * 32 // (b.pixels * b.local)) <= 8 for b in along), gpu.name
        assert len(along) < len(call.candidates), gpu.name


def test_workgroups_are_multiples_of_the_vector_size() -> None:
    for gpu in available():
        assert gpu.local <= 128
        assert not any(local % gpu.blocks.lanes for local in (gpu.local, *gpu.blocks.local))


def blocks_of(artifact: Artifact) -> list[Block]:
    calls = [step.call for step in artifact.schedule.calls]
    return [call.block for call in calls if isinstance(call, ShaderCall) and call.block is not None]


def test_default_blocks_are_lavapipes_and_boards_have_their_own() -> None:
    """Layers are assigned to it as to any GPU."""
    unsaid, lavapipe = compile_model(MODEL, ON_GPU), replace(ON_GPU, gpu="lavapipe")
    assert blocks_of(unsaid) == blocks_of(compile_model(MODEL, lavapipe))
    assert replace(DEFAULT, name="", description="", blocks=gpu_called("generic").blocks) == (
        replace(gpu_called("generic"), name="", description="")
    )
    board = compile_model(MODEL, Options(board="vulkan-generic", backends=("vulkan", "c")))
    assert {block.local for block in blocks_of(board)} == {64}
    adreno = compile_model(MODEL, replace(ON_GPU, gpu="adreno")).schedule.calls
    calls = [step.call for step in adreno if isinstance(step.call, ShaderCall)]
    assert {call.workgroup for call in calls if call.block is None} == {(128, 1, 1)}


def test_blocks_of_float16_are_smaller_if_drivers_unroll_conversions() -> None:
    """In float32, the same layer has a larger block."""
    graph = build(convolution((1, 16, 16, 16), (32, 1, 1, 16)), DType.FLOAT32)
    for gpu, smaller in (("lavapipe", True), ("nvidia", False)):
        plain, half = (
            blocks_of(compile_graph(graph, replace(ON_GPU, gpu=gpu, float16=float16)))
            for float16 in (False, True)
        )
        sums = [b.pixels * b.quads for b in (*plain, *half)]
        assert len(sums) == 2
        assert (sums[1] < sums[0]) == smaller, gpu


@pytest.mark.thorough
@pytest.mark.parametrize("gpu", ["lavapipe", pytest.param("nvidia", marks=pytest.mark.slow)])
def test_all_blocks_compute_the_same(gpu: str) -> None:
    """Each block is used for every layer at once; shaders of one device run on any."""
    members = [member_of(c, d) for c in CASES for d in (DType.INT8, DType.FLOAT32)]
    setup = replace(ON_GPU, gpu=gpu)
    kinds = kinds_of(compile_graph(combine("all", [m.graph for m in members]), setup))
    expected = [[evaluate(m.graph, sample).outputs for sample in m.samples] for m in members]
    tries = {k: worth_measuring(candidates_of(v)) for k, v in kinds.items() if v.call.candidates}
    assert len(tries) == len(members)
    for rank in range(min(map(len, tries.values()))):
        tuning = with_blocks({k: blocks[rank] for k, blocks in tries.items()}, gpu)
        results = run_together(members, replace(ON_GPU, tuning=tuning))
        for case, wanted, found in zip(members, expected, results, strict=True):
            assert_same(found, wanted, f"{case.graph.name}, try {rank} of {gpu}")


def test_a_build_uses_the_measured_block() -> None:
    for key, kind in kinds_of(compile_model(MODEL, ON_GPU)).items():
        for block in worth_measuring(candidates_of(kind))[-3:] if kind.call.candidates else ():
            tuning = with_blocks({key: block, "a layer of another network": block})
            artifact = compile_model(MODEL, Options(target="vulkan", tuning=tuning))
            step = next(s for s in artifact.schedule.calls if layer_key(s.node) == key)
            assert isinstance(step.call, ShaderCall)
            assert step.call.block == block
            assert step.call.workgroup[0] == block.local
            assert step.call.constants["PIXELS"] == block.pixels
            layers = artifact.report["layers"]
            assert isinstance(layers, list)
            shown = [layer["block"] for layer in layers if layer["name"] == step.node.name]
            assert shown == [block.text]


@pytest.mark.parametrize("change", [{"pixels": 3}, {"quads": 64}, {"local": 4}, {"pixels": 0}])
def test_a_block_that_a_layer_cannot_have_is_refused(change: dict[str, int]) -> None:
    kinds = kinds_of(compile_model(MODEL, ON_GPU))
    key, kind = next((k, v) for k, v in kinds.items() if v.call.form == "vulkan_blocks")
    block = replace(candidates_of(kind)[0], **change)
    with pytest.raises(ConfigError, match=r"blocks of .*, which this layer does not support: "):
        compile_model(MODEL, replace(ON_GPU, tuning=with_blocks({key: block})))


def test_a_block_for_a_layer_that_has_none_is_refused() -> None:
    kinds = kinds_of(compile_model(MODEL, ON_GPU))
    block = next(candidates_of(kind)[0] for kind in kinds.values() if kind.call.candidates)
    key = next(key for key, kind in kinds.items() if kind.call.block is None)
    with pytest.raises(ConfigError, match="a block, but this layer has none: write it again"):
        compile_model(MODEL, replace(ON_GPU, tuning=with_blocks({key: block})))


def test_the_search_reaches_every_block() -> None:
    kinds = kinds_of(compile_model(MODEL, replace(ON_GPU, gpu="intel")))
    for blocks in filter(None, map(candidates_of, kinds.values())):
        tries = worth_measuring(blocks)
        assert blocks[0] not in tries
        assert len(tries) == len(set(tries)) <= 7
        assert {sums_of(block) for block in (blocks[0], *tries)} == set(map(sums_of, blocks))
        reached, new = {blocks[0]}, [blocks[0]]
        while new:
            found = set(neighbors(new.pop(), blocks)) - reached
            reached |= found
            new += found
        assert reached == set(blocks)


def candidates_of(kind: LayerKind) -> tuple[Block, ...]:
    return tuple(block for block in kind.call.candidates if isinstance(block, Block))


def sums_of(block: Block) -> int:
    return block.pixels * block.quads


LAPS = {"small": [30.0, 31.0, 29.0, 30.0], "large": [130.0, 131.0, 129.0, 130.0]}


@pytest.mark.parametrize(
    ("waits", "saved", "expected"),
    [
        (0.0, [0.0] * 4, False),
        (0.0, [20.0] * 4, True),
        (60.0, [0.0] * 4, False),  # the other process takes longer for every submission
        (60.0, [20.0] * 4, True),
        (-20.0, [0.0] * 4, False),
        (0.0, [1.0] * 4, False),  # less than 2 %
        (0.0, [20.0, 20.0, -20.0, -20.0], False),
        (0.0, [-20.0] * 4, False),
    ],
)
def test_a_block_must_save_more_than_noise(
    waits: float, saved: list[float], expected: bool
) -> None:
    kinds = kinds_of(compile_model(MODEL, ON_GPU))
    small, large = (kind_without_blocks(kinds), next(iter(kinds.values())))
    chosen = {"small": small, "large": large}
    own = ProgramTimes.of(LAPS, chosen)
    other = {key: [ns + waits for ns in laps] for key, laps in LAPS.items()}
    other["large"] = [ns - less for ns, less in zip(other["large"], saved, strict=True)]
    assert ProgramTimes.of(other, chosen).saves(own, "large") is expected
    assert own.submit_ns == 30.0
    assert own.median("large") == 100.0


def kind_without_blocks(kinds: dict[str, LayerKind]) -> LayerKind:
    return next(kind for kind in kinds.values() if not kind.call.candidates)


def test_the_fastest_block_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = kinds_of(compile_model(MODEL, ON_GPU))
    key = max(kinds, key=lambda k: len(kinds[k].call.candidates))
    first, second, third, *_ = worth_measuring(candidates_of(kinds[key]))
    fast: dict[Tiling, float] = {first: 70.0, second: 50.0, third: 60.0}

    def times(artifacts: Sequence[Artifact], rounds: int, device: int | None) -> TunedRun:
        def taken(artifact: Artifact) -> dict[str, list[float]]:
            tuning = artifact.options.tuning
            blocks = dict[str, Tiling]() if tuning is None else tuning.blocks
            own = {k: 10.0 if kinds[k].call.block is None else 100.0 for k in kinds}
            if key in blocks:
                own[key] = fast.get(blocks[key], 100.0)
            return {k: [ns] * rounds for k, ns in own.items()}

        assert device is None
        return TunedRun([taken(artifact) for artifact in artifacts], "a test")

    monkeypatch.setattr("smelt.proof.tune._times", times)
    # The requested profile replaces the board's in every program.
    found = tune(MODEL, Options(board="raspberrypi5", gpu="default"), rounds=4)
    assert found.tuning.blocks == {key: second}
    assert found.tuning.device == "a test"


@pytest.mark.slow
def test_layers_are_measured_as_on_the_device() -> None:
    """Every GPU layer is measured once per candidate block; profiles count, not boards."""
    found = tune(MODEL, Options(board="raspberrypi5"), rounds=2)
    kinds = kinds_of(compile_model(MODEL, replace(ON_GPU, gpu="videocore7")))
    assert found.tuning.profile == "videocore7"
    assert isinstance(found.tuning, Tuning)
    assert set(found.tuning.layers) == set(kinds)
    assert [layer.kind.call.block for layer in found.layers] == [
        kind.call.block for kind in kinds.values()
    ]
    for key, block in found.tuning.blocks.items():
        assert block in kinds[key].call.candidates[1:]


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Measurements are printed, stored, used by builds, and kept in the project."""
    run = runner(tmp_path, monkeypatch, capfd)
    for module in ("proof.tune", "codegen.backends.vulkan.tuning"):
        monkeypatch.setattr(f"smelt.{module}.MOST_TRIED", 2)
    monkeypatch.setattr("smelt.proof.tune._STEPS", 0)
    options = ("--gpu", "lavapipe", "--rounds", "3", "--device", "0")
    tuned = run("tune", MODEL, "--target", "vulkan", *options)
    assert tuned.code == 0, tuned.err
    assert "by profile" in tuned.out
    tuning = load_tuning(tmp_path / "tuning.json")
    assert f"{len(tuning.layers)} distinct layers, {len(tuning.blocks)} with another" in tuned.out
    built = run("build", MODEL, "--target", "vulkan", "--tuning", "tuning.json", "-o", "out")
    assert built.code == 0, built.err
    assert load_tuning(tmp_path / "out" / "tuning.json") == tuning
    shown = run(
        "partition",
        MODEL,
        "--target",
        "vulkan",
        "--tuning",
        "tuning.json",
        "--backends",
        "vulkan,c",
    )
    for block in tuning.blocks.values():
        assert block.text in shown.out
