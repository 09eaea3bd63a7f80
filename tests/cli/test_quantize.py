"""Tests of `smelt quantize` and `--quantize int8`: what they print and write, and errors."""

from __future__ import annotations

import re
import wave
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from smelt import compile as compile_network
from smelt.api.quantize import Settings
from smelt.cli.show.quantize import losses
from smelt.frontend import load
from smelt.ir import Array, DType, Graph, evaluate
from smelt.ops.core.quantize import Dequantize, Quantize
from smelt.quant.io_conversion import float_interface
from smelt.samples import bind_samples, dequantize
from tests.support.cli_runner import Smelt, runner
from tests.support.onnx_networks import graph, model, node, session, tensor_info
from tests.support.tflite_networks import DIGITS

FLOAT = str(DIGITS / "digits_float32.tflite")
ONNX = str(DIGITS / "digits.onnx")
INT8 = str(DIGITS / "digits_int8.tflite")
FAST = ("--recipe", "fast")
"""For tests in which the noise of the network does not matter."""


@pytest.fixture
def smelt(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Smelt:
    """Return a runner of the command line in a folder with calibration data."""
    run = runner(tmp_path, monkeypatch, capfd)
    with np.load(DIGITS / "digits_test.npz") as data:
        images = data["images"].reshape(-1, 1, 8, 8, 1)
        np.savez("some.npz", input_0=images, labels=data["labels"])
        np.savez("first.npz", input_0=images.transpose(0, 1, 4, 2, 3))
    Path("some.csv").write_text("1,2,3")
    return run


def test_quantize_writes_all_files(smelt: Smelt) -> None:
    ran = smelt(
        *("quantize", FLOAT, "--calibration", "some.npz", "--labels", "some.npz:labels"),
        *("-o", "net.smelt", "--qdq", "net.onnx", "--report", "net.html"),
    )
    assert ran.code == 0, ran.err
    assert "every layer is int8" in ran.out
    assert "accuracy" in ran.out
    assert "wrote net.smelt" in ran.out
    assert "quantized on 64 samples" in ran.err
    network = load("net.smelt").graph
    assert [v.type.dtype for v in (*network.inputs, *network.outputs)] == [DType.INT8] * 2
    with np.load("some.npz") as data:
        images, labels = data["input_0"], data["labels"]
    samples, _ = bind_samples(network, {"input_0": images})
    ours = np.stack([evaluate(network, s).outputs[0] for s in samples])
    assert np.mean(ours.reshape(64, -1).argmax(axis=1) == labels) > 0.95
    runtime = session(onnx.load("net.onnx"))
    (output,) = network.outputs
    theirs = np.stack([runtime.run(None, {network.inputs[0].name: x})[0] for x in images])
    apart = np.abs(theirs - dequantize(ours, output.type)) / output.type.scale
    assert apart.max() < 6
    assert apart.mean() < 0.3


def test_json_is_the_report(smelt: Smelt) -> None:
    ran = smelt(
        *("quantize", FLOAT, "--calibration", "some.npz", "--samples", 40, "--json"),
        *("--test", "some.npz", "--labels", "some.npz:labels"),
    )
    assert ran.code == 0, ran.err
    found = ran.json
    assert found["calibration_samples"] == 40
    assert found["measured"]["samples"] == 64
    assert found["measured"]["on"] == "some.npz"
    assert found["measured"]["sqnr_db"] > 20
    assert 0.9 < found["measured"]["accuracy"] <= 1
    assert found["steps"][-1]["sqnr_db"] == pytest.approx(found["sqnr_db"])
    assert found["exceptions"] == []
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert layers[found["inputs"][0]["name"]]["operator"] == "input"
    for layer in layers.values():
        assert layer["low"] <= 0 <= layer["high"]
        assert layer["high"] - layer["low"] == pytest.approx(255 * layer["scale"], rel=1e-3)
        assert sum(layer["histogram"]) > 0
    (value,) = found["inputs"]
    assert value["type"] == "int8"
    assert 1 / 255 <= value["scale"] < 1.5 / 255


class _Page(HTMLParser):
    """The addresses that a page refers to, and its numbers of tags."""

    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []
        self.count: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.references += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]


