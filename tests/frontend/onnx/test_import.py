"""The ONNX importer: inputs, constants, operator sets, functions, and its refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from smelt.errors import ConfigError, ModelError, SmeltError, UnsupportedError
from smelt.frontend import Imported, InputOptions, load
from smelt.ir import Array, DType, evaluate
from tests.support.onnx_networks import agrees, graph, ints, model, node, tensor_info
from tests.support.shared import ROOT

RNG = np.random.default_rng(3)


def imported(proto: onnx.ModelProto, inputs: InputOptions | None = None) -> Imported:
    return load(proto.SerializeToString(), "net", inputs)


def relu(shape: list[int | str | None]) -> onnx.ModelProto:
    return model(graph([node("Relu", "x", "y")], {"x": shape}, "y"))


def uniform(*shape: int) -> Array:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


# Inputs


def test_an_open_dimension_is_named_with_the_option_that_fixes_it() -> None:
    with pytest.raises(UnsupportedError, match=r"dimension 0 of input 'x'.*'batch'.*--dim batch=1"):
        imported(relu(["batch", 3]))


def test_shape_fixes_a_dimension_without_name() -> None:
    with pytest.raises(UnsupportedError, match=r"dimension 1 of input 'x' is open.*--shape x="):
        imported(relu([2, None]))
    found = imported(relu([2, None]), InputOptions(shapes={"x": (2, 7)}))
    assert found.graph.inputs[0].type.shape == (2, 7)


def test_shape_gives_an_input_without_shape_one() -> None:
    proto = model(graph([node("Relu", "x", "y")], [tensor_info("x", None)], "y"))
    with pytest.raises(UnsupportedError, match=r"no shape for input 'x'.*--shape x="):
        imported(proto)
    assert imported(proto, InputOptions(shapes={"x": (4,)})).graph.outputs[0].type.shape == (4,)


def test_dim_fixes_all_dimensions_of_that_name() -> None:
    proto = model(graph([node("Add", "a b", "y")], {"a": ["n", 3], "b": ["n", 3]}, "y"))
    found = imported(proto, InputOptions(dims={"n": 5})).graph
    assert [v.type.shape for v in (*found.inputs, *found.outputs)] == [(5, 3)] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (InputOptions(dims={"m": 1}), r"--dim names dimension 'm'.*dimensions are batch"),
        (InputOptions(shapes={"z": (1,)}), r"--shape names input 'z'.*inputs are x"),
        (InputOptions(values={"z": (1,)}), r"--value names input 'z'.*inputs are x"),
        (InputOptions({"batch": 1}, values={"x": (1, 2)}), r"'x' 2 elements.*\[1, 3\] needs 3"),
        (InputOptions(shapes={"x": (1, 2, 3)}), r"input 'x' 3 dimensions.*has 2"),
        (InputOptions(shapes={"x": (1, 4)}), r"dimension 1 of input 'x' size 4.*fixes it at 3"),
    ],
)
def test_options_that_do_not_fit_the_network(options: InputOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        imported(relu(["batch", 3]), options)


def test_options_are_refused_for_other_formats(tmp_path: Path) -> None:
    digits = ROOT / "examples/digits/digits_int8.tflite"
    with pytest.raises(ConfigError, match="for ONNX, not for a TFLite file"):
        load(digits, inputs=InputOptions(dims={"n": 1}))


def test_an_initializer_that_is_listed_as_input_is_constant() -> None:
    proto = model(graph([node("Add", "x w", "y")], {"x": [3], "w": [3]}, "y", {"w": uniform(3)}))
    assert [v.name for v in imported(proto).graph.inputs] == ["x"]


def test_nhwc_inputs_give_the_same_results() -> None:
    weights = uniform(4, 3, 3, 3)
    proto = model(graph([node("Conv", "x w", "y")], {"x": [1, 3, 6, 5]}, "y", {"w": weights}))
    x = uniform(1, 3, 6, 5)
    plain = imported(proto).graph
    camera = imported(proto, InputOptions(layout="nhwc")).graph
    assert camera.inputs[0].type.shape == (1, 6, 5, 3)
    (expected,) = evaluate(plain, [x]).outputs
    (found,) = evaluate(camera, [np.ascontiguousarray(x.transpose(0, 2, 3, 1))]).outputs
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("values", [(2.5,), (1.0, 2.0, 3.0)])
def test_value_makes_an_input_constant(values: tuple[float, ...]) -> None:
    proto = model(graph([node("Add", "a b", "y")], {"a": [1, 3], "b": [1, 3]}, "y"))
    found = imported(proto, InputOptions(values={"b": values})).graph
    assert [v.name for v in found.inputs] == ["a"]
    x = uniform(1, 3)
    np.testing.assert_array_equal(
        evaluate(found, [x]).outputs[0], x + np.asarray(values, np.float32)
    )


# Constants and types


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_float16_is_imported_as_float32_and_float64_kept(dtype: type) -> None:
    kind = {np.float16: "h", np.float64: "d"}[dtype]
    constants = {"w": uniform(3).astype(dtype)}
    info = [tensor_info("y", [3], kind)]
    proto = model(graph([node("Add", "x w", "y")], [tensor_info("x", [3], kind)], info, constants))
    found = imported(proto)
    wide = DType.FLOAT32 if dtype is np.float16 else DType.FLOAT64
    assert found.graph.outputs[0].type.dtype is wide
    assert ("float16 tensors are imported as float32" in found.notes) == (dtype is np.float16)
    x = uniform(3).astype(wide.numpy)
    np.testing.assert_array_equal(
        evaluate(found.graph, [x]).outputs[0], x + constants["w"].astype(wide.numpy)
    )


def test_string_tensors_are_refused() -> None:
    info = [tensor_info("y", [3], "s")]
    proto = model(graph([node("Identity", "x", "y")], [tensor_info("x", [3], "s")], info))
    with pytest.raises(UnsupportedError, match="input 'x' has element type string"):
        imported(proto)


def test_nan_weights_are_refused_with_their_index() -> None:
    weights = uniform(2, 3)
    weights[1, 2] = np.nan
    proto = model(graph([node("MatMul", "x w", "y")], {"x": [4, 2]}, "y", {"w": weights}))
    with pytest.raises(ModelError, match=r"constant 'w' contains NaN at \[1, 2\]"):
        imported(proto)


def test_a_wrong_declared_shape_of_an_output_gives_a_note() -> None:
    proto = model(graph([node("Relu", "x", "y")], {"x": [1, 2]}, [tensor_info("y", [3, 2])]))
    (note,) = imported(proto).notes
    assert note == (
        "output 'y' is declared with shape [3, 2], but the operators compute [1, 2] from the inputs"
    )


def test_infinite_weights_are_refused() -> None:
    weights = uniform(2, 1, 1, 1)
    weights[1] = np.inf
    proto = model(graph([node("Conv", "x w", "y")], {"x": [1, 1, 4, 4]}, "y", {"w": weights}))
    with pytest.raises(ModelError, match=r"weights 'w' contain infinity"):
        imported(proto)


def test_a_file_above_two_gigabytes_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(UnsupportedError, match=r"large\.onnx has 2,147,483,648 bytes"):
        load(path)


# Operators


def test_one_message_names_all_unsupported_operators() -> None:
    nodes = [
        node("Relu", "x", "a"),
        node("TfIdfVectorizer", "a", "b"),
        node("StringNormalizer", "b", "y"),
    ]
    with pytest.raises(UnsupportedError, match=r"TfIdfVectorizer \(#1 .*nor are StringNormalizer"):
        imported(model(graph(nodes, {"x": [1, 2, 3]}, "y")))


def test_operators_of_custom_domains_are_refused_with_their_domain() -> None:
    nodes = [node("Fancy", "x", "y", domain="my.ops")]
    with pytest.raises(UnsupportedError, match=r"Fancy of domain 'my\.ops'.*plugin"):
        imported(model(graph(nodes, {"x": [3]}, "y"), my_ops=1))


def test_unused_operators_need_not_be_supported() -> None:
    nodes = [node("Relu", "x", "y"), node("NonZero", "x", "unused")]
    found = imported(model(graph(nodes, {"x": [3]}, "y"))).graph
    assert [n.op.name for n in found.nodes] == ["Unary(relu)"]


def test_functions_of_the_model_are_inlined() -> None:
    square = helper.make_function(
        "mine", "Square", ["v"], ["w"], [node("Mul", "v v", "w")], [helper.make_opsetid("", 21)]
    )
    proto = model(graph([node("Square", "x", "y", domain="mine")], {"x": [3]}, "y"), mine=1)
    proto.functions.append(square)
    x = uniform(3)
    np.testing.assert_array_equal(evaluate(imported(proto).graph, [x]).outputs[0], x * x)


@pytest.mark.parametrize("opset", [5, 6, 7, 13, 21])
def test_all_supported_operator_sets_are_imported(opset: int) -> None:
    proto = model(graph([node("Relu", "x", "y")], {"x": [3]}, [tensor_info("y", [3])]), opset)
    x = uniform(3)
    np.testing.assert_array_equal(evaluate(imported(proto).graph, [x]).outputs[0], x.clip(0))


def test_too_new_operator_sets_are_refused() -> None:
    proto = model(graph([node("Relu", "x", "y")], {"x": [3]}, "y"), 29)
    with pytest.raises(UnsupportedError, match=r"operator set 29 .*supports 7 to 28"):
        imported(proto)


def test_outputs_may_be_inputs_constants_or_the_same_tensor() -> None:
    """The outputs: twice the same tensor, an input, a constant and a shape."""
    nodes = [node("Relu", "x", "r"), node("Identity", "r", "again"), node("Shape", "x", "size")]
    outputs = [
        tensor_info("r", [2]),
        tensor_info("again", [2]),
        tensor_info("x", [2]),
        tensor_info("w", [2]),
        tensor_info("size", [1], "l"),
    ]
    proto = model(graph(nodes, {"x": [2]}, outputs, {"w": uniform(2)}))
    found = imported(proto).graph
    x = np.asarray([-1, 2], np.float32)
    results = evaluate(found, [x]).outputs
    np.testing.assert_array_equal(results[0], [0, 2])
    np.testing.assert_array_equal(results[1], [0, 2])
    np.testing.assert_array_equal(results[2], x)
    np.testing.assert_array_equal(results[3], numpy_helper.to_array(proto.graph.initializer[0]))
    np.testing.assert_array_equal(results[4], [2])
    assert len({v.name for v in found.outputs}) == 5


def test_names_of_the_file_are_kept() -> None:
    nodes = [node("Relu", "x", "hidden"), node("Sigmoid", "hidden", "y")]
    found = imported(model(graph(nodes, {"x": [3]}, "y"))).graph
    assert [v.name for v in found.values()] == ["x", "hidden", "y"]


def test_shape_arithmetic_leaves_no_nodes() -> None:
    """The nodes are PyTorch's export of `x.view(x.shape[0], -1)`."""
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape zero", "batch", axis=0),
        node("Unsqueeze", "batch axes", "first"),
        node("Concat", "first minus", "target", axis=0),
        node("Reshape", "x target", "flat"),
        node("Relu", "flat", "y"),
    ]
    constants = {"zero": np.asarray(0), "axes": ints(0), "minus": ints(-1)}
    proto = model(graph(nodes, {"x": [2, 3, 4]}, "y", constants))
    assert [n.op.name for n in imported(proto).graph.nodes] == ["Reshape", "Unary(relu)"]
    agrees(proto, {"x": uniform(2, 3, 4)})


