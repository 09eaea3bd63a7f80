"""The C project: it compiles everywhere, keeps its promises, and appears whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from smelt.boards import compile_project, open_device
from smelt.errors import ConfigError, SmeltError
from smelt.frontend import load
from smelt.ir import (
    Array,
    DType,
    Graph,
    Node,
    Origin,
    Quant,
    Rounding,
    State,
    TensorType,
    Value,
    evaluate,
    verify,
)
from smelt.ops.binary import Binary
from smelt.ops.concat import Concat
from smelt.ops.reshape import Reshape
from smelt.ops.unary import Unary
from smelt.pipeline import Artefact, Options, compile_model
from smelt.run import run, write_project
from smelt.samples import Sample, random_samples
from tests.graphs import Member, assert_same, combine, compile_graph
from tests.shared import ROOT, Network, networks
from tests.test_golden_reference import INTEGER
from tests.tflite_networks import DIGITS

COMPILERS = {
    "gcc": ("gcc", "-std=c99"),
    "clang": ("clang", "-std=c99"),
    "g++": ("g++", "-x", "c++", "-std=c++17"),
    "clang++": ("clang++", "-x", "c++", "-std=c++17"),
}
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion")
SANITIZERS = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all"
MODELS = ("digits_int8", "digits_float32")
SCALAR = TensorType((4,), DType.FLOAT32)
HARNESS = """
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#define CHECK(condition) if (!(condition)) { printf("line %d: %s\\n", __LINE__, #condition); return 1; }
#define ALIGNED __attribute__((aligned(64)))
"""


def digits(options: Options | None = None, model: str = "digits_int8") -> Artefact:
    return compile_model(DIGITS / f"{model}.tflite", options)


def images(count: int) -> tuple[Array, Array]:
    """Inputs and right outputs of `digits_int8`."""
    with np.load(DIGITS / "digits_test.npz") as data:
        return data["input_0"][:count], data["tflite_reference_0"][:count]


def c_array(name: str, array: Array) -> str:
    kind = {"f4": "float", "i1": "int8_t"}[array.dtype.str[1:]]
    text = ", ".join(map(repr, array.reshape(-1).tolist()))
    return f"static const {kind} {name}[{array.size}] = {{{text}}};\n"


def run_c(
    folder: Path, source: str, projects: Sequence[Path], flags: Sequence[str] = ()
) -> None:
    """Compile a program with the networks of some projects; it prints what is wrong, if anything."""
    program = folder / "program.c"
    program.write_text(HARNESS + dedent(source))
    networks_ = [str(path) for project in projects for path in network_sources(project)]
    includes = [f"-I{project}" for project in projects]
    sanitizers = SANITIZERS.split()
    command = ["gcc", "-std=c99", *sanitizers, *flags, *includes, str(program), *networks_]
    done = subprocess.run(
        [*command, "-lm", "-o", str(folder / "program")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    done = subprocess.run([folder / "program"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def network_sources(project: Path) -> list[Path]:
    """The C files of the network alone."""
    return sorted(path for path in project.glob("*.c") if path.name != "main.c")


def unary_chain() -> Graph:
    """Two steps that can both work in place, so that an inference overwrites its input."""
    x, h, y = (Value(name, SCALAR) for name in "xhy")
    nodes = (
        Node(Unary("square"), (x,), (h,), Origin("SQUARE", 0)),
        Node(Unary("neg"), (h,), (y,), Origin("NEG", 1)),
    )
    return verify(Graph("chain", (x,), (y,), nodes), "test")


def counter() -> Graph:
    """Adds its input to a state, which starts as 1, 2, 3, 4, and returns twice the state."""
    x, total, after, y = (Value(name, SCALAR) for name in ("x", "total", "after", "y"))
    nodes = (
        Node(Binary("add"), (total, x), (after,), Origin("ADD", 0)),
        Node(Binary("add"), (after, after), (y,), Origin("ADD", 1)),
    )
    state = State(total, after, np.arange(1, 5, dtype=np.float32))
    return verify(Graph("counter", (x,), (y,), nodes, (state,)), "test")


def delay_line(length: int, *, forwards: bool) -> Graph:
    """int8: the sum of this input and the one `length` inferences ago.

    The states only hand values on to each other; `forwards` says in which order they stand.
    """
    type_ = TensorType((1, 2), DType.INT8, Quant.per_tensor(0.5, 3))
    x, y = Value("x", type_), Value("y", TensorType((1, 2), DType.INT8, Quant.per_tensor(1.0, 0)))
    line = [*(Value(f"d{i}", type_) for i in range(length)), x]
    states = [State(line[i], line[i + 1], np.full((1, 2), 3 + i, np.int8)) for i in range(length)]
    add = Node(Binary("add"), (line[0], x), (y,), Origin("ADD", 0), Rounding.TFLM)
    ordered = states if forwards else states[::-1]
    return verify(Graph("delay", (x,), (y,), (add,), tuple(ordered)), "test")


def swap() -> Graph:
    """Two states that change places; the outputs are what they were, one of them reshaped."""
    a, b, x = (Value(name, SCALAR) for name in "abx")
    flat = Value("flat", SCALAR.with_shape((2, 2)))
    reshape = Node(Reshape((2, 2)), (a,), (flat,), Origin("RESHAPE", 0))
    states = (State(a, b, np.zeros(4, np.float32)), State(b, a, np.ones(4, np.float32)))
    return verify(Graph("swap", (x,), (flat, b), (reshape,), states), "test")


def outputs_in_a_row(graph: Graph, samples: Sequence[Sample]) -> list[tuple[Array, ...]]:
    """The reference's outputs of inferences that hand on their states."""
    states: Sequence[Array] | None = None
    outputs: list[tuple[Array, ...]] = []
    for sample in samples:
        evaluation = evaluate(graph, sample, states)
        outputs.append(evaluation.outputs)
        states = evaluation.states
    return outputs


