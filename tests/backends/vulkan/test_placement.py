"""The cut between GPU and CPU: its cost and its reasons, and what `smelt tune` stores."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.cli.show import report as show
from smelt.codegen.backends.vulkan.assignment import PricedLayer, PricedTensor, assignment
from smelt.codegen.backends.vulkan.gpus import available, gpu_called
from smelt.codegen.backends.vulkan.placement import Costs
from smelt.codegen.backends.vulkan.tuning import TunedLayer, Tuning, load_tuning
from smelt.codegen.lower.device import layer_key
from smelt.errors import ConfigError
from smelt.frontend import load
from smelt.ops import all_cases
from smelt.ops.case import build
from smelt.ops.core.cast import Cast
from smelt.ops.core.softmax import Softmax
from smelt.proof.tune import tune
from tests.backends.vulkan.test_float16_layers import converted
from tests.support.cli_runner import runner
from tests.support.onnx_networks import graph, model, node, tensor_info
from tests.support.shared import Network
from tests.support.tflite_networks import DIGITS
from tests.support.vulkan_tools import requires_vulkan

pytestmark = requires_vulkan

MODEL = DIGITS / "digits_int8.tflite"

NOTHING = Tuning(gpu="generic", device="a test", submit_ns=0, layers={})


def cost(
    layers: Sequence[PricedLayer],
    on_gpu: Sequence[bool],
    submit_ns: float,
    tensors: Sequence[PricedTensor],
) -> float:
    """Return an assignment's cost: layers, a submission for each run on the GPU, conversions."""
    times = sum(layer.times[not there] for layer, there in zip(layers, on_gpu, strict=True))
    runs = sum(b and not a for a, b in zip([False, *on_gpu], on_gpu, strict=False))
    return times + runs * submit_ns + sum(converted(tensor, on_gpu) for tensor in tensors)


def network(rng: random.Random) -> tuple[list[PricedLayer], list[PricedTensor]]:
    """Return layers, and tensors that some layers make and later ones read."""

    def times() -> tuple[float, float]:
        return float(rng.randint(0, 30)), float(rng.randint(0, 30))

    can = [(True, True), (True, True), (True, True), (True, False), (False, True)]
    layers = [PricedLayer(times(), rng.choice(can)) for _ in range(rng.randint(0, 8))]
    tensors: list[PricedTensor] = []
    for _ in range(rng.randint(0, len(layers))):
        maker = rng.choice([None, *range(len(layers))])
        later = range(0 if maker is None else maker + 1, len(layers))
        readers = rng.sample(later, min(len(later), rng.randint(0, 3)))
        tensors.append(PricedTensor(maker, tuple(readers), rng.random() < 0.3, times()))
    return layers, tensors


