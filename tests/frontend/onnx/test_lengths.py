"""ONNX networks with a dimension whose size is known at run time, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from smelt.cli import app as cli
from smelt.errors import ConfigError, UnsupportedError
from smelt.frontend import InputOptions, load
from smelt.frontend.onnx.run_time_lengths import require_same
from smelt.ir import Array, Graph, Length
from smelt.ops.core.unary import Unary
from smelt.proof.run import run
from smelt.proof.verify import verify_model
from smelt.samples import Sample, random_samples
from tests.support.graphs import SETUPS, TOLERANCE, compile_graph
from tests.support.onnx_networks import graph, ints, model, node, session, tensor_info

MOST = 9
SIZES = (9, 3, 7, 1, 8, 2, 9)
"""Falling and rising, so that buffers contain old elements beyond the current size."""


def weights(seed: int, **shapes: tuple[int, ...]) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.uniform(-0.7, 0.7, shape).astype(np.float32) for name, shape in shapes.items()
    }


def lstm() -> onnx.ModelProto:
    """Return an LSTM with the standard's axis order (time first), a dense layer and softmax."""
    nodes = [
        node("LSTM", "x w r b", "ys h c", hidden_size=5),
        node("Squeeze", "ys one", "y"),
        node("MatMul", "y dense", "d"),
        node("Softmax", "d", "p", axis=-1),
    ]
    constants = weights(1, w=(1, 20, 6), r=(1, 20, 5), b=(1, 40), dense=(5, 4))
    constants["one"] = ints(1)
    return model(graph(nodes, {"x": ["T", 1, 6]}, "p h c", constants))


def batch_first() -> onnx.ModelProto:
    """Return a GRU as PyTorch exports it with the batch first.

    Transposes surround it, and shapes are computed from those of the inputs.
    """
    nodes = [
        node("Transpose", "x", "xt", perm=[1, 0, 2]),
        node("GRU", "xt w r b", "ys h", hidden_size=5, direction="bidirectional"),
        node("Transpose", "ys", "yt", perm=[0, 2, 1, 3]),
        node("Reshape", "yt joined", "y"),
        node("Transpose", "y", "yb", perm=[1, 0, 2]),
        node("Shape", "x", "shape"),
        node("Gather", "shape index", "steps"),
        node("Unsqueeze", "steps zero", "count"),
        node("Concat", "count minus", "flat", axis=0),
        node("Reshape", "yb flat", "rows"),
        node("Gemm", "rows dense bias", "z", transB=1),
        node("LogSoftmax", "z", "l"),
        node("Concat", "one count four", "back", axis=0),
        node("Reshape", "l back", "p"),
    ]
    constants = weights(2, w=(2, 15, 6), r=(2, 15, 5), b=(2, 30), dense=(4, 10), bias=(4,))
    constants |= {"joined": ints(0, 0, -1), "index": np.asarray(1), "zero": ints(0)}
    constants |= {"minus": ints(-1), "one": ints(1), "four": ints(4)}
    return model(graph(nodes, {"x": [1, "T", 6]}, "p h", constants))


def symbols() -> onnx.ModelProto:
    """Return an embedding table followed by two recurrent layers."""
    nodes = [
        node("Gather", "table symbols", "e"),
        node("Transpose", "e", "et", perm=[1, 0, 2]),
        node("LSTM", "et w r", "ys", hidden_size=5, direction="bidirectional"),
        node("Transpose", "ys", "yt", perm=[0, 2, 1, 3]),
        node("Reshape", "yt joined", "y"),
        node("RNN", "y w2 r2", "zs", hidden_size=3),
        node("Squeeze", "zs one", "z"),
        node("ArgMax", "z", "best", axis=2, keepdims=0),
    ]
    constants = weights(3, table=(11, 6), w=(2, 20, 6), r=(2, 20, 5), w2=(1, 3, 10), r2=(1, 3, 3))
    constants |= {"joined": ints(0, 0, -1), "one": ints(1)}
    inputs = [tensor_info("symbols", [1, "T"], "l")]
    outputs = [tensor_info("z", ["T", 1, 3]), tensor_info("best", ["T", 1], "l")]
    return model(graph(nodes, inputs, outputs, constants))


