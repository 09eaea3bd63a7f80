"""Matrix products, Einsum, Fourier transforms and attention of ONNX, against ONNX Runtime."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from smelt.codegen.passes import run_passes
from smelt.errors import ModelError, UnsupportedError
from smelt.frontend import load
from smelt.ir import Array, Graph, evaluate
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.matmul import MatMul
from smelt.ops.tensor.copy import Copy
from smelt.ops.tensor.tile import Tile
from smelt.ops.tensor.transpose import Transpose
from tests.support.graphs import SETUPS, Member, assert_same, run_together
from tests.support.onnx_networks import agrees, graph, ints, model, node, session, tensor_info

Shape = tuple[int, ...]


def arrays(*shapes: Shape, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]


def single(
    kind: str,
    operands: list[Array],
    *,
    constants: tuple[int, ...] = (),
    opset: int = 21,
    outputs: str = "y",
    domain: str = "",
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return a network of one operator, and the values of its inputs.

    Args:
        kind: the operator.
        operands: their values.
        constants: indices of the operands that are constants in the file.
        opset: operator set.
        outputs: names of the outputs.
        domain: of the operator.
        attributes: of the operator.
    """
    names = [f"x{i}" for i in range(len(operands))]
    made = node(kind, " ".join(names), outputs, domain, **attributes)
    fed = {n: a for i, (n, a) in enumerate(zip(names, operands, strict=True)) if i not in constants}
    kept = {n: a for n, a in zip(names, operands, strict=True) if n not in fed}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in fed.items()
    ]
    domains = {"com_microsoft": 1} if domain else {}
    return model(graph([made], infos, outputs, kept, kind.lower()), opset, **domains), fed


def imported(proto: onnx.ModelProto) -> Graph:
    return run_passes(load(proto.SerializeToString(), "net").graph)


def operators(network: Graph) -> list[type]:
    return [type(n.op) for n in network.nodes]


