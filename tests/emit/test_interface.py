"""The C interface of a network, called by C programs under sanitizers, and its state."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from smelt.api.options import Options
from smelt.boards import compile_project, open_device
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
from smelt.ops.core.binary import Binary
from smelt.ops.tensor.reshape import Reshape
from smelt.proof.run import run
from smelt.samples import Sample, random_samples
from tests.support.c_programs import c_array, run_c
from tests.support.graphs import SampleOutputs, assert_same, combine, compile_graph
from tests.support.projects import (
    DIGITS_MODELS,
    VECTOR,
    counter,
    digits,
    images,
    must,
    network_sources,
    unary_chain,
)
from tests.support.tflite_networks import DIGITS


def test_networks_and_contexts_are_independent(tmp_path: Path) -> None:
    """One program uses two networks, and two contexts of the first, with interleaved inferences."""
    projects = [tmp_path / model for model in DIGITS_MODELS]
    for model, project in zip(DIGITS_MODELS, projects, strict=True):
        digits(model=model).write(project)
    (first, second), (right_first, right_second) = images(2)
    with np.load(DIGITS / "digits_test.npz") as data:
        picture, right_float = data["images"][0], data["float_0"][0]
    program = "".join(
        [
            '#include "digits_int8_net.h"\n#include "digits_float32_net.h"\n#include <math.h>\n',
            *map(c_array, ("first", "second"), (first, second)),
            *map(c_array, ("right_first", "right_second"), (right_first, right_second)),
            *map(c_array, ("picture", "right_float"), (picture, right_float)),
            TWO_NETWORKS,
        ]
    )
    run_c(tmp_path, program, projects)


TWO_NETWORKS = """
static uint8_t ALIGNED a[DIGITS_INT8_NET_ARENA_BYTES], ALIGNED b[DIGITS_INT8_NET_ARENA_BYTES];
static uint8_t ALIGNED c[DIGITS_FLOAT32_NET_ARENA_BYTES];

