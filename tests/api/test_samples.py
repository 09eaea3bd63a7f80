"""Tests of the conversion of arrays to samples and of outputs to arrays, and of errors."""

from __future__ import annotations

import io
import struct
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.errors import ConfigError
from smelt.ir import Array, DType, Graph, Quant, TensorType, Value, npy
from smelt.samples import (
    bind_expected,
    bind_samples,
    dequantize,
    load_arrays,
    named_outputs,
    random_samples,
    save_arrays,
)

INT8 = TensorType((1, 3), DType.INT8, Quant.per_tensor(0.5, -2))
FLOAT = TensorType((1, 3), DType.FLOAT32)
RAW = np.array([[1, -2, 3]], np.int8)
REAL = np.array([[1.5, 0.0, 2.5]], np.float32)


def graph(*types: TensorType) -> Graph:
    values = tuple(Value(name, type_) for name, type_ in zip("abc", types, strict=False))
    return Graph("g", values, values, ())


def bind(type_: TensorType, array: Array) -> Array:
    ((sample,),), batched = bind_samples(graph(type_), {"input_0": array})
    assert not batched
    return sample


def test_integers_are_not_converted() -> None:
    np.testing.assert_array_equal(bind(INT8, RAW), RAW)
    np.testing.assert_array_equal(bind(INT8, RAW.astype(np.int64)), RAW)


def test_floats_are_quantized_for_integer_inputs() -> None:
    np.testing.assert_array_equal(bind(INT8, REAL), RAW)
    np.testing.assert_array_equal(bind(INT8, REAL.astype(np.float64)), RAW)
    far = np.array([[1e9, -1e9, 0.25]], np.float32)
    np.testing.assert_array_equal(bind(INT8, far), [[127, -128, -1]])


def test_floats_stay_floats() -> None:
    sample = bind(FLOAT, REAL.astype(np.float64))
    assert sample.dtype == np.float32
    np.testing.assert_array_equal(sample, REAL)


def test_inputs_are_found_by_name_and_by_number() -> None:
    arrays = {"b": REAL, "input_0": RAW}
    (sample,), batched = bind_samples(graph(INT8, FLOAT), arrays)
    assert not batched
    np.testing.assert_array_equal(sample[0], RAW)
    np.testing.assert_array_equal(sample[1], REAL)


def test_a_leading_axis_is_the_sample_axis() -> None:
    arrays = {"a": np.stack([RAW, RAW + 1]), "b": np.stack([REAL, 2 * REAL])}
    samples, batched = bind_samples(graph(INT8, FLOAT), arrays)
    assert batched
    assert len(samples) == 2
    np.testing.assert_array_equal(samples[1][0], RAW + 1)
    np.testing.assert_array_equal(samples[1][1], 2 * REAL)


def test_a_batch_axis_of_size_one_may_be_the_sample_axis() -> None:
    """The arrays of other inputs may have a sample axis before their batch axis."""
    images = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    one = graph(TensorType((1, 3, 4, 5), DType.FLOAT32), INT8)
    for other in (np.concatenate([RAW, RAW + 1]), np.stack([RAW, RAW + 1])):
        samples, batched = bind_samples(one, {"a": images, "b": other})
        assert batched
        np.testing.assert_array_equal(np.concatenate([image for image, _ in samples]), images)
        np.testing.assert_array_equal(samples[1][1], RAW + 1)
    expected = bind_expected(one, {"a": images, "b": np.concatenate([RAW, RAW])})
    np.testing.assert_array_equal(expected[1][0], images[1:])


def test_larger_batch_axes_are_not_split() -> None:
    four = TensorType((4, 3), DType.FLOAT32)
    with pytest.raises(ConfigError, match=r"\[8, 3\]; it must be \[4, 3\] or \[samples, 4, 3\]$"):
        bind_samples(graph(four), {"a": np.zeros((8, 3), np.float32)})