MATRICES: list[tuple[Shape, Shape]] = [
    ((3, 4), (4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((3, 4), (2, 4, 5)),
    ((4,), (2, 4, 5)),
    ((2, 3, 4), (4,)),
    ((1, 1), (1, 1)),
]


@pytest.mark.parametrize("constants", [(), (1,), (0,)])
@pytest.mark.parametrize(("a", "b"), MATRICES)
def test_matmul_agrees_with_onnxruntime(a: Shape, b: Shape, constants: tuple[int, ...]) -> None:
    agrees(*single("MatMul", arrays(a, b), constants=constants))


@pytest.mark.parametrize("kind", ["int32", "int64", "uint32", "uint64"])
def test_matmul_of_integers_agrees_with_onnxruntime(kind: str) -> None:
    rng = np.random.default_rng(3)
    low = 0 if kind.startswith("u") else -(2**20)
    a, b = (rng.integers(low, 2**20, shape).astype(kind) for shape in ((3, 4), (2, 4, 5)))
    element = helper.np_dtype_to_tensor_dtype(a.dtype)
    infos = [
        helper.make_tensor_value_info(name, element, shape)
        for name, shape in (("a", a.shape), ("b", b.shape), ("y", (2, 3, 5)))
    ]
    proto = model(graph([node("MatMul", "a b", "y")], infos[:2], infos[2:]))
    agrees(proto, {"a": a, "b": b})


GEMM = list(
    itertools.product(
        ((0, 0), (1, 0), (0, 1), (1, 1)),
        (None, (), (1,), (5,), (1, 5), (3, 1), (3, 5)),
        ((1.0, 1.0), (0.5, -2.0)),
    )
)


@pytest.mark.parametrize("constants", [(), (1, 2), (1,)])
def test_gemm_agrees_with_onnxruntime(constants: tuple[int, ...]) -> None:
    for (trans_a, trans_b), c, (alpha, beta) in GEMM:
        shapes = [(4, 3) if trans_a else (3, 4), (5, 4) if trans_b else (4, 5)]
        operands = arrays(*shapes, *([] if c is None else [c]))
        attributes: dict[str, Any] = {
            "transA": trans_a,
            "transB": trans_b,
            "alpha": alpha,
            "beta": beta,
        }
        agrees(*single("Gemm", operands, constants=constants, **attributes))


def test_gemm_with_constant_weights_becomes_one_dense_layer() -> None:
    proto, _ = single("Gemm", arrays((3, 4), (5, 4), (5,)), constants=(1, 2), alpha=0.5, transB=1)
    assert operators(imported(proto)) == [FullyConnected]


@pytest.mark.parametrize("constants", [(), (1,)])
def test_fused_matmul_agrees_with_onnxruntime(constants: tuple[int, ...]) -> None:
    for trans_a, trans_b in itertools.product((0, 1), (0, 1)):
        shapes = [(2, 4, 3) if trans_a else (2, 3, 4), (5, 4) if trans_b else (4, 5)]
        attributes: dict[str, Any] = {"transA": trans_a, "transB": trans_b, "alpha": 0.25}
        domain = "com.microsoft"
        agrees(
            *single(
                "FusedMatMul", arrays(*shapes), constants=constants, domain=domain, **attributes
            )
        )


EINSUMS: list[tuple[str, tuple[Shape, ...]]] = [
    ("ij->ji", ((2, 3),)),
    ("ij", ((2, 3),)),
    ("ba", ((2, 3),)),
    ("ij->", ((2, 3),)),
    ("ij->j", ((2, 3),)),
    ("ii", ((4, 4),)),
    ("ii->i", ((4, 4),)),
    ("...ii->...i", ((2, 3, 4, 4),)),
    ("iji->j", ((3, 2, 3),)),
    ("iii->i", ((3, 3, 3),)),
    ("i,i", ((5,), (5,))),
    ("i,j->ij", ((5,), (3,))),
    ("i,j->ji", ((5,), (3,))),
    ("ij,jk", ((2, 3), (3, 4))),
    ("ij,jk->ki", ((2, 3), (3, 4))),
    ("ij,ij->ij", ((2, 3), (2, 3))),
    ("ij,ij->i", ((2, 3), (2, 3))),
    ("ij,j->ij", ((2, 3), (3,))),
    ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))),
    ("bhqd,bhkd->bhqk", ((2, 3, 4, 5), (2, 3, 6, 5))),
    ("bqhd,bkhd->bhqk", ((2, 4, 3, 5), (2, 6, 3, 5))),
    ("bhqk,bkhd->bqhd", ((2, 3, 4, 6), (2, 6, 3, 5))),
    ("...ij,...jk->...ik", ((2, 1, 3, 4), (5, 4, 2))),
    ("...i,i...->...", ((2, 4), (4, 2))),
    ("abc,cd,de->ae", ((2, 3, 4), (4, 5), (5, 6))),
    ("abcd,cd->ab", ((2, 3, 4, 5), (4, 5))),
    ("ab,cd->acbd", ((2, 3), (4, 5))),
    ("ij,jk,ik->", ((2, 3), (3, 4), (2, 4))),
    ("bchw,bkhw->bckhw", ((2, 3, 2, 2), (2, 4, 2, 2))),
    ("i...,...->i...", ((2, 3, 4), (1, 4))),
    (" i j , j k -> i k ", ((2, 3), (3, 4))),
]


@pytest.mark.parametrize(("equation", "shapes"), EINSUMS)
def test_einsum_agrees_with_numpy(equation: str, shapes: tuple[Shape, ...]) -> None:
    """ONNX Runtime does not accept all of these equations."""
    operands = arrays(*shapes)
    proto, fed = single("Einsum", operands, equation=equation)
    expected = np.einsum(equation, *(a.astype(np.float64) for a in operands))
    network = load(proto.SerializeToString(), "net").graph
    for found in (evaluate(network, list(fed.values())), evaluate(run_passes(network), operands)):
        assert_same([found.outputs], [(expected.astype(np.float32),)], equation)