def frames() -> onnx.ModelProto:
    """Return a convolution of single frames, batch normalization and layer normalization."""
    nodes = [
        node("Transpose", "x", "xt", perm=[0, 2, 1]),
        node("Conv", "xt k", "conv"),
        node("BatchNormalization", "conv s b m v", "norm"),
        node("Relu", "norm", "relu"),
        node("Transpose", "relu", "rows", perm=[0, 2, 1]),
        node("LayerNormalization", "rows s b", "layer", axis=-1),
        node("Mul", "layer rows", "p"),
    ]
    constants = weights(4, k=(8, 6, 1), s=(8,), b=(8,), m=(8,))
    constants["v"] = np.linspace(0.5, 2, 8, dtype=np.float32)
    return model(graph(nodes, {"x": [1, "T", 6]}, "p", constants))


def channels_first() -> onnx.ModelProto:
    """Return layers whose inputs and outputs have time as last dimension, not as rows in memory."""
    nodes = [
        node("Sigmoid", "x", "gate"),
        node("Mul", "x gate", "swish"),
        node("Conv", "swish k b", "p"),
        node("Softmax", "p", "q", axis=1),
    ]
    return model(graph(nodes, {"x": [1, 6, "T"]}, "swish p q", weights(5, k=(8, 6, 1), b=(8,))))


def classifier() -> onnx.ModelProto:
    """Return a classifier of sequences, from first and last steps, reductions and final states."""
    nodes = [
        node("GRU", "x w r b", "ys h", hidden_size=5, linear_before_reset=1),
        node("Squeeze", "ys one", "y"),
        node("Gather", "y last", "end", axis=0),
        node("Slice", "y minus most zero", "slice"),
        node("Gather", "y first", "begin", axis=0),
        node("ReduceMean", "y zero", "mean", keepdims=0),
        node("ReduceMax", "y zero", "max", keepdims=0),
        node("ReduceSum", "y all", "sum", keepdims=1),
        node("ReduceL2", "y zero", "norm", keepdims=0),
        node("Concat", "end begin mean max norm", "joined", axis=1),
        node("Gemm", "joined dense", "p", transB=1),
    ]
    constants = weights(6, w=(1, 15, 6), r=(1, 15, 5), b=(1, 30), dense=(4, 25))
    constants |= {"one": ints(1), "last": np.asarray(-1), "first": np.asarray(0), "zero": ints(0)}
    constants |= {"minus": ints(-1), "most": ints(2**62), "all": ints(0, 2)}
    return model(graph(nodes, {"x": ["T", 1, 6]}, "p h sum slice", constants))


def two_inputs() -> onnx.ModelProto:
    """Return a network with a dimension T of two inputs, and an independent dimension S."""
    nodes = [
        node("Add", "x y", "sum"),
        node("Softmax", "sum", "p", axis=-1),
        node("MatMul", "z k", "q"),
    ]
    inputs = {"x": ["T", 3], "z": ["S", 3], "y": ["T", 1]}
    return model(graph(nodes, inputs, "p q", weights(7, k=(3, 5))))


def quantized() -> onnx.ModelProto:
    """Return a dense layer of int8."""
    nodes = [
        node("QuantizeLinear", "x xs xz", "xq"),
        node("DequantizeLinear", "xq xs xz", "xd"),
        node("DequantizeLinear", "w ws", "wd"),
        node("MatMul", "xd wd", "m"),
        node("Relu", "m", "r"),
        node("QuantizeLinear", "r ys yz", "q"),
        node("DequantizeLinear", "q ys yz", "y"),
    ]
    scales = {"xs": 0.01, "ws": 0.02, "ys": 0.03}
    constants = {name: np.asarray(scale, np.float32) for name, scale in scales.items()}
    constants |= {"xz": np.asarray(3, np.int8), "yz": np.asarray(-128, np.int8)}
    constants["w"] = np.random.default_rng(8).integers(-100, 100, (6, 5)).astype(np.int8)
    return model(graph(nodes, {"x": [1, "T", 6]}, "y", constants))


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    make.__name__: make
    for make in (
        lstm,
        batch_first,
        symbols,
        frames,
        channels_first,
        classifier,
        two_inputs,
        quantized,
    )
}


def options(least: int = 1, most: int = MOST) -> InputOptions:
    return InputOptions(dims={"T": (least, most)})


def all_ranges(proto: onnx.ModelProto) -> InputOptions:
    """Return options with a range for every named dimension of the model."""
    ranges = {"T": (1, MOST), "S": (2, 12)}
    named = {d.dim_param for i in proto.graph.input for d in i.type.tensor_type.shape.dim}
    return InputOptions(dims={name: ranges[name] for name in ranges if name in named})


