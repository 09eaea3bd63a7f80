"""The attention operators of domain com.microsoft, against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from smelt.api.compile import compile_model
from smelt.errors import ModelError, UnsupportedError
from smelt.frontend import load
from smelt.ir import Array
from smelt.proof.run import run
from tests.support.graphs import assert_same
from tests.support.onnx_networks import agrees, graph, model, session, tensor_info

BATCH, QUERIES, KEYS, HEADS, SIZE = 2, 4, 6, 2, 3
WIDTH = HEADS * SIZE
Operands = Mapping[str, Array]


def real(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def int32s(*rows: Any) -> Array:
    return np.asarray(rows, np.int32)


def attention_of(
    kind: str, order: str, operands: Operands, constants: Sequence[str] = (), **attributes: Any
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return a network of one attention operator, and the values of its inputs.

    Args:
        kind: the operator.
        order: names of its operands, separated by spaces; `_` for an absent one.
        operands: their values.
        constants: names of the operands that are constants.
        attributes: the attributes of the operator; but `results` contains the names of its
            outputs, separated by spaces (default: `y`).
    """
    names = ["" if name == "_" else name for name in order.split()]
    results = attributes.pop("results", "y").split()
    attributes = {"num_heads": HEADS} | attributes
    step = helper.make_node(kind, names, results, domain="com.microsoft", **attributes)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in operands.items()
        if n not in constants
    ]
    outputs = [tensor_info(name, None) for name in results]
    held = {name: operands[name] for name in constants}
    proto = model(graph([step], inputs, outputs, held), 17, com_microsoft=1)
    return proto, {n: a for n, a in operands.items() if n not in constants}


PROJECTED = {"x": real(BATCH, KEYS, 5), "w": real(5, 3 * WIDTH), "b": real(3 * WIDTH)}
MASKS: dict[str, Array] = {
    "lengths": int32s(4, 6),
    "ends and starts": int32s(4, 6, 1, 0),
    "keys": int32s([1, 1, 0, 1, 1, 0], [0, 1, 1, 1, 1, 1]),
    "scores": np.tril(np.ones((BATCH, KEYS, KEYS), np.int32), 2),
}


@pytest.mark.parametrize("constants", [("w", "b"), ("w", "b", "m"), ()], ids=len)
@pytest.mark.parametrize("attributes", [{}, {"unidirectional": 1, "scale": 0.7}], ids=len)
@pytest.mark.parametrize("mask", MASKS)
def test_projected_attention_with_a_mask(
    mask: str, attributes: dict[str, Any], constants: tuple[str, ...]
) -> None:
    operands = {**PROJECTED, "m": MASKS[mask]}
    agrees(*attention_of("Attention", "x w b m", operands, constants, **attributes))


@pytest.mark.parametrize(
    ("order", "attributes"),
    [
        ("x w b", {}),
        ("x w _", {}),
        ("x w b", {"unidirectional": 1}),
        ("x w b _ _ s", {}),
        ("x w b m _ s", {"unidirectional": 1}),
    ],
)
def test_projected_attention(order: str, attributes: dict[str, Any]) -> None:
    every = {**PROJECTED, "m": MASKS["keys"], "s": real(BATCH, HEADS, KEYS, KEYS)}
    operands = {name: every[name] for name in order.split() if name != "_"}
    agrees(*attention_of("Attention", order, operands, ("w",), **attributes))


def test_values_may_be_wider_than_queries_and_keys() -> None:
    sizes = [WIDTH, WIDTH, 2 * WIDTH]
    operands = {"x": PROJECTED["x"], "w": real(5, sum(sizes)), "b": real(sum(sizes))}
    given = attention_of("Attention", "x w b", operands, ("w", "b"), qkv_hidden_sizes=sizes)
    agrees(*given)


def test_a_fully_masked_sample_still_attends_to_its_keys() -> None:
    """Masking adds a finite number to each score: if all keys are masked, none gets weight 0."""
    operands = {**PROJECTED, "m": int32s([0] * KEYS, [1] * KEYS)}
    for constants in (("w", "b"), ("w", "b", "m")):
        agrees(*attention_of("Attention", "x w b m", operands, constants))


Q, K, V = real(BATCH, QUERIES, WIDTH), real(BATCH, KEYS, WIDTH), real(BATCH, KEYS, 2 * WIDTH)
APART = {"q": Q, "k": K, "v": V, "b": real(4 * WIDTH)}
CROSS = {"lengths": int32s(4, 6), "keys": MASKS["keys"]}


@pytest.mark.parametrize(
    ("order", "mask", "attributes"),
    [
        ("q k v", "", {}),
        ("q k v b", "", {"scale": 0.3}),
        ("q k v b m", "lengths", {}),
        ("q k v _ m", "keys", {"mask_filter_value": -5.0}),
        ("q k v b m s", "keys", {}),
        ("q k v _ _ s", "", {}),
        ("q k v _ _ s1", "", {}),
    ],
)
@pytest.mark.parametrize("constant", [False, True])
def test_multi_head_attention_of_separate_operands(
    order: str, mask: str, attributes: dict[str, Any], constant: bool
) -> None:
    every = {**APART, "s": real(BATCH, HEADS, QUERIES, KEYS), "s1": real(1, 1, QUERIES, KEYS)}
    every |= {"m": CROSS[mask]} if mask else {}
    operands = {name: every[name] for name in order.split() if name != "_"}
    constants = [name for name in operands if constant and name in ("b", "m", "s", "s1")]
    agrees(*attention_of("MultiHeadAttention", order, operands, constants, **attributes))


def test_causal_heads() -> None:
    operands = {"q": real(BATCH, KEYS, WIDTH), "k": K, "v": V}
    agrees(*attention_of("MultiHeadAttention", "q k v", operands, unidirectional=1))


