"""Tests of calibration data: which samples are read from files, and which files are refused."""

from __future__ import annotations

import struct
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

from smelt.api.quantize import read_labels, read_samples
from smelt.errors import ConfigError, QuantizationError, SmeltError
from smelt.ir import Array, DType, Graph, TensorType, Value
from smelt.quant.data import image_files
from smelt.quant.data.folders import padded, read_folder, spread
from smelt.quant.data.image_files import Preprocessing, read_images
from smelt.quant.data.samples import doubtful, outliers
from smelt.quant.data.wave_files import read_waves
from smelt.quant.quantizer import quantize
from smelt.quant.result import sqnr
from tests.support.quant_networks import digits, outputs

Image = pytest.importorskip("PIL.Image", reason="images need the extra `images`")


def network(*shapes: tuple[int, ...], dtype: DType = DType.FLOAT32) -> Graph:
    """Return a network without nodes, whose inputs have these shapes."""
    values = tuple(Value(f"x{i}", TensorType(shape, dtype)) for i, shape in enumerate(shapes))
    return Graph("net", values, values, ())


def photograph(path: Path, pixels: Array) -> Path:
    Image.fromarray(pixels).save(path)
    return path


def sound(path: Path, data: bytes, *, width: int = 2, channels: int = 1, rate: int = 16000) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(data)
    return path


def pixels(height: int = 4, width: int = 6) -> Array:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype(np.uint8)


def image(shape: tuple[int, ...]) -> Value:
    return Value("image", TensorType(shape, DType.FLOAT32))


def test_images_are_read_with_channels_first_and_last(tmp_path: Path) -> None:
    file = photograph(tmp_path / "a.png", pixels())
    settings = Preprocessing(mean=(10.0, 20.0, 30.0), std=(1.0, 2.0, 4.0))
    wanted = (pixels() - np.array([10.0, 20, 30])) / np.array([1.0, 2, 4])
    (last,) = read_images([file], image((1, 4, 6, 3)), settings)
    (first,) = read_images([file], image((1, 3, 4, 6)), settings)
    assert last.dtype == np.float32
    np.testing.assert_allclose(last[0], wanted, rtol=1e-6)
    np.testing.assert_array_equal(first[0].transpose(1, 2, 0), last[0])
    (unbatched,) = read_images([file], image((3, 4, 6)), settings)
    np.testing.assert_array_equal(unbatched, first[0])


def test_pixels_are_by_default_between_0_and_1_and_colors_may_be_reversed(tmp_path: Path) -> None:
    file = photograph(tmp_path / "a.png", pixels())
    (rgb,) = read_images([file], image((1, 4, 6, 3)), Preprocessing())
    (bgr,) = read_images([file], image((1, 4, 6, 3)), Preprocessing(colors="bgr"))
    np.testing.assert_allclose(rgb[0], pixels() / 255.0, rtol=1e-6)
    np.testing.assert_array_equal(bgr[..., ::-1], rgb)


def test_gray_inputs_accept_color_images(tmp_path: Path) -> None:
    file = photograph(tmp_path / "a.png", np.full((4, 6, 3), 51, np.uint8))
    for shape in ((1, 4, 6, 1), (1, 1, 4, 6), (4, 6)):
        (gray,) = read_images([file], image(shape), Preprocessing())
        np.testing.assert_allclose(gray, np.full(shape, 0.2), rtol=1e-6)


def test_sixteen_bit_images_are_scaled_not_clipped(tmp_path: Path) -> None:
    file = tmp_path / "deep.png"
    Image.fromarray(np.full((4, 4), 257 * 100, np.uint16)).save(file)
    (gray,) = read_images([file], image((1, 4, 4, 1)), Preprocessing(std=(1.0,)))
    np.testing.assert_array_equal(gray, np.full((1, 4, 4, 1), 100.0))


def test_cropping_keeps_the_middle(tmp_path: Path) -> None:
    wide = np.zeros((4, 12, 3), np.uint8)
    wide[:, 4:8] = 255
    file = photograph(tmp_path / "a.png", wide)
    (cropped,) = read_images([file], image((1, 4, 4, 3)), Preprocessing(fit="crop"))
    np.testing.assert_array_equal(cropped, np.ones((1, 4, 4, 3)))
    (stretched,) = read_images([file], image((1, 4, 4, 3)), Preprocessing())
    assert stretched.min() < 0.1