# Damaged files


def test_a_tensor_that_no_operator_computes_is_refused() -> None:
    with pytest.raises(ModelError, match="tensor 'lost' is used, but no operator computes it"):
        imported(model(graph([node("Add", "x lost", "y")], {"x": [3]}, "y")))


def test_a_tensor_that_two_operators_compute_is_refused() -> None:
    nodes = [node("Relu", "x", "y"), node("Sigmoid", "x", "y")]
    with pytest.raises(ModelError, match=r"Sigmoid #1 computes tensor 'y', which Relu #0"):
        imported(model(graph(nodes, {"x": [3]}, "y")))


def test_constants_with_too_few_data_are_refused() -> None:
    proto = model(graph([node("Add", "x w", "y")], {"x": [3]}, "y", {"w": uniform(3)}))
    proto.graph.initializer[0].dims[0] = 5
    with pytest.raises(ModelError, match="constant 'w'"):
        imported(proto)


def test_attributes_of_the_wrong_type_are_refused() -> None:
    nodes = [node("LeakyRelu", "x", "y", alpha="steep")]
    with pytest.raises(ModelError, match=r"attribute 'alpha' is string, but must be float"):
        imported(model(graph(nodes, {"x": [3]}, "y")))


def test_operands_that_cannot_be_broadcast_are_refused() -> None:
    nodes = [node("Add", "x w", "y")]
    with pytest.raises(ModelError, match=r"Add #0.*cannot broadcast"):
        imported(model(graph(nodes, {"x": [3]}, "y", {"w": uniform(4)})))


def test_huge_tensors_are_refused() -> None:
    nodes = [node("Expand", "x shape", "y")]
    constants = {"shape": ints(100_000, 100_000)}
    with pytest.raises(SmeltError, match="10,000,000,000"):
        imported(model(graph(nodes, {"x": [1]}, "y", constants)))


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x08\x0a", b"\xff" * 64])
def test_files_that_are_no_models_are_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"broken\.onnx"):
        load(path)