def test_the_report_page_is_complete(smelt: Smelt) -> None:
    ran = smelt(
        *("quantize", FLOAT, "--calibration", "some.npz", *FAST, "--report", "net.html", "--json")
    )
    assert ran.code == 0, ran.err
    text = Path("net.html").read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    assert page.references == []
    layers = ran.json["layers"]
    assert page.count["svg"] == len(layers)
    assert page.count["rect"] > 5 * len(layers)
    assert all(layer["name"].split("/")[-1] in text for layer in layers)


def powers() -> onnx.ModelProto:
    """Return a model with a power of two computed tensors, and a name that HTML must escape."""
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.normal(size=(8, 8)).astype(np.float32) for i in range(3)}
    nodes = [
        node("MatMul", "x w0", "<b>&q"),
        node("Sigmoid", "<b>&q", "base"),
        node("MatMul", "x w1", "k"),
        node("Sigmoid", "k", "exponent"),
        node("Pow", "base exponent", "power"),
        node("MatMul", "power w2", "y"),
    ]
    return model(graph(nodes, {"x": [4, 8]}, "y", weights))


def test_layers_without_an_int8_form_can_stay_float(smelt: Smelt) -> None:
    Path("net.onnx").write_bytes(powers().SerializeToString())
    x = np.random.default_rng(1).normal(size=(40, 4, 8)).astype(np.float32)
    np.savez("x.npz", x=x)
    refused = smelt("quantize", "net.onnx", "--calibration", "x.npz", "-o", "net.smelt")
    assert refused.code == 1
    assert re.search(r"UnsupportedError: .*Binary\(pow\) of Pow.* has no int8 form", refused.err)
    assert "convert the model" not in refused.err
    assert not Path("net.smelt").exists()
    ran = smelt(
        *("quantize", "net.onnx", "--calibration", "x.npz", "--allow", "float", "--json"),
        *("--report", "net.html", "--qdq", "qdq.onnx", "-o", "net.smelt"),
    )
    assert ran.code == 0, ran.err
    (layer,) = ran.json["exceptions"]
    assert (layer["dtype"], layer["chosen"]) == ("float32", False)
    assert layer["op"] == "Binary(pow)"
    (cost,) = ran.json["costs"]
    assert (cost["dtype"], cost["layers"], cost["gain_db"]) == ("float32", 1, None)
    assert cost["arena_bytes"] >= 2 * 4 * 4 * 8
    page = Path("net.html").read_text(encoding="utf-8")
    assert cost["text"] in page
    assert "1 layer of float32" in cost["text"]
    assert "&lt;b&gt;&amp;q" in page
    assert "<b>&q" not in page
    (found,) = session(onnx.load("qdq.onnx")).run(["y"], {"x": x[0]})
    (expected,) = session(powers()).run(["y"], {"x": x[0]})
    assert np.square(found - expected).sum() < 0.03 * np.square(expected).sum()
    verdict = smelt("verify", "net.smelt", "--inputs", "x.npz")
    assert verdict.code == 0, verdict.err


def test_16_bit_layers_are_reported(smelt: Smelt) -> None:
    """Reports show what they save and cost; `verify` quantizes to the same network."""
    common = ("--calibration", "some.npz", "--allow", "int16", *FAST)
    ran = smelt("quantize", FLOAT, *common, "--json", "-o", "net.smelt", "--report", "net.html")
    assert ran.code == 0, ran.err
    (cost,) = ran.json["costs"]
    assert cost["dtype"] == "int16"
    layers = [layer["name"] for layer in ran.json["exceptions"]]
    assert cost["layers"] == len(layers) > 1
    assert cost["arena_bytes"] > cost["arena_bytes_int8"]
    assert 0 < cost["macs"] <= 1
    *_, before, after = ran.json["steps"]
    assert (after["name"], after["sqnr_db"] - before["sqnr_db"]) == ("int16", cost["gain_db"])
    types = {layer["name"]: layer["type"] for layer in ran.json["layers"]}
    assert {types[name] for name in layers} == {"i16"}
    assert {value["type"] for value in ran.json["inputs"] + ran.json["outputs"]} == {"int8"}
    assert cost["text"] in Path("net.html").read_text(encoding="utf-8")
    verdict = smelt("verify", FLOAT, "--quantize", "int8", *common)
    assert verdict.code == 0, verdict.err
    assert cost["text"] in " ".join(verdict.err.split())