int main(void) {
    digits_int8_net_t one, two;
    digits_float32_net_t three;
    const digits_int8_net_memory_t memory_one = {a}, memory_two = {b};
    const digits_float32_net_memory_t memory_three = {c};
    CHECK(digits_int8_net_init(&one, &memory_one) == DIGITS_INT8_NET_OK);
    CHECK(digits_int8_net_init(&two, &memory_two) == DIGITS_INT8_NET_OK);
    CHECK(digits_float32_net_init(&three, &memory_three) == DIGITS_FLOAT32_NET_OK);
    for (int round = 0; round < 2; ++round) {
        memcpy(digits_int8_net_input(&one, 0), first, sizeof first);
        memcpy(digits_int8_net_input(&two, 0), second, sizeof second);
        memcpy(digits_float32_net_input(&three, 0), picture, sizeof picture);
        CHECK(digits_int8_net_invoke(&one) == DIGITS_INT8_NET_OK);
        CHECK(digits_float32_net_invoke(&three) == DIGITS_FLOAT32_NET_OK);
        CHECK(digits_int8_net_invoke(&two) == DIGITS_INT8_NET_OK);
        CHECK(memcmp(digits_int8_net_output(&one, 0), right_first, sizeof right_first) == 0);
        CHECK(memcmp(digits_int8_net_output(&two, 0), right_second, sizeof right_second) == 0);
        const float *found = (const float *)digits_float32_net_output(&three, 0);
        for (int i = 0; i < DIGITS_FLOAT32_NET_OUTPUT_0_COUNT; ++i) {
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
#include "counter_net.h"
static uint8_t ALIGNED arena[COUNTER_NET_ARENA_BYTES + 1];
static uint8_t ALIGNED state[COUNTER_NET_STATE_BYTES + 1];

int main(void) {
    counter_net_t net;
    const counter_net_memory_t good = {arena, state}, no_arena = {0, state}, no_state = {arena, 0};
    const counter_net_memory_t odd_arena = {arena + 1, state}, odd_state = {arena, state + 1};
    CHECK(COUNTER_NET_API_VERSION == 1);
    CHECK(strlen(COUNTER_NET_HASH) == 16);
    CHECK(counter_net_init(0, &good) == COUNTER_NET_ERROR_NULL);
    CHECK(counter_net_init(&net, 0) == COUNTER_NET_ERROR_NULL);
    CHECK(counter_net_invoke(0) == COUNTER_NET_ERROR_NULL);
    CHECK(counter_net_input(0, 0) == 0);
    CHECK(counter_net_output(0, 0) == 0);
    const counter_net_memory_t *const bad[] = {&no_arena, &no_state, &odd_arena, &odd_state};
    for (int i = 0; i < 4; ++i) {
        CHECK(counter_net_init(&net, &good) == COUNTER_NET_OK);
        const counter_net_status_t wanted =
            i < 2 ? COUNTER_NET_ERROR_NULL : COUNTER_NET_ERROR_MISALIGNED;
        CHECK(counter_net_init(&net, bad[i]) == wanted);
        CHECK(counter_net_invoke(&net) == COUNTER_NET_ERROR_NULL);
        CHECK(counter_net_input(&net, 0) == 0);
        CHECK(counter_net_output(&net, 0) == 0);
    }
    CHECK(counter_net_init(&net, &good) == COUNTER_NET_OK);
    CHECK(counter_net_input(&net, 0) != 0);
    CHECK(counter_net_output(&net, 0) != 0);
    for (int index = -1; index < 3; ++index) {
        CHECK((counter_net_input(&net, index) != 0) == (index == 0));
        CHECK((counter_net_output(&net, index) != 0) == (index == 0));
    }
    return 0;
}
"""


def test_the_step_callback_sees_every_output_and_can_abort(tmp_path: Path) -> None:
    """Without the macro, there is no callback."""
    compile_graph(unary_chain()).write(tmp_path / "chain")
    run_c(tmp_path, STEP_CALLBACK, [tmp_path / "chain"], ["-DSMELT_STEP_CALLBACK"])
    header = (tmp_path / "chain/chain_net.h").read_text()
    plain = subprocess.check_output(["gcc", "-E", "-P", "-"], input=header, text=True)
    assert "callback" not in plain


@pytest.mark.parametrize("network", [[], ["-DSMELT_STEP_CALLBACK"]], ids=["without", "with"])
def test_a_callback_in_only_some_files_fails_to_link(network: list[str], tmp_path: Path) -> None:
    """The callback changes the size of the context."""
    compile_graph(unary_chain()).write(tmp_path / "chain")
    sources = network_sources(tmp_path / "chain")
    program = [] if network else ["-DSMELT_STEP_CALLBACK"]
    main = """
        #include "chain_net.h"
        static chain_net_t net;
        int main(void) { return (int)chain_net_init(&net, 0); }
    """
    (tmp_path / "main.c").write_text(dedent(main))
    gcc = ["gcc", "-std=c99", f"-I{tmp_path}/chain", "-c"]
    for path, flags in ((tmp_path / "main.c", program), *((path, network) for path in sources)):
        must(*gcc, *flags, str(path), "-o", str(tmp_path / f"{path.stem}.o"))
    objects = [str(path) for path in tmp_path.glob("*.o")]
    linked = subprocess.run(
        ["gcc", *objects, "-lm", "-o", str(tmp_path / "program")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert linked.returncode != 0
    assert "undefined reference to `chain_net_init" in linked.stderr


STEP_CALLBACK = """
#include "chain_net.h"
static uint8_t ALIGNED arena[CHAIN_NET_ARENA_BYTES];
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
    chain_net_t net;
    const chain_net_memory_t memory = {arena}, no_arena = {0};
    CHECK(chain_net_set_step_callback(0, watch, &stop) == CHAIN_NET_ERROR_NULL);
    CHECK(chain_net_init(&net, &no_arena) == CHAIN_NET_ERROR_NULL);
    CHECK(chain_net_set_step_callback(&net, watch, &stop) == CHAIN_NET_ERROR_NULL);
    CHECK(chain_net_init(&net, &memory) == CHAIN_NET_OK);
    memcpy(chain_net_input(&net, 0), x, sizeof x);
    CHECK(chain_net_invoke(&net) == CHAIN_NET_OK && seen == 0);
    CHECK(chain_net_set_step_callback(&net, watch, &stop) == CHAIN_NET_OK);
    memcpy(chain_net_input(&net, 0), x, sizeof x);
    CHECK(chain_net_invoke(&net) == CHAIN_NET_OK);
    CHECK(seen == 2 && last == 1 && CHAIN_NET_STEP_COUNT == 2);
    CHECK(values[0] == 16.0f && values[1] == -16.0f);
    stop = 0;
    memcpy(chain_net_input(&net, 0), x, sizeof x);
    CHECK(chain_net_invoke(&net) == CHAIN_NET_ERROR_ABORTED);
    CHECK(seen == 3 && last == 0);
    CHECK(chain_net_set_step_callback(&net, 0, 0) == CHAIN_NET_OK);
    memcpy(chain_net_input(&net, 0), x, sizeof x);
    CHECK(chain_net_invoke(&net) == CHAIN_NET_OK && seen == 3);
    return 0;
}
"""


@pytest.mark.parametrize("keep", [True, False])
def test_keep_inputs_preserves_inputs(keep: bool, tmp_path: Path) -> None:
    """Without `keep_inputs`, this network overwrites its input: both steps work in place."""
    artifact = compile_graph(unary_chain(), Options(keep_inputs=keep))
    artifact.with_firmware().write(tmp_path / "chain")
    assert artifact.network.arena_bytes == (32 if keep else 16)
    run_c(tmp_path, f"#define KEEP {int(keep)}\n{SURVIVAL}", [tmp_path / "chain"])


SURVIVAL = """
#include "chain_net.h"
static uint8_t ALIGNED arena[CHAIN_NET_ARENA_BYTES];

int main(void) {
    static const float x[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    chain_net_t net;
    const chain_net_memory_t memory = {arena};
    CHECK(chain_net_init(&net, &memory) == CHAIN_NET_OK);
    memcpy(chain_net_input(&net, 0), x, sizeof x);
    CHECK(chain_net_invoke(&net) == CHAIN_NET_OK);
    CHECK(((const float *)chain_net_output(&net, 0))[3] == -16.0f);
    CHECK((memcmp(chain_net_input(&net, 0), x, sizeof x) == 0) == KEEP);
    return 0;
}
"""


def test_kept_inputs_give_the_same_output_again(tmp_path: Path) -> None:
    artifact = digits(Options(keep_inputs=True))
    artifact.with_firmware().write(tmp_path / "project")
    elf = compile_project(tmp_path / "project", artifact.platform)
    inputs, expected = images(1)
    with open_device(elf.path, "host") as device:
        device.load(0, inputs[0].tobytes())
        for _ in range(2):
            device.invoke()
            assert device.output(0) == expected[0].tobytes()


def delay_line(length: int, *, forwards: bool) -> Graph:
    """Return an int8 network: the sum of the input and the input `length` inferences ago.

    Each state becomes the next one; `forwards` chooses the order in which the graph lists them.
    """
    type_ = TensorType((1, 2), DType.INT8, Quant.per_tensor(0.5, 3))
    x, y = Value("x", type_), Value("y", TensorType((1, 2), DType.INT8, Quant.per_tensor(1.0, 0)))
    line = [*(Value(f"d{i}", type_) for i in range(length)), x]
    states = [State(line[i], line[i + 1], np.full((1, 2), 3 + i, np.int8)) for i in range(length)]
    add = Node(Binary("add"), (line[0], x), (y,), Origin("ADD", 0), Rounding.TFLM)
    ordered = states if forwards else states[::-1]
    return verify(Graph("delay", (x,), (y,), (add,), tuple(ordered)), "test")


def swap() -> Graph:
    """Return a network that swaps two states and outputs their old values, one of them reshaped."""
    a, b, x = (Value(name, VECTOR) for name in "abx")
    flat = Value("flat", VECTOR.with_shape((2, 2)))
    reshape = Node(Reshape((2, 2)), (a,), (flat,), Origin("RESHAPE", 0))
    states = (State(a, b, np.zeros(4, np.float32)), State(b, a, np.ones(4, np.float32)))
    return verify(Graph("swap", (x,), (flat, b), (reshape,), states), "test")


def consecutive_outputs(graph: Graph, samples: Sequence[Sample]) -> SampleOutputs:
    """Return the reference's outputs of consecutive inferences with state."""
    states: Sequence[Array] | None = None
    outputs: SampleOutputs = []
    for sample in samples:
        evaluation = evaluate(graph, sample, states)
        outputs.append(evaluation.outputs)
        states = evaluation.states
    return outputs


@pytest.mark.quick(every=2)
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
def test_state_is_passed_to_the_next_inference(graph: Graph) -> None:
    samples = random_samples(graph, 6, seed=1)
    artifact = compile_graph(graph)
    assert artifact.report["state"] == {"bytes": artifact.network.state_bytes}
    assert artifact.network.state_bytes >= sum(state.initial.nbytes for state in graph.states)
    outputs = run(artifact, samples).outputs
    assert_same(list(outputs), consecutive_outputs(graph, samples), graph.name)


def test_init_resets_state(tmp_path: Path) -> None:
    artifact = compile_graph(counter())
    artifact.with_firmware().write(tmp_path / "project")
    elf = compile_project(tmp_path / "project", artifact.platform)
    x = np.full(4, 10, np.float32).tobytes()
    answers: list[list[float]] = []
    with open_device(elf.path, "host") as device:
        for reset in (False, False, True):
            if reset:
                device.reset()
            (data,), _ = device.run([x])
            answers.append(np.frombuffer(data, np.float32).tolist())
    assert answers == [[22, 24, 26, 28], [42, 44, 46, 48], [22, 24, 26, 28]]
