"""Layout and style of generated C: defects that a reviewer would reject."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache

import pytest
from _pytest.mark import ParameterSet

from smelt import boards
from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.api.shared_arena import share_arena
from smelt.codegen.emit.export import formats
from smelt.codegen.emit.firmware import Firmware, MlperfProtocol
from smelt.codegen.emit.group import NetworkGroup
from smelt.codegen.emit.project import render_around
from smelt.frontend import Imported
from smelt.ir import DType
from smelt.targets import HOST, Optimize, Platform
from tests.backends.test_cases import build, pairs
from tests.support.banded_networks import RandomNetwork
from tests.support.c_style import (
    COLUMNS,
    bare_macros,
    equal_functions,
    layout_changes,
    neutral_terms,
    single_iterations,
    without_comments,
)
from tests.support.export_tools import project
from tests.support.graphs import compile_graph
from tests.support.projects import counter, digits, unary_chain
from tests.support.shared import shared

_RENAMED = re.compile(r"const int32_t \w+ = [ijk];")
_ZERO = re.compile(r"\[\w+, #0\]|(?:lsl|lsr|asr) #0\b|(?:lsls?|lsrs?|asrs?) \w+, \w+, #0\b")
_ASSIGNMENT = re.compile(r"\b(?:if|while) \(.*[^=!<>]=(?!=).*")
"""An assignment in the first line of a condition."""
_PROTOTYPE = re.compile(
    r"^\w[^;{}]*?(\w+)\([^;{}]*\);\n+\w[^;{}()]*?\b\1\([^;{}]*\) \{", re.MULTILINE
)

Files = Mapping[str, str]


@cache
def _digits() -> Artifact:
    return digits()


@cache
def _counter() -> Artifact:
    return compile_graph(counter())


def _around(artifact: Artifact, platform: Platform, mlperf: MlperfProtocol | None = None) -> Files:
    """Return the files around a network, with firmware for a platform."""
    return render_around(NetworkGroup((artifact.network,)), Firmware(platform, mlperf), "speed")


def _without_kernels(artifact: Artifact) -> Files:
    """Return the files of a project except that of the kernels, which depends on the target."""
    return {n: text for n, text in artifact.project.files.items() if not n.endswith("_kernels.c")}


def _without_network(files: Files) -> Files:
    """Return the files of an export that are not the network's own."""
    return {name: text for name, text in files.items() if "_net" not in name}


def _operators(target: str) -> Files:
    """Return the kernels of the first int8 case of each operator as one file."""
    cases = {type(case.op): case for case, dtype in reversed(pairs()) if dtype is DType.INT8}
    graphs = (build(case, DType.INT8) for case in cases.values())
    options = Options(target, name="net")
    files = [compile_graph(graph, options).project.files for graph in graphs]
    return {"kernels.c": "".join(named.get("net_net_kernels.c", "") for named in files)}


SHARED: tuple[tuple[str, str, Optimize], ...] = (
    ("mlperf_tiny/sww_int8", "cortex-m4", "speed"),
    ("mlperf_tiny/sww_int8", "cortex-m4", "size"),
    ("mlperf_tiny/sww_int8", "cortex-m55", "size"),
    ("mlperf_tiny/ad_int8", "cortex-m3", "speed"),
    ("mlperf_tiny/ic_int8", "cortex-m3", "size"),
    ("mlperf_tiny/ic_int8", "cortex-m3", "ram"),
    ("mlperf_tiny/ic_int8", "cortex-m55", "ram"),
    ("mlperf_tiny/kws_int8", "cortex-m0", "speed"),
    ("mlperf_tiny/vww_int8", "cortex-m3", "speed"),
    ("mlperf_tiny/vww_int8", "cortex-m4", "speed"),
    ("mlperf_tiny/vww_int8", "cortex-m55", "speed"),
    ("mlperf_tiny/vww_int8", "host", "speed"),
    ("tflm/hello_world_int8", "cortex-m4", "speed"),
    ("tflm/hello_world_int8", "cortex-m0", "size"),
)
"""Models beside the repository, targets and goals."""