def feeds(proto: onnx.ModelProto, sizes: Mapping[str, int], seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for info in proto.graph.input:
        stored = info.type.tensor_type
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in stored.shape.dim]
        if stored.elem_type == onnx.TensorProto.INT64:
            found[info.name] = rng.integers(0, 11, shape)
        else:
            found[info.name] = rng.uniform(-1, 1, shape).astype(np.float32)
    return found


def assert_near(found: Sequence[Sequence[Array]], expected: Sequence[Sequence[Array]]) -> None:
    for sample, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert (a.shape, a.dtype) == (b.shape, b.dtype), (sample, index)
            bound = TOLERANCE * max(1.0, float(np.abs(b).max()))
            np.testing.assert_allclose(a, b, 0, bound, err_msg=f"sample {sample}, output {index}")


@pytest.mark.quick(setup=("host",), every=2)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("setup", ["host", pytest.param("m4", marks=pytest.mark.qemu)])
def test_all_sizes_agree_with_onnxruntime(setup: str, network: str) -> None:
    proto = NETWORKS[network]()
    imported = load(proto.SerializeToString(), "net", all_ranges(proto)).graph
    judge = session(proto)
    samples: list[Sample] = []
    expected: list[list[Array]] = []
    for index, size in enumerate(SIZES):
        given = feeds(proto, {"T": size, "S": 12 - index}, index)
        samples.append(tuple(given[value.name] for value in imported.inputs))
        expected.append([np.asarray(y) for y in judge.run(None, given)])
    assert_near(run(compile_graph(imported, SETUPS[setup]), samples).outputs, expected)


@pytest.mark.quick(every=4)
@pytest.mark.parametrize("network", NETWORKS)
def test_verification_draws_random_sizes(network: str) -> None:
    proto = NETWORKS[network]()
    artifact = compile_graph(load(proto.SerializeToString(), None, all_ranges(proto)).graph)
    samples = random_samples(artifact.graph, 4, 0)
    assert len({sample[0].shape for sample in samples}) > 1
    assert verify_model(artifact, samples).samples == 4


def test_all_axes_with_the_dimension_are_found() -> None:
    proto = two_inputs().SerializeToString()
    found = load(proto, None, InputOptions(dims={"T": (1, 9), "S": (2, 4)})).graph
    assert found.lengths == (
        Length("T", 1, 9, ((0, 0), (2, 0))),
        Length("S", 2, 4, ((1, 0),)),
    )
    assert [v.type.shape for v in found.inputs] == [(9, 3), (4, 3), (9, 1)]
    fixed = load(proto, None, InputOptions(dims={"T": (9, 9), "S": 4})).graph
    assert fixed.lengths == ()


def test_shape_must_not_fix_a_dimension_with_a_range() -> None:
    data, shapes = two_inputs().SerializeToString(), {"z": (4, 3)}
    found = load(data, None, InputOptions({"T": (1, 9), "S": 4}, shapes))
    assert [length.name for length in found.graph.lengths] == ["T"]
    with pytest.raises(ConfigError, match=r"dimension 0 of input 'z' size 4.*size 2 to 4, as 'S'"):
        load(data, None, InputOptions({"T": (1, 9), "S": (2, 4)}, shapes))


def test_a_range_for_a_dimension_of_constants_only_is_refused() -> None:
    given = InputOptions({"T": (1, 9), "S": (2, 4)}, values={"z": (1.0,)})
    with pytest.raises(ConfigError, match=r"'S' sizes from 2 to 4, but no input"):
        load(two_inputs().SerializeToString(), None, given)


def test_nhwc_layout_moves_the_axis_of_the_dimension() -> None:
    proto = model(
        graph([node("Conv", "x k", "y")], {"x": [1, 3, "T", 2]}, "y", weights(8, k=(4, 3, 1, 1)))
    )
    given = InputOptions(dims={"T": (1, 9)}, layout="nhwc")
    found = load(proto.SerializeToString(), None, given).graph
    assert found.inputs[0].type.shape == (1, 9, 2, 3)
    assert found.lengths == (Length("T", 1, 9, ((0, 1),)),)


# --- refusals --------------------------------------------------------------------------------


def divided_by_size() -> onnx.ModelProto:
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape zero", "count"),
        node("Cast", "count", "real", to=1),
        node("Div", "x real", "y"),
    ]
    return model(graph(nodes, {"x": ["T", 3]}, "y", {"zero": np.asarray(0)}))


