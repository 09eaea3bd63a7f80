"""Streamed inputs: the caller delivers rows, and no whole input is ever stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.errors import ConfigError, DoesNotFit, UnsupportedError
from smelt.ir import DType, Graph, Node, Origin, TensorType, Value, evaluate, verify
from smelt.ops.core.binary import Binary
from smelt.proof.run import run
from smelt.samples import random_samples
from tests.support.banded_networks import RandomNetwork
from tests.support.c_programs import c_array, run_c
from tests.support.graphs import SETUPS, assert_same, compile_graph
from tests.support.sanitized import run_sanitized
from tests.support.semihosted import outputs_of
from tests.support.shared import shared
from tests.support.shrinking_network import network, with_state


@pytest.mark.parametrize("height", [4, 12, 40])
def test_small_networks_can_be_streamed(height: int) -> None:
    graph = RandomNetwork(3).small(height)
    whole = compile_graph(graph, Options("cortex-m4"))
    streamed = compile_graph(graph, Options("cortex-m4", stream_input=True))
    assert streamed.network.arena_bytes <= whole.network.arena_bytes


@pytest.mark.quick(every=4)
@pytest.mark.parametrize("optimize", ["speed", "ram"])
@pytest.mark.parametrize("seed", range(10))
def test_random_networks_with_streamed_inputs(seed: int, optimize: str, tmp_path: Path) -> None:
    graph = RandomNetwork(300 + seed).graph(5)
    options = Options("host", "host", "ram" if optimize == "ram" else "speed", stream_input=True)
    artifact = compile_graph(graph, options)
    samples = random_samples(graph, 2, seed)
    wanted = [evaluate(graph, sample).outputs for sample in samples]
    assert artifact.schedule.streamed is not None
    assert_same(run_sanitized(artifact, samples, tmp_path / "project"), wanted, f"seed {seed}")


@pytest.mark.qemu
@pytest.mark.quick(setup=("m4",))
@pytest.mark.parametrize("setup", ["m0", "m3", "m4", "m33", "m55"])
def test_a_streamed_input_on_a_core(setup: str) -> None:
    graph = RandomNetwork(400, channels=4).graph(6)
    artifact = compile_graph(graph, replace(SETUPS[setup], stream_input=True))
    samples = random_samples(graph, 2, 1)
    wanted = [evaluate(graph, sample).outputs for sample in samples]
    assert_same(outputs_of(artifact, samples), wanted, f"on {setup}")


@pytest.mark.qemu
@pytest.mark.skipif(
    which("riscv64-unknown-elf-gcc") is None or which("qemu-system-riscv32") is None,
    reason="riscv64-unknown-elf-gcc or qemu-system-riscv32 is not installed",
)
@pytest.mark.parametrize("optimize", ["speed", "ram"])
def test_a_streamed_input_on_riscv(optimize: str) -> None:
    graph = RandomNetwork(400, channels=4).graph(6)
    goal = "ram" if optimize == "ram" else "speed"
    options = Options(board="virt-riscv32", optimize=goal, stream_input=True)
    artifact = compile_graph(graph, options)
    assert artifact.schedule.streamed is not None
    samples = random_samples(graph, 2, 1)
    wanted = [evaluate(graph, sample).outputs for sample in samples]
    assert_same(list(run(artifact, samples).outputs), wanted, "on virt-riscv32")


@pytest.mark.parametrize("optimize", ["speed", "ram"])
def test_a_streamed_input_takes_no_memory_of_its_own(optimize: str) -> None:
    """The image has 13,824 bytes, and so has the largest tensor."""
    options = Options("cortex-m4", optimize="ram" if optimize == "ram" else "speed")
    whole = compile_graph(network(), options)
    streamed = compile_graph(network(), replace(options, stream_input=True))
    assert streamed.network.arena_bytes < whole.network.arena_bytes - 7_000


def test_states_are_kept(tmp_path: Path) -> None:
    graph = with_state()
    artifact = compile_graph(graph, Options("host", "host", stream_input=True))
    samples = random_samples(graph, 2, 5)
    wanted = [evaluate(graph, sample).outputs for sample in samples]
    assert_same(run_sanitized(artifact, samples, tmp_path / "project"), wanted, "outputs")


def test_a_program_delivers_rows_in_any_portions(tmp_path: Path) -> None:
    """It drops an unfinished input, delivers too many rows, and aborts an inference."""
    graph = network()
    compile_graph(graph, Options(name="image_net", stream_input=True)).write(tmp_path / "image")
    (first,), (second,) = random_samples(graph, 2, 7)
    results = [evaluate(graph, (sample,)).outputs[0] for sample in (first, second)]
    names = ("first", "second", "right_first", "right_second")
    arrays = map(c_array, names, (first, second, *results))
    program = "".join(['#include "image_net.h"\n', *arrays, PORTIONS])
    run_c(tmp_path, program, [tmp_path / "image"], ["-DSMELT_STEP_CALLBACK"])


PORTIONS = """
static uint8_t ALIGNED arena[IMAGE_NET_ARENA_BYTES];
static image_net_t net;
static int steps;

static int abort_at_step_2(void *user, int step, const void *output, uint32_t bytes) {
    (void)user, (void)output, (void)bytes;
    ++steps;
    return step == 2;
}