NETWORKS: dict[str, Callable[[], Files]] = {
    **{
        target: lambda target=target: digits(Options(target=target)).project.files
        for target in ("host", "cortex-m0", "cortex-m3", "cortex-m4", "cortex-m23", "cortex-m55")
    },
    **{
        f"{target} for size": lambda target=target: (
            digits(Options(target=target, optimize="size")).project.files
        )
        for target in ("host", "cortex-m0", "cortex-m3")
    },
    **{
        f"{target} with a streamed input": lambda target=target: (
            digits(Options(target=target, stream_input=True)).project.files
        )
        for target in ("host", "cortex-m4")
    },
    "float32": lambda: digits(model="digits_float32").project.files,
    "size in plain C": lambda: (
        digits(Options("cortex-m3", optimize="size", backends=("c",))).project.files
    ),
    "few rows at a time": lambda: (
        compile_graph(RandomNetwork(0).chain(4), Options("cortex-m4", optimize="ram")).project.files
    ),
    "a single file": lambda: project(digits(), "single-file").files,
    "cmsis_nn": lambda: (
        digits(Options("cortex-m4", backends=("cmsis_nn", "dsp", "c"))).project.files
    ),
    **{
        f"operators on {target}": lambda target=target: _operators(target)
        for target in ("cortex-m0", "cortex-m3", "cortex-m4", "cortex-m55")
    },
    **{
        f"{model} on {target} for {goal}": lambda model=model, target=target, goal=goal: (
            (
                compile_model(shared(f"models/{model}.tflite"), Options(target, optimize=goal))
            ).project.files
        )
        for model, target, goal in SHARED
    },
    "ultraface on cortex-m3": lambda: (
        compile_model(
            shared("models/face/ultraface_slim_320.onnx"), Options("cortex-m3")
        ).project.files
    ),
}
THOROUGH = frozenset(
    {
        *(f"operators on {target}" for target in ("cortex-m0", "cortex-m3", "cortex-m55")),
        "ultraface on cortex-m3",
        "mlperf_tiny/ic_int8 on cortex-m3 for ram",
        "mlperf_tiny/ic_int8 on cortex-m55 for ram",
        "mlperf_tiny/vww_int8 on cortex-m55 for speed",
        "mlperf_tiny/vww_int8 on host for speed",
        "mlperf_tiny/vww_int8 on cortex-m3 for speed",
        "mlperf_tiny/kws_int8 on cortex-m0 for speed",
        "mlperf_tiny/sww_int8 on cortex-m55 for size",
        "tflm/hello_world_int8 on cortex-m0 for size",
    }
)
"""Networks of the second tier."""

AROUND: dict[str, Callable[[], Files]] = {
    "firmware of several networks": lambda: (
        share_arena(
            [
                compile_model(Imported(make()), Options(board="host"))
                for make in (counter, unary_chain)
            ]
        )
        .networks[0]
        .project.files
    ),
    "several memories": lambda: _without_kernels(
        digits(
            Options(
                board="mps3-an547",
                place_tensor={"*Relu": "isram", "*stem_relu_1/Relu:weights": "sram"},
            )
        )
    ),
    "state in another memory": lambda: _without_kernels(
        compile_graph(counter(), Options(board="mps2-an500", place_tensor={"total": "psram"}))
    ),
    "firmware of host": lambda: _around(_digits(), HOST),
    "firmware of a network with state": lambda: _around(_counter(), HOST),
    **{
        f"firmware of {board}": lambda board=board: _around(
            _digits(), boards.load(board).platform()
        )
        for board in boards.available()
    },
    **{
        f"MLPerf's {protocol.sent} inputs": lambda protocol=protocol: _around(
            _digits(), HOST, protocol
        )
        for protocol in (
            MlperfProtocol("kws01", "raw", quantizes=False),
            MlperfProtocol("vww01", "unsigned", quantizes=False),
            MlperfProtocol("ad01", "float", quantizes=True),
        )
    },
    **{
        f"{format_}, {name}": lambda format_=format_, make=make: _without_network(
            project(make(), format_).files
        )
        for format_ in formats()
        for name, make in (("digits", _digits), ("state", _counter))
        if format_ != "single-file"
    },
}
"""All files around networks: firmware with each UART, timer and boot code, and exports."""

PROGRAMS = NETWORKS | AROUND


def _tiers(networks: Iterable[str]) -> list[ParameterSet]:
    """Return parameters of a test, those of `THOROUGH` in the second tier."""
    return [
        pytest.param(name, marks=pytest.mark.thorough if name in THOROUGH else ())
        for name in networks
    ]


