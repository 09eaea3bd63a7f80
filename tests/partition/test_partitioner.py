"""Tests of the choice of a backend for each layer, by price, by `--backends` and by `--place`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import pytest

from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.codegen.lower.backend import Backend, backend
from smelt.codegen.lower.kernel import (
    DEFAULT_SCRATCH,
    MOST_ENTRIES,
    Kernel,
    KernelCall,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.partition.candidates import Candidate, Choice, with_expansions
from smelt.codegen.partition.partitioner import Partitioner
from smelt.errors import ConfigError, UnsupportedError
from smelt.frontend import load
from smelt.ir import DType, Graph, Node, Op, Origin, TensorType, Value, evaluate, verify
from smelt.ops.case import Bias, Case, Data, Weights, build
from smelt.ops.control.branches import If
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D
from smelt.ops.core.convolution_nd import ConvTranspose
from smelt.ops.core.unary import Unary
from smelt.samples import random_samples
from smelt.targets import HOST, Optimize, Platform, Target, get
from tests.support.graphs import assert_same, compile_graph
from tests.support.sanitized import run_sanitized
from tests.support.shared import Network
from tests.support.tflite_networks import DIGITS
from tests.support.vulkan_tools import requires_vulkan

MODEL = DIGITS / "digits_int8.tflite"
ON_GPU = Options(target="vulkan")


@pytest.mark.parametrize(
    "options",
    [
        Options(target="cortex-m3"),
        Options(target="cortex-m4"),
        Options(target="cortex-m4", optimize="ram", expand_weights=True),
        Options(target="cortex-m4", backends=("cmsis_nn", "c")),
        pytest.param(replace(ON_GPU, cpu_fallback=True), marks=requires_vulkan),
        pytest.param(replace(ON_GPU, float16=True), marks=requires_vulkan),
        pytest.param(replace(ON_GPU, backends=("vulkan", "c")), marks=requires_vulkan),
    ],
    ids=lambda options: str(options.target),
)
@pytest.mark.parametrize("model", ["digits_int8", "digits_float32", "ic_int8"])
def test_each_kernel_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, options: Options, model: str
) -> None:
    """Kernels that depend on the scratch limit are asked once for each node and limit.

    Those that depend on whether RAM is limited are asked again for segments.
    """
    asked: Counter[tuple[int, Node, int, bool, bool]] = Counter()
    path = DIGITS / f"{model}.tflite" if "digits" in model else Network("mlperf_tiny", model).model

    def counted(kernel: Kernel) -> Callable[[Node, Request], KernelCall | Refusal]:
        offer = kernel.offer

        def counting(node: Node, request: Request) -> KernelCall | Refusal:
            uses = kernel.uses_scratch_limit
            limit = (request.scratch_limit, request.limited) if uses else (0, False)
            little_ram = kernel.uses_little_ram and request.little_ram
            asked[id(kernel), node, *limit, little_ram] += 1
            return offer(node, request)

        return counting

    target = get(options.target or "host")
    for name in (*target.libraries, *target.backends):
        for kernel in backend(name).kernels:
            monkeypatch.setitem(vars(kernel), "offer", counted(kernel))
    compile_model(path, options)
    assert set(asked.values()) == {1}


class Borrowed(Kernel):
    """A kernel of the portable backend under another name; it serves one kind of operator."""

    def __init__(self, op: type[Op], kind: str = "", **work: int) -> None:
        (self._kernel,) = [k for k in backend("c").kernels if k.op is op]
        self.op = op  # pyright: ignore[reportAttributeAccessIssue]
        self._kind = kind
        self._work = work

    def offer(self, node: Node, request: Request) -> KernelCall | Refusal:
        if self._kind and not node.op.name.endswith(f"({self._kind})"):
            return Refusal(f"toy serves {self._kind} only.")
        call = self._kernel.offer(node, request)
        assert isinstance(call, KernelCall)
        return replace(call, stem=f"toy_{call.stem}", form="toy", work=self._work)


@dataclass(frozen=True)
class Priced(Target):
    """A target with made-up prices."""

    table: tuple[tuple[str, float], ...] = ()

    @property
    def prices(self) -> Mapping[str, Mapping[str, float]]:
        return {form: {"runs": price} for form, price in self.table}


TOY = Backend("toy", (Borrowed(Conv2D), Borrowed(Binary, "add")))


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give target `host` a backend `toy` that serves only convolutions and additions."""

    def find(name: str, plugins: tuple[Kernel, ...] = ()) -> Backend:
        return TOY if name == "toy" else backend(name, plugins)

    target = replace(get("host"), libraries=("toy",))
    monkeypatch.setattr("smelt.api.compile.backend", find)
    monkeypatch.setattr("smelt.codegen.emit.network.backend", find)
    monkeypatch.setattr("smelt.boards.build.backend", find)

    def get_target(name: str) -> Target:
        assert name == "host"
        return target

    def library(target: Target) -> Platform:
        return replace(HOST, target=target)

    monkeypatch.setattr("smelt.api.compile.get", get_target)
    monkeypatch.setattr("smelt.api.compile.library_platform", library)


