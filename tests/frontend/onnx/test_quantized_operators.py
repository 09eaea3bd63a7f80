"""Single quantized ONNX operators, against onnxruntime or ONNX's reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from smelt.errors import ModelError
from smelt.frontend import load
from smelt.ir import Array, evaluate
from tests.support.graphs import SETUPS, Member, assert_same, run_together
from tests.support.onnx_networks import (
    before_and_after_passes,
    graph,
    model,
    node,
    session,
    tensor_info,
)


def _stored(kind: str, *shape: int) -> Array:
    rng = np.random.default_rng(sum(shape))
    info = np.iinfo(np.uint8 if kind == "u8" else np.int8)
    return rng.integers(info.min, info.max, shape, info.dtype, endpoint=True)


def _operator(
    kind: str, operator: str, shapes: Sequence[Sequence[int]], domain: str, **attributes: Any
) -> onnx.ModelProto:
    """Return a network of one quantized operator.

    Its operands are tensor, scale and zero point of each input, then the output's scale and zero
    point (QLinearConcat begins with those; QGemm has a bias before them). Weights (the second
    operand of a product) are constants, except if they are a stack of matrices.
    """
    zero = np.asarray(7 if kind == "i8" else 131, np.int8 if kind == "i8" else np.uint8)
    constants: dict[str, Array] = {"ys": np.asarray(0.031, np.float32), "yz": zero}
    names: list[str] = []
    inputs: list[onnx.ValueInfoProto] = []
    for index, shape in enumerate(shapes):
        name = f"x{index}"
        names += [name, f"{name}s", f"{name}z"]
        constants[f"{name}s"] = np.asarray(0.02 + 0.007 * index, np.float32)
        constants[f"{name}z"] = np.asarray(zero - index, zero.dtype)
        stack = operator == "QLinearMatMul" and len(shape) > 2
        if index and not stack and operator in ("QLinearConv", "QLinearMatMul", "QGemm"):
            constants[name] = _stored(kind, *shape)
        else:
            inputs.append(tensor_info(name, shape, kind))
    if operator == "QLinearConcat":
        names = ["ys", "yz", *names]
    elif operator == "QGemm":
        names = [*names, "b", "ys", "yz"]
        constants["b"] = np.linspace(-500, 500, shapes[1][0]).astype(np.int32)
    else:
        names += ["ys", "yz"]
    step = node(operator, " ".join(names), "y", domain, **attributes)
    outputs = [tensor_info("y", None, kind)]
    return model(graph([step], inputs, outputs, constants, operator), 17, com_microsoft=1)


_IMAGE = (1, 4, 6, 5)
_LAST = {"channels_last": 1}
"""Attribute for images `[n, h, w, c]`, which onnxruntime's optimizer writes."""
_MICROSOFT = "com.microsoft"
OPERATORS: list[tuple[str, str, list[tuple[int, ...]], dict[str, Any]]] = [
    ("QLinearConv", "", [_IMAGE, (6, 4, 3, 3)], {"pads": [1, 1, 1, 1]}),
    ("QLinearConv", "", [_IMAGE, (8, 1, 3, 3)], {"group": 4, "strides": [2, 1]}),
    ("QLinearConv", "", [(1, 4, 9), (6, 4, 3)], {"dilations": [2]}),
    ("QLinearMatMul", "", [(3, 7), (7, 5)], {}),
    ("QLinearMatMul", "", [(2, 3, 7), (7, 5)], {}),
    ("QLinearMatMul", "", [(2, 3, 7), (2, 7, 5)], {}),
    ("QLinearMatMul", "", [(2, 1, 3, 40), (3, 40, 5)], {}),
    ("QGemm", _MICROSOFT, [(2, 9), (10, 9)], {"transB": 1}),
    ("QLinearAdd", _MICROSOFT, [_IMAGE, _IMAGE], {}),
    ("QLinearAdd", _MICROSOFT, [_IMAGE, (4, 1, 1)], {}),
    ("QLinearMul", _MICROSOFT, [_IMAGE, _IMAGE], {}),
    ("QLinearSigmoid", _MICROSOFT, [(256,)], {}),
    ("QLinearLeakyRelu", _MICROSOFT, [(256,)], {"alpha": 0.07}),
    ("QLinearSoftmax", _MICROSOFT, [(3, 11)], {"axis": 1, "opset": 13}),
    ("QLinearConcat", _MICROSOFT, [_IMAGE, (1, 2, 6, 5)], {"axis": 1}),
    ("QLinearGlobalAveragePool", _MICROSOFT, [_IMAGE], {}),
    ("QLinearAveragePool", _MICROSOFT, [_IMAGE], {"kernel_shape": [2, 3]}),
    ("QLinearAveragePool", _MICROSOFT, [_IMAGE], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    (
        "QLinearAveragePool",
        _MICROSOFT,
        [_IMAGE],
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    ),
    ("QLinearConv", _MICROSOFT, [_IMAGE, (6, 4, 3, 3)], {"pads": [1, 1, 1, 1]}),
    ("QLinearConv", _MICROSOFT, [(1, 6, 5, 4), (6, 4, 3, 3)], {"pads": [1, 1, 1, 1], **_LAST}),
    ("QLinearConv", _MICROSOFT, [(1, 6, 5, 4), (8, 1, 3, 3)], {"group": 4, **_LAST}),
    ("QLinearAveragePool", _MICROSOFT, [(1, 6, 5, 4)], {"kernel_shape": [2, 3], **_LAST}),
    ("QLinearGlobalAveragePool", _MICROSOFT, [(1, 6, 5, 4)], _LAST),
]
EQUAL = {"QLinearConv", "QLinearMatMul", "QGemm", "QLinearConcat", "QLinearGlobalAveragePool"}
"""Operators whose results equal onnxruntime's; with others, a few elements differ by one."""


@pytest.mark.quick(kind=("u8",))
@pytest.mark.parametrize("kind", ["i8", "u8"])
def test_quantized_operators_agree_with_onnxruntime(kind: str) -> None:
    members: list[Member] = []
    expected: list[Array] = []
    for operator, domain, shapes, attributes in OPERATORS:
        if operator == "QGemm" and kind == "i8":
            attributes = {**attributes, "alpha": 1.0}
        proto = _operator(kind, operator, shapes, domain, **attributes)
        sample = tuple(
            _stored(kind, *shape)
            if len(shape) > 1
            else np.arange(256, dtype=np.uint8).view(np.int8 if kind == "i8" else np.uint8)
            for shape in shapes[: len(proto.graph.input)]
        )
        feeds = {value.name: x for value, x in zip(proto.graph.input, sample, strict=True)}
        expected.append(np.asarray(session(proto).run(None, feeds)[0]))
        members.append(Member(before_and_after_passes(proto)[1], [sample]))
    found = run_together(members, SETUPS["host"])
    for (operator, _, _, attributes), member, outputs, wanted in zip(
        OPERATORS, members, found, expected, strict=True
    ):
        reference = evaluate(member.graph, member.samples[0]).outputs
        assert_same(outputs, [reference], f"{operator} {attributes}")
        apart = np.abs(reference[0].astype(int) - wanted.astype(int))
        assert reference[0].dtype == wanted.dtype
        assert apart.max() <= (0 if operator in EQUAL else 1), operator
        assert (apart > 0).mean() <= 0.05, operator


@pytest.mark.parametrize("kind", ["i8", "u8"])
def test_max_pool_with_channels_last_equals_onnxruntime(kind: str) -> None:
    step = node("NhwcMaxPool", "x", "y", _MICROSOFT, kernel_shape=[3, 2], strides=[2, 1])
    x, y = tensor_info("x", (1, 6, 5, 4), kind), tensor_info("y", None, kind)
    proto, sample = model(graph([step], [x], [y]), 17, com_microsoft=1), _stored(kind, 1, 6, 5, 4)
    (wanted,) = session(proto).run(None, {"x": sample})
    for found in before_and_after_passes(proto):
        np.testing.assert_array_equal(evaluate(found, [sample]).outputs[0], wanted)


# Integer products without scales


def test_onnxruntimes_integer_products_are_exact_without_vnni() -> None:
    """Without VNNI, a sum of two products of uint8 and int8 would saturate in onnxruntime."""
    constants = {
        "w": np.full((4, 3), 127, np.int8),
        "xz": np.asarray(0, np.uint8),
        "wz": np.asarray(0, np.int8),
    }
    step, y = node("MatMulInteger", "x w xz wz", "y"), tensor_info("y", None, "i")
    proto = model(graph([step], [tensor_info("x", (2, 4), "u8")], [y], constants), 17)
    (found,) = session(proto).run(None, {"x": np.full((2, 4), 255, np.uint8)})
    np.testing.assert_array_equal(found, np.full((2, 3), 4 * 255 * 127))


def _integer_product(
    operator: str, shapes: Sequence[Sequence[int]], zeros: Mapping[int, Array], **attributes: Any
) -> tuple[onnx.ModelProto, list[Array]]:
    """Return a network of one integer product, with zero points as inputs, and its input values.

    Args:
        operator: MatMulInteger or ConvInteger.
        shapes: of the two operands, uint8 and int8.
        zeros: zero point by index of the operand.
        attributes: of the operator.
    """
    arrays = [_stored("u8", *shapes[0]), _stored("i8", *shapes[1])]
    names, feeds = ["a", "b"], list(arrays)
    inputs = [tensor_info("a", shapes[0], "u8"), tensor_info("b", shapes[1], "i8")]
    for index, kind in ((0, "u8"), (1, "i8")):
        names.append(f"z{index}" if index in zeros else "_")
        if index in zeros:
            inputs.append(tensor_info(f"z{index}", zeros[index].shape, kind))
            feeds.append(zeros[index])
    step = node(operator, " ".join(names), "y", **attributes)
    proto = model(graph([step], inputs, [tensor_info("y", None, "i")], None, operator), 17)
    return proto, feeds


_U8, _I8 = np.asarray(201, np.uint8), np.asarray(-5, np.int8)
_COLUMNS = np.asarray([3, -4, 5, 0, 9], np.int8)
PRODUCTS = [
    ("MatMulInteger", ((3, 300), (300, 5)), {}, {}),
    ("MatMulInteger", ((3, 300), (300, 5)), {0: _U8, 1: _I8}, {}),
    ("MatMulInteger", ((2, 3, 7), (7, 5)), {0: _U8, 1: _COLUMNS}, {}),
    ("MatMulInteger", ((2, 3, 7), (2, 7, 5)), {0: _U8}, {}),
    ("ConvInteger", ((1, 70, 5, 6), (3, 70, 3, 3)), {0: _U8}, {"pads": [1, 0, 1, 2]}),
    ("ConvInteger", ((2, 4, 5, 6), (4, 1, 3, 3)), {0: _U8, 1: _I8}, {"group": 4}),
    ("ConvInteger", ((1, 3, 9), (5, 3, 4)), {}, {"strides": [2]}),
]


@pytest.mark.parametrize("constant", [False, True], ids=["computed", "constant"])
def test_integer_products_equal_the_reference(constant: bool) -> None:
    members: list[Member] = []
    expected: list[Array] = []
    for operator, shapes, zeros, attributes in PRODUCTS:
        proto, feeds = _integer_product(operator, shapes, zeros, **attributes)
        fed = {value.name: x for value, x in zip(proto.graph.input, feeds, strict=True)}
        expected.append(_int32_product(proto, fed))
        if constant:
            for value in list(proto.graph.input)[1:]:
                proto.graph.initializer.append(numpy_helper.from_array(fed[value.name], value.name))
                proto.graph.input.remove(value)
            feeds = feeds[:1]
        members.append(Member(before_and_after_passes(proto)[1], [tuple(feeds)]))
    for member, found, wanted in zip(
        members, run_together(members, SETUPS["host"]), expected, strict=True
    ):
        reference = evaluate(member.graph, member.samples[0]).outputs
        np.testing.assert_array_equal(reference[0], wanted)
        np.testing.assert_array_equal(found[0][0], wanted)


def _int32_product(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> Array:
    """Compute the product by ONNX's reference in float64: onnxruntime lacks some of these forms."""
    (step,) = proto.graph.node
    a, b = (feeds[name].astype(np.float64) for name in step.input[:2])
    zeros = [feeds[n].astype(np.float64) if n else 0.0 for n in [*step.input[2:], "", ""][:2]]
    kind = step.op_type.removesuffix("Integer")
    plain = helper.make_node(kind, ["a", "b"], ["y"])
    plain.attribute.extend(step.attribute)
    inputs = [tensor_info("a", a.shape, "d"), tensor_info("b", b.shape, "d")]
    run = ReferenceEvaluator(model(graph([plain], inputs, [tensor_info("y", None, "d")]), 17))
    results: Any = run.run(None, {"a": a - zeros[0], "b": b - zeros[1]})
    return np.asarray(results[0]).astype(np.int32)


def test_quantized_inputs_have_scale_and_zero_point() -> None:
    proto = _operator("u8", "QLinearAdd", [_IMAGE, _IMAGE], _MICROSOFT)
    before, after = before_and_after_passes(proto)
    for network in (before, after):
        quants = [value.type.quant for value in network.inputs]
        assert [q.scalar for q in quants if q is not None] == [
            (float(np.float32(0.02)), 131),
            (float(np.float32(0.027)), 130),
        ]
    assert [n.op.name for n in after.nodes if n.output.type.dtype.is_float] == []


def test_scales_and_zero_points_may_be_computed_at_run_time() -> None:
    x = np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 3, 4)
    scale, zero = np.asarray([0.1, 0.02, 0.3], np.float32), np.asarray([-3, 0, 100], np.int8)
    nodes = [
        node("QuantizeLinear", "x s z", "q", axis=1),
        node("DequantizeLinear", "q s z", "y", axis=1),
    ]
    inputs = [tensor_info("x", x.shape), tensor_info("s", (3,)), tensor_info("z", (3,), "i8")]
    outputs = [tensor_info("q", None, "i8"), tensor_info("y", None)]
    proto = model(graph(nodes, inputs, outputs), 17)
    expected = tuple(session(proto).run(None, {"x": x, "s": scale, "z": zero}))
    assert_same(
        [evaluate(before_and_after_passes(proto)[1], [x, scale, zero]).outputs],
        [expected],
        "run time",
    )


def test_quantize_rounds_ties_to_even() -> None:
    x = np.asarray([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 300.0, -300.0], np.float32)
    step = node("QuantizeLinear", "x s z", "y")
    constants = {"s": np.asarray(1, np.float32), "z": np.asarray(1, np.int8)}
    proto = model(graph([step], {"x": (8,)}, [tensor_info("y", None, "i8")], constants), 17)
    (y,) = evaluate(before_and_after_passes(proto)[1], [x]).outputs
    np.testing.assert_array_equal(y, [-1, -1, 1, 1, 3, 3, 127, -128])


@pytest.mark.parametrize(
    ("scale", "zero", "message"),
    [
        (np.asarray(0, np.float32), np.asarray(0, np.int8), "scale 's' must be positive"),
        (np.asarray(np.inf, np.float32), np.asarray(0, np.int8), "scale 's' must be positive"),
        (np.ones(3, np.float32), np.zeros(3, np.int8), "it has 3 scales, but axis 1"),
        (np.ones(2, np.float32), np.zeros(3, np.int8), "2 scales, but 3 zero points"),
    ],
)
def test_wrong_scales_and_zero_points_are_refused(scale: Array, zero: Array, message: str) -> None:
    step = node("QuantizeLinear", "x s z", "y")
    constants = {"s": scale, "z": zero}
    proto = model(graph([step], {"x": (2, 4)}, [tensor_info("y", None, "i8")], constants), 17)
    with pytest.raises(ModelError, match=message):
        load(proto.SerializeToString(), "net")


def test_unknown_attributes_of_quantized_operators_are_refused() -> None:
    proto = _operator("u8", "QLinearConv", [_IMAGE, (6, 4, 3, 3)], _MICROSOFT, turned=1)
    with pytest.raises(ModelError, match=r"operator QLinearConv .* has no attribute 'turned'"):
        load(proto.SerializeToString(), "net")