def test_keys_and_values_may_be_split_into_heads_already() -> None:
    operands = {"q": Q, "k": real(BATCH, HEADS, KEYS, SIZE), "v": real(BATCH, HEADS, KEYS, SIZE)}
    agrees(*attention_of("MultiHeadAttention", "q k v", operands))


def test_keys_and_values_may_also_be_outputs() -> None:
    given = attention_of("MultiHeadAttention", "q k v", {"q": Q, "k": K, "v": V}, results="y pk pv")
    agrees(*given)


@pytest.mark.parametrize("parts", [2, 3])
def test_packed_heads(parts: int) -> None:
    """As onnxruntime supports packed operands on GPUs only, compare with separate operands."""
    packed = real(BATCH, KEYS, HEADS, parts, SIZE)
    rows = [packed[:, :, :, i].reshape(BATCH, KEYS, WIDTH) for i in range(parts)]
    apart = dict(zip("qkv", [Q, *rows][-3:], strict=True))
    (expected,) = session(attention_of("MultiHeadAttention", "q k v", apart)[0]).run(None, apart)
    operands = {"p": packed} if parts == 3 else {"q": Q, "p": packed}
    proto, given = attention_of("MultiHeadAttention", " ".join(operands), operands)
    artifact = compile_model(proto.SerializeToString())
    found = list(run(artifact, [tuple(given.values())]).outputs)
    assert_same(found, [(expected,)], f"{parts} parts")


@pytest.mark.parametrize("columns", [1, 3 * WIDTH])
@pytest.mark.parametrize("weights", [np.int8, np.uint8])
def test_quantized_projections(weights: type, columns: int) -> None:
    rng = np.random.default_rng(4)
    info = np.iinfo(weights)
    operands: dict[str, Array] = {
        "x": rng.integers(0, 256, (BATCH, KEYS, 5), np.uint8, endpoint=False),
        "w": rng.integers(info.min, info.max, (5, 3 * WIDTH), weights, endpoint=True),
        "b": PROJECTED["b"],
        "xs": np.asarray(0.01, np.float32),
        "ws": np.linspace(0.004, 0.01, columns).astype(np.float32).reshape(columns),
        "m": MASKS["keys"],
        "xz": np.asarray(120, np.uint8),
        "wz": np.full(columns, 3 if weights is np.int8 else 130, weights),
    }
    if columns == 1:
        operands |= {name: operands[name].reshape(()) for name in ("ws", "wz")}
    constants = ("w", "b", "xs", "ws", "xz", "wz")
    agrees(*attention_of("QAttention", "x w b xs ws m xz wz", operands, constants))


# Refusals

CACHE = real(BATCH, HEADS, 2, SIZE)
REFUSED: dict[str, tuple[str, str, Operands, dict[str, Any], str]] = {
    "past": (
        *("Attention", "x w b _ p", {**PROJECTED, "p": real(2, BATCH, HEADS, 2, SIZE)}, {}),
        r"keys and values of earlier calls \(past, a cache\) .*use_cache=False",
    ),
    "past of heads": (
        *("MultiHeadAttention", "q k v _ _ _ p r", {**APART, "p": CACHE, "r": CACHE}, {}),
        "keys and values of earlier calls",
    ),
    "present": (
        *("Attention", "x w b", PROJECTED, {"results": "y present"}),
        "computes only the first 1 of its outputs",
    ),
    "rotary": ("Attention", "x w b", PROJECTED, {"do_rotary": 1}, "do_rotary"),
    "mask of four axes": (
        *("Attention", "x w b m", {**PROJECTED, "m": np.ones((BATCH, 1, 8, 8), np.int32)}, {}),
        "mask i32.* is not supported; use the number of keys",
    ),
    "one-dimensional mask of unsupported size": (
        *("Attention", "x w b m", {**PROJECTED, "m": np.ones(3 * BATCH + 2, np.int32)}, {}),
        "mask i32.* is not supported; use the number of keys",
    ),
    "negative number of keys": (
        *(
            "Attention",
            "x w b m",
            {**PROJECTED, "m": np.full(BATCH, -1, np.int32)},
            {"constants": ["m"]},
        ),
        "its mask 'm' has -1 as a number of keys",
    ),
    "no keys": (
        *("MultiHeadAttention", "q k k", {"q": Q, "k": real(BATCH, 0, WIDTH)}, {}),
        "queries, keys or values are empty",
    ),
    "no heads": (
        *("MultiHeadAttention", "p", {"p": real(BATCH, KEYS, 0, 3, SIZE)}, {}),
        "queries have 0 heads",
    ),
    "width is no multiple of heads": (
        *("Attention", "x w b", PROJECTED, {"num_heads": 4}),
        "cannot be divided into 4 heads",
    ),
    "sizes with a wrong sum": (
        *("Attention", "x w b", PROJECTED, {"qkv_hidden_sizes": [6, 6, 5]}),
        r"qkv_hidden_sizes \[6, 6, 5\] must be",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_and_wrong_operands_are_refused(name: str) -> None:
    kind, order, operands, attributes, text = REFUSED[name]
    used = {n: operands[n] for n in order.split() if n != "_"}
    proto, _ = attention_of(kind, order, used, **attributes)
    with pytest.raises((ModelError, UnsupportedError), match=text):
        load(proto.SerializeToString(), "net")


def test_generated_code_agrees_with_onnxruntime() -> None:
    operands = {**PROJECTED, "m": MASKS["keys"]}
    proto, given = attention_of("Attention", "x w b m", operands, ("w", "b"), unidirectional=1)
    expected = tuple(session(proto).run(None, given))
    artifact = compile_model(proto.SerializeToString())
    assert_same(list(run(artifact, [tuple(given.values())]).outputs), [expected], "attention")
