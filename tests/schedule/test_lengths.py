"""Tests of lengths (dimensions with a size known at run time only): allowed graphs, generated C."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from smelt.boards import compile_project, open_device
from smelt.codegen.passes import run_passes
from smelt.errors import ConfigError, DeviceError, GraphError, UnsupportedError
from smelt.frontend import InputOptions, load
from smelt.frontend.onnx.run_time_lengths import require_same
from smelt.ir import Array, Graph, Length, evaluate, verify
from smelt.ir.literal import digest
from smelt.ir.text import parse_graph, print_graph
from smelt.ops.case import random_array
from smelt.ops.run_time_lengths import at_sizes, evaluate_at_size, find_marks, sizes_of
from smelt.proof.run import device_inputs, run, set_sizes
from smelt.proof.verify import verify_model
from smelt.samples import Sample, bind_samples, random_samples
from tests.support.graphs import SETUPS, assert_same, compile_graph
from tests.support.projects import SANITIZERS, network_sources

RNG = np.random.default_rng(3)


def weights(*shape: int) -> Array:
    return RNG.uniform(-0.7, 0.7, shape).astype(np.float32)


STORE = {digest(array): array for array in (weights(6, 4), weights(20, 5), weights(3, 10))}
W, RECURRENT, LAST = STORE


def with_length(graph: Graph, length: Length) -> Graph:
    """Return the graph with a dimension of its inputs that is known at run time only."""
    found = verify(replace(graph, lengths=(length,)), "naming lengths")
    find_marks(found)
    return found


def parse(text: str) -> Graph:
    text = f'smelt-ir 1\ngraph "seq" {{\n{dedent(text)}\n}}\n'
    return verify(parse_graph(text, STORE), "parsing")


DENSE = f"""
    input %x: f32[1,12,4]
    length %x 1 "T" 2
    const %w: f32[6,4] = @{W}
    const %b: f32[6] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    %r: f32[12,4] = Reshape(%x) {{shape=(12, 4)}} from RESHAPE #0 "r"
    %a: f32[12,6] = FullyConnected(%r, %w, %b) from FC #1 "a"
    %s: f32[12,6] = Binary(%a, %b) {{kind="add"}} from ADD #2 "s"
    %h: f32[36,2] = Reshape(%s) {{shape=(36, 2)}} from RESHAPE #3 "h"
    %p: f32[36,2] = Softmax(%h) from SOFTMAX #4 "p"
    %q: f32[1,12,6] = Reshape(%p) {{shape=(1, 12, 6)}} from RESHAPE #5 "q"
    %c: f32[1,12,10] = Concat(%q, %x) {{axis=2}} from CONCAT #6 "c"
    %m: f32[1,12] = Reduce(%c) {{kind="max", axes=(2)}} from MAX #7 "m"
    output %c
    output %m
    output %s
    """
RECURRENCE = f"""
    input %x: f32[9,2,20]
    length %x 0 "time" 1
    const %w: f32[20,5] = @{RECURRENT}
    const %d: f32[3,10] = @{LAST}
    %f: f32[9,2,5], %fh: f32[2,5], %fc: f32[2,5] = Recurrence(%x, %w) {{kind="lstm",
      activations=("sigmoid", "tanh", "tanh"), alphas=(0.0, 0.0, 0.0), betas=(0.0, 0.0, 0.0)}}
      from LSTM #0 "f"
    %n: f32[9,2,20] = Unary(%x) {{kind="neg"}} from NEG #1 "n"
    %b: f32[9,2,5], %bh: f32[2,5], %bc: f32[2,5] = Recurrence(%n, %w) {{kind="lstm",
      activations=("sigmoid", "tanh", "tanh"), alphas=(0.0, 0.0, 0.0), betas=(0.0, 0.0, 0.0),
      reverse=true}} from LSTM #2 "b"
    %j: f32[9,2,10] = Concat(%f, %b) {{axis=2}} from CONCAT #3 "j"
    %y: f32[18,3] = FullyConnected(%j, %d, _) from FC #4 "y"
    %z: f32[2,5] = Binary(%bh, %fc) {{kind="add"}} from ADD #5 "z"
    output %y
    output %fh
    output %z
    """
SUMMARY = """
    input %x: f32[9,2,3]
    input %i: i8[1,9,4] q(0.5, 3)
    length %x 0 "T" 2
    length %i 1 "T" 2
    %sum: f32[2,3] = Reduce(%x) {kind="sum", axes=(0)} from SUM #0
    %mean: f32[1,2,3] = Reduce(%x) {kind="mean", axes=(0), keep_dims=true} from MEAN #1
    %all: f32[] = Reduce(%x) {kind="mean", axes=(0, 1, 2)} from MEAN #2
    %max: f32[2] = Reduce(%x) {kind="max", axes=(0, 2)} from MAX #3
    %prod: f32[2,3] = Reduce(%x) {kind="prod", axes=(0)} from PROD #4
    %log: f32[2,3] = Reduce(%x) {kind="log_sum_exp", axes=(0)} from LSE #5
    %min: i8[1,4] q(0.5, 3) = Reduce(%i) {kind="min", axes=(1)} from MIN #6
    %last: f32[2,2,3] = Slice(%x) {starts=(7, 0, 0), sizes=(2, 2, 3), steps=(1, 1, 1)} from S #7
    %one: f32[1,1,3] = Slice(%x) {starts=(8, 1, 0), sizes=(1, 1, 3), steps=(1, 1, 1)} from S #8
    %first: f32[2,1,3] = Slice(%x) {starts=(0, 1, 0), sizes=(2, 1, 3), steps=(1, 1, 1)} from S #9
    output %sum
    output %mean
    output %all
    output %max
    output %prod
    output %log
    output %min
    output %last
    output %one
    output %first
    """
INNER = """
    input %x: f32[2,4,9]
    length %x 2 "T" 1
    %n: f32[2,4,9] = Unary(%x) {kind="neg"} from NEG #0 "n"
    %t: f32[2,9,4] = Transpose(%n) {permutation=(0, 2, 1)} from T #1 "t"
    %s: f32[2,9,4] = Softmax(%t) from SOFTMAX #2 "s"
    %u: f32[2,4,9] = Transpose(%s) {permutation=(0, 2, 1)} from T #3 "u"
    %y: f32[2,4,9] = Binary(%u, %x) {kind="add"} from ADD #4 "y"
    %m: f32[2,4] = Reduce(%u) {kind="max", axes=(2)} from MAX #5 "m"
    output %n
    output %s
    output %y
    output %m
    """
ANYWHERE = """
    input %x: f32[2,4,9]
    input %z: f32[2,4,9]
    length %x 2 "T" 1
    length %z 2 "T" 1
    const %k: f32[] = [0.25]
    %n: f32[2,4,9] = Unary(%x) {kind="neg"} from NEG #0 "n"
    %a: f32[2,4,9] = Binary(%n, %z) {kind="mul"} from MUL #1 "a"
    %s: f32[2,4,9] = Binary(%a, %k) {kind="add"} from ADD #2 "s"
    %f: f32[2,4,9] = Binary(%x, %z) {kind="floor_div"} from FLOOR_DIV #3 "f"
    output %s
    output %f
    """
SEGMENTS = """
    input %x: f32[9,5,2]
    length %x 0 "T" 1
    const %k: i32[5] = [2, 0, 1, 4, 2]
    %s: f32[9,3,2] = SegmentReduce(%x, %k) {kind="sum", segments=3, axis=1} from SEGMENTS #0 "s"
    %m: f32[9,3,2] = SegmentReduce(%x, %k) {kind="max", segments=3, axis=1} from SEGMENTS #1 "m"
    %y: f32[9,3,2] = Binary(%s, %m) {kind="add"} from ADD #2 "y"
    output %y
    """
NETWORKS = {
    "dense": DENSE,
    "recurrence": RECURRENCE,
    "summary": SUMMARY,
    "inner": INNER,
    "anywhere": ANYWHERE,
    "segments": SEGMENTS,
}


def samples_of_falling_size(graph: Graph) -> list[Sample]:
    """Return a sample for each size, from the largest to the smallest.

    Behind the elements of a smaller sample, buffers still contain those of the sample before.
    """
    (length,) = graph.lengths
    axes, rng = dict(length.axes), np.random.default_rng(5)
    return [
        tuple(
            np.ascontiguousarray(random_array(value.type, rng).take(range(size), axes[index]))
            for index, value in enumerate(graph.inputs)
        )
        for size in range(length.maximum, length.minimum - 1, -1)
    ]


def expected(graph: Graph, samples: Sequence[Sample]) -> list[tuple[Array, ...]]:
    return [evaluate_at_size(graph, sample).outputs for sample in samples]


@pytest.mark.quick(setup=("host",))
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    "setup", ["host", *(pytest.param(s, marks=pytest.mark.qemu) for s in ("m0", "m4"))]
)
def test_outputs_equal_the_reference_at_every_size(setup: str, network: str) -> None:
    graph = parse(NETWORKS[network])
    samples = samples_of_falling_size(graph)
    found = run(compile_graph(graph, SETUPS[setup]), samples).outputs
    for ours, theirs in zip(found, expected(graph, samples), strict=True):
        assert_same([ours], [theirs], network)


@pytest.mark.quick(every=2)
@pytest.mark.parametrize("network", NETWORKS)
def test_code_is_clean_under_sanitizers(network: str, tmp_path: Path) -> None:
    graph = parse(NETWORKS[network])
    artifact = compile_graph(graph)
    artifact.with_firmware().write(tmp_path / "project")
    elf = compile_project(
        tmp_path / "project",
        artifact.platform,
        extra_cflags=SANITIZERS,
        extra_ldflags=SANITIZERS,
    )
    samples = samples_of_falling_size(graph)
    with open_device(elf.path, "host") as device:
        for sample, theirs in zip(samples, expected(graph, samples), strict=True):
            set_sizes(device, artifact.graph, sample)
            answers, _ = device.run(device_inputs(artifact.graph, sample))
            for data, array in zip(answers, theirs, strict=True):
                whole = np.frombuffer(data, array.dtype)
                np.testing.assert_allclose(whole[: array.size], array.ravel(), atol=1e-5)


@pytest.mark.parametrize("network", NETWORKS)
def test_verification_compares_at_each_size(network: str) -> None:
    artifact = compile_graph(parse(NETWORKS[network]))
    samples = random_samples(artifact.graph, 6, 0)
    assert len({sample[0].shape for sample in samples}) > 1
    assert verify_model(artifact, samples).samples == 6


def test_smaller_sizes_execute_fewer_instructions() -> None:
    graph = parse(DENSE)
    artifact = compile_graph(graph, SETUPS["m4"])
    samples = samples_of_falling_size(graph)
    most, least = (run(artifact, [s]).measured.instructions or 0 for s in (samples[0], samples[-1]))
    assert least < most / 3


def test_a_device_refuses_sizes_out_of_range(tmp_path: Path) -> None:
    artifact = compile_graph(parse(DENSE))
    artifact.with_firmware().write(tmp_path / "project")
    elf = compile_project(tmp_path / "project", artifact.platform)
    with open_device(elf.path, "host") as device:
        device.set_lengths([2])
        device.set_lengths([12])
        for sizes in ([1], [13], [2**32 - 1], [5, 5]):
            with pytest.raises(DeviceError, match=r"No dimension [01], or it cannot have size"):
                device.set_lengths(sizes)


MAIN = """
#include <stdio.h>
#include "seq_net.h"
static union { uint8_t bytes[SEQ_NET_ARENA_BYTES]; double align[2]; long double most; } arena;
int main(void) {
    seq_net_t network = {0};
    seq_net_memory_t memory = {arena.bytes};
    printf("%d ", seq_net_set_length_T(&network, 5) == SEQ_NET_ERROR_NULL);
    printf("%d ", seq_net_init(&network, &memory) == SEQ_NET_OK);
    printf("%d ", seq_net_set_length_T(&network, SEQ_NET_T_MAX) == SEQ_NET_OK);
    printf("%d ", seq_net_set_length_T(&network, SEQ_NET_T_MIN) == SEQ_NET_OK);
    printf("%d ", seq_net_set_length_T(&network, SEQ_NET_T_MAX + 1) == SEQ_NET_ERROR_LENGTH);
    printf("%d ", seq_net_set_length_T(&network, -1) == SEQ_NET_ERROR_LENGTH);
    return seq_net_invoke(&network);
}
"""


def test_the_c_api_checks_sizes(tmp_path: Path) -> None:
    compile_graph(parse(DENSE)).write(tmp_path / "project")
    sources = network_sources(tmp_path / "project")
    main = tmp_path / "main.c"
    main.write_text(MAIN)
    flags = ("-std=c99", "-Wall", "-Wextra", "-Werror", f"-I{tmp_path / 'project'}")
    program = tmp_path / "program"
    subprocess.run(["gcc", *flags, main, *sources, "-lm", "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"] * 6


def test_elementwise_operators_take_a_length_in_any_dimension() -> None:
    """A length may be any dimension of their operands, if it is the same in all."""
    names = [node.op.name for node in run_passes(parse(ANYWHERE)).nodes]
    assert names == ["Unary(neg)", "Binary(mul)", "Binary(add)", "Binary(floor_div)"]


def test_code_without_lengths_does_not_mention_them() -> None:
    text = DENSE.replace('length %x 1 "T" 2', "")
    files = compile_graph(parse(text)).with_firmware().project.files
    assert not any("length" in files[name].lower() for name in ("seq_net.c", "seq_net.h", "main.c"))


# --- the graph at other sizes ----------------------------------------------------------------


def test_at_sizes_returns_the_graph_of_one_size() -> None:
    graph = parse(DENSE)
    made, values = at_sizes(graph, {"T": 5})
    shapes = {v.name: values[v].type.shape for v in find_marks(graph)}
    assert shapes == {
        "x": (1, 5, 4),
        "r": (5, 4),
        "a": (5, 6),
        "s": (5, 6),
        "h": (15, 2),
        "p": (15, 2),
        "q": (1, 5, 6),
        "c": (1, 5, 10),
        "m": (1, 5),
    }
    sample = random_samples(made, 1, 0)[0]
    for ours, theirs in zip(
        evaluate_at_size(graph, sample).outputs, evaluate(made, sample).outputs, strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(ConfigError, match="'T' of 'seq' is from 2 to 12; got 1"):
        at_sizes(graph, {"T": 1})


def test_rows_do_not_depend_on_their_number() -> None:
    """The first rows of the largest size equal the rows of a shorter input."""
    graph = parse(DENSE)
    (x,) = random_samples(graph, 1, 2)[0]
    whole = evaluate(graph, [x]).outputs
    for size in range(2, 13):
        part = evaluate_at_size(graph, [x[:, :size]]).outputs
        np.testing.assert_array_equal(part[0], whole[0][:, :size])
        np.testing.assert_array_equal(part[2], whole[2][:size])


def test_the_text_form_contains_lengths() -> None:
    graph = parse(DENSE)
    assert graph.lengths == (Length("T", 2, 12, ((0, 1),)),)
    assert '  length %x 1 "T" 2' in print_graph(graph).splitlines()
    assert print_graph(parse_graph(print_graph(graph, {}), STORE)) == print_graph(graph)


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (Length("T", 0, 12, ((0, 1),)), "is from 0 to 12"),
        (Length("T", 13, 12, ((0, 1),)), "is from 13 to 12"),
        (Length("T", 1, 12, ()), "is from 1 to 12"),
        (Length("T", 1, 11, ((0, 1),)), "dimension 1 of 'x' f32.1,12,4. cannot be 'T' of at most"),
        (Length("T", 1, 12, ((0, 1), (0, 1))), "dimension 1 of 'x'"),
    ],
)
def test_lengths_that_do_not_fit_the_inputs_are_refused(length: Length, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        with_length(parse(DENSE.replace('length %x 1 "T" 2', "")), length)


def test_samples_determine_the_sizes() -> None:
    graph = parse(DENSE)
    samples, batched = bind_samples(graph, {"x": np.zeros((1, 5, 4), np.float32)})
    assert not batched
    assert sizes_of(graph, samples[0]) == {"T": 5}
    samples, batched = bind_samples(graph, {"x": np.zeros((3, 1, 5, 4), np.float32)})
    assert batched
    assert [sizes_of(graph, sample) for sample in samples] == [{"T": 5}] * 3
    samples, batched = bind_samples(graph, {"x": np.zeros((2, 5, 4), np.float32)})
    assert batched
    assert [sizes_of(graph, sample) for sample in samples] == [{"T": 5}] * 2
    for shape in ((1, 13, 4), (1, 5, 3), (1, 1), (2, 13, 4)):
        with pytest.raises(ConfigError, match="has shape"):
            bind_samples(graph, {"x": np.zeros(shape, np.float32)})
    with pytest.raises(ConfigError, match="the inputs have 1"):
        bind_samples(graph, {"x": np.zeros((1, 1, 4), np.float32)})


def test_inputs_of_one_length_must_have_the_same_size() -> None:
    graph = parse(
        """
        input %x: f32[6,2]
        input %z: f32[6,2]
        length %x 0 "T" 1
        length %z 0 "T" 1
        %y: f32[6,2] = Binary(%x, %z) {kind="add"} from ADD #0 "y"
        output %y
        """
    )
    zeros = [np.zeros((n, 2), np.float32) for n in (4, 4, 5)]
    assert evaluate_at_size(graph, zeros[:2]).outputs[0].shape == (4, 2)
    with pytest.raises(
        ConfigError, match=r"'T' of 'seq' has different sizes in the inputs: \[4, 5\]"
    ):
        evaluate_at_size(graph, zeros[1:])


# --- refused graphs --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (
            '%y: i64[1,3] = ArgReduce(%x) {kind="max", axis=0} from ARGMAX #7 "y"',
            "ARGMAX #7 'y', which computes each element from many",
        ),
        ("%y: f32[2,9] = Reshape(%x) {shape=(2, 9)} from RESHAPE #7", "which splits the dimension"),
        (
            "%t: f32[3,6] = Transpose(%x) {permutation=(1, 0)} from T #7\n"
            "%y: f32[3,6] = Softmax(%t) from SOFTMAX #8",
            "SOFTMAX #8 'y', where it is not the outermost dimension of 't'",
        ),
        (
            "%y: f32[3,3] = Slice(%x) {starts=(3, 0), sizes=(3, 3), steps=(1, 1)} from S #7",
            "the size is 1 ",
        ),
        (
            "%y: f32[1,3] = Slice(%x) {starts=(2, 0), sizes=(1, 3), steps=(1, 1)} from S #7",
            "the size is 1 ",
        ),
        ('%y: f32[6,3] = Binary(%x, %k) {kind="add"} from ADD #7', "which needs a fixed size"),
        ("%y: f32[8,3] = Concat(%x, %two) {axis=0} from CONCAT #7", "is not proportional"),
        ("%y: f32[12,3] = Concat(%x, %x) {axis=0} from CONCAT #7", "each element from many"),
        ("%y: f32[6,6] = MatMul(%x, %x) {right=(1, 0)} from MATMUL #7", "is not proportional"),
        (
            '%y: f32[6,3] = Cumulative(%x) {kind="sum", axis=0} from CUMSUM #7',
            "each element from many",
        ),
        (
            '%i: i64[6] = ArgReduce(%x) {kind="max", axis=1, keep_dims=false} from ARGMAX #7\n'
            '%y: f32[2,3] = SegmentReduce(%x, %i) {kind="sum", segments=2} from SEGMENTS #8',
            "SEGMENTS #8 'y', which computes each element from many",
        ),
    ],
)
def test_operators_that_cannot_compute_single_rows_are_refused(operator: str, message: str) -> None:
    graph = parse(
        f"""
        input %x: f32[6,3]
        length %x 0 "T" 1
        const %k: f32[6,3] = @{digest(TABLE)}
        const %two: f32[2,3] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
        {operator}
        output %y
        """
    )
    with pytest.raises(UnsupportedError, match=message) as caught:
        run_passes(graph)
    assert "'T'" in str(caught.value)
    assert "fix it with --dim T=6" in str(caught.value)


TABLE, WINDOW = weights(6, 3), weights(6, 1, 2, 2)
STORE.update({digest(array): array for array in (TABLE, WINDOW)})


def mean(size: int, divisor: float) -> Graph:
    return parse(
        f"""
        input %x: f32[{size},2]
        length %x 0 "T" 1
        const %n: f32[] = [{divisor}]
        %y: f32[{size},2] = Binary(%x, %n) {{kind="div"}} from DIV #0 "y"
        output %y
        """
    )


def test_a_file_that_computes_with_a_size_is_refused() -> None:
    """Only an import of the file at another size shows that a constant depends on the size."""
    require_same(mean(8, 3.0), mean(5, 3.0))
    with pytest.raises(
        UnsupportedError, match="computes with the size itself, as in DIV #0 'y'; fix it"
    ):
        require_same(mean(8, 8.0), mean(5, 5.0))


# --- compared with onnxruntime ---------------------------------------------------------------


def speech_network() -> bytes:
    """Return a model with an embedding, a bidirectional GRU, a dense layer and softmax."""
    rng = np.random.default_rng(7)
    names = ("table", "w", "r", "b", "dense")
    shapes = ((11, 6), (2, 15, 6), (2, 15, 5), (2, 30), (10, 4))
    constants = [
        numpy_helper.from_array(rng.uniform(-0.7, 0.7, shape).astype(np.float32), name)
        for name, shape in zip(names, shapes, strict=True)
    ]
    constants.append(numpy_helper.from_array(np.array([0, 0, -1]), "flat"))
    nodes = [
        helper.make_node("Gather", ["table", "symbols"], ["e"]),
        helper.make_node(
            "GRU", ["e", "w", "r", "b"], ["hs", "last"], direction="bidirectional", hidden_size=5
        ),
        helper.make_node("Transpose", ["hs"], ["t"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["t", "flat"], ["h"]),
        helper.make_node("MatMul", ["h", "dense"], ["d"]),
        helper.make_node("Softmax", ["d"], ["y"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "speech",
        [helper.make_tensor_value_info("symbols", TensorProto.INT64, ("T", 1))],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ("T", 1, 4)),
            helper.make_tensor_value_info("last", TensorProto.FLOAT, (2, 1, 5)),
        ],
        constants,
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


@pytest.mark.parametrize("setup", ["host", pytest.param("m4", marks=pytest.mark.qemu)])
def test_a_recurrent_network_equals_onnxruntime_at_every_size(setup: str) -> None:
    data = speech_network()
    imported = load(data, inputs=InputOptions(dims={"T": 9})).graph
    length = Length("T", 1, 9, ((0, 0),))
    artifact = compile_graph(with_length(imported, length), SETUPS[setup])
    rng = np.random.default_rng(0)
    samples = [(rng.integers(0, 11, (size, 1)),) for size in (9, 4, 1, 8, 2, 9, 3)]
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    for sample, ours in zip(samples, run(artifact, samples).outputs, strict=True):
        theirs = [np.asarray(x) for x in session.run(None, {"symbols": sample[0]})]
        assert_same([ours], [tuple(theirs)], f"{len(sample[0])} symbols")


def test_imports_at_two_sizes_give_the_same_graph() -> None:
    graphs = [load(speech_network(), inputs=InputOptions(dims={"T": n})).graph for n in (9, 5)]
    require_same(with_length(graphs[0], Length("T", 1, 9, ((0, 0),))), graphs[1])


def test_windows_along_a_length_must_be_one_row_high() -> None:
    graph = parse(
        f"""
        input %x: f32[1,12,3,4]
        length %x 1 "T" 1
        const %w: f32[6,1,2,2] = @{digest(WINDOW)}
        %c: f32[1,12,2,6] = Conv2D(%x, %w, _) {{groups=2}} from CONV #0 "c"
        %y: f32[1,12,1,6] = Pool2D(%c) {{kind="max", window=(1, 2)}} from POOL #1 "y"
        output %y
        """
    )
    samples = samples_of_falling_size(graph)
    found = run(compile_graph(graph), samples).outputs
    for ours, theirs in zip(found, expected(graph, samples), strict=True):
        assert_same([ours], [theirs], "window")
    taller = print_graph(graph, {}).replace("window=(1, 2)", "window=(2, 1)")
    taller = taller.replace("y: f32[1,12,1,6]", "y: f32[1,11,2,6]")
    with pytest.raises(UnsupportedError, match="POOL #1 'y', whose result"):
        run_passes(parse_graph(taller, STORE))