def test_steps_can_be_switched_off(smelt: Smelt) -> None:
    common = ("quantize", FLOAT, "--calibration", "some.npz", "--json")
    recipe = smelt(
        *(*common, "--no-equalize", "--no-bias-correction", "--no-weight-clipping"),
        *("--ranges", "percentile", "--percentile", "99.5", "--seed", 3),
        *("--weight-rounding", "compensated"),
    ).json["recipe"]
    assert recipe["ranges"] == "percentile"
    assert recipe["percentile"] == 99.5
    assert recipe["rounding"] == "compensated"
    assert recipe["seed"] == 3
    assert not recipe["equalize"]
    assert not recipe["correct_bias"]
    assert not recipe["clip_weights"]
    assert smelt(*common, "--recipe", "fast").json["recipe"]["ranges"] == "minmax"


def test_steps_that_cost_are_explained() -> None:
    """The terminal and the page show the lines that `losses` returns."""
    steps = [
        {"name": name, "sqnr_db": sqnr}
        for name, sqnr in (("minmax", 30.0), ("ranges", 28.9), ("weight rounding", 28.85))
    ]
    (line,) = losses({"steps": steps})
    assert line.startswith("'ranges' costs 1.1 dB on the calibration samples")
    assert list(losses({"steps": [*steps[:1], {"name": "ranges", "sqnr_db": None}]})) == []


@pytest.mark.thorough
def test_two_runs_give_the_same_bytes(smelt: Smelt) -> None:
    for name in ("a.smelt", "b.smelt"):
        assert smelt("quantize", FLOAT, "--calibration", "some.npz", "-o", name).code == 0
    assert Path("a.smelt").read_bytes() == Path("b.smelt").read_bytes()


@pytest.mark.quick(every=3)
@pytest.mark.parametrize("interface", ["int8", "float"])
@pytest.mark.parametrize("model", [FLOAT, ONNX])
def test_run_with_quantize_equals_quantize_and_run(
    smelt: Smelt, model: str, interface: str
) -> None:
    data = "first.npz" if model == ONNX else "some.npz"
    options = ("--quantize", "int8", "--calibration", data, *FAST, "--io", interface)
    ran = smelt("run", model, *options, "--inputs", data, "-o", "out.npz")
    assert ran.code == 0, ran.err
    assert "quantized on 64 samples" in ran.err
    assert smelt("quantize", model, "--calibration", data, *FAST, "-o", "net.smelt").code == 0
    network = load("net.smelt").graph
    with np.load(data) as arrays, np.load("out.npz") as outputs:
        samples, _ = bind_samples(network, {"input_0": arrays["input_0"]})
        found = outputs["output_0"]
    expected = np.stack([evaluate(network, sample).outputs[0] for sample in samples])
    assert found.dtype == (np.int8 if interface == "int8" else np.float32)
    if interface == "float":
        expected = dequantize(expected, network.outputs[0].type)
    np.testing.assert_array_equal(found, expected)
    verdict = smelt("verify", model, *options, "--samples", 2)
    assert verdict.code == 0, verdict.err


@pytest.mark.thorough
def test_compile_with_settings_equals_quantize(smelt: Smelt) -> None:
    assert smelt("quantize", FLOAT, "--calibration", "some.npz", "-o", "net.smelt").code == 0
    network = compile_network(FLOAT, quantize=Settings(Path("some.npz")))
    with np.load("some.npz") as data:
        inputs = {"input_0": data["input_0"][:4]}
    expected = compile_network("net.smelt").run(inputs)["output_0"]
    np.testing.assert_array_equal(network.run(inputs)["output_0"], expected)


def test_projects_say_how_they_were_quantized(smelt: Smelt) -> None:
    options = ("--quantize", "int8", "--calibration", "some.npz", "--calibration-samples", "20")
    ran = smelt("build", FLOAT, "-o", "net", *options, *FAST, "--json")
    assert ran.code == 0, ran.err
    notes = " ".join(ran.json["notes"])
    assert "quantized on 20 samples" in notes
    assert "only 20 calibration samples" in notes