def placed(options: Options) -> list[tuple[str, str]]:
    layers = compile_model(MODEL, options).schedule.calls
    return [(step.node.op.name, step.backend) for step in layers]


@pytest.mark.usefixtures("toy")
def test_layers_that_a_backend_refuses_go_to_the_fallback() -> None:
    found = placed(Options(backends=("toy",)))
    served = {"Conv2D", "Binary(add)"}
    assert {op for op, name in found if name == "toy"} == served
    assert {name for op, name in found if op not in served} == {"c"}
    report = compile_model(MODEL, Options(backends=("toy",))).report
    layers = report["layers"]
    assert isinstance(layers, list)
    why = {layer["op"]: layer["why"] for layer in layers}
    assert why["Conv2D"] == ""
    assert why["Softmax"] == "backend 'toy' has no kernel for Softmax on host."


@pytest.mark.usefixtures("whole_tensors")
@pytest.mark.quick(every=3)
@pytest.mark.parametrize("optimize", get_args(Optimize))
def test_the_reason_names_the_option_that_selects_a_faster_candidate(optimize: Optimize) -> None:
    options = Options(target="cortex-m4", optimize=optimize)
    found = compile_model(MODEL, options).schedule.calls
    explained = {step.index for step in found if "would be faster, but" in step.reason}
    lost = {s.index: [c for c in s.choice.lost if _faster(c, s.choice.taken)] for s in found}
    assert explained == {index for index, candidates in lost.items() if candidates}
    assert explained
    for step in (step for step in found if step.index in explained):
        sentences = re.findall(
            r"[^ ]+'s .*? (?:chooses by cycles(?: alone)?|allows it)\.", step.reason
        )
        assert len(sentences) == len({c.unwanted for c in lost[step.index]})
        for sentence in sentences:
            remedy = replace(
                options,
                optimize="speed" if "--optimize speed" in sentence else optimize,
                expand_weights="--expand-weights" in sentence,
            )
            assert remedy != options
            better = compile_model(MODEL, remedy).schedule.calls[step.index].choice.taken
            # The remedy may also let layers share functions, which adds 2 % at most, or allow the
            # kernel more scratch, so that it is faster and computes more pixels at once.
            form, cycles = _named(sentence)
            assert _without_tile(form) == _without_tile(_named(better.text)[0])
            assert better.cycles is not None
            assert better.cycles <= cycles * 1.02