@pytest.mark.parametrize(
    ("shape", "settings", "message"),
    [
        ((1, 3, 8, 3), Preprocessing(), "--image-layout nchw or nhwc"),
        ((1, 7, 8, 9), Preprocessing(), "--image-layout nchw or nhwc"),
        ((1, 7, 8, 3), Preprocessing(layout="nchw"), "7 channels"),
        ((4, 20), Preprocessing(mean=(1.0, 2.0, 3.0)), "--mean has 3 numbers"),
        ((2, 8, 8, 3), Preprocessing(), "not one image"),
        ((40,), Preprocessing(), "not one image"),
        ((1, 64), Preprocessing(), r"'image' is f32\[1,64\]: one row or column is not an image"),
        ((64, 1), Preprocessing(), "is not an image"),
        ((1, 1, 256), Preprocessing(), "is not an image"),
        ((1, 1, 256, 3), Preprocessing(layout="nhwc"), "is not an image"),
    ],
)
def test_images_that_do_not_fit_the_input_are_refused(
    tmp_path: Path, shape: tuple[int, ...], settings: Preprocessing, message: str
) -> None:
    file = photograph(tmp_path / "a.png", pixels())
    with pytest.raises(ConfigError, match=message):
        read_images([file], image(shape), settings)


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((1.0, np.nan, 1.0), (1.0,), "--mean nan: give finite"),
        ((-np.inf,), (1.0,), "--mean -inf: give finite"),
        ((0.0,), (np.inf,), "--std inf: give finite"),
        ((0.0,), (1.0, 0.0, 1.0), "--std 0: every channel is divided"),
    ],
)
def test_means_and_deviations_that_cannot_be_used_are_refused(
    mean: tuple[float, ...], std: tuple[float, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Preprocessing(mean=mean, std=std)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_sounds_of_every_sample_width_are_read(tmp_path: Path, width: int) -> None:
    top = 1 << (8 * width - 1)
    numbers = [-top, -top // 2, 0, top // 2, top - 1]
    offset = 128 if width == 1 else 0
    data = b"".join((n + offset).to_bytes(width, "little", signed=width > 1) for n in numbers)
    (frame,) = read_waves([sound(tmp_path / "a.wav", data, width=width)], image((1, 5)))
    np.testing.assert_allclose(frame[0], [-1, -0.5, 0, 0.5, 1 - 1 / top], atol=1e-7)
    assert frame.dtype == np.float32


def test_sounds_are_cut_into_frames_and_padded(tmp_path: Path) -> None:
    def wav(name: str, numbers: list[int], channels: int = 1) -> Path:
        data = np.asarray(numbers, "<i2").tobytes()
        return sound(tmp_path / name, data, channels=channels)

    files = [
        wav("a.wav", [1, 2, 3, 4, 5, 6, 7]),
        wav("b.wav", [8, 9]),
        wav("c.wav", [10, 20, 30, 50, 0, 2], channels=2),
    ]
    frames = np.stack(read_waves(files, image((1, 3, 1)))) * 2**15
    expected = [[1, 2, 3], [4, 5, 6], [8, 9, 0], [15, 40, 1]]
    np.testing.assert_array_equal(frames.reshape(-1, 3), expected)
    assert padded(tmp_path, network((1, 3, 1))) == [tmp_path / "b.wav"]
    assert padded(tmp_path / "b.wav", network((1, 3, 1))) == []


def test_unusable_sounds_are_refused(tmp_path: Path) -> None:
    a = sound(tmp_path / "a.wav", bytes(20))
    b = sound(tmp_path / "b.wav", bytes(20), rate=8000)
    with pytest.raises(QuantizationError, match=r"16000 samples per second.*8000"):
        read_waves([a, b], image((1, 4)))
    with pytest.raises(ConfigError, match=r"spectrogram.*npz"):
        read_waves([a], image((1, 49, 10, 1)))
    with pytest.raises(QuantizationError, match=r"d\.wav' contains no samples"):
        read_waves([a, sound(tmp_path / "d.wav", b"")], image((1, 4)))
    for at, form, number, message in (
        (34, "<H", 64, "64 bits per sample; the maximum is 32"),
        (16, "<I", 2**32 - 1, "not a readable PCM WAV file"),  # the size of the format chunk
    ):
        damaged = bytearray(a.read_bytes())
        struct.pack_into(form, damaged, at, number)
        (tmp_path / "c.wav").write_bytes(damaged)
        with pytest.raises(QuantizationError, match=message):
            read_waves([tmp_path / "c.wav"], image((1, 4)))
    (tmp_path / "c.wav").write_bytes(a.read_bytes()[:20])
    with pytest.raises(QuantizationError, match="not a readable PCM WAV file"):
        read_waves([tmp_path / "c.wav"], image((1, 4)))


def test_folders_are_read_and_thinned_out(tmp_path: Path) -> None:
    graph = network((1, 4, 6, 3))
    with pytest.raises(QuantizationError, match="no images"):
        read_folder(tmp_path, graph, Preprocessing())
    (tmp_path / "within").mkdir()
    for index in range(10):
        folder = tmp_path / "within" if index % 2 else tmp_path
        photograph(folder / f"{index}.png", np.full((4, 6, 3), index, np.uint8))
    (tmp_path / "notes.txt").write_text("not an image")
    found = read_folder(tmp_path, graph, Preprocessing(std=(1.0,)))
    assert [int(sample[0].max()) for sample in found] == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]
    some = read_folder(tmp_path, graph, Preprocessing(std=(1.0,)), 5)
    assert [int(sample[0].max()) for sample in some] == [0, 4, 8, 3, 7]
    with pytest.raises(QuantizationError, match="10 samples, but 11 were requested"):
        read_folder(tmp_path, graph, Preprocessing(), 11)
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8 broken")
    with pytest.raises(QuantizationError, match=r"broken\.jpg' is not a readable image: not a for"):
        read_folder(tmp_path, graph, Preprocessing())
    sound(tmp_path / "a.wav", bytes(20))
    with pytest.raises(QuantizationError, match="both images"):
        read_folder(tmp_path, graph, Preprocessing())
    with pytest.raises(ConfigError, match="2 inputs"):
        read_folder(tmp_path, network((4,), (4,)), Preprocessing())


def test_the_error_without_pillow_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigError, match="not installed: python -m pip install pillow, or give"):
        read_folder(tmp_path, network((1, 4, 6, 3)), Preprocessing())


def test_samples_are_chosen_evenly() -> None:
    assert spread(range(10), None, Path("x")) == list(range(10))
    assert spread(range(10), 10, Path("x")) == list(range(10))
    assert spread(range(10), 3, Path("x")) == [0, 3, 6]


def saved(path: Path, **arrays: Array) -> Path:
    np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]
    return path


