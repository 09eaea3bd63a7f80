"""Tests of `.smelt` files: equal graphs give equal bytes, and damaged files raise our errors."""

from __future__ import annotations

import io
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.errors import ConfigError, ModelError, SmeltError, UnsupportedError
from smelt.ir import Array, DType, Graph, Node, Origin, Quant, TensorType, Value, archive
from smelt.ir.archive import load, save
from smelt.ir.evaluate import evaluate
from smelt.ir.text import print_graph
from smelt.ops.case import build
from smelt.ops.core.convolution import CASES, Conv2D
from smelt.samples import random_samples

GRAPH = build(next(c for c in CASES if c.name == "pointwise_stride2"), DType.INT8)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "net.smelt"
    save(GRAPH, path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch") / "net.smelt"


def pack(members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return buffer.getvalue()


def npy(array: Array, *, pickled: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=pickled)
    return buffer.getvalue()


def text_of(saved: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(saved)) as file:
        return file.read("graph.txt")


def arrays_of(saved: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(saved)) as file:
        inner = zipfile.ZipFile(io.BytesIO(file.read("constants.npz")))
    return {name: inner.read(name) for name in inner.namelist()}


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT8])
def test_a_graph_is_read_back_unchanged(dtype: DType, tmp_path: Path) -> None:
    graph = build(CASES[0], dtype)
    save(graph, tmp_path / "net.smelt")
    loaded = load(tmp_path / "net.smelt")
    assert print_graph(loaded) == print_graph(graph)
    for inputs in random_samples(graph, 2, seed=0):
        found, expected = evaluate(loaded, inputs).outputs, evaluate(graph, inputs).outputs
        np.testing.assert_array_equal(found[0], expected[0])


def test_all_element_types_and_exact_scales_are_read_back(tmp_path: Path) -> None:
    values = [
        Value.constant(dtype.value, np.arange(100).astype(dtype.numpy).reshape(4, 25))
        for dtype in DType
    ]
    scales = tuple(0.1 + i / 3 for i in range(20))  # not representable in float32
    quant = Quant(scales, tuple(range(20)), 0)
    values.append(Value.constant("odd", np.zeros((20, 2), np.int8), quant))
    values.append(Value.constant("scalar", np.array(3, np.int8)))
    graph = Graph("g", (), tuple(values), ())
    save(graph, tmp_path / "net.smelt")
    for found, expected in zip(load(tmp_path / "net.smelt").outputs, values, strict=True):
        assert found.type == expected.type
        np.testing.assert_array_equal(found.array, expected.array)


def test_the_same_graph_gives_the_same_bytes(saved: bytes, tmp_path: Path) -> None:
    path = tmp_path / "again.smelt"
    save(load_bytes(saved, path), path)
    assert path.read_bytes() == saved


def test_numpy_reads_the_constants(saved: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(saved)) as file:
        constants = np.load(io.BytesIO(file.read("constants.npz")))
    stored = {array.tobytes() for array in constants.values()}
    weights = GRAPH.nodes[0].input(1).array
    assert weights.tobytes() in stored


def test_a_repacked_archive_is_read(saved: bytes, tmp_path: Path) -> None:
    constants = pack(arrays_of(saved), zipfile.ZIP_DEFLATED)
    members = {"notes": b"mine", "constants.npz": constants, "graph.txt": text_of(saved)}
    loaded = load_bytes(pack(members, zipfile.ZIP_DEFLATED), tmp_path / "net.smelt")
    assert print_graph(loaded) == print_graph(GRAPH)


def load_bytes(data: bytes, path: Path) -> Graph:
    path.write_bytes(data)
    return load(path)


def test_failed_saving_leaves_no_file(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    with pytest.raises(ConfigError, match="cannot write"):
        save(GRAPH, taken)
    with pytest.raises(ConfigError, match="cannot write"):
        save(GRAPH, tmp_path / "absent" / "net.smelt")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_the_file_has_ordinary_permissions(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    save(GRAPH, tmp_path / "net.smelt")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_graphs_that_are_too_large_to_load_are_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_CONSTANTS", 100)
    with pytest.raises(ConfigError, match="may have at most"):
        save(GRAPH, tmp_path / "net.smelt")
    assert not list(tmp_path.iterdir())


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read .*No such file"):
        load(tmp_path / "absent.smelt")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("graph.txt", None, "no item named 'graph.txt'"),
        ("constants.npz", None, "no item named 'constants.npz'"),
        ("graph.txt", b"\xff", "is damaged: 'utf-8' codec"),
        ("graph.txt", b"smelt-ir 9\n", "the text format has version 9"),
        ("constants.npz", b"", "not a zip file"),
        ("constants.npz", pack({}), "is missing from the constants"),
        ("constants.npz", pack({"a.npy": b""}), "damaged"),
        ("constants.npz", pack({"a.npy": b"\x93NUMPY\x02\x00"}), "no readable .npy header"),
        (
            "constants.npz",
            pack({"a.npy": npy(np.zeros(4))[:-1]}),
            r"31 bytes of data, .*float64\[4\]",
        ),
        (
            "constants.npz",
            pack({"a.npy": npy(np.zeros(4)) + b" "}),
            r"33 bytes of data, .*float64\[4\]",
        ),
        (
            "constants.npz",
            pack({"a.npy": npy(np.zeros(4, ">i4"))}),
            r"an array >i4\[4\] of 16 bytes",
        ),
        (
            "constants.npz",
            pack({"a.npy": npy(np.asfortranarray(np.zeros((2, 3))))}),
            r"an array float64\[2, 3\] of 48 bytes",
        ),
        (
            "constants.npz",
            pack({"a.npy": npy(np.array([{}], dtype=object), pickled=True)}),
            "pickled Python objects, which are not read",
        ),
    ],
)
def test_broken_members_are_refused(
    name: str, data: bytes | None, message: str, saved: bytes, scratch: Path
) -> None:
    members = {"graph.txt": text_of(saved), "constants.npz": pack(arrays_of(saved)), name: data}
    kept = {member: content for member, content in members.items() if content is not None}
    with pytest.raises(ModelError, match=message) as caught:
        load_bytes(pack(kept), scratch)
    assert str(scratch) in str(caught.value)