@pytest.mark.usefixtures("whole_tensors")
@pytest.mark.parametrize("optimize", ["speed", "ram"])
def test_the_reason_names_the_option_that_selects_a_faster_backend(optimize: Optimize) -> None:
    options = Options(target="cortex-m4", backends=("cmsis_nn", "dsp", "c"), optimize=optimize)
    explained_count = 0
    for step in compile_model(MODEL, options).schedule.calls:
        found = re.findall(
            r"((dsp|c)'s \S+ \([\d,]+ cycles\)) would be faster, but --backends prefers "
            r"cmsis_nn: (name (?:dsp|c) before it there, or )?--place LAYER=(\S+)\.",
            step.reason,
        )
        explained_count += len(found)
        assert len(dict.fromkeys(name for _, name, _, _ in found)) == len(found)
        for text, name, first, place in found:
            ways = [replace(options, place={step.node.name: place})]
            if first:
                assert place == name
                others = [other for other in ("cmsis_nn", "dsp", "c") if other != name]
                ways.append(replace(options, backends=(name, *others)))
            for way in ways:
                taken = compile_model(MODEL, way).schedule.calls[step.index].choice.taken
                # If the kernel overwrites its input, the same arena leaves it more scratch.
                (form, cycles), (stated_form, stated) = _named(taken.text), _named(text)
                assert form == stated_form
                assert cycles == stated or (cycles < stated and optimize == "ram")
                assert _faster(taken, step.choice.taken)
    assert explained_count > 6


@pytest.mark.parametrize(
    ("optimize", "channels", "why"),
    [
        ("speed", 8, ""),
        (
            "ram",
            8,
            "Computing phase by phase would be faster, but enlarges the arena: --optimize speed, "
            "with a larger --max-ram if you gave one, allows it.",
        ),
        (
            "speed",
            600,
            "Computing phase by phase would be faster, but takes 9,600 bytes of scratch; more ",
        ),
    ],
)
def test_the_reason_says_why_a_faster_form_is_missing(
    optimize: Optimize, channels: int, why: str
) -> None:
    """An option or the scratch limit rules the form out, not the node."""
    case = Case(
        "wide",
        ConvTranspose((2, 2), ((0, 0), (0, 0)), (1, 1)),
        (Data((1, 2, 2, channels)), Weights((3, 3, channels, 2), axis=3), Bias(2)),
    )
    node = build(case, DType.INT8).nodes[0]
    limited = optimize == "ram"
    limit = 0 if limited else DEFAULT_SCRATCH
    request = Request(get("host"), optimize, scratch_limit=limit, limited=limited)
    choice = Partitioner(((backend("c"),),), request).choose(node)
    phased = choice.taken.call.template.endswith("transposed_phases.j2")
    assert phased == (not why)
    assert choice.reason.startswith(why)
    assert bool(choice.reason) == bool(why)


@pytest.mark.usefixtures("whole_tensors")
def test_the_reason_names_a_convolution_form_that_ram_rules_out() -> None:
    steps = compile_model(MODEL, Options(target="cortex-m4", backends=("c",), optimize="ram"))
    why = "Packing the inputs of windows would be faster, but enlarges the arena: --optimize speed,"
    assert any(why in step.reason for step in steps.schedule.calls)


def test_backends_that_were_not_requested_are_not_mentioned() -> None:
    options = Options(target="cortex-m4", backends=("cmsis_nn",), fallback=False)
    assert not any(step.reason for step in compile_model(MODEL, options).schedule.calls)


class Tabled(Borrowed):
    """A kernel for convolutions that uses a table with a given number of entries."""

    def __init__(self, form: str, runs: int, entries: int) -> None:
        super().__init__(Conv2D, runs=runs)
        self._form, self._entries = form, entries

    def offer(self, node: Node, request: Request) -> KernelCall | Refusal:
        call = super().offer(node, request)
        assert isinstance(call, KernelCall)
        return replace(call, form=self._form)

    def entries(self, node: Node) -> int:
        return self._entries