/* Delivers rows from `from` to `to - 1` in portions of at most `most`. */
static int deliver(const int8_t *image, int32_t from, int32_t to, int32_t most) {
    for (int32_t row = from; row < to;) {
        int32_t count = 0;
        void *const rows = image_net_rows(&net, &count);
        CHECK(rows != 0 && rows == image_net_rows(&net, 0) && count > 0);
        count = count < most ? count : most;
        count = count < to - row ? count : to - row;
        memcpy(rows, image + row * IMAGE_NET_INPUT_0_ROW_COUNT,
               (size_t)(count * IMAGE_NET_INPUT_0_ROW_BYTES));
        CHECK(image_net_feed_rows(&net, count) == IMAGE_NET_OK);
        row += count;
    }
    return 0;
}

static int is_right(const void *wanted) {
    return memcmp(image_net_output(&net, 0), wanted, IMAGE_NET_OUTPUT_0_BYTES) == 0;
}

int main(void) {
    const image_net_memory_t memory = {arena};
    int32_t count;
    CHECK(image_net_rows(&net, &count) == 0);
    CHECK(image_net_feed_rows(&net, 1) == IMAGE_NET_ERROR_NULL);
    CHECK(image_net_reset(&net) == IMAGE_NET_ERROR_NULL);
    CHECK(image_net_invoke(&net, first) == IMAGE_NET_ERROR_NULL);
    CHECK(image_net_init(&net, &memory) == IMAGE_NET_OK);
    CHECK(image_net_invoke(&net, 0) == IMAGE_NET_ERROR_NULL);
    CHECK(IMAGE_NET_INPUT_0_ROWS * IMAGE_NET_INPUT_0_ROW_COUNT == IMAGE_NET_INPUT_0_COUNT);
    for (int32_t most = 1; most < 9; ++most) {
        CHECK(deliver(most % 2 ? first : second, 0, IMAGE_NET_INPUT_0_ROWS, most) == 0);
        CHECK(is_right(most % 2 ? right_first : right_second));
    }
    for (int32_t end = 1; end < IMAGE_NET_INPUT_0_ROWS; ++end) {
        CHECK(deliver(first, 0, end, 3) == 0);
        CHECK(image_net_reset(&net) == IMAGE_NET_OK);
        CHECK(deliver(second, 0, IMAGE_NET_INPUT_0_ROWS, 5) == 0);
        CHECK(is_right(right_second));
        CHECK(deliver(first, 0, end, 2) == 0);
        CHECK(image_net_rows(&net, &count) != 0);
        CHECK(image_net_feed_rows(&net, count + 1) == IMAGE_NET_ERROR_ROWS);
        CHECK(image_net_feed_rows(&net, -1) == IMAGE_NET_ERROR_ROWS);
        CHECK(image_net_feed_rows(&net, 0) == IMAGE_NET_OK);
        CHECK(deliver(first, end, IMAGE_NET_INPUT_0_ROWS, 4) == 0);
        CHECK(is_right(right_first));
        CHECK(deliver(second, 0, end, 4) == 0);
        CHECK(image_net_invoke(&net, first) == IMAGE_NET_OK);
        CHECK(is_right(right_first));
    }
    image_net_set_step_callback(&net, abort_at_step_2, 0);
    CHECK(image_net_invoke(&net, second) == IMAGE_NET_ERROR_ABORTED && steps > 2);
    image_net_set_step_callback(&net, 0, 0);
    CHECK(deliver(second, 0, IMAGE_NET_INPUT_0_ROWS, 1) == 0);
    CHECK(is_right(right_second));
    return 0;
}
"""


def test_a_network_with_two_inputs_cannot_stream() -> None:
    type_ = TensorType((1, 8, 8, 4), DType.FLOAT32)
    x, y, z = (Value(name, type_) for name in "xyz")
    node = Node(Binary("add"), (x, y), (z,), Origin("Add", 0, "z"))
    graph = verify(Graph("net", (x, y), (z,), (node,)), "building")
    with pytest.raises(UnsupportedError, match=r"one input, .* inputs are 'x', 'y'\. Build"):
        compile_graph(graph, Options(stream_input=True))


def test_a_network_whose_input_is_most_of_its_arena_is_told_to_stream() -> None:
    with pytest.raises(DoesNotFit, match=r"The input takes 13,824 bytes: with --stream-input"):
        compile_graph(network(), Options("cortex-m4", max_ram=9_000))
    compile_graph(network(), Options("cortex-m4", max_ram=9_000, stream_input=True))


@pytest.mark.parametrize("goal", [{}, {"optimize": "ram"}, {"max_ram": 9_000}], ids=str)
def test_a_dense_layer_cannot_stream(goal: dict[str, Any]) -> None:
    model = shared("models/mlperf_tiny/ad_int8.tflite")
    with pytest.raises(UnsupportedError, match="the first layers, from FULLY_CONNECTED"):
        compile_model(model, Options("cortex-m4", stream_input=True, **goal))


def test_a_streamed_input_cannot_be_kept() -> None:
    with pytest.raises(ConfigError, match="remove --keep-inputs"):
        Options(stream_input=True, keep_inputs=True)