def test_strided_and_big_endian_arrays_are_made_native() -> None:
    wide = np.zeros((1, 6), np.int8)
    wide[:, ::2] = RAW
    assert bind(INT8, wide[:, ::2]).tobytes() == RAW.tobytes()
    assert bind(FLOAT, REAL.astype(">f4")).tobytes() == REAL.tobytes()
    assert bind(FLOAT, np.asfortranarray(REAL)).tobytes() == REAL.tobytes()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (
            np.zeros((1, 4), np.int8),
            r"shape \[1, 4\]; it must be \[1, 3\] or \[samples, 3\] or \[samples, 1, 3\]",
        ),
        (np.zeros((3,), np.int8), r"has shape \[3\]"),
        (np.zeros((2, 1, 1, 3), np.int8), "has shape"),
        (np.zeros((0, 1, 3), np.int8), "no samples"),
        (np.array([[0, 0, 128]], np.int64), "from 0 to 128"),
        (np.array([[0, 0, 200]], np.uint8), "uint8 has values from 0 to 200"),
        (np.array([[0, np.nan, 0]], np.float32), "NaN"),
        (np.array([[0, np.inf, 0]], np.float32), "infinity"),
        (np.array([["a", "b", "c"]]), "cannot be converted"),
        (np.zeros((1, 3), np.complex64), "cannot be converted"),
        (np.zeros((1, 3), np.bool_), "cannot be converted"),
    ],
)
def test_arrays_that_do_not_fit_an_input_are_refused(array: Array, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        bind_samples(graph(INT8), {"input_0": array})
    assert "input" in str(caught.value)


def test_floats_need_a_scale() -> None:
    with pytest.raises(ConfigError, match=r"i32\[1,3\].*float32 cannot be converted"):
        bind_samples(graph(TensorType((1, 3), DType.INT32)), {"a": REAL})


def test_missing_inputs_are_named() -> None:
    with pytest.raises(
        ConfigError, match=r"no array for input 'b': .* 'b' or 'input_1'\. Given: a, x"
    ):
        bind_samples(graph(INT8, FLOAT), {"a": RAW, "x": REAL})
    with pytest.raises(ConfigError, match="Given: none"):
        bind_samples(graph(INT8), {})


def test_inputs_must_agree_on_the_samples() -> None:
    with pytest.raises(ConfigError, match="some inputs have a leading sample axis"):
        bind_samples(graph(INT8, FLOAT), {"a": RAW[None], "b": REAL})
    arrays = {"a": np.stack([RAW] * 2), "b": np.stack([REAL] * 3)}
    with pytest.raises(ConfigError, match=r"different numbers of samples: \[2, 3\]"):
        bind_samples(graph(INT8, FLOAT), arrays)


def test_outputs_keep_or_lose_the_sample_axis() -> None:
    two = [(RAW, REAL), (RAW + 1, REAL)]
    batched = named_outputs(graph(INT8, FLOAT), two, batched=True)
    assert batched["output_0"].shape == (2, 1, 3)
    assert batched["output_1"].shape == (2, 1, 3)
    single = named_outputs(graph(INT8, FLOAT), two[:1], batched=False, real=True)
    assert single["output_0"].dtype == np.float32
    np.testing.assert_array_equal(single["output_0"], REAL)
    np.testing.assert_array_equal(single["output_1"], REAL)


def test_dequantize_undoes_quantize() -> None:
    every = np.arange(-128, 128, dtype=np.int8).reshape(1, -1)
    type_ = TensorType((1, 256), DType.INT8, Quant.per_tensor(0.0235, -17))
    np.testing.assert_array_equal(bind(type_, dequantize(every, type_)), every)


def test_random_samples_must_fit_into_memory() -> None:
    with pytest.raises(
        ConfigError, match=r"^1,000,000,000 random samples, .* at most 4,\d+,\d+ for"
    ):
        random_samples(graph(INT8), 10**9, 0)
    with pytest.raises(ConfigError, match=r"at most 71 for this network"):
        random_samples(graph(TensorType((10_000_000,), DType.INT8)), 72, 0)


def test_random_samples_cover_the_range_and_repeat() -> None:
    wide = TensorType((1, 4096), DType.INT8, Quant.per_tensor(1.0))
    (first,), (second,) = random_samples(graph(wide), 2, seed=3)
    assert (first.min(), first.max()) == (-128, 127)
    assert (first != second).any()
    np.testing.assert_array_equal(random_samples(graph(wide), 1, seed=3)[0][0], first)
    assert (random_samples(graph(wide), 1, seed=4)[0][0] != first).any()


def test_saved_arrays_are_loaded_unchanged(tmp_path: Path) -> None:
    save_arrays(tmp_path / "x.npz", {"output_0": RAW, "output_1": REAL})
    loaded = load_arrays(tmp_path / "x.npz")
    assert loaded.keys() == {"output_0", "output_1"}
    np.testing.assert_array_equal(loaded["output_0"], RAW)
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]
    np.save(tmp_path / "y.npy", REAL)
    np.testing.assert_array_equal(load_arrays(tmp_path / "y.npy")["input_0"], REAL)