@pytest.mark.parametrize(
    ("equation", "shapes", "text"),
    [
        ("ij,jk->ik", ((2, 3),), "has 2 operands, but the operator has 1"),
        ("ij->ik", ((2, 3),), "cannot have output 'ik'"),
        ("ij->ii", ((2, 3),), "cannot have output 'ii'"),
        ("ij,jk", ((2, 3), (4, 5)), "'j' in its equation has two different sizes, 3 and 4"),
        ("i1->i", ((2, 3),), "is not a list of letters"),
        ("ijk->i", ((2, 3),), "does not fit an operand with 2 dimensions"),
        ("ii->i", ((2, 3),), "'i' in its equation"),
    ],
)
def test_wrong_equations_of_einsum_are_refused(
    equation: str, shapes: tuple[Shape, ...], text: str
) -> None:
    proto, _ = single("Einsum", arrays(*shapes), equation=equation)
    with pytest.raises(ModelError, match=text):
        load(proto.SerializeToString(), "net")


@pytest.mark.parametrize("length", [None, 5, 8, 12])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("axis", [1, 2])
def test_dft_agrees_with_numpy(length: int | None, parts: int, axis: int) -> None:
    (x,) = arrays((2, 8, 6, parts))
    values = x[..., 0] if parts == 1 else x[..., 0] + 1j * x[..., 1]
    for inverse, onesided in ((0, 0), (0, 1), (1, 0), *([(1, 1)] if parts == 2 else [])):
        if onesided and not inverse and parts == 2:
            continue
        function: Any = {
            (0, 0): np.fft.fft,
            (0, 1): np.fft.rfft,
            (1, 0): np.fft.ifft,
            (1, 1): np.fft.irfft,
        }[inverse, onesided]
        wanted = function(values, length, axis=axis)
        pair = [wanted] if inverse and onesided else [wanted.real, wanted.imag]
        expected = np.stack(pair, axis=-1).astype(np.float32)
        operands = [x] if length is None else [x, np.asarray(length, np.int64)]
        proto, _ = single(
            "DFT",
            operands,
            constants=(1,),
            opset=17,
            axis=axis,
            inverse=inverse,
            onesided=onesided,
        )
        (found,) = evaluate(load(proto.SerializeToString(), "net").graph, [x]).outputs
        assert_same([(found,)], [(expected,)], f"inverse {inverse}, onesided {onesided}")


@pytest.mark.parametrize("computed_window", [False, True])
def test_stft_agrees_with_onnxruntime(computed_window: bool) -> None:
    signal, window = arrays((2, 40, 1), (16,))
    operands = [signal, np.asarray(6, np.int64), window, np.asarray(16, np.int64)]
    constants = (1, 3) if computed_window else (1, 2, 3)
    for onesided in (0, 1):
        agrees(*single("STFT", operands, constants=constants, opset=17, onesided=onesided))


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 3), (2, 3, 4, 4)])
def test_determinants_agree_with_onnxruntime(shape: Shape) -> None:
    agrees(*single("Det", arrays(shape)))


def test_large_determinants_are_refused() -> None:
    proto, _ = single("Det", arrays((5, 5)))
    with pytest.raises(UnsupportedError, match="determinants of 5x5"):
        load(proto.SerializeToString(), "net")