def test_constants_with_swapped_keys_are_refused(saved: bytes, scratch: Path) -> None:
    names, contents = zip(*arrays_of(saved).items(), strict=True)
    swapped = dict(zip(names, contents[1:] + contents[:1], strict=True))
    assert len(swapped) > 1
    with pytest.raises(ModelError, match="is damaged: its stored array has another digest"):
        load_bytes(pack({"graph.txt": text_of(saved), "constants.npz": pack(swapped)}), scratch)


def test_invalid_graphs_are_refused(scratch: Path) -> None:
    x = Value("x", TensorType((1, 4, 4, 1), DType.FLOAT32))
    weights = Value.constant("w", np.zeros((1, 1, 1, 1), np.float32))
    origin = Origin("CONV_2D", 0)
    for op, inputs, shape in (
        (
            Conv2D(),
            (x, weights),
            (1, 4, 4, 2),
        ),  # the output has another shape than the operator infers
        (Conv2D(), (x,), (1, 4, 4, 1)),  # an operand is missing
        (Conv2D(stride=(0, 1)), (x, weights), (1, 4, 4, 1)),  # division by zero
    ):
        y = Value("y", TensorType(shape, DType.FLOAT32))
        save(Graph("g", (x,), (y,), (Node(op, inputs, (y,), origin),)), scratch)
        with pytest.raises(ModelError, match="contains no valid graph"):
            load(scratch)


def test_an_operator_of_a_missing_plugin_is_refused(saved: bytes, scratch: Path) -> None:
    text = text_of(saved).replace(b"Conv2D(", b"FromPlugin(")
    members = {"graph.txt": text, "constants.npz": pack(arrays_of(saved))}
    with pytest.raises(UnsupportedError, match="'FromPlugin' is unknown"):
        load_bytes(pack(members), scratch)


@pytest.mark.parametrize(("limit", "member"), [("MAX_TEXT", "graph.txt"), ("MAX_CONSTANTS", "")])
def test_members_above_the_size_limits_are_refused(
    limit: str, member: str, saved: bytes, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, limit, 1 << 20)
    bomb = npy(np.zeros(2 << 20, np.int8))
    constants = pack({"bomb.npy": bomb}, zipfile.ZIP_DEFLATED)
    assert len(constants) < 1 << 15
    members = {"graph.txt": text_of(saved), "constants.npz": constants}
    if member:
        members[member] = bomb
    with pytest.raises(ModelError, match="at most 1048576 are accepted"):
        load_bytes(pack(members, zipfile.ZIP_DEFLATED), scratch)


@given(st.data())
def test_damaged_files_raise_only_our_errors(
    saved: bytes, scratch: Path, data: st.DataObject
) -> None:
    damaged = bytearray(saved)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(saved) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(saved)), st.integers(0, len(saved))))
    scratch.write_bytes(damaged[:cut])
    try:
        loaded = load(scratch)
    except SmeltError:
        return
    # Fields without a checksum (flags of names, time stamps) may change unnoticed.
    assert print_graph(loaded) == print_graph(GRAPH)


def test_a_graph_without_outputs_is_refused(saved: bytes, scratch: Path) -> None:
    text = b"\n".join(line for line in text_of(saved).split(b"\n") if b"output" not in line)
    members = {"graph.txt": text, "constants.npz": pack(arrays_of(saved))}
    with pytest.raises(ModelError, match="it has no outputs"):
        load_bytes(pack(members), scratch)


def test_other_methods_of_compression_are_refused(saved: bytes, scratch: Path) -> None:
    """LZMA is refused: its header determines how much memory reading takes, up to 4 GiB."""
    constants = pack(arrays_of(saved))
    for members in (
        pack({"graph.txt": text_of(saved), "constants.npz": constants}, zipfile.ZIP_LZMA),
        pack(
            {"graph.txt": text_of(saved), "constants.npz": pack(arrays_of(saved), zipfile.ZIP_LZMA)}
        ),
    ):
        with pytest.raises(ModelError, match="uses compression method 14"):
            load_bytes(members, scratch)


@pytest.mark.parametrize(
    "shape", ["[4294967296,1]", "[4611686018427387904,4]", "[0,4611686018427387904]"]
)
def test_tensors_beyond_what_c_addresses_are_refused(
    shape: str, saved: bytes, scratch: Path
) -> None:
    with zipfile.ZipFile(io.BytesIO(saved)) as file:
        members = {name: file.read(name) for name in file.namelist()}
    text, type_ = members["graph.txt"].decode(), str(GRAPH.inputs[0].type)
    assert type_ in text
    members["graph.txt"] = text.replace(type_, type_[: type_.index("[")] + shape).encode()
    scratch.write_bytes(pack(members))
    with pytest.raises(UnsupportedError, match="at most 2,147,483,647 bytes"):
        load(scratch)