@pytest.mark.parametrize("seed", range(10))
def test_no_assignment_is_cheaper(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        layers, tensors = network(rng)
        submit_ns = float(rng.randint(0, 30))
        found = assignment(layers, submit_ns, tensors)
        possible = [
            way
            for way in product((True, False), repeat=len(layers))
            if all(layer.can[not there] for layer, there in zip(layers, way, strict=True))
        ]
        assert tuple(found) in possible
        least = min(cost(layers, way, submit_ns, tensors) for way in possible)
        assert cost(layers, found, submit_ns, tensors) == least


def test_submissions_are_part_of_the_cost() -> None:
    either = (True, True)
    layers = [
        PricedLayer((10.0, 90.0), either),
        PricedLayer((5.0, 1.0), either),
        PricedLayer((10.0, 90.0), either),
    ]
    assert assignment(layers, 50.0) == [True, True, True]
    assert assignment([PricedLayer((5.0, 1.0), either)], 50.0) == [False]
    assert assignment([PricedLayer((5.0, 5.0), either)], 0.0) == [False]


def compiled(model: Path = MODEL, **options: object) -> Artifact:
    return compile_model(model, Options(target="vulkan", **options))  # pyright: ignore[reportArgumentType]


def tuned(there_ns: float, here_ns: float, submit_ns: float = 1e3) -> Tuning:
    """Return a tuning in which every digits layer has these times on GPU and CPU."""
    graph = compiled().schedule.graph
    layer = TunedLayer(gpu_ns=there_ns, cpu_ns=here_ns)
    layers = {layer_key(node): layer for node in graph.nodes}
    return Tuning(gpu="generic", device="a test", submit_ns=submit_ns, layers=layers)


def test_every_operator_has_estimated_costs() -> None:
    """Also operators with several results, of any types."""
    costs = Costs(gpu_called("generic"))
    nodes = [n for case in all_cases() for dtype in case.dtypes for n in build(case, dtype).nodes]
    assert any(len(node.outputs) > 1 for node in nodes)
    assert all(min(costs.of(node)) >= 0 for node in nodes)


def test_measured_times_decide_the_placement() -> None:
    everywhere = compiled(backends=("vulkan", "c")).report["layers"]
    there = compiled(tuning=tuned(1.0, 1e6)).report["layers"]
    here = compiled(tuning=tuned(1e6, 1.0)).report["layers"]
    assert isinstance(everywhere, list)
    assert isinstance(there, list)
    assert isinstance(here, list)
    assert [layer["backend"] for layer in there] == [layer["backend"] for layer in everywhere]
    assert "vulkan" in {layer["backend"] for layer in there}
    assert {layer["backend"] for layer in here} == {"c"}
    served = [a for a, b in zip(here, everywhere, strict=True) if b["backend"] == "vulkan"]
    for layer in served:
        assert layer["why"].startswith("It would take 1000.0 us on the GPU (measured on a test)")


@pytest.mark.parametrize(
    ("model", "there", "here", "takes"),
    [
        ("vww_int8", "It would take .* us on the CPU and takes ", "vulkan", "c"),
        ("digits_int8", "It would take .* us on the GPU ", "c", "vulkan"),
    ],
)
def test_a_layer_that_is_not_where_it_is_fastest_names_the_option(
    model: str, there: str, here: str, takes: str
) -> None:
    path = DIGITS / f"{model}.tflite" if "digits" in model else Network("mlperf_tiny", model).model
    artifact = compiled(path)
    layers = artifact.report["layers"]
    assert isinstance(layers, list)
    told = 0
    for layer in layers:
        faster = "c" if layer["beside"]["cpu"] < layer["beside"]["gpu"] else "vulkan"
        option = f" To move it anyway, use --place LAYER={takes}"
        slow = layer["backend"] == here and faster == takes
        assert (option in layer["why"]) == slow
        if slow:
            told += 1
            assert re.match(there, layer["why"])
            assert backends_of(compiled(path, place={layer["name"]: takes}))[layer["name"]] == takes
    assert told


def backends_of(artifact: Artifact) -> dict[str, str | None]:
    return {step.node.name: step.backend for step in artifact.schedule.calls}


@pytest.mark.parametrize(("convert_ns", "conversions"), [(1.5e3, 4), (1e5, 2)])
def test_costs_of_float16_conversions_count(convert_ns: float, conversions: int) -> None:
    """A layer that is faster on the CPU stays on the GPU if its operand would need a conversion."""
    own = [node for node in load(SMALL).graph.nodes if node.macs]
    ways: list[dict[str, str]] = [{}, *({node.name: "c"} for node in own)]
    there = [
        compiled(SMALL, backends=("vulkan", "c"), float16=True, place=way).schedule for way in ways
    ]
    middle = [step.node for step in there[0].steps if step.node.macs][1]
    nodes = [node for schedule in there for node in schedule.graph.nodes]
    layers = {layer_key(node): TunedLayer(gpu_ns=1e3, cpu_ns=1e6) for node in nodes}
    layers |= {
        layer_key(node): TunedLayer(gpu_ns=convert_ns, cpu_ns=None)
        for node in nodes
        if isinstance(node.op, Cast)
    }
    layers[layer_key(middle)] = TunedLayer(gpu_ns=5e3, cpu_ns=1e3)
    tuning = Tuning(gpu="generic", device="a test", submit_ns=0, layers=layers)
    wide, narrow = (compiled(SMALL, tuning=tuning, float16=half) for half in (False, True))
    assert backends_of(wide)[middle.name] == "c"
    assert backends_of(narrow)[middle.name] == ("c" if conversions > 2 else "vulkan")
    found = [node for node in narrow.schedule.graph.nodes if isinstance(node.op, Cast)]
    assert len(found) == conversions
    report = narrow.report["layers"]
    assert isinstance(report, list)
    beside = {layer["name"]: layer["beside"] for layer in report}
    assert beside[found[0].name] == {"gpu": convert_ns / 1e3, "cpu": None, "measured": True}
    text = StringIO()
    show.partition(Console(file=text, width=200), narrow.report)
    row = next(line for line in text.getvalue().splitlines() if f" {found[0].name} " in line)
    assert row.split()[-3:] == [f"{convert_ns / 1e3:.1f}", "-", "-"]
    if conversions > 2:
        why = next(layer["why"] for layer in report if layer["name"] == middle.name)
        assert why.endswith(
            f"to the GPU costs 0 us and up to {2 * convert_ns / 1e3:.0f} us of conversions."
        )


def test_the_cpu_is_estimated_in_float32() -> None:
    """Whatever the GPU stores; there the tensors have half the bytes."""
    everywhere = compiled(SMALL, backends=("vulkan", "c"), float16=True)
    halves = [s.node for s in everywhere.schedule.steps if isinstance(s.node.op, Softmax)]
    wide = [s.node for s in compiled(SMALL).schedule.steps if isinstance(s.node.op, Softmax)]
    costs = Costs(gpu_called("generic"))
    ((there, here),), ((before, on_cpu),) = (list(map(costs.of, n)) for n in (halves, wide))
    assert here == on_cpu
    known = Costs(costs.gpu, {layer_key(halves[0]): (7.0, None)})  # on the GPU alone
    assert known.of(halves[0]) == (there, here)
    assert not known.knows(halves[0])
    dispatch = costs.gpu.dispatch_ns
    assert there - dispatch == pytest.approx((before - dispatch) / 2)


@pytest.mark.parametrize(("submit_ns", "place"), [(20.0, "vulkan"), (30.0, "c")])
def test_a_branch_between_two_layers_separates_their_submissions(
    submit_ns: float, place: str
) -> None:
    weights = {name: np.full((6, 6), 0.1 * n, np.float32) for n, name in enumerate("vw", 1)}
    branches = {
        f"{name}_branch": graph([node(kind, "a", name)], {}, name)
        for name, kind in (("then", "Neg"), ("else", "Abs"))
    }
    nodes = [
        node("MatMul", "x v", "a"),
        node("If", "c", "b", "", **branches),
        node("MatMul", "b w", "y"),
    ]
    inputs = [tensor_info("x", [4, 6]), tensor_info("c", [], "b")]
    proto = model(graph(nodes, inputs, [tensor_info("y", [4, 6])], weights), 21)
    imported = load(proto.SerializeToString())
    free = compile_model(imported, Options(target="vulkan", backends=("vulkan", "c")))
    layer = TunedLayer(gpu_ns=1.0, cpu_ns=25.0)
    layers = {layer_key(n): layer for n in free.schedule.graph.nodes if not n.op.subgraphs}
    tuning = Tuning(gpu="generic", device="a test", submit_ns=submit_ns, layers=layers)
    found = compile_model(imported, Options(target="vulkan", tuning=tuning)).schedule.calls
    assert [s.backend for s in found if s.node.macs] == [place, place]


def test_partition_shows_the_times_on_gpu_and_cpu() -> None:
    def shown(artifact: Artifact) -> str:
        text = StringIO()
        show.partition(Console(file=text), artifact.report, candidates=True)
        return text.getvalue()

    estimated, measured = shown(compiled()), shown(compiled(tuning=tuned(1e3, 1e6)))
    assert "us on GPU  us on CPU" in estimated
    assert "~" in estimated
    assert "1.0        1000.0" in measured
    assert "~" not in measured
    assert "cycles (estimate)" in shown(compiled(backends=("vulkan", "c")))


def test_place_decides_where_a_layer_runs() -> None:
    everywhere = compiled(backends=("vulkan", "c")).schedule.calls
    name = next(step.node.name for step in everywhere if step.backend == "vulkan")
    artifact = compiled(tuning=tuned(1e6, 1.0), place={name: "vulkan"})
    assert [s.node.name for s in artifact.schedule.calls if s.backend == "vulkan"] == [name]


def test_suggested_names_are_of_layers_that_can_be_placed() -> None:
    """Except those that only convert to float16 and back."""

    def place(name: str) -> Artifact:
        return compiled(SMALL, backends=("vulkan", "c"), float16=True, place={name: "c"})

    (result,) = load(SMALL).graph.results
    assert f"{result.name}_f16" in {
        node.name for node in place(load(SMALL).graph.nodes[0].name).schedule.graph.nodes
    }
    with pytest.raises(ConfigError, match="no layer has this name") as error:
        place(f"{result.name}_f16")
    names = re.findall("'([^']+)', ", str(error.value))
    assert result.name in names
    for name in names:
        assert [s.backend for s in place(name).schedule.calls if s.node.name == name] == ["c"]


def test_the_hash_depends_on_tuning_where_the_code_does() -> None:
    there, here = (compiled(tuning=tuned(*ns)).network.hash for ns in ((1.0, 1e6), (1e6, 1.0)))
    assert there != here
    assert compiled(tuning=tuned(1.0, 2e6)).network.hash == there


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (Options(target="host", gpu="videocore7"), "--gpu needs a target with a GPU; 'host' has"),
        (Options(target="host", tuning=NOTHING), "--tuning needs a target with a GPU"),
        (
            Options(target="vulkan", gpu="mali", tuning=NOTHING),
            "measured with profile 'generic', not with --gpu mali: remove --gpu",
        ),
        (
            Options(board="raspberrypi5", tuning=NOTHING),
            "measured with profile 'generic', but --board raspberrypi5 has 'videocore7': "
            "measure with `smelt tune --board raspberrypi5`, or select the measured "
            "profile with --gpu generic",
        ),
        (Options(target="vulkan", gpu="voodoo"), "unknown GPU 'voodoo'"),
    ],
)
def test_options_that_would_be_ignored_are_refused(options: Options, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        compile_model(MODEL, options)


NONE = "no layer runs on the GPU: the CPU computes all layers"
MORE = "`smelt partition` says why, --backends vulkan,c gives the GPU all it supports"
SMALL = DIGITS / "digits_float32.tflite"


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (MODEL, {}, f"{NONE}; {MORE}"),
        (MODEL, {"float16": True}, f"{NONE}, and --float16 has no effect; {MORE}"),
        (MODEL, {"cpu_fallback": True}, f"{NONE}, and --cpu-fallback has no effect; {MORE}"),
        (
            MODEL,
            {"backends": ("vulkan", "c"), "place": {"*": "c"}},
            f"{NONE}; `smelt partition` says why",
        ),
        (
            MODEL,
            {"backends": ("vulkan", "c"), "float16": True},
            "--float16 has no effect: the GPU computes no float32 tensor that float16 can store",
        ),
        (MODEL, {"backends": ("vulkan", "c"), "cpu_fallback": True}, ""),
        (SMALL, {"backends": ("vulkan", "c"), "float16": True}, ""),
    ],
)
def test_options_without_effect_are_reported(
    model: Path, options: dict[str, object], said: str
) -> None:
    artifact = compiled(model, **options)
    assert artifact.notes == (*artifact.imported.notes, *([said] if said else []))
    assert artifact.report["notes"] == list(artifact.notes)
    assert not compile_model(model, Options()).notes


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("verify", "--samples", "1"), 0, f"note: {NONE}; {MORE}\n"),
        (
            ("verify", "--device", "3"),
            1,
            "--device 3 selects a GPU, but no layer of this network runs on one: "
            f"{MORE}; or remove --device\n",
        ),
        (("profile", "--device", "3"), 1, "--device 3 selects a GPU, but no layer"),
        (
            ("profile", "--board", "mps2-an386", "--device", "0"),
            1,
            "--device 0 selects one of this computer's GPUs",
        ),
    ],
)
def test_a_network_without_gpu_layers_is_reported(
    arguments: tuple[str, ...],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A device that was requested by its number must be used."""
    target = () if "--board" in arguments else ("--target", "vulkan")
    command, *rest = arguments
    ran = runner(tmp_path, monkeypatch, capfd)(command, MODEL, *target, *rest)
    assert ran.code == code
    assert said in ran.err


def test_a_tuning_of_another_network_is_refused() -> None:
    with pytest.raises(ConfigError, match="contains no layer of this network"):
        compiled(tuning=NOTHING)


def test_the_tuning_is_part_of_the_project(tmp_path: Path) -> None:
    tuning = tuned(1.0, 2.0)
    compiled(tuning=tuning).write(tmp_path / "out")
    assert load_tuning(tmp_path / "out" / "tuning.json") == tuning


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "cannot be read: No such file"),
        ("{", "the file: Invalid JSON"),
        (
            '{"version": 1, "gpu": "generic", "submit_ns": 1, "layers": {"a": [1, 2]}}',
            "its version is 1, but this Smelt reads version 2; write it again with `smelt tune`",
        ),
        ('{"gpu": "generic", "device": "a", "submit_ns": -1, "layers": {}}', "submit_ns: "),
        ('{"gpu": "generic", "device": "a", "submit_ns": 1, "layers": {}}', "has no version"),
        (
            '{"gpu": "generic", "device": "a", "submit_ns": 1, "layers": {"a": {"gpu_ns": 1}}}',
            "layers.a.cpu_ns: ",
        ),
        (
            '{"version": 2, "gpu": "mail", "device": "a", "submit_ns": 1, "layers": {}}',
            "gpu: unknown GPU 'mail'; did you mean 'mali'? Known: ",
        ),
    ],
)
def test_a_broken_tuning_is_refused(tmp_path: Path, text: str | None, complaint: str) -> None:
    path = tmp_path / "tuning.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_tuning(path)
    assert complaint in str(error.value)
    assert str(path) in str(error.value)
    assert text is None or str(error.value).endswith("; write it again with `smelt tune`")


@pytest.mark.parametrize(
    "options",
    [
        Options(target="vulkan", gpu="generic"),
        Options(board="vulkan-generic"),
        Options(board="raspberrypi5", gpu="generic"),
    ],
)
def test_a_tuning_selects_the_profile_that_it_was_measured_with(options: Options) -> None:
    artifact = compile_model(MODEL, replace(options, tuning=tuned(1.0, 2.0)))
    gpu = artifact.platform.target.device
    assert gpu is not None
    assert gpu.name == "generic"


def test_the_output_of_tune_is_checked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("smelt.cli.tune.tune_model", None)
    run = runner(tmp_path, monkeypatch, capfd)
    for place, why in (("none/t.json", "No such file or directory"), (".", "it is a folder")):
        ran = run("tune", MODEL, "--target", "vulkan", "-o", place)
        assert (ran.code, ran.err) == (1, f"ConfigError: cannot write '{place}': {why}\n")
    (tmp_path / "t.json").write_text("kept")
    with pytest.raises(TypeError):  # measuring was started, and the file is unchanged
        run("tune", MODEL, "--target", "vulkan", "-o", "t.json")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["kept"]


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown GPU 'videocore'; did you mean 'videocore"):
        compiled(gpu="videocore")


def test_tuning_a_target_without_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="target 'cortex-m4' has no GPU to tune for"):
        tune(MODEL, Options(target="cortex-m4"), rounds=1)


def test_profiles_prefer_gpus_only_for_much_work() -> None:
    """Each profile leaves the smallest layer to the CPU, and takes one of a billion products."""
    (small, *_) = (node for node in load(MODEL).graph.nodes if node.macs)
    for gpu in available():
        there, here = Costs(gpu).of(small)
        assert there + gpu.submit_ns > here, gpu.name
        products = 1e9
        if gpu.name != "lavapipe":
            on_gpu = products / gpu.products_per_ns[0] + gpu.submit_ns
            assert on_gpu < products / gpu.cpu_products_per_ns[0], gpu.name
    assert gpu_called("lavapipe").blocks.lanes == 8
