"""Constants in files beside an ONNX model: wherever they stand, and nothing else of the disk."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend import load
from smelt.frontend.onnx.external import MOST_BYTES, load_external
from smelt.ir import evaluate
from tests.support.onnx_networks import graph, model, node

SECRET = np.asarray([0.5, 1.5, 2.5, 3.5], np.float32)
X = np.asarray([1, 2, 3, 4], np.float32)


def external(name: str = "c", **said: object) -> TensorProto:
    """A tensor of four floats in a file; `said` is what it says of its place there."""
    tensor = TensorProto(
        name=name, dims=[4], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL
    )
    for key, value in ({"location": "weights.bin"} | said).items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def added(name: str = "c", **said: object) -> onnx.ModelProto:
    """The sum of the input and an external initializer."""
    proto = model(graph([node("Add", "x c", "y")], {"x": [4]}, "y"))
    proto.graph.initializer.append(external(name, **said))
    return proto


def _attribute() -> onnx.ModelProto:
    constant = node("Constant", "", "c", value=external("c"))
    return model(graph([constant, node("Add", "x c", "y")], {"x": [4]}, "y"))


def _branch(constant: bool) -> onnx.ModelProto:
    """Of an If: the tensor is an initializer, or an attribute, of the sub-graph."""
    nodes = [node("Add", "x c", "a")]
    if constant:
        nodes = [node("Constant", "", "c", value=external("c")), *nodes]
    then = graph(nodes, {}, "a")
    if not constant:
        then.initializer.append(external("c"))
    branches: dict[str, Any] = {
        "then_branch": then,
        "else_branch": graph([node("Neg", "x", "b")], {}, "b"),
    }
    nodes = [node("If", "flag", "y", "", **branches)]
    return model(graph(nodes, {"x": [4]}, "y", {"flag": np.asarray(True)}))


def _function() -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 21)]
    body = [node("Constant", "", "c", value=external("c")), node("Add", "a c", "b")]
    proto = model(graph([node("F", "x", "y", "own")], {"x": [4]}, "y"), own=1)
    proto.functions.append(helper.make_function("own", "F", ["a"], ["b"], body, opsets))
    return proto


PLACES: dict[str, Callable[[], onnx.ModelProto]] = {
    "initializer": added,
    "attribute": _attribute,
    "initializer of a branch": lambda: _branch(False),
    "attribute in a branch": lambda: _branch(True),
    "attribute in a function": _function,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model's folder; the current folder is another one, with files that are nobody's."""
    home, models = tmp_path / "home", tmp_path / "models"
    for place in (home, models):
        place.mkdir()
    (home / "weights.bin").write_bytes(SECRET.tobytes())
    (home / "secret").write_bytes(SECRET.tobytes())
    monkeypatch.chdir(home)
    return models