# --- compilers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("model", [*MODELS, "counter", "chain"])
def test_compiles_without_a_warning(model: str, compiler: str, tmp_path: Path) -> None:
    """The network as C and as C++, the firmware as C, with the step callback and without."""
    if shutil.which(COMPILERS[compiler][0]) is None:
        pytest.skip(f"no {compiler}")
    hand_made = {"counter": counter, "chain": unary_chain}
    graph = hand_made.get(model)
    artefact = digits(model=model) if graph is None else compile_graph(graph())
    artefact.write(tmp_path / "project")
    files = network_sources(tmp_path / "project")
    if "++" not in compiler:
        files += [tmp_path / "project/main.c", *(tmp_path / "project/firmware").glob("*.c")]
    for defines in ([], ["-DSMELT_STEP_CALLBACK"]):
        for file in files:
            command = [*COMPILERS[compiler], *WARNINGS, *defines, "-c", str(file), "-o", "/dev/null"]
            command += ["-I", str(tmp_path / "project"), "-I", str(tmp_path / "project/firmware")]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        pytest.param(Options(target="cortex-m0"), marks=pytest.mark.qemu),
        pytest.param(Options(board="mps2-an386"), marks=pytest.mark.qemu),
    ],
    ids=["host", "library", "board"],
)
def test_cmake_builds_it(options: Options, tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    artefact = digits(options)
    artefact.write(tmp_path / "project")
    for command in (["-B", "build"], ["--build", "build", "-j2"]):
        done = subprocess.run(
            ["cmake", *command], cwd=tmp_path / "project", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "project/build/libdigits_int8.a").is_file()
    elf = tmp_path / "project/build/digits_int8.elf"
    assert elf.is_file() == (artefact.platform.firmware is not None)
    if elf.is_file():
        inputs, expected = images(1)
        hash_ = artefact.network.hash
        with open_device(elf, artefact.on, artefact.board, expected_hash=hash_) as device:
            (answer,), _ = device.run([inputs[0].tobytes()])
        assert answer == expected[0].tobytes()


@pytest.mark.qemu
def test_make_builds_a_library_without_a_board(tmp_path: Path) -> None:
    digits(Options(target="cortex-m4")).write(tmp_path / "project")
    subprocess.run(["make"], cwd=tmp_path / "project", capture_output=True, check=True)
    archive = tmp_path / "project/build/libdigits_int8.a"
    command = ["arm-none-eabi-readelf", "-A", str(archive)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Tag_CPU_arch: v7E-M" in listing


@pytest.mark.parametrize("model", [*MODELS, "counter"])
def test_network_has_no_heap_and_no_writable_data(model: str, tmp_path: Path) -> None:
    artefact = compile_graph(counter()) if model == "counter" else digits(model=model)
    artefact.write(tmp_path / "project")
    compile_project(tmp_path / "project", artefact.platform, taps=True)
    symbols: dict[str, set[str]] = {}
    for source in artefact.network.sources:
        command = ["nm", "-P", str(tmp_path / "project/build" / Path(source).with_suffix(".o"))]
        for line in subprocess.check_output(command, text=True).splitlines():
            name, kind = line.split()[:2]
            symbols.setdefault(kind, set()).add(name)
    prefix = artefact.network.name
    assert f"{prefix}_invoke" in symbols["T"]
    assert not symbols.keys() & set("bBdDcCsSgG")
    undefined = {name for name in symbols["U"] if not name.startswith(f"{prefix}_")}
    assert undefined <= {"memcpy", "memmove", "memset", "exp", "expf", "_GLOBAL_OFFSET_TABLE_"}


def test_every_file_opens_with_its_licence(tmp_path: Path) -> None:
    digits(Options(board="mps2-an386")).write(tmp_path / "project")
    files = [path for path in (tmp_path / "project").rglob("*.[ch]")]
    assert len(files) > 10
    for path in files:
        first = path.read_text().splitlines()[0]
        assert first.startswith("/* SPDX-License-Identifier: MIT-0 - generated by Smelt"), path


# --- the same bytes ------------------------------------------------------------------------------


def test_same_model_and_options_give_the_same_bytes(tmp_path: Path) -> None:
    trees: list[dict[str, bytes]] = []
    for index, seed in enumerate(("1", "77")):
        folder = tmp_path / f"somewhere{index}"
        shutil.copytree(DIGITS, folder / "models", ignore=shutil.ignore_patterns("*.py"))
        model = folder / "models/digits_int8.tflite"
        command = [sys.executable, "-m", "smelt.cli", "build", str(model), "-o", str(folder / "out")]
        command += ["--board", "mps2-an386", "--quiet"]
        environment = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
        trees.append(tree(folder / "out"))
    assert trees[0] == trees[1]
    assert not [name for name, data in trees[0].items() if bytes(tmp_path) in data]


def tree(folder: Path) -> dict[str, bytes]:
    """Every file's contents by its path."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "other",
    [
        Options(optimize="size"),
        Options(keep_inputs=True),
        Options(target="cortex-m4"),
        Options(board="mps2-an386"),
    ],
    ids=["optimize", "keep_inputs", "target", "board"],
)
def test_hash_tells_builds_apart(other: Options) -> None:
    assert digits().network.hash == digits().network.hash
    assert digits().network.hash != digits(other).network.hash


def test_hash_tells_weights_apart() -> None:
    hashes = {compile_graph(graph).network.hash for graph in (scaled(0.5), scaled(0.25))}
    assert len(hashes) == 2


def scaled(factor: float) -> Graph:
    x, y = Value("x", SCALAR), Value("y", SCALAR)
    k = Value.constant("k", np.full(4, factor, np.float32))
    return Graph("scaled", (x,), (y,), (Node(Binary("mul"), (x, k), (y,), Origin("MUL", 0)),))


# --- the C interface -----------------------------------------------------------------------------


def test_two_networks_in_one_program(tmp_path: Path) -> None:
    """And two contexts of the first, their inferences interleaved."""
    projects = [tmp_path / model for model in MODELS]
    for model, project in zip(MODELS, projects, strict=True):
        digits(model=model).write(project)
    (first, second), (right_first, right_second) = images(2)
    with np.load(DIGITS / "digits_test.npz") as data:
        picture, right_float = data["images"][0], data["float_0"][0]
    program = "".join(
        [
            '#include "digits_int8.h"\n#include "digits_float32.h"\n#include <math.h>\n',
            *map(c_array, ("first", "second"), (first, second)),
            *map(c_array, ("right_first", "right_second"), (right_first, right_second)),
            *map(c_array, ("picture", "right_float"), (picture, right_float)),
            TWO_NETWORKS,
        ]
    )
    run_c(tmp_path, program, projects)


TWO_NETWORKS = """
static uint8_t ALIGNED a[DIGITS_INT8_ARENA_BYTES], ALIGNED b[DIGITS_INT8_ARENA_BYTES];
static uint8_t ALIGNED c[DIGITS_FLOAT32_ARENA_BYTES];

int main(void) {
    digits_int8_t one, two;
    digits_float32_t three;
    const digits_int8_memory_t memory_one = {a}, memory_two = {b};
    const digits_float32_memory_t memory_three = {c};
    CHECK(digits_int8_init(&one, &memory_one) == DIGITS_INT8_OK);
    CHECK(digits_int8_init(&two, &memory_two) == DIGITS_INT8_OK);
    CHECK(digits_float32_init(&three, &memory_three) == DIGITS_FLOAT32_OK);
    for (int round = 0; round < 2; ++round) {
        memcpy(digits_int8_input(&one, 0), first, sizeof first);
        memcpy(digits_int8_input(&two, 0), second, sizeof second);
        memcpy(digits_float32_input(&three, 0), picture, sizeof picture);
        CHECK(digits_int8_invoke(&one) == DIGITS_INT8_OK);
        CHECK(digits_float32_invoke(&three) == DIGITS_FLOAT32_OK);
        CHECK(digits_int8_invoke(&two) == DIGITS_INT8_OK);
        CHECK(memcmp(digits_int8_output(&one, 0), right_first, sizeof right_first) == 0);
        CHECK(memcmp(digits_int8_output(&two, 0), right_second, sizeof right_second) == 0);
        const float *found = (const float *)digits_float32_output(&three, 0);
        for (int i = 0; i < DIGITS_FLOAT32_OUTPUT_0_COUNT; ++i) {
            CHECK(fabsf(found[i] - right_float[i]) <= 1e-5f);
        }
    }
    return 0;
}
"""


def test_wrong_use_is_refused(tmp_path: Path) -> None:
    compile_graph(counter()).write(tmp_path / "counter")
    run_c(tmp_path, WRONG_USE, [tmp_path / "counter"])


WRONG_USE = """
#include "counter.h"
static uint8_t ALIGNED arena[COUNTER_ARENA_BYTES + 1], ALIGNED state[COUNTER_STATE_BYTES + 1];

int main(void) {
    counter_t net;
    const counter_memory_t good = {arena, state}, no_arena = {0, state}, no_state = {arena, 0};
    const counter_memory_t odd_arena = {arena + 1, state}, odd_state = {arena, state + 1};
    CHECK(COUNTER_API_VERSION == 1);
    CHECK(strlen(COUNTER_HASH) == 16);
    CHECK(counter_init(0, &good) == COUNTER_ERROR_NULL);
    CHECK(counter_init(&net, 0) == COUNTER_ERROR_NULL);
    CHECK(counter_invoke(0) == COUNTER_ERROR_NULL);
    CHECK(counter_input(0, 0) == 0);
    CHECK(counter_output(0, 0) == 0);
    const counter_memory_t *const bad[] = {&no_arena, &no_state, &odd_arena, &odd_state};
    for (int i = 0; i < 4; ++i) {
        CHECK(counter_init(&net, &good) == COUNTER_OK);
        CHECK(counter_init(&net, bad[i]) == (i < 2 ? COUNTER_ERROR_NULL : COUNTER_ERROR_MISALIGNED));
        CHECK(counter_invoke(&net) == COUNTER_ERROR_NULL);
        CHECK(counter_input(&net, 0) == 0);
        CHECK(counter_output(&net, 0) == 0);
    }
    CHECK(counter_init(&net, &good) == COUNTER_OK);
    CHECK(counter_input(&net, 0) != 0);
    CHECK(counter_output(&net, 0) != 0);
    for (int index = -1; index < 3; ++index) {
        CHECK((counter_input(&net, index) != 0) == (index == 0));
        CHECK((counter_output(&net, index) != 0) == (index == 0));
    }
    return 0;
}
"""


def test_step_callback(tmp_path: Path) -> None:
    """It sees every step's output, and can abort; without the macro it does not exist."""
    compile_graph(unary_chain()).write(tmp_path / "chain")
    run_c(tmp_path, STEP_CALLBACK, [tmp_path / "chain"], ["-DSMELT_STEP_CALLBACK"])
    header = (tmp_path / "chain/chain.h").read_text()
    plain = subprocess.check_output(["gcc", "-E", "-P", "-"], input=header, text=True)
    assert "callback" not in plain


STEP_CALLBACK = """
#include "chain.h"
static uint8_t ALIGNED arena[CHAIN_ARENA_BYTES];
static int seen, last;
static float values[2];

static int watch(void *user, int step, const void *output, uint32_t bytes) {
    seen += 1;
    last = step;
    values[step] = ((const float *)output)[3];
    return bytes != 16 || step == *(int *)user;
}

int main(void) {
    static const float x[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    int stop = -1;
    chain_t net;
    const chain_memory_t memory = {arena};
    CHECK(chain_init(&net, &memory) == CHAIN_OK);
    memcpy(chain_input(&net, 0), x, sizeof x);
    CHECK(chain_invoke(&net) == CHAIN_OK && seen == 0);
    chain_set_step_callback(&net, watch, &stop);
    memcpy(chain_input(&net, 0), x, sizeof x);
    CHECK(chain_invoke(&net) == CHAIN_OK);
    CHECK(seen == 2 && last == 1 && CHAIN_STEP_COUNT == 2);
    CHECK(values[0] == 16.0f && values[1] == -16.0f);
    stop = 0;
    memcpy(chain_input(&net, 0), x, sizeof x);
    CHECK(chain_invoke(&net) == CHAIN_ERROR_ABORTED);
    CHECK(seen == 3 && last == 0);
    chain_set_step_callback(&net, 0, 0);
    memcpy(chain_input(&net, 0), x, sizeof x);
    CHECK(chain_invoke(&net) == CHAIN_OK && seen == 3);
    return 0;
}
"""


@pytest.mark.parametrize("keep", [True, False])
def test_inputs_survive_if_asked(keep: bool, tmp_path: Path) -> None:
    """Without `keep_inputs` this network does overwrite its input: both steps work in place."""
    artefact = compile_graph(unary_chain(), Options(keep_inputs=keep))
    artefact.write(tmp_path / "chain")
    assert artefact.network.arena_bytes == (32 if keep else 16)
    run_c(tmp_path, f"#define KEEP {int(keep)}\n{SURVIVAL}", [tmp_path / "chain"])


SURVIVAL = """
#include "chain.h"
static uint8_t ALIGNED arena[CHAIN_ARENA_BYTES];

int main(void) {
    static const float x[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    chain_t net;
    const chain_memory_t memory = {arena};
    CHECK(chain_init(&net, &memory) == CHAIN_OK);
    memcpy(chain_input(&net, 0), x, sizeof x);
    CHECK(chain_invoke(&net) == CHAIN_OK);
    CHECK(((const float *)chain_output(&net, 0))[3] == -16.0f);
    CHECK((memcmp(chain_input(&net, 0), x, sizeof x) == 0) == KEEP);
    return 0;
}
"""


def test_kept_inputs_give_the_same_again(tmp_path: Path) -> None:
    artefact = digits(Options(keep_inputs=True))
    artefact.write(tmp_path / "project")
    elf = compile_project(tmp_path / "project", artefact.platform)
    inputs, expected = images(1)
    with open_device(elf.path, "host") as device:
        device.load(0, inputs[0].tobytes())
        for _ in range(2):
            device.invoke()
            assert device.output(0) == expected[0].tobytes()


# --- state ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "graph",
    [
        counter(),
        delay_line(3, forwards=True),
        delay_line(3, forwards=False),
        swap(),
        combine("several", [counter(), delay_line(2, forwards=False), swap()]),
    ],
    ids=["counter", "delay", "delay_backwards", "swap", "several"],
)
def test_state_goes_from_one_inference_to_the_next(graph: Graph) -> None:
    samples = random_samples(graph, 6, seed=1)
    artefact = compile_graph(graph)
    assert artefact.report["state"] == {"bytes": artefact.network.state_bytes}
    assert artefact.network.state_bytes >= sum(state.initial.nbytes for state in graph.states)
    outputs = run(artefact, samples).outputs
    assert_same(list(outputs), outputs_in_a_row(graph, samples), graph.name)


def test_init_resets_state(tmp_path: Path) -> None:
    artefact = compile_graph(counter())
    artefact.write(tmp_path / "project")
    elf = compile_project(tmp_path / "project", artefact.platform)
    x = np.full(4, 10, np.float32).tobytes()
    answers: list[list[float]] = []
    with open_device(elf.path, "host") as device:
        for reset in (False, False, True):
            if reset:
                device.reset()
            (data,), _ = device.run([x])
            answers.append(np.frombuffer(data, np.float32).tolist())
    assert answers == [[22, 24, 26, 28], [42, 44, 46, 48], [22, 24, 26, 28]]


# --- sanitizers ----------------------------------------------------------------------------------


def run_sanitized(artefact: Artefact, samples: Sequence[Sample], folder: Path) -> list[tuple[Array, ...]]:
    """Outputs of a host build under AddressSanitizer and UndefinedBehaviorSanitizer."""
    artefact.write(folder)
    elf = compile_project(
        folder, artefact.platform, extra_cflags=SANITIZERS, extra_ldflags=SANITIZERS
    )
    outputs: list[tuple[Array, ...]] = []
    with open_device(elf.path, "host") as device:
        for sample in samples:
            answers, _ = device.run([array.tobytes() for array in sample])
            values = artefact.graph.outputs
            outputs.append(
                tuple(
                    np.frombuffer(data, v.type.dtype.numpy).reshape(v.type.shape)
                    for data, v in zip(answers, values, strict=True)
                )
            )
    return outputs


@networks("mlperf_tiny/*", "tflm/*")
def test_networks_are_clean_under_sanitizers(network: Network, tmp_path: Path) -> None:
    artefact = compile_model(network.model)
    golden = network.golden
    kinds = [str(kind) for kind in golden["kind"]]
    chosen = [kinds.index("random"), kinds.index("extreme")]
    samples = [(golden["input_0"][i],) for i in chosen]
    outputs = run_sanitized(artefact, samples, tmp_path / "project")
    assert_same(outputs, [evaluate(artefact.graph, s).outputs for s in samples], str(network))


def test_operators_are_clean_under_sanitizers(tmp_path: Path) -> None:
    tested = [Network(*name.split("/")) for name in INTEGER if name.startswith("ops/")]
    graphs = [load(network.model).graph for network in tested]
    artefact = compile_graph(combine("all", graphs))
    samples = random_samples(artefact.graph, 2, seed=5)
    outputs = run_sanitized(artefact, samples, tmp_path / "project")
    assert_same(outputs, [evaluate(artefact.graph, s).outputs for s in samples], "ops")


@pytest.mark.parametrize("model", ["digits_int8", "digits_float32", "digits_f16", "digits_drq"])
def test_digits_are_clean_under_sanitizers(model: str, tmp_path: Path) -> None:
    artefact = digits(model=model)
    samples = random_samples(artefact.graph, 3, seed=5)
    outputs = run_sanitized(artefact, samples, tmp_path / "project")
    assert_same(outputs, [evaluate(artefact.graph, s).outputs for s in samples], model)


# --- writing -------------------------------------------------------------------------------------


def test_nothing_is_written_when_the_compiler_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.raises(SmeltError, match="make in .* failed"):
        write_project(digits(), tmp_path / "out", compile_=True)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_lost_when_a_replacement_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(digits(), tmp_path / "out")
    before = tree(tmp_path / "out")
    monkeypatch.setenv("CC", "false")
    with pytest.raises(SmeltError):
        write_project(
            digits(Options(optimize="size")), tmp_path / "out", force=True, compile_=True
        )
    assert tree(tmp_path / "out") == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_force_replaces_only_what_smelt_wrote(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    write_project(digits(), out)  # an empty folder will do
    (out / "stale.c").write_text("int stale;")
    with pytest.raises(ConfigError, match="not empty; --force"):
        write_project(digits(), out)
    assert (out / "stale.c").exists()
    write_project(digits(), out, force=True)
    assert not (out / "stale.c").exists()
    assert (out / "digits_int8.c").exists()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="was not written by Smelt"):
        write_project(digits(), precious, force=True)
    assert [path.name for path in precious.iterdir()] == ["thesis.tex"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "precious"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    for force in (False, True):
        with pytest.raises(ConfigError, match="not a folder"):
            write_project(digits(), tmp_path / "out", force=force)
    assert (tmp_path / "out").read_text() == "mine"
    with pytest.raises(ConfigError, match="cannot write"):
        write_project(digits(), tmp_path / "out" / "below")


def test_folder_is_as_readable_as_any(tmp_path: Path) -> None:
    """It is not left with the rights of a temporary folder, which only its owner may enter."""
    (tmp_path / "plain").mkdir()
    write_project(digits(), tmp_path / "deep" / "out")
    assert (tmp_path / "deep/out").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("name", ["main", "wire", "string", "1st", "a-b", ""])
def test_names_that_cannot_be_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="--name"):
        digits(Options(name=name))


def test_name_is_in_front_of_everything(tmp_path: Path) -> None:
    artefact = digits(Options(name="kitchen_Scale2"))
    artefact.write(tmp_path / "project")
    compile_project(tmp_path / "project", artefact.platform)
    assert (tmp_path / "project/build/kitchen_Scale2.elf").is_file()
    assert "KITCHEN_SCALE2_ARENA_BYTES" in (tmp_path / "project/kitchen_Scale2.h").read_text()
    library = tmp_path / "project/build/libkitchen_Scale2.a"
    subprocess.run(["make", "library"], cwd=library.parent.parent, check=True, capture_output=True)
    listing = subprocess.check_output(["nm", "-P", "--defined-only", str(library)], text=True)
    names = [line.split()[0] for line in listing.splitlines() if " T " in line or " R " in line]
    assert names
    assert all(name.startswith("kitchen_Scale2_") for name in names)


# --- report.json ---------------------------------------------------------------------------------


def test_report_before_compiling(tmp_path: Path) -> None:
    artefact = digits(Options(board="mps2-an386", optimize="size"))
    write_project(artefact, tmp_path / "out")
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report == json.loads(json.dumps(artefact.report))
    assert (report["target"], report["board"], report["optimize"]) == (
        "cortex-m4",
        "mps2-an386",
        "size",
    )
    network = report["network"]
    assert (network["name"], network["hash"]) == ("digits_int8", artefact.network.hash)
    assert network["macs"] == 102_912
    assert network["inputs"][0]["shape"] == [1, 8, 8, 1]
    assert network["inputs"][0]["dtype"] == "int8"
    assert report["flash"] == {"network": None, "elf": None}
    assert report["inference"] == {"instructions": None, "stack": None}
    check_arena(report["arena"], artefact)
    check_layers(report["layers"])


def check_arena(described: Mapping[str, object], artefact: Artefact) -> None:
    bytes_, bound = described["bytes"], described["lower_bound"]
    assert isinstance(bytes_, int)
    assert isinstance(bound, int)
    assert 0 < bound <= bytes_ == artefact.network.arena_bytes
    assert described["optimal"] is True
    placed = described["map"]
    assert isinstance(placed, list)
    assert max(p["offset"] + p["size"] for p in placed) <= bytes_


def check_layers(layers: Sequence[Mapping[str, object]]) -> None:
    kinds = ["Conv2D", "DepthwiseConv2D", "Conv2D", "Conv2D", "Conv2D", "Binary(add)"]
    kinds += ["Pool2D(average)", "FullyConnected", "Softmax"]
    assert [layer["op"] for layer in layers] == kinds
    assert sum(int(str(layer["macs"])) for layer in layers) == 102_912
    for step, layer in enumerate(layers):
        assert layer["step"] == step
        assert layer["backend"] == "c"
        assert str(layer["kernel"]).startswith("digits_int8_")
        assert "#" in str(layer["origin"])
        assert layer["name"]
        assert isinstance(layer["why"], str)


@pytest.mark.qemu
def test_report_after_compiling(tmp_path: Path) -> None:
    """The network's flash is at least its weights, and less than the whole firmware."""
    artefact = digits(Options(board="mps2-an386"))
    write_project(artefact, tmp_path / "out", compile_=True)
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert (tmp_path / "out/build/digits_int8.elf").is_file()
    flash = report["flash"]
    assert report["weights"]["bytes"] < flash["network"] < flash["elf"] < 100_000
    assert report["inference"] == {"instructions": None, "stack": None}


@pytest.mark.qemu
def test_report_after_a_run() -> None:
    artefact = digits(Options(board="mps2-an386"))
    inputs, _ = images(1)
    inference = run(artefact, [(inputs[0],)]).report["inference"]
    # Every multiply-accumulate takes an instruction at least, on a core without SIMD kernels.
    assert 102_912 < inference["instructions"] < 50 * 102_912
    assert 0 < inference["stack"] < 4096


def test_concat_of_one_value_twice(tmp_path: Path) -> None:
    """An operand that occurs twice is one argument twice."""
    x, y = Value("x", SCALAR), Value("y", TensorType((8,), DType.FLOAT32))
    graph = Graph("twice", (x,), (y,), (Node(Concat(0), (x, x), (y,), Origin("CONCAT", 0)),))
    member = Member(graph, random_samples(graph, 1, 0))
    outputs = run_sanitized(compile_graph(graph), member.samples, tmp_path / "project")
    assert_same(outputs, [evaluate(graph, s).outputs for s in member.samples], "twice")