def attention(
    rank: int, heads: tuple[int, int], lengths: tuple[int, int], **attributes: Any
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    shapes = [
        (2, length, count * 8) if rank == 3 else (2, count, length, 8)
        for count, length in ((heads[0], lengths[0]), *[(heads[1], lengths[1])] * 2)
    ]
    if rank == 3:
        attributes |= {"q_num_heads": heads[0], "kv_num_heads": heads[1]}
    mask = attributes.pop("mask", None)
    operands = arrays(*shapes) + ([] if mask is None else [mask])
    constants = () if mask is None else (3,)
    return single("Attention", operands, constants=constants, opset=23, **attributes)


MASK = np.tril(np.ones((5, 7), np.bool_), 2)
ATTENTIONS: list[tuple[tuple[int, int], dict[str, Any]]] = [
    ((4, 4), {}),
    ((6, 2), {}),
    ((4, 4), {"scale": 0.3}),
    ((4, 2), {"softcap": 0.7}),
    ((4, 4), {"is_causal": 1}),
    ((4, 4), {"mask": MASK}),
    ((4, 4), {"mask": np.where(MASK, np.float32(0.4), np.float32(-3.0))}),
    ((4, 2), {"mask": MASK, "is_causal": 1, "softcap": 0.5}),
]


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize(("heads", "attributes"), ATTENTIONS)
def test_attention_agrees_with_onnxruntime(
    rank: int, heads: tuple[int, int], attributes: dict[str, Any]
) -> None:
    agrees(*attention(rank, heads, (5, 7), **attributes))


def test_attention_needs_no_transpose_and_no_copy() -> None:
    """Heads are read by strides, and keys and values that heads share are not repeated."""
    proto, _ = attention(3, (6, 2), (5, 7))
    assert not {Transpose, Tile, Copy} & {*operators(imported(proto))}


def transformer_layer() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return self-attention in the small operators that PyTorch's exporter writes."""
    steps, width, heads = 10, 32, 4
    nodes: list[onnx.NodeProto] = []
    for n in "qkv":
        nodes += [node("MatMul", f"x w{n}", f"m{n}"), node("Add", f"b{n} m{n}", f"a{n}")]
        nodes += [node("Reshape", f"a{n} apart", f"r{n}")]
        nodes += [
            node("Transpose", f"r{n}", f"t{n}", perm=[0, 2, 3, 1] if n == "k" else [0, 2, 1, 3])
        ]
    nodes += [node("Mul", "tq root", "sq"), node("Mul", "tk root", "sk")]
    nodes += [node("MatMul", "sq sk", "scores"), node("Softmax", "scores", "p", axis=-1)]
    nodes += [node("MatMul", "p tv", "o"), node("Transpose", "o", "ot", perm=[0, 2, 1, 3])]
    nodes += [node("Reshape", "ot whole", "or"), node("MatMul", "or wo", "y")]
    matrices = arrays(*[(width, width)] * 4, seed=1)
    biases = arrays(*[(width,)] * 3, seed=2)
    constants: dict[str, Array] = {
        **{f"w{n}": m for n, m in zip("qkvo", matrices, strict=True)},
        **{f"b{n}": b for n, b in zip("qkv", biases, strict=True)},
        "apart": ints(2, steps, heads, width // heads),
        "whole": ints(2, steps, width),
        "root": np.asarray(0.6, np.float32),
    }
    (x,) = arrays((2, steps, width), seed=3)
    built = graph(nodes, [tensor_info("x", x.shape)], "y", constants, "layer")
    return model(built), {"x": x}


def test_a_transformer_layer_needs_no_transpose() -> None:
    proto, feeds = transformer_layer()
    agrees(proto, feeds)
    found = operators(imported(proto))
    assert Transpose not in found
    assert (found.count(FullyConnected), found.count(MatMul)) == (4, 2)


@pytest.mark.quick(setup=("host",))
@pytest.mark.parametrize("setup", ["host", pytest.param("m4", marks=pytest.mark.qemu)])
def test_generated_code_agrees_with_onnxruntime(setup: str) -> None:
    models = [
        transformer_layer(),
        attention(3, (6, 2), (5, 7)),
        attention(4, (4, 4), (5, 7), mask=MASK, softcap=0.5),
        single("MatMul", arrays((2, 1, 3, 4), (5, 4, 2))),
        single("Einsum", arrays((2, 4, 3, 5), (2, 6, 3, 5)), equation="bqhd,bkhd->bhqk"),
        single("Det", arrays((2, 3, 3))),
    ]
    graphs = [load(proto.SerializeToString(), f"m{i}").graph for i, (proto, _) in enumerate(models)]
    members = [
        Member(g, [tuple(feeds[v.name] for v in g.inputs)])
        for g, (_, feeds) in zip(graphs, models, strict=True)
    ]
    for (proto, feeds), found in zip(models, run_together(members, SETUPS[setup]), strict=True):
        expected = tuple(np.asarray(y) for y in session(proto).run(None, dict(feeds)))
        assert_same(found, [expected], f"{proto.graph.name} on {setup}")