def test_saved_files_have_ordinary_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    save_arrays(tmp_path / "x.npz", {"output_0": RAW})
    assert (tmp_path / "x.npz").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_missing_and_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_arrays(tmp_path / "nothing.npz")
    with pytest.raises(ConfigError, match="not a readable"):
        load_arrays(tmp_path)
    for name, text, how in (
        ("text.npz", "1 2 3", r"begins with b'1 2 3'"),
        ("table.csv", "", "is empty"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match=rf"not a readable .npz or .npy file: it {how}"):
            load_arrays(tmp_path / name)
    np.save(tmp_path / "cut.npy", REAL)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:-4])
    with pytest.raises(ConfigError, match=r"cut\.npy' is not a readable \.npy file"):
        load_arrays(tmp_path / "cut.npy")
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(ConfigError, match="not a readable"):
        load_arrays(tmp_path / "other.npz")
    np.savez(tmp_path / "objects.npz", input_0=np.array([{}], object))
    with pytest.raises(ConfigError, match="not a readable"):
        load_arrays(tmp_path / "objects.npz")
    with pytest.raises(ConfigError, match="cannot write"):
        save_arrays(tmp_path / "nowhere" / "x.npz", {"output_0": RAW})


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("archive") / "x.npz"
    np.savez_compressed(path, input_0=np.arange(100, dtype=np.float32), label=np.zeros(3, np.int8))
    return path.read_bytes()


@settings(max_examples=150)
@given(data=st.data())
def test_damaged_files_are_refused_or_read(
    archive: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever the damage, the only error is ConfigError."""
    damaged = bytearray(archive)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    path.write_bytes(bytes(damaged[: data.draw(st.sampled_from([cut, len(damaged)]))]))
    with suppress(ConfigError):
        assert all(isinstance(array, np.ndarray) for array in load_arrays(path).values())


def header(text: str) -> bytes:
    """Return an `.npy` file without data, with that text as its header."""
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text) + 1) + text.encode() + b"\n"


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '|i1', 'fortran_order': False, 'shape': (412316860416,)}",
        "{'descr': '|i1', 'fortran_order': False, 'shape': (0, 10000000000000000000000)}",
        "{'descr': '|V0', 'fortran_order': False, 'shape': (1000,)}",
        "{'descr': '|i1', 'fortran_order': False, 'shape': (-1, -4)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (0,)}",
        "{1: 2, 'descr': '|i1', 'fortran_order': False, 'shape': (1,)}",
        "(" * 300,
    ],
)
def test_false_headers_are_refused(text: str, tmp_path: Path) -> None:
    """No memory is allocated for data that only the header announces."""
    (tmp_path / "x.npy").write_bytes(header(text))
    with pytest.raises(ConfigError, match=r"x\.npy' is not a readable \.npy file"):
        load_arrays(tmp_path / "x.npy")


def packed(path: Path, method: int, size: int = 100) -> bytearray:
    with zipfile.ZipFile(path, "w", method) as file:
        buffer = io.BytesIO()
        np.save(buffer, np.zeros(size, np.int8))
        file.writestr("input_0.npy", buffer.getvalue())
    return bytearray(path.read_bytes())


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", input_0=np.array([{}, "text"], object))
    with pytest.raises(
        ConfigError, match=r"input_0\.npy' contains pickled Python objects, which are n"
    ):
        load_arrays(tmp_path / "x.npz")


def test_members_with_false_sizes_or_offsets_are_refused(tmp_path: Path) -> None:
    """Their sizes, for which zipfile allocates memory, or their offsets are wrong."""
    path = tmp_path / "x.npz"
    data = packed(path, zipfile.ZIP_STORED)
    central = data.index(b"PK\1\2")
    for place, word in ((20, 2**31 - 1), (24, 2**31 - 1), (42, 2**32 - 2)):
        damaged = bytearray(data)
        struct.pack_into("<I", damaged, central + place, word)
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match="claims more bytes than the file has"):
            load_arrays(path)


def test_members_that_grow_too_large_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.npz"
    packed(path, zipfile.ZIP_DEFLATED, 5000)
    assert load_arrays(path)["input_0"].size == 5000
    monkeypatch.setattr(npy, "MAX_INFLATED", 4000)
    with pytest.raises(ConfigError, match=r"expand to 5128 bytes, more than the 4000 accepted"):
        load_arrays(path)
    packed(path, zipfile.ZIP_STORED, 5000)
    assert load_arrays(path)["input_0"].size == 5000
    packed(path, zipfile.ZIP_LZMA)  # LZMA's header gives the amount of memory to allocate
    with pytest.raises(ConfigError, match="uses compression method 14"):
        load_arrays(path)