def good(count: int = 5, shape: tuple[int, ...] = (2, 3)) -> Array:
    return np.random.default_rng(1).normal(size=(count, *shape)).astype(np.float32)


def test_arrays_of_any_float_type_are_read_by_name(tmp_path: Path) -> None:
    graph = network((2, 3), (4,))
    other = good(shape=(4,))
    path = saved(tmp_path / "a.npz", x0=good().astype(np.float64), input_1=other)
    samples = read_samples(path, graph)
    np.testing.assert_array_equal(np.stack([sample[0] for sample in samples]), good())
    np.testing.assert_array_equal(np.stack([sample[1] for sample in samples]), other)
    assert all(a.dtype == np.float32 for sample in samples for a in sample)
    assert len(read_samples(path, graph, count=2)) == 2


def wrong_arrays(case: str) -> dict[str, Array]:
    x = good()
    match case:
        case "shape":
            return {"x0": good(shape=(3, 2))}
        case "integers":
            return {"x0": (x * 100).astype(np.uint8)}
        case "text":
            return {"x0": np.asarray(["a", "b"])}
        case "name":
            return {"other": x}
        case "none":
            return {"x0": x[:0]}
        case "NaN":
            x[3, 1, 2] = np.nan
        case "NaN in float64":
            wide = x.astype(np.float64)
            wide[3, 1, 2] = np.nan
            return {"x0": wide}
        case "infinite":
            x[2, 0, 1] = -np.inf
        case "too large":
            wide = x.astype(np.float64)
            wide[2, 0, 1] = 1e300
            return {"x0": wide}
        case "too small":
            x *= np.float32(1e-28)
        case "denormal":
            x *= np.float32(1e-43)
        case _:
            x[:] = 0.25
    return {"x0": x}


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("shape", r"input 'x0' has shape \[5, 3, 2\]; it must be \[2, 3\]"),
        ("integers", r"array of uint8 cannot be converted.*float32.*pixels / 255"),
        ("text", "array of <U1|shape"),
        ("name", "no array for input 'x0'.*Given: other"),
        ("none", "no samples"),
        ("NaN", r"sample 3 of input 'x0' contains nan at \[1, 2\]; remove"),
        ("NaN in float64", r"sample 3 of input 'x0' contains nan at \[1, 2\]; remove"),
        ("infinite", r"sample 2 of input 'x0' contains -inf at \[0, 1\]"),
        ("too large", r"input 'x0': element \[2, 0, 1\] is 1e\+300, which exceeds float32"),
        ("too small", r"'x0' is between -\d.*e-28 and \d.*e-28 in all 5 .* int8 scales"),
        ("denormal", r"'x0' is between -\d.*e-43 and"),
        ("constant", r"'x0' is 0.25 everywhere in all 5 calibration samples"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path: Path, case: str, message: str) -> None:
    arrays = wrong_arrays(case)
    path = saved(tmp_path / "a.npz", **arrays)
    with pytest.raises(QuantizationError, match=message) as caught:
        read_samples(path, network((2, 3)))
    assert str(path) in str(caught.value)
    if list(arrays) != ["x0"]:
        return
    path = saved(tmp_path / "b.npz", input_0=arrays["x0"])
    with pytest.raises(QuantizationError, match=message):
        read_samples(path, network((2, 3)))