def test_images_are_calibration_data(smelt: Smelt) -> None:
    image = pytest.importorskip("PIL.Image", reason="images need the extra `images`")
    Path("photos").mkdir()
    with np.load("some.npz") as data:
        for index, x in enumerate(data["input_0"]):
            pixels = np.rint(255 * x.reshape(8, 8)).astype(np.uint8)
            image.fromarray(pixels).save(f"photos/{index:03}.png")
    ran = smelt(
        *("quantize", FLOAT, "--calibration", "photos", "--test", "some.npz", *FAST, "--json")
    )
    assert ran.code == 0, ran.err
    assert ran.json["measured"]["sqnr_db"] > 20
    scaled = smelt(
        *("quantize", FLOAT, "--calibration", "photos", "--std", "127.5", *FAST, "--json")
    )
    assert scaled.json["inputs"][0]["scale"] == pytest.approx(2 / 255, rel=1e-3)


WRONG_OPTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "nothing": ((), "needs --calibration"),
    "missing": (("--calibration", "no.npz"), "'no.npz' does not exist"),
    "shape": (
        ("--calibration", "first.npz"),
        "'first.npz'.*has shape .64, 1, 1, 8, 8.; it must be .1, 8",
    ),
    "many": (("--calibration", "some.npz", "--samples", "65"), "64 samples, but 65 were requested"),
    "allow": (
        ("--calibration", "some.npz", "--allow", "int4"),
        "'int4' is unknown; choose from float, int16",
    ),
    "mean": (("--calibration", "some.npz", "--mean", "a,b"), "--mean a,b: give one number"),
    "mean that is none": (("--calibration", "some.npz", "--mean", "nan"), "--mean nan: give fin"),
    "deviation of 0": (("--calibration", "some.npz", "--std", "1,0,1"), "--std 0: every channel"),
    "arrays": (("--calibration", "some.npz", "--image-fit", "crop"), "'some.npz' contains arrays"),
    "text": (("--calibration", "some.csv"), "'some.csv' is not a readable .npz or .npy file"),
    "percentile": (("--calibration", "some.npz", "--percentile", "99"), "--ranges percentile"),
    "output": (("--calibration", "some.npz", "-o", "net.tflite"), "must end in .smelt"),
    "qdq": (("--calibration", "some.npz", "--qdq", "net.tflite"), "must end in .onnx"),
    "labels": (("--calibration", "some.npz", "--labels", "some.npz"), "name the array of labels"),
    "folder": (
        ("--calibration", "some.npz", "-o", "a.smelt", "--report", "no/where.html"),
        "cannot write 'no/where.html'",
    ),
}


@pytest.mark.parametrize("case", WRONG_OPTIONS)
def test_wrong_options_leave_no_files(smelt: Smelt, case: str) -> None:
    options, message = WRONG_OPTIONS[case]
    before = sorted(Path().iterdir())
    ran = smelt("quantize", FLOAT, *options, *FAST)
    assert ran.code == 1
    assert "Error: " in ran.err
    assert "Traceback" not in ran.err
    assert re.search(message, ran.err), ran.err
    assert sorted(Path().iterdir()) == before


def test_calibration_data_with_nan_is_refused(smelt: Smelt) -> None:
    with np.load("some.npz") as data:
        images = data["input_0"].copy()
    images[9, 0, 1, 2, 0] = np.nan
    np.savez("bad.npz", input_0=images)
    for command in (("quantize",), ("build", "-o", "net", "--quantize", "int8")):
        ran = smelt(*command, FLOAT, "--calibration", "bad.npz")
        assert ran.code == 1
        assert "QuantizationError: 'bad.npz': calibration sample 9 of input 'input" in ran.err
    assert not Path("net").exists()


def test_test_samples_with_nan_are_refused(smelt: Smelt) -> None:
    with np.load("some.npz") as data:
        images = data["input_0"].copy()
    images[17, 0, 1, 2, 0] = np.nan
    np.savez("bad.npz", input_0=images)
    ran = smelt("quantize", FLOAT, "--calibration", "some.npz", "--test", "bad.npz", *FAST)
    assert ran.code == 1
    assert "QuantizationError: 'bad.npz': test sample 17 of input 'input" in ran.err


def test_loud_samples_are_named(smelt: Smelt) -> None:
    """Loud samples are named if they are left out, and if they are too many to leave out."""
    with np.load("some.npz") as data:
        images = data["input_0"].copy()
    images[[3, 40]] *= 50
    np.savez("two.npz", input_0=images)
    images[20:28] *= 50
    np.savez("ten.npz", input_0=images)
    two = smelt("quantize", FLOAT, "--calibration", "two.npz", *FAST, "--json")
    assert two.json["ignored_samples"] == [3, 40]
    assert "calibration samples 3, 40 of those used were ignored: far larger" in _notes(two.json)
    ten = smelt("quantize", FLOAT, "--calibration", "ten.npz", *FAST, "--json")
    assert ten.json["ignored_samples"] == []
    assert "3, 20, 21, 22, 23, 24, 25, 26, 27, 40 of those used have far larger" in _notes(ten.json)


