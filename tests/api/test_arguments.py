"""Tests that errors for wrong Python arguments name the argument and the allowed values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.api.compile import Compiled
from smelt.api.options import Options
from smelt.api.quantize import Settings
from smelt.errors import ConfigError
from smelt.frontend import InputOptions
from smelt.frontend import load as load_model
from smelt.proof.run import write_project
from smelt.proof.verify import verify_model
from smelt.quant.recipe import RECIPES
from tests.support.shared import ROOT

DIGITS = ROOT / "examples/digits/digits.onnx"
IMAGE = np.zeros((1, 1, 8, 8), np.float32)


@pytest.fixture(scope="module")
def network() -> Compiled:
    return smelt.compile(DIGITS)


@pytest.mark.parametrize(
    "model", [None, 3, 1.5, True, {}, [], ["x.onnx"], IMAGE, "a\0b"], ids=lambda m: type(m).__name__
)
def test_a_model_must_be_a_path_or_bytes(model: Any) -> None:
    with pytest.raises(ConfigError, match=r"the model must be the path of a model file, or its by"):
        smelt.compile(model)


def test_a_model_may_be_a_bytearray_or_memoryview() -> None:
    data = DIGITS.read_bytes()
    for same in (bytearray(data), memoryview(data)):
        assert load_model(same).graph.inputs  # pyright: ignore[reportArgumentType]


WRONG: tuple[tuple[str, Any, str], ...] = (
    ("target", 3, "target must be text, not the int 3"),
    ("target", ["host"], r"target must be text, not the list \['host'\]"),
    ("board", {}, "board must be text, not the dict {}"),
    ("board", b"x", "board must be text, not the bytes"),
    ("optimize", None, "optimize must be 'speed' or 'size' or 'ram', not None"),
    ("optimize", "fast", "optimize must be 'speed' or 'size' or 'ram', not the str 'fast'"),
    ("name", 3, "name must be text"),
    ("keep_inputs", "no", "keep_inputs must be True or False, not the str 'no'"),
    ("dims", 3, "dims must be sizes by the names of dimensions, not the int 3"),
    ("dims", {"N": "1"}, r"dims\['N'\] must be an integer of at least 0, not the str '1'"),
    (
        "dims",
        {"N": (1, 2, 3)},
        r"dims\['N'\] must be a size, or a pair of the smallest and largest size",
    ),
    ("dims", {1: 1}, "each key of dims must be text, not the int 1"),
    ("dims", {"N": True}, r"dims\['N'\] must be an integer"),
    ("shapes", [(1, 64)], "shapes must be shapes by the names of inputs, not the list"),
    ("shapes", {"x": "1x64"}, r"shapes\['x'\] must be a shape, as \(1, 64\), not the str"),
    ("shapes", {"x": (1.0, 64)}, r"shapes\['x'\] must be an integer of at least 0, not the float"),
    ("values", {"x": "abc"}, r"values\['x'\] must be a number, or one for each element"),
    ("values", {"x": ["a"]}, r"values\['x'\] must be numbers, not the str 'a'"),
    ("input_layout", "nchw", "input_layout must be 'model' or 'nhwc', not the str 'nchw'"),
    ("plugins", "x.py", "plugins must be a sequence of paths of Python files, not the str"),
    ("plugins", [3], "plugins must be a sequence of paths of Python files, not the int 3"),
    (
        "quantize",
        IMAGE,
        r"quantize must be smelt.api.quantize.Settings.*an array of float32\[1, 1, 8",
    ),
    ("quantize", "x.npz", "quantize must be smelt.api.quantize.Settings"),
)


@pytest.mark.parametrize(("name", "given", "message"), WRONG)
def test_wrong_arguments_of_compile_are_refused(name: str, given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        smelt.compile(DIGITS, **{name: given})


def test_numpy_numbers_and_lists_are_accepted() -> None:
    given: Any = {"shapes": {"x": [1, np.int64(64)]}, "dims": {"n": [1, np.int32(4)]}}
    given["values"] = {"s": np.float32(0.5), "t": np.arange(3), "u": [np.bool_(True), 2]}
    found = InputOptions(**given)
    assert found == InputOptions(
        {"n": (1, 4)}, {"x": (1, 64)}, {"s": (0.5,), "t": (0, 1, 2), "u": (True, 2)}
    )


@pytest.mark.parametrize(
    "given",
    [IMAGE, {"input_0": IMAGE}, [IMAGE], None, 3, "a\0b"],
    ids=["array", "dict", "list", "None", "number", "NUL"],
)
def test_calibration_must_be_a_path(given: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"calibration must be the path of an \.npz .*savez\), no"
    ):
        Settings(given)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("recipe", "quick", "recipe must be a Recipe, or 'fast' or 'default' or 'best'"),
        ("recipe", None, "recipe must be a Recipe"),
        ("allow", "float", "allow must be a set of 'float' and 'int16', not the str 'float'"),
        ("allow", {"floats"}, "allow must be a set of"),
        ("allow", None, "allow must be a set of"),
        ("allow", [np.zeros(3)], "allow must be a set of"),
        ("allow", [[]], "allow must be a set of"),
        ("samples", "3", "samples must be an integer of at least 1, not the str '3'"),
        ("samples", 0, "samples must be an integer of at least 1, not the int 0"),
        ("real_interface", "yes", "real_interface must be True or False"),
        ("preprocessing", 3, "preprocessing must be a Preprocessing, not the int 3"),
    ],
)
def test_wrong_settings_are_refused(name: str, given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings(Path("some.npz"), **{name: given})


def test_settings_accept_texts() -> None:
    given: Any = {"calibration": "some.npz", "recipe": "best", "allow": ["float"]}
    found = Settings(**given)
    assert found == Settings(Path("some.npz"), RECIPES["best"], frozenset({"float"}))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            IMAGE,
            r"the inputs must be a dict of arrays, as {'input_0': array}, not an array of floa",
        ),
        ([IMAGE], "the inputs must be a dict of arrays"),
        (None, "the inputs must be a dict of arrays.*, not None"),
        ("x.npz", "the inputs must be a dict of arrays"),
        ({0: IMAGE}, "each key of the inputs must be text, not the int 0"),
        ({"input_0": None}, "input 'input_0' must be a numpy array, not None"),
        ({"input_0": 3}, "input 'input_0' must be a numpy array, not the int 3"),
        ({"input_0": IMAGE.tolist()}, "input 'input_0' must be a numpy array, not the list"),
        ({"input_0": {}}, "input 'input_0' must be a numpy array, not the dict {}"),
        ({"input_0": "abc"}, "input 'input_0' must be a numpy array, not the str 'abc'"),
        ({"input_0": IMAGE[:, :, 1:]}, r"input 'input' has shape \[1, 1, 7, 8\]"),
        ({"input_0": IMAGE.astype(object)}, "input 'input'.*object"),
        ({"input_0": IMAGE.astype(complex)}, "input 'input'.*complex128"),
        ({"input_0": IMAGE.astype(str)}, "input 'input'"),
        ({}, r"no array for input 'input': .* Given: none"),
    ],
)
def test_wrong_inputs_are_refused(network: Compiled, inputs: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        network.run(inputs)


@pytest.mark.parametrize("on", [3, [], b"host"])
def test_the_place_to_run_must_be_text(network: Compiled, on: Any) -> None:
    with pytest.raises(ConfigError, match="on must be 'host', 'qemu', 'board' or a serial port"):
        network.run({"input_0": IMAGE}, on=on)


@pytest.mark.parametrize("directory", [None, 3, b"x", "a\0b"])
def test_the_directory_of_a_project_must_be_a_path(network: Compiled, directory: Any) -> None:
    with pytest.raises(ConfigError, match="directory must be a path"):
        network.write(directory)


def test_wrong_options_are_refused() -> None:
    wrong: Any = {"backends": "c", "place": ["conv"], "inputs": {"x": 1}, "float16": 1}
    for name, given in wrong.items():
        with pytest.raises(ConfigError, match=f"{name} must be"):
            Options(**{name: given})


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "samples is empty: it must have at least one sample"),
        (None, "samples must be a list of samples, .*, not None"),
        (5, "samples must be a list of samples, .*, not the int 5"),
        ("abc", "samples must be a list of samples, .*, not the str 'abc'"),
        (IMAGE, r"samples must be a list of samples, .*, not an array of float32\[1, 1, 8, 8\]"),
        ({"input_0": IMAGE}, "samples must be a list of samples, .*, not the dict"),
        ([None], r"samples\[0\] must be a tuple of one array per input, not None"),
        ([{"x": 1}], r"samples\[0\] must be a tuple of one array per input, not the dict"),
        ([IMAGE], r"samples\[0\] must be a tuple of one array per input, not an array"),
        ([(IMAGE,), (IMAGE, IMAGE)], r"samples\[1\] must have one array for each .*, but has 2"),
        ([(3,)], r"samples\[0\], input 'input', must be a numpy array, not the int 3"),
        ([(IMAGE[0],)], r"samples\[0\], input 'input', must be an array of f32\[1,1,8,8\], not an"),
        ([(IMAGE.astype(int),)], r"samples\[0\], input 'input', must be an array of f32"),
    ],
)
def test_wrong_samples_of_verify_are_refused(network: Compiled, samples: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        verify_model(network, samples)


def test_the_directory_of_a_project_may_be_text(network: Compiled, tmp_path: Path) -> None:
    write_project(network, str(tmp_path / "out"))
    assert (tmp_path / "out/report.json").is_file()
    wrong: Any = None
    with pytest.raises(ConfigError, match="directory must be a path, not None"):
        write_project(network, wrong)