def test_test_samples_are_checked(tmp_path: Path) -> None:
    """Test samples may be constant, and messages call them test samples."""
    constant = saved(tmp_path / "a.npz", **wrong_arrays("constant"))
    assert len(read_samples(constant, network((2, 3)), test=True)) == 5
    path = saved(tmp_path / "b.npz", **wrong_arrays("NaN"))
    with pytest.raises(QuantizationError, match="': test sample 3 of input 'x0' contains nan"):
        read_samples(path, network((2, 3)), test=True)


def left_out_and_doubtful(
    count: int, factors: dict[int, float], peaks: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return which samples of random noise are left out, and which are doubtful.

    Args:
        count: the number of samples.
        factors: by a sample's index, the factor that makes it louder.
        peaks: make only one element of these samples loud.
    """
    x = good(count, (64,))
    for index, factor in factors.items():
        # One large element changes the mean square little.
        x[index, : 1 if peaks else None] = factor * (4.0 if peaks else x[index])
    samples = [(a,) for a in x]
    return outliers(network((64,)), samples), doubtful(network((64,)), samples)


@pytest.mark.parametrize("count", [8, 12, 15, 40, 128, 500])
@pytest.mark.parametrize("factor", [3.9, 30.0, 1000.0])
def test_a_few_loud_samples_are_left_out(count: int, factor: float) -> None:
    """Loud samples are left out if they are fewer than 10 %, or only one.

    It does not matter whether all their elements are loud, or only one.
    """
    most = max((count - 1) // 10, 1)
    factors = {3 + 7 * i: factor * (1 + i % 3) for i in range(most)}
    assert left_out_and_doubtful(count, factors) == (tuple(factors), ())
    assert left_out_and_doubtful(count, factors, peaks=True) == (tuple(factors), ())
    factors[0] = factor
    assert left_out_and_doubtful(count, factors) == ((), tuple(sorted(factors)))


@pytest.mark.quick(every=2)
@pytest.mark.parametrize(("count", "factor"), [(1, 3.9), (12, 1000.0)])
def test_loud_samples_do_not_add_noise(count: int, factor: float) -> None:
    """Compare on images that the quantizer has not seen."""
    network_ = digits("dscnn_0")
    damaged = list(network_.calibration)
    for index in range(5, 5 + 7 * count, 7):
        damaged[index] = (damaged[index][0] * np.float32(factor),)
    found = quantize(network_.graph, damaged, measure=False)
    assert found.ignored == tuple(range(5, 5 + 7 * count, 7))
    wanted, got = outputs(network_.graph, network_.test), outputs(found.graph, network_.test)
    noise = float(np.square(wanted - got).sum())
    assert sqnr(float(np.square(wanted).sum()), noise) >= 35.0


def test_natural_variation_is_not_left_out() -> None:
    """Samples vary as in recordings, or half or more of them are silent, or they are few."""
    rng = np.random.default_rng(0)
    assert left_out_and_doubtful(4, {1: 30.0}) == ((), ())
    assert left_out_and_doubtful(128, {}) == ((), ())
    silent = left_out_and_doubtful(128, dict.fromkeys(range(0, 128, 2), 0.0))
    assert silent == left_out_and_doubtful(128, dict.fromkeys(range(127), 0.0)) == ((), ())
    for spread_ in (rng.lognormal(0.0, 1.0, 128), rng.exponential(1.0, 128)):
        assert left_out_and_doubtful(128, dict(enumerate(spread_.tolist()))) == ((), ())


def test_different_numbers_of_samples_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x0=good(), x1=good(4))
    with pytest.raises(QuantizationError, match=r"different numbers of samples: \[4, 5\]"):
        read_samples(path, network((2, 3), (2, 3)))
    path = saved(tmp_path / "b.npz", x0=good())
    with pytest.raises(QuantizationError, match="5 samples, but 6 were requested"):
        read_samples(path, network((2, 3)), count=6)


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 nonsense"])
def test_files_without_arrays_are_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SmeltError, match=r"a\.npz"):
        read_samples(path, network((2, 3)))


def test_batches_are_samples(tmp_path: Path) -> None:
    """As in other tools, the batch axis may be the axis of samples."""
    graph = network((1, 2, 3), (1, 4))
    path = saved(tmp_path / "a.npz", x0=good(), x1=good(shape=(4,)))
    samples = read_samples(path, graph)
    np.testing.assert_array_equal(np.concatenate([sample[0] for sample in samples]), good())
    assert [sample[1].shape for sample in samples] == [(1, 4)] * 5


def test_preprocessing_is_refused_for_arrays_and_sounds(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x0=good())
    folder = tmp_path / "sounds"
    folder.mkdir()
    sound(folder / "a.wav", bytes(range(20)))
    for source, what, shape in ((path, "arrays", (2, 3)), (folder, "sounds", (1, 4))):
        with pytest.raises(ConfigError, match=f"for folders of images, but '.*' contains {what}"):
            read_samples(source, network(shape), Preprocessing(mean=(3.0,)))


def test_one_array_without_a_sample_axis_is_one_sample(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", good(1)[0])
    assert len(read_samples(tmp_path / "a.npy", network((2, 3)))) == 1


def test_labels_are_read(tmp_path: Path) -> None:
    labels = np.array([3, 1, 2])
    np.save(tmp_path / "y.npy", labels[:, None])
    np.savez(tmp_path / "two.npz", x=good(3), y=labels.astype(np.uint8))
    np.savez(tmp_path / "one.npz", y=labels)
    for source in ("y.npy", "two.npz:y", "one.npz"):
        np.testing.assert_array_equal(read_labels(str(tmp_path / source)), labels)
    for source, message in (
        ("two.npz", "name the array of labels"),
        ("two.npz:z", "the file contains x, y"),
        ("two.npz:x", "give one integer per sample"),
        ("three.npz:y", "does not exist"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_labels(str(tmp_path / source))


def test_an_image_of_too_many_pixels_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photograph(tmp_path / "a.png", pixels(8, 8))
    monkeypatch.setattr(image_files, "_MOST_PIXELS", 60)
    with pytest.raises(QuantizationError, match="8 x 8 pixels; the maximum is 60"):
        read_images([tmp_path / "a.png"], image((1, 4, 4, 3)), Preprocessing())


def test_a_scalar_label_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.asarray(3))
    with pytest.raises(ConfigError, match=r"int64\[\]; give one integer per sample"):
        read_labels(str(tmp_path / "labels.npy"))