def _notes(found: dict[str, Any]) -> str:
    return " ".join(found["notes"])


def test_short_sounds_are_named(smelt: Smelt) -> None:
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(64, 4)).astype(np.float32)}
    proto = model(graph([node("MatMul", "x w", "y")], {"x": [1, 64]}, "y", weights))
    Path("net.onnx").write_bytes(proto.SerializeToString())
    Path("sounds").mkdir()
    for index in range(4):
        with wave.open(f"sounds/{index}.wav", "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16000)
            count = 10 if index == 2 else 640
            file.writeframes(rng.integers(-9999, 9999, count).astype("<i2").tobytes())
    ran = smelt("quantize", "net.onnx", "--calibration", "sounds", *FAST, "--json")
    assert ran.code == 0, ran.err
    assert "1 sound shorter than the input, padded with zeros: '2.wav'" in _notes(ran.json)


@pytest.mark.parametrize("cast", [False, True])
def test_indices_beyond_a_table_are_refused(smelt: Smelt, cast: bool) -> None:
    """Like onnxruntime, refuse indices beyond the table; negative indices count from the end."""
    rng = np.random.default_rng(0)
    weights = {n: rng.normal(size=(10, 10)).astype(np.float32) for n in ("table", "w")}
    before = [node("Cast", "ids", "wide", to=7)] if cast else []
    nodes = [node("Gather", f"table {'wide' if cast else 'ids'}", "e"), node("MatMul", "e w", "y")]
    inputs = [tensor_info("ids", [1, 6], "i" if cast else "l")]
    proto = model(graph([*before, *nodes], inputs, "y", weights))
    Path("net.onnx").write_bytes(proto.SerializeToString())
    ids = rng.integers(-10, 10, (40, 6)).astype(np.int32 if cast else np.int64)
    np.savez("good.npz", ids=ids)
    for bad in (10, -11):
        ids[7, 4] = bad
        np.savez("bad.npz", ids=ids)
        with pytest.raises(Exception, match="indices element out of data bounds"):
            session(proto).run(None, {"ids": ids[7:8]})
        for what, options in (
            ("calibration sample 7", ("--calibration", "bad.npz")),
            ("test sample 7", ("--calibration", "good.npz", "--test", "bad.npz")),
        ):
            ran = smelt("quantize", "net.onnx", *options, *FAST)
            assert ran.code == 1
            message = " ".join(ran.err.split())
            assert f"{what} of input 'ids': Gather of Gather #" in message
            assert f"looks up {bad} (at [0, 4]), but the table has 10 rows, 0 to 9" in message
    assert smelt("quantize", "net.onnx", "--calibration", "good.npz", *FAST).code == 0


@pytest.mark.quick(recipe=("default",))
@pytest.mark.parametrize("recipe", ["default", "best"])
def test_samples_without_variation_are_accepted(smelt: Smelt, recipe: str) -> None:
    """Constant inputs do not tell how the errors of weights compensate each other."""
    with np.load("some.npz") as data:
        one = data["input_0"][:1]
    for samples in (one, np.repeat(one, 20, axis=0), 1000 + 0.1 * data_noise(one.shape)):
        np.savez("alike.npz", input_0=samples.astype(np.float32))
        ran = smelt("quantize", FLOAT, "--calibration", "alike.npz", "--recipe", recipe, "--json")
        assert ran.code == 0, ran.err


def data_noise(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(0).uniform(-1, 1, (30, *shape[1:]))


def test_the_model_is_not_overwritten(smelt: Smelt) -> None:
    copy = Path("digits.onnx")
    copy.write_bytes(Path(ONNX).read_bytes())
    ran = smelt("quantize", copy, "--calibration", "first.npz", "--qdq", copy, *FAST)
    assert (ran.code, "choose another output file" in ran.err) == (1, True)
    assert copy.read_bytes() == Path(ONNX).read_bytes()


def test_options_that_need_another_are_refused_alone(smelt: Smelt) -> None:
    ran = smelt("build", FLOAT, "-o", "net", "--calibration", "some.npz")
    assert (ran.code, "--calibration needs --quantize int8" in ran.err) == (1, True)
    ran = smelt("build", FLOAT, "-o", "net", "--quantize", "int8")
    assert (ran.code, "needs --calibration" in ran.err) == (1, True)


def test_quantized_networks_are_refused(smelt: Smelt) -> None:
    """The error comes before the calibration file is read, which does not exist."""
    for command in (("quantize",), ("build", "-o", "net", "--quantize", "int8")):
        ran = smelt(*command, INT8, "--calibration", "no.npz")
        assert (ran.code, "is already quantized" in ran.err) == (1, True)


def open_batch(name: str | None) -> onnx.ModelProto:
    """Return the digits network with an open batch dimension, which has a name or none."""
    proto = onnx.load(ONNX)
    for value in (*proto.graph.input, *proto.graph.output):
        dimension = value.type.tensor_type.shape.dim[0]
        dimension.Clear()
        if name is not None:
            dimension.dim_param = name
    return proto


@pytest.mark.quick(every=3)
@pytest.mark.parametrize("name", ["N", "batch_size", None])
def test_open_batches_are_set_to_one(smelt: Smelt, name: str | None) -> None:
    """Arrays may have the samples in the batch dimension, as for other tools."""
    Path("net.onnx").write_bytes(open_batch(name).SerializeToString())
    with np.load("first.npz") as data:
        images = data["input_0"].reshape(-1, 1, 8, 8)
    np.savez("batch.npz", input_0=images)
    ran = smelt("quantize", "net.onnx", "--calibration", "batch.npz", *FAST, "-o", "net.smelt")
    assert ran.code == 0, ran.err
    notes = " ".join(ran.err.split())
    assert "which the file leaves open, is set to 1" in notes
    assert (f"the batch '{name}' of" in notes) == (name is not None)
    assert load("net.smelt").graph.inputs[0].type.shape == (1, 1, 8, 8)
    assert smelt("quantize", ONNX, "--calibration", "first.npz", *FAST, "-o", "b.smelt").code == 0
    given, expected = (load(path).graph for path in ("net.smelt", "b.smelt"))
    sample = bind_samples(given, {"input_0": images[:1]})[0][0]
    np.testing.assert_array_equal(
        evaluate(given, sample).outputs[0], evaluate(expected, sample).outputs[0]
    )
    options = ("--quantize", "int8", "--calibration", "batch.npz", *FAST)
    verdict = smelt("verify", "net.onnx", *options, "--inputs", "batch.npz")
    assert verdict.code == 0, verdict.err


def test_run_time_sizes_are_refused(smelt: Smelt) -> None:
    Path("net.onnx").write_bytes(open_batch("N").SerializeToString())
    ran = smelt("quantize", "net.onnx", "--dim", "N=1..4", "--calibration", "no.npz")
    assert ran.code == 1
    assert "run-time sizes (N=1..4)" in ran.err
    assert "--dim N=1" in ran.err
    Path("time.onnx").write_bytes(open_batch("T").SerializeToString())
    ran = smelt("quantize", "time.onnx", "--calibration", "first.npz")
    assert (ran.code, "'T'): fix it with --dim T=1" in ran.err) == (1, True)


def test_preprocessing_applies_to_images_only(smelt: Smelt) -> None:
    image = pytest.importorskip("PIL.Image", reason="images need the extra `images`")
    Path("photos").mkdir()
    with np.load("some.npz") as data:
        for index, x in enumerate(data["input_0"]):
            image.fromarray(np.rint(255 * x.reshape(8, 8)).astype(np.uint8)).save(
                f"photos/{index:03}.png"
            )
    for calibration, test in (("photos", "some.npz"), ("some.npz", "photos")):
        ran = smelt(
            *("quantize", FLOAT, "--calibration", calibration, "--test", test, "--std", "255"),
            *(*FAST, "--json"),
        )
        assert ran.code == 0, ran.err
        assert ran.json["measured"]["sqnr_db"] > 20
    ran = smelt("quantize", FLOAT, "--calibration", "some.npz", "--test", "some.npz", "--std", "2")
    assert (ran.code, "for folders of images" in ran.err) == (1, True)


def test_numbers_whose_squares_overflow_are_refused(smelt: Smelt) -> None:
    with np.load("some.npz") as data:
        np.savez("huge.npz", input_0=data["input_0"] * np.float32(1e30))
    ran = smelt("quantize", FLOAT, "--calibration", "huge.npz")
    assert ran.code == 1
    assert "Warning" not in ran.err
    assert "QuantizationError: 'huge.npz': calibration sample 0: the input of " in ran.err
    assert "reaches 1e+30, so its square exceeds float32" in " ".join(ran.err.split())


def test_layers_that_overflow_are_refused(smelt: Smelt) -> None:
    """The error names the layer and the sample; infinities and NaN that are unused are accepted."""
    positive = [node("Sqrt", "x", "root"), node("IsNaN", "root", "bad")]
    for name, nodes in (
        ("exp", [node("Exp", "x", "y")]),
        ("sqrt", [*positive, node("Where", "bad x root", "y")]),
    ):
        proto = model(graph(nodes, {"x": [1, 8]}, "y", {}))
        Path(f"{name}.onnx").write_bytes(proto.SerializeToString())
    x = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    np.savez("one.npz", x=np.concatenate([x, np.full((1, 8), 100.0, np.float32)]))
    x[::2, 3] = 100.0
    np.savez("x.npz", x=x)
    ran = smelt("quantize", "exp.onnx", "--calibration", "x.npz", "--no-equalize", *FAST)
    assert ran.code == 1
    assert "Warning" not in ran.err
    notes = " ".join(ran.err.split())
    assert "sample 0: Unary(exp) of Exp #0 'y' computes inf; the sample reaches 100" in notes
    # A single loud sample is left out.
    ran = smelt("quantize", "exp.onnx", "--calibration", "one.npz", *FAST)
    assert ran.code == 0, ran.err
    assert "calibration sample 20 of those used was ignored" in " ".join(ran.err.split())
    ran = smelt("quantize", "sqrt.onnx", "--calibration", "x.npz", "--allow", "float", *FAST)
    assert ran.code == 0, ran.err


def test_poor_results_are_reported(smelt: Smelt) -> None:
    """One channel of this network is so large that the others have hardly any resolution."""
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.normal(size=(8, 8)).astype(np.float32) for i in range(2)}
    weights["far"] = np.float32(3000) * np.eye(8, dtype=np.float32)[0]
    weights["back"] = -weights["far"]
    nodes = [
        node("MatMul", "x w0", "a"),
        node("Add", "a far", "b"),
        node("Abs", "b", "c"),
        node("Add", "c back", "d"),
        node("MatMul", "d w1", "y"),
    ]
    proto = model(graph(nodes, {"x": [1, 8]}, "y", weights))
    Path("net.onnx").write_bytes(proto.SerializeToString())
    np.savez("x.npz", x=rng.normal(size=(64, 8)).astype(np.float32))
    ran = smelt("quantize", "net.onnx", "--calibration", "x.npz", *FAST, "--json")
    assert ran.code == 0, ran.err
    found = ran.json
    assert found["sqnr_db"] < 12
    (note,) = (note for note in found["notes"] if "less than 12 dB is poor: check" in note)
    assert f"'{found['hurting'][0]}'" in note
    built = smelt("build", "net.onnx", "-o", "net", "--quantize", "int8", *FAST, *_X)
    assert "check the table of `smelt quantize`" in " ".join(built.err.split())


_X = ("--calibration", "x.npz")


def test_a_float_interface_has_float_inputs_and_outputs(smelt: Smelt) -> None:
    made = smelt("quantize", FLOAT, "--calibration", "some.npz", *FAST, "-o", "net.smelt")
    assert made.code == 0
    network = load("net.smelt").graph
    real = float_interface(network)
    assert [v.name for v in (*real.inputs, *real.outputs)] == [
        v.name for v in (*network.inputs, *network.outputs)
    ]
    assert [type(real.nodes[0].op), type(real.nodes[-1].op)] == [Quantize, Dequantize]
    assert {v.type.dtype for v in (*real.inputs, *real.outputs)} == {DType.FLOAT32}
    passed_on = float_interface(Graph("same", network.inputs, network.inputs, ()))
    x = np.full(network.inputs[0].type.shape, 0.5, np.float32)
    (y,) = evaluate(passed_on, [x]).outputs
    np.testing.assert_allclose(y, x, atol=network.inputs[0].type.scale)