@cache
def _sources(network: str) -> Files:
    files = PROGRAMS[network]()
    return {
        name: text for name, text in files.items() if name.endswith((".c", ".h", ".cpp", ".ino"))
    }


@pytest.mark.parametrize("network", _tiers(PROGRAMS))
def test_no_expression_has_a_term_without_effect(network: str) -> None:
    for name, text in _sources(network).items():
        found = neutral_terms(without_comments(text))
        assert not found, f"{name}: {found}"


@pytest.mark.parametrize("network", _tiers(name for name in NETWORKS if name != "float32"))
def test_loops_have_several_iterations(network: str) -> None:
    for name, text in _sources(network).items():
        found = single_iterations(without_comments(text))
        assert not found, f"{name}: {found}"


@pytest.mark.parametrize("network", _tiers(name for name in NETWORKS if "cortex-m55" not in name))
def test_no_variable_is_another_name_of_a_counter(network: str) -> None:
    for name, text in _sources(network).items():
        found = _RENAMED.findall(without_comments(text))
        assert not found, f"{name}: {found}"


@pytest.mark.parametrize("network", _tiers(n for n in NETWORKS if not n.startswith("operators")))
def test_no_functions_differ_only_in_their_names(network: str) -> None:
    for name, text in _sources(network).items():
        assert not equal_functions(without_comments(text)), name


def test_functions_that_call_equal_functions_are_equal() -> None:
    one = "static int {0}_one(int x) {{\n    return x;\n}}\n"
    both = one + "static int {0}(int x) {{\n    return {0}_one(x + {1});\n}}\n"
    code = both.format("a", 1) + both.format("b", 1) + both.format("c", 2)
    assert equal_functions(code) == {"b_one": "a_one", "b": "a", "c_one": "a_one"}


@pytest.mark.parametrize("network", _tiers(NETWORKS))
def test_assembly_has_no_offsets_or_shifts_of_zero(network: str) -> None:
    for name, text in _sources(network).items():
        found = _ZERO.findall(without_comments(text))
        assert not found, f"{name}: {found}"


def test_comments_say_what_the_fields_of_a_layer_are() -> None:
    text = _sources("cortex-m4")["digits_int8_net_kernels.h"]
    structs = re.findall(r"typedef struct \{\n(.*?)\} digits\w+_layer_t;", text, re.DOTALL)
    fields = [line for struct in structs for line in struct.splitlines()]
    assert len(structs) == 1
    assert [line for line in fields if not re.search(r"int32_t \w+; +/\* .* \*/$", line)] == []


@pytest.mark.parametrize("network", _tiers(PROGRAMS))
def test_conditions_assign_nothing(network: str) -> None:
    for name, text in _sources(network).items():
        found = _ASSIGNMENT.findall(without_comments(text))
        assert not found, f"{name}: {found}"


@pytest.mark.parametrize("network", _tiers(NETWORKS))
def test_no_sign_follows_an_operator(network: str) -> None:
    for name, text in _sources(network).items():
        assert not re.findall(r".*[+-] -\d.*", without_comments(text)), name


@pytest.mark.parametrize("network", _tiers(PROGRAMS))
def test_lines_fit_into_100_columns(network: str) -> None:
    for name, text in _sources(network).items():
        long = [line for line in text.splitlines() if len(line) > COLUMNS]
        assert not long, f"{name}: {long}"


@pytest.mark.parametrize("network", _tiers(PROGRAMS))
def test_empty_lines_are_alone(network: str) -> None:
    for name, text in _sources(network).items():
        assert "\n\n\n" not in text, name


@pytest.mark.parametrize("network", _tiers(NETWORKS))
def test_no_prototype_directly_precedes_its_definition(network: str) -> None:
    for name, text in _sources(network).items():
        found = [match[1] for match in _PROTOTYPE.finditer(without_comments(text))]
        assert not found, f"{name}: {found}"


@pytest.mark.parametrize("network", _tiers(PROGRAMS))
def test_values_of_macros_are_in_parentheses(network: str) -> None:
    for name, text in _sources(network).items():
        assert not bare_macros(without_comments(text)), name


@pytest.mark.parametrize("network", _tiers(PROGRAMS))
def test_clang_format_changes_nothing(network: str) -> None:
    for name, text in _sources(network).items():
        kernels = network in NETWORKS or name.endswith("_net.h")
        assert not layout_changes(name, text, kernels=kernels)