def positions() -> onnx.ModelProto:
    """Return a network that adds a table of positions, sliced to the size."""
    nodes = [
        node("Shape", "x", "shape", end=1),
        node("Slice", "table zero shape zero", "cut"),
        node("Add", "x cut", "y"),
    ]
    table = weights(9, table=(20, 3))
    return model(graph(nodes, {"x": ["T", 3]}, "y", {**table, "zero": ints(0)}))


def attention() -> onnx.ModelProto:
    nodes = [node("Transpose", "x", "t", perm=[1, 0]), node("MatMul", "x t", "y")]
    return model(graph(nodes, {"x": ["T", 3]}, "y"))


def across_time() -> onnx.ModelProto:
    conv = node("Conv", "x k", "y", pads=[1, 1])
    return model(graph([conv], {"x": [1, 3, "T"]}, "y", weights(10, k=(4, 3, 3))))


def baked_in() -> onnx.ModelProto:
    reshape = node("Reshape", "x shape", "y")
    return model(graph([reshape], {"x": [1, "T", 4]}, "y", {"shape": ints(MOST, 4)}))


def twice() -> onnx.ModelProto:
    return model(graph([node("Relu", "x", "y")], {"x": ["T", "T"]}, "y"))


def squeezed() -> onnx.ModelProto:
    """Return a network whose output has another rank if the size is 1."""
    return model(graph([node("Squeeze", "x", "y")], {"x": ["T", 3]}, "y"))


def second_step() -> onnx.ModelProto:
    gather = node("Gather", "x index", "y")
    return model(graph([gather], {"x": ["T", 3]}, "y", {"index": np.asarray(1)}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (divided_by_size, "the network computes with the size itself, as in Div #3 'y'"),
        (positions, "it is used by Binary.add. of Add #2 'y', which needs a fixed size"),
        (attention, "it is used by MatMul of MatMul #1 'y', whose result"),
        (across_time, "it is used by Conv2D of Conv #0 'y', which computes each element from many"),
        (baked_in, "with T=8, Reshape #0 'y': 'x' f32.1,8,4. cannot be reshaped"),
        (twice, "input 'x' has two dimensions with sizes known only at run time"),
        (squeezed, "the network computes with the size itself, as in"),
        (second_step, "Gather #0 'y', which takes elements that do not exist if the size is 1"),
    ],
)
def test_unsupported_uses_of_the_size_are_refused(
    make: Callable[[], onnx.ModelProto], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message) as caught:
        compile_graph(load(make().SerializeToString(), None, options()).graph)
    assert "T" in str(caught.value)
    assert f"--dim T={MOST}" in str(caught.value)
    compile_graph(load(make().SerializeToString(), None, InputOptions(dims={"T": MOST})).graph)


def test_a_greater_smallest_size_permits_fixed_indices() -> None:
    """A sequence of at least two steps has a second and a last but one."""
    nodes = [node("Gather", "x index", "y"), node("Slice", "x start end", "z")]
    constants = {"index": np.asarray(1), "start": ints(-2), "end": ints(2**62)}
    proto = model(graph(nodes, {"x": ["T", 3]}, "y z", constants))
    imported = load(proto.SerializeToString(), None, options(2)).graph
    samples = [(feeds(proto, {"T": n}, n)["x"],) for n in (9, 2, 5)]
    expected = [[np.asarray(y) for y in session(proto).run(None, {"x": x})] for (x,) in samples]
    assert_near(run(compile_graph(imported), samples).outputs, expected)


def test_a_slice_may_be_the_whole_at_the_smallest_size() -> None:
    """At the smallest size, the slice is imported differently, but computes the same."""
    sliced = node("Slice", "x start end", "part")
    nodes = [sliced, node("Relu", "part", "y")]
    constants = {"start": ints(-2), "end": ints(2**62)}
    proto = model(graph(nodes, {"x": ["T", 3]}, "y", constants)).SerializeToString()
    ranged, *fixed = (
        load(proto, None, dims).graph
        for dims in (options(2), *(InputOptions(dims={"T": n}) for n in (2, 5)))
    )
    for probe in fixed:
        require_same(ranged, probe)
    with pytest.raises(
        UnsupportedError, match="computes with the size itself, as in Slice #0 'part'"
    ):
        require_same(load(proto, None, options(2, 8)).graph, negated(fixed[0]))


def negated(whole: Graph) -> Graph:
    """Return the graph with all unary operators replaced by negation."""
    return replace(
        whole,
        nodes=tuple(
            replace(n, op=Unary("neg")) if isinstance(n.op, Unary) else n for n in whole.nodes
        ),
    )