def test_only_chosen_kernels_count_towards_the_limit_on_tables() -> None:
    host, most = get("host"), MOST_ENTRIES
    target = Priced(
        host.name, host.description, features=host.features, table=(("near", 9.0), ("far", 1.0))
    )
    groups = [
        (Backend("one", (Tabled("near", 1, most // 2),)),),
        (Backend("two", (Tabled("far", 1, most),)),),
    ]
    nodes = [n for n in load(MODEL).graph.nodes if isinstance(n.op, Conv2D)][:2]
    partitioner = Partitioner(groups, Request(target))
    chosen = [partitioner.explained(node) for node in nodes]
    assert [choice.taken.call.form for choice in chosen] == ["near", "near"]
    assert chosen[0].reason == (
        "two's far (1 cycles) would be faster, but --backends prefers one: name two before it "
        "there, or --place LAYER=two."
    )
    assert not chosen[1].reason
    assert partitioner.choose(nodes[0]).reason == ""


def _without_tile(form: str) -> str:
    """Return the name of a kernel without the pixels and channels that it computes at once."""
    return re.sub(r"_\d+x\d+", "", form)


def _named(text: str) -> tuple[str, int]:
    """Return a candidate's backend and form, and its cycles, from the start of a text."""
    found = re.match(r"(\S+'s \S+) \(([\d,]+) cycles\)", text)
    assert found
    return found[1], int(found[2].replace(",", ""))


def _faster(lost: Candidate, taken: Candidate) -> bool:
    known = lost.cycles is not None and taken.cycles is not None
    return known and (lost.cycles or 0) < (taken.cycles or 0)


@pytest.mark.usefixtures("toy")
def test_layers_are_placed_by_name_and_pattern() -> None:
    steps = compile_model(MODEL, Options()).schedule.calls
    assert {step.backend for step in steps} == {"c"}
    first = next(step.node for step in steps if isinstance(step.node.op, Conv2D))
    options = Options(place={first.name: "toy"})
    served = [
        s.node.name for s in compile_model(MODEL, options).schedule.calls if s.backend == "toy"
    ]
    assert served == [first.name]
    options = Options(backends=("toy",), place={"*": "c"})
    assert {name for _, name in placed(options)} == {"c"}


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (Options(backends=("toy",), fallback=False), UnsupportedError, "toy' has no kernel for"),
        (
            Options(place={"*": "toy"}),
            UnsupportedError,
            r"which --place requires: backend 'toy' has",
        ),
        (Options(place={"no such": "c"}), ConfigError, "--place no such=….*no layer has this name"),
        (Options(backends=("gpu",)), ConfigError, "no backend 'gpu'; it has toy, c"),
        (Options(fallback=False), UnsupportedError, "cannot run on target 'host'"),
    ],
)
def test_impossible_options_are_refused(
    options: Options, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        compile_model(MODEL, options)


@pytest.mark.quick(every=2)
@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("assignment", range(4))
def test_any_assignment_of_layers_gives_the_same_outputs(
    assignment: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    graph = load(MODEL).graph
    names = [
        n.name for n in compile_model(MODEL, Options()).graph.nodes if isinstance(n.op, Conv2D)
    ]
    chosen = {name: "toy" for i, name in enumerate(names) if assignment >> i & 1}
    artifact = compile_graph(graph, Options(place=chosen))
    samples = random_samples(graph, 2, seed=assignment)
    found = run_sanitized(artifact, samples, tmp_path_factory.mktemp("assignment") / "project")
    assert_same(found, [evaluate(graph, s).outputs for s in samples], f"assignment {assignment}")


def test_layers_inside_branches_can_be_placed() -> None:
    def branch(op: Op, name: str) -> Graph:
        inside, result = Value(f"{name}_x", scalar), Value(name, scalar)
        node = Node(op, (inside,), (result,), Origin(op.name, 0))
        return Graph(name, (inside,), (result,), (node,))

    scalar = TensorType((4,), DType.FLOAT32)
    chosen = If(branch(Unary("abs"), "positive"), branch(Unary("neg"), "negative"))
    x, y, condition = Value("x", scalar), Value("y", scalar), Value("c", TensorType((), DType.BOOL))
    node = Node(chosen, (condition, x), (y,), Origin("If", 0))
    graph = verify(Graph("net", (condition, x), (y,), (node,)), "building a test")
    compile_graph(graph, Options(place={"positive": "c"}))
    with pytest.raises(ConfigError, match=r"--place y=….*branches and loops run on the CPU"):
        compile_graph(graph, Options(place={"y": "c"}))


# --- candidates ------------------------------------------------------------------------------


def best(
    kernels: Sequence[Kernel],
    prices: Mapping[str, float],
    optimize: Optimize = "speed",
    scratch_limit: int = 0,
) -> Choice:
    host = get("host")
    target = Priced(
        host.name, host.description, features=host.features, table=tuple(prices.items())
    )
    node = next(n for n in load(MODEL).graph.nodes if isinstance(n.op, Conv2D))
    group = (Backend("one", tuple(kernels)), backend("c"))
    limited = optimize == "ram"
    request = Request(target, optimize, scratch_limit=scratch_limit, limited=limited)
    return Partitioner((group,), request).choose(node)


class Sized(Borrowed):
    """A kernel for convolutions that takes a given number of additional bytes of scratch."""

    def __init__(self, form: str, runs: int, scratch: int) -> None:
        super().__init__(Conv2D, runs=runs)
        self._form, self._scratch = form, scratch

    def offer(self, node: Node, request: Request) -> KernelCall | Refusal:
        call = super().offer(node, request)
        assert isinstance(call, KernelCall)
        spare = Scratch("spare", DType.INT8, self._scratch)
        return replace(call, form=self._form, operands=(*call.operands, spare))


def test_the_cheapest_candidate_is_taken() -> None:
    choice = best([Sized("slow", 1000, 0), Sized("fast", 500, 900)], {"slow": 2.0, "fast": 2.0})
    assert (choice.taken.call.form, choice.taken.cycles) == ("fast", 1000)
    assert [(c.call.form, c.cycles) for c in choice.lost] == [
        ("slow", 2000),
        ("c_convolution_blocks", None),
    ]


def test_ram_takes_the_fastest_within_the_limit_or_the_least_scratch() -> None:
    kernels = [Sized("lean", 110, 0), Sized("fast", 100, 900), Sized("bare", 900, 0)]
    prices: dict[str, float] = {"lean": 1.0, "fast": 1.0, "bare": 1.0}
    assert best(kernels, prices, "ram").taken.call.form == "lean"
    assert best(kernels, prices, "speed").taken.call.form == "fast"
    assert best(kernels, prices, "ram", 2000).taken.call.form == "fast"
    assert best(kernels, prices, "ram", 899).taken.call.form == "lean"
    prices["lean"] = 9.0
    assert best(kernels, prices, "ram").taken.call.form == "bare"


def test_a_kernel_without_a_price_comes_last() -> None:
    choice = best([Sized("unknown", 1, 0), Sized("slow", 10**6, 0)], {"slow": 2.0})
    assert choice.taken.call.form == "slow"
    assert best([Sized("unknown", 1, 0)], {}).taken.call.form == "unknown"


def test_kernels_of_plugins_come_first() -> None:
    node = next(n for n in load(MODEL).graph.nodes if isinstance(n.op, Conv2D))
    host = get("host")
    target = Priced(host.name, host.description, features=host.features, table=(("fast", 1.0),))
    group = (
        Backend("one", (Sized("fast", 1, 0),)),
        replace(backend("c"), plugins=(Sized("own", 10**9, 0),)),
    )
    assert Partitioner((group,), Request(target)).choose(node).taken.call.form == "own"


@pytest.mark.parametrize(
    ("optimize", "unwanted"),
    [("speed", [False, False, True, True]), ("size", [False, True, True, True])],
)
def test_large_constants_must_be_worth_their_flash(
    optimize: Optimize, unwanted: Sequence[bool]
) -> None:
    """They are from a backend's only kernel that is twice as fast as other backends' kernels."""
    call = compile_model(MODEL, Options("host")).schedule.calls[0].call
    candidates = [
        Candidate("c", call, 1000),
        Candidate("dsp", call, 500, unwanted=True),
        Candidate("helium", call, 501, unwanted=True),
        Candidate("c", call, 100, unwanted=True),
    ]
    found = with_expansions(candidates, optimize)
    assert [c.unwanted for c in found] == unwanted