def saved(proto: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("place", PLACES)
def test_external_data_are_those_beside_the_model(place: str, folder: Path) -> None:
    proto = PLACES[place]()
    path = saved(proto, folder)
    with pytest.raises(ModelError, match=r"external data of constant 'c'.*models/weights\.bin"):
        load(path)
    (folder / "weights.bin").write_bytes((2 * SECRET).tobytes())
    (found,) = evaluate(load(path).graph, [X]).outputs
    np.testing.assert_array_equal(found, X + 2 * SECRET)
    with pytest.raises(ModelError, match=r"'c' is stored in another file.*give the path"):
        load(proto.SerializeToString())


def test_tensors_in_lists_and_sparse_ones_are_external_too(folder: Path) -> None:
    """No operator that is imported has them; the loader reads whatever refers to a file."""
    (folder / "weights.bin").write_bytes(SECRET.tobytes())
    proto = added()
    sparse = onnx.SparseTensorProto(values=external("v"), indices=external("i"), dims=[4])
    proto.graph.sparse_initializer.append(sparse)
    kept = proto.graph.node[0].attribute
    kept.add(name="__list", type=onnx.AttributeProto.TENSORS, tensors=[external("t")])
    kept.add(name="__one", type=onnx.AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse)
    kept.add(name="__all", type=onnx.AttributeProto.SPARSE_TENSORS, sparse_tensors=[sparse])
    load_external(proto, folder)
    text = str(proto)
    assert "EXTERNAL" not in text
    assert "external_data" not in text
    assert kept[0].tensors[0].raw_data == SECRET.tobytes()
    assert kept[2].sparse_tensors[0].indices.raw_data == SECRET.tobytes()


def test_a_part_of_a_file(folder: Path) -> None:
    (folder / "parts").mkdir()
    (folder / "parts" / "weights.bin").write_bytes(b"\7" * 8 + SECRET.tobytes() + b"\7")
    path = saved(added(location="parts/weights.bin", offset=8, length=16), folder)
    np.testing.assert_array_equal(evaluate(load(path).graph, [X]).outputs[0], X + SECRET)


def test_what_trained_the_network_is_not_read(folder: Path) -> None:
    proto = model(graph([node("Relu", "x", "y")], {"x": [4]}, "y"))
    proto.training_info.add().initialization.initializer.append(external())
    load(saved(proto, folder))


@pytest.mark.parametrize("location", ["../home/secret", "/HOME/secret", "a/../../home/secret"])
def test_paths_that_leave_the_folder_are_refused(location: str, folder: Path) -> None:
    (folder / "a").mkdir()
    location = location.replace("/HOME", str(folder.parent / "home"))
    with pytest.raises(ModelError, match=r"not inside of the model's folder: put the file beside"):
        load(saved(added(location=location), folder))


@pytest.mark.parametrize("location", [r"..\home\secret", r"C:\secret", r"\\host\share\secret"])
def test_paths_of_windows_that_leave_the_folder_are_refused(location: str, folder: Path) -> None:
    with pytest.raises(ModelError, match="not inside of the model's folder"):
        load(saved(added(location=location), folder))


def test_links_out_of_the_folder_are_refused(folder: Path) -> None:
    (folder / "weights.bin").symlink_to(folder.parent / "home" / "secret")
    (folder / "away").symlink_to(folder.parent / "home")
    for location in ("weights.bin", "away/secret"):
        with pytest.raises(ModelError, match=r"is a link to .*home/secret, outside"):
            load(saved(added(location=location), folder))
    (folder / "own").write_bytes(SECRET.tobytes())
    (folder / "link").symlink_to("own")
    load(saved(added(location="link"), folder))


def test_what_is_no_regular_file_is_refused(folder: Path) -> None:
    """A pipe in particular: reading it would wait for ever."""
    os.mkfifo(folder / "pipe")
    (folder / "sub").mkdir()
    (folder / "loop").symlink_to("loop")
    for location, reason in (
        ("pipe", "is not a regular file"),
        ("sub", "is not a regular file"),
        ("loop", "external data of constant 'c'"),
        ("", "invalid file name ''"),
        ("a\0b", "invalid file name"),
        ("x" * 5000, "external data of constant 'c'"),
    ):
        with pytest.raises(ModelError, match=reason):
            load(saved(added(location=location), folder))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"offset": -1}, r"its offset is '-1', which is not a number of bytes"),
        ({"length": "9" * 5000}, r"its length is '9+', which is not a number of bytes"),
        ({"length": "1e3"}, r"its length is '1e3'"),
        ({"offset": 8, "length": 16}, r"bytes 8 to 24 of .*weights\.bin, which has only 16"),
        ({"offset": 10**15}, r"which has only 16"),
        (
            {"length": 12},
            r"'c'.*\[4\] of float needs 16 bytes, but the model refers to 12 bytes of",
        ),
        ({"offset": 4}, r"constant 'c'.*needs 16 bytes, but.* 12 bytes of .*from byte 4"),
    ],
)
def test_places_that_do_not_fit_are_refused(
    said: dict[str, object], message: str, folder: Path
) -> None:
    (folder / "weights.bin").write_bytes(SECRET.tobytes())
    with pytest.raises(ModelError, match=message):
        load(saved(added("c", **said), folder))


def test_a_file_that_is_larger_than_the_shape_is_refused_unread(folder: Path) -> None:
    """The file is a hole."""
    with (folder / "weights.bin").open("wb") as file:
        file.truncate(MOST_BYTES - 1)
    tracemalloc.start()
    try:
        with pytest.raises(
            ModelError, match=r"needs 16 bytes, but the model refers to 1,073,741,823"
        ):
            load(saved(added(), folder))
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_a_file_that_is_taken_many_times_is_refused_unread(folder: Path) -> None:
    """Its bytes are counted for each tensor that takes them; the file itself is a hole."""
    with (folder / "weights.bin").open("wb") as file:
        file.truncate(MOST_BYTES // 4)
    proto = added()
    proto.graph.initializer.extend(external(f"c{i}") for i in range(4))
    for tensor in proto.graph.initializer:
        tensor.dims[0] = MOST_BYTES // 16
    with pytest.raises(
        UnsupportedError, match=rf"take 1,342,177,280 bytes.*at most {MOST_BYTES:,}"
    ):
        load(saved(proto, folder))