@pytest.mark.parametrize("size", [(0, 5), (6, 5), (-1, 5)])
def test_invalid_ranges_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="gives 'T' sizes from"):
        load(lstm().SerializeToString(), None, InputOptions(dims={"T": size}))


# --- the command line ------------------------------------------------------------------------


@pytest.fixture
def smelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    (tmp_path / "net.onnx").write_bytes(batch_first().SerializeToString())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def command(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["smelt", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capfd.readouterr()
        return int(ended.value.code or 0), captured.out + captured.err

    return command


RANGE = ("net.onnx", "--dim", f"T=2..{MOST}")


def test_run_accepts_shorter_inputs(smelt: Callable[..., tuple[int, str]]) -> None:
    for size in (4, MOST, 2):
        x = feeds(batch_first(), {"T": size}, size)["x"]
        np.savez("in.npz", x=x)
        code, text = smelt("run", *RANGE, "--inputs", "in.npz", "-o", "out.npz")
        assert code == 0, text
        expected = session(batch_first()).run(None, {"x": x})
        with np.load("out.npz") as found:
            assert_near([[found["output_0"], found["output_1"]]], [expected])


def test_run_accepts_a_batch_of_samples_of_one_size(smelt: Callable[..., tuple[int, str]]) -> None:
    samples = np.stack([feeds(batch_first(), {"T": 5}, seed)["x"] for seed in range(3)])
    np.savez("in.npz", input_0=samples)
    assert smelt("run", *RANGE, "--inputs", "in.npz", "-o", "out.npz")[0] == 0
    with np.load("out.npz") as found:
        assert found["output_0"].shape == (3, 1, 5, 4)


def test_verify_compares_with_expected_outputs(smelt: Callable[..., tuple[int, str]]) -> None:
    x = feeds(batch_first(), {"T": 5}, 0)["x"]
    y, h = (np.asarray(v) for v in session(batch_first()).run(None, {"x": x}))
    np.savez("in.npz", x=x)
    np.savez("out.npz", p=y, h=h)
    code, text = smelt("verify", *RANGE, "--inputs", "in.npz", "--expect", "out.npz")
    assert code == 0, text
    np.savez("out.npz", p=y + np.float32(0.1), h=h)
    code, text = smelt("verify", *RANGE, "--inputs", "in.npz", "--expect", "out.npz")
    assert code == 1
    assert "output 'p' differs from --expect" in text


@pytest.mark.parametrize(("size", "words"), [(1, f"2 to {MOST}"), (MOST + 1, f"at most {MOST}")])
def test_inputs_out_of_range_are_refused(
    smelt: Callable[..., tuple[int, str]], size: int, words: str
) -> None:
    np.savez("in.npz", x=feeds(batch_first(), {"T": size}, 0)["x"])
    code, text = smelt("run", *RANGE, "--inputs", "in.npz")
    assert code == 1
    assert "ConfigError" in text
    assert words in text


def test_the_range_is_printed_and_generated(
    smelt: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    line = f"dimension T: from 2 to {MOST}, known at run time"
    assert line in smelt("inspect", *RANGE)[1]
    assert line in smelt("build", *RANGE, "-o", "out")[1]
    note = "no layer is rewritten for a backend, because sizes are known at run time only (--dim T)"
    assert smelt("partition", *RANGE)[1].count(note) == 1
    header = (tmp_path / "out" / "net_net.h").read_text()
    assert f"#define NET_NET_T_MAX ({MOST})" in header
    assert "net_net_status_t net_net_set_length_T(net_net_t *ctx, int32_t length);" in header
    assert "net_net_set_length_T(&network, size)" in (tmp_path / "out" / "README.md").read_text()
    assert "dimension" not in smelt("inspect", "net.onnx", "--dim", "T=4")[1]


def test_dimensions_with_equal_names_in_c_are_refused() -> None:
    relu = [node("Relu", "x", "y"), node("Relu", "z", "w")]
    proto = model(graph(relu, {"x": ["a.b", 2], "z": ["a_b", 2]}, "y w"))
    dims = {"a.b": (1, 3), "a_b": (1, 4)}
    found = load(proto.SerializeToString(), None, InputOptions(dims=dims)).graph
    with pytest.raises(UnsupportedError, match=r"'a\.b' and 'a_b' would have the same name in C"):
        compile_graph(found)
