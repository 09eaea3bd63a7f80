"""Constants of an ONNX model in external files: read from the model's folder and nowhere else."""

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


def external(name: str = "c", **entries: object) -> TensorProto:
    """Return a tensor of four floats in an external file.

    Args:
        name: of the tensor.
        entries: the tensor's `external_data`, such as `location` or `offset`.
    """
    tensor = TensorProto(
        name=name, dims=[4], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL
    )
    for key, value in ({"location": "weights.bin"} | entries).items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def added(name: str = "c", **entries: object) -> onnx.ModelProto:
    """Return a network that adds an external initializer to its input."""
    proto = model(graph([node("Add", "x c", "y")], {"x": [4]}, "y"))
    proto.graph.initializer.append(external(name, **entries))
    return proto


def _attribute() -> onnx.ModelProto:
    constant = node("Constant", "", "c", value=external("c"))
    return model(graph([constant, node("Add", "x c", "y")], {"x": [4]}, "y"))


def _branch(constant: bool) -> onnx.ModelProto:
    """Return an If with an external tensor in a branch: in a Constant, or else as initializer."""
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
    """Return an empty folder for the model.

    The current folder is another one. It contains `weights.bin` and `secret`, which must not be
    read.
    """
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
def test_external_data_are_read_from_the_folder_of_the_model(place: str, folder: Path) -> None:
    proto = PLACES[place]()
    path = saved(proto, folder)
    with pytest.raises(ModelError, match=r"external data of constant 'c'.*models/weights\.bin"):
        load(path)
    (folder / "weights.bin").write_bytes((2 * SECRET).tobytes())
    (found,) = evaluate(load(path).graph, [X]).outputs
    np.testing.assert_array_equal(found, X + 2 * SECRET)
    with pytest.raises(ModelError, match=r"'c' is stored in another file.*give the path"):
        load(proto.SerializeToString())


def test_external_data_of_sparse_tensors_and_lists_are_read(folder: Path) -> None:
    """No supported operator has such attributes, but the loader reads every reference to a file."""
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


def test_offset_and_length_select_a_part_of_a_file(folder: Path) -> None:
    (folder / "parts").mkdir()
    (folder / "parts" / "weights.bin").write_bytes(b"\7" * 8 + SECRET.tobytes() + b"\7")
    path = saved(added(location="parts/weights.bin", offset=8, length=16), folder)
    np.testing.assert_array_equal(evaluate(load(path).graph, [X]).outputs[0], X + SECRET)


def test_external_data_of_training_info_are_not_read(folder: Path) -> None:
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
def test_windows_paths_that_leave_the_folder_are_refused(location: str, folder: Path) -> None:
    with pytest.raises(ModelError, match="not inside of the model's folder"):
        load(saved(added(location=location), folder))


def test_only_links_within_the_folder_are_followed(folder: Path) -> None:
    (folder / "weights.bin").symlink_to(folder.parent / "home" / "secret")
    (folder / "away").symlink_to(folder.parent / "home")
    for location in ("weights.bin", "away/secret"):
        with pytest.raises(ModelError, match=r"is a link to .*home/secret, outside"):
            load(saved(added(location=location), folder))
    (folder / "own").write_bytes(SECRET.tobytes())
    (folder / "link").symlink_to("own")
    load(saved(added(location="link"), folder))


def test_locations_that_are_not_regular_files_are_refused(folder: Path) -> None:
    """In particular, reading a pipe would wait forever."""
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
    ("entries", "message"),
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
def test_wrong_offsets_and_lengths_are_refused(
    entries: dict[str, object], message: str, folder: Path
) -> None:
    (folder / "weights.bin").write_bytes(SECRET.tobytes())
    with pytest.raises(ModelError, match=message):
        load(saved(added("c", **entries), folder))


def test_a_file_larger_than_its_tensor_is_refused_unread(folder: Path) -> None:
    """The file is sparse, so it takes no space on disk."""
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


def test_files_are_counted_for_each_tensor_that_refers_to_them(folder: Path) -> None:
    """Five tensors refer to the whole (sparse) file, which is thus refused without being read."""
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
