"""Networks for the comparison of quantizers, with samples for calibration and tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

from bench.shared_folder import SHARED, absent
from smelt.frontend import InputOptions, load
from smelt.ir import Array
from smelt.samples import Sample

CALIBRATION = 128
TESTS = 64
LOUD = 30.0
"""Factor by which one calibration sample is multiplied to make it an outlier."""

_PHOTOGRAPHS = ("astronaut.png", "coffee.png", "chelsea.png", "rocket.jpg", "motorcycle_left.png")
"""Color photographs of scikit-image, with and without faces."""


@dataclass(frozen=True)
class TrainedNetwork:
    """A float network.

    Attributes:
        name: Name in the table.
        model: The file.
        calibration, tests: float32 samples.
        labels: int64 `[tests]`: the class of each test sample; None if unknown.
        inputs: Sizes that the file leaves open.
        allow: Element types besides int8 that the quantizer may use.
        published: An int8 file that the network's authors published.
    """

    name: str
    model: Path
    calibration: Sequence[Sample]
    tests: Sequence[Sample]
    labels: Array | None = None
    inputs: InputOptions | None = None
    allow: frozenset[str] = field(default_factory=frozenset[str])
    published: Path | None = None


@dataclass(frozen=True)
class Missing:
    """A network that cannot be measured, with the reason."""

    name: str
    reason: str


def candidates(names: str = "*") -> Iterator[TrainedNetwork | Missing]:
    """Yield the networks whose names match a pattern."""
    for kind in (_digits, _mlperf, _faces):
        yield from kind(names)


def _digits(names: str) -> Iterator[TrainedNetwork | Missing]:
    every = sorted(SHARED.glob("quant/*.onnx"))
    if not every and fnmatch("digits", names):
        yield Missing("digits", absent("quant/*.onnx"))
    # Variants are named after their network.
    paths = [path for path in every if fnmatch(path.stem, names) or fnmatch(names, f"{path.stem}*")]
    if not paths:
        return
    with np.load(SHARED / "quant/digits_split.npz") as data:
        images = data["X"].reshape(-1, 1, 1, 8, 8).astype(np.float32)
        labels = data["y"][data["test"]].astype(np.int64)
        calibration = [(image,) for image in images[data["calib"]]]
        tests = [(image,) for image in images[data["test"]]]
    for path in paths:
        # Recurrent layers have no int8 form: allow float, which the table then lists.
        allow = frozenset({"float"}) if path.stem.startswith("gru") else frozenset[str]()
        options = InputOptions({"N": 1})
        if fnmatch(path.stem, names):
            yield TrainedNetwork(
                name=path.stem,
                model=path,
                calibration=calibration,
                tests=tests,
                labels=labels,
                inputs=options,
                allow=allow,
            )
        if path.stem == "dscnn_0":
            loud = list(calibration)
            loud[7] = (loud[7][0] * np.float32(LOUD),)
            name = f"{path.stem}, one sample × {LOUD:.0f}"
            if fnmatch(name, names):
                yield TrainedNetwork(name, path, loud, tests, labels, options)


def _mlperf(names: str) -> Iterator[TrainedNetwork | Missing]:
    """Yield MLPerf Tiny's networks with smooth random inputs in the published int8 file's range."""
    for name in ("ad", "ic", "kws", "vww"):
        if not fnmatch(f"{name}_float32", names):
            continue
        model = SHARED / f"models/mlperf_tiny/{name}_float32.tflite"
        published = SHARED / f"models/mlperf_tiny/{name}_int8.tflite"
        if not model.exists() or not published.exists():
            yield Missing(f"{name}_float32", absent(f"models/mlperf_tiny/{name}_float32.tflite"))
            continue
        (value,) = load(published).graph.inputs
        low, high = ((q - value.type.zero_point) * value.type.scale for q in (-128, 127))
        rng = np.random.default_rng(0)
        samples = [(_smooth(value.type.shape, low, high, rng),) for _ in range(CALIBRATION + TESTS)]
        yield TrainedNetwork(
            f"{name}_float32",
            model,
            samples[:CALIBRATION],
            samples[CALIBRATION:],
            published=published,
        )


def _smooth(shape: Sequence[int], low: float, high: float, rng: np.random.Generator) -> Array:
    """Return a sum of random cosines along each axis, scaled to a part of the range: float32."""
    total = np.zeros(shape)
    for _ in range(6):
        wave = np.ones(())
        for size in shape[1:]:
            turns = rng.uniform(0.0, 3.0)
            phase = 2 * np.pi * (turns * np.arange(size) / size + rng.uniform())
            wave = wave[..., None] * np.cos(phase)
        total += rng.uniform(0.2, 1.0) * wave[None]
    total = (total - total.min()) / max(float(np.ptp(total)), 1e-9)
    first, last = np.sort(rng.uniform(0.0, 1.0, 2))
    if last - first < 0.3:
        first, last = 0.0, 1.0
    return (low + (high - low) * (first + (last - first) * total)).astype(np.float32)


def _faces(names: str) -> Iterator[TrainedNetwork | Missing]:
    """Yield UltraFace with crops of photographs: even ones to calibrate, odd ones to test."""
    name = "ultraface_slim_320"
    if not fnmatch(name, names):
        return
    model = SHARED / "models/face/ultraface_slim_320.onnx"
    if not model.exists():
        yield Missing(name, absent("models/face"))
        return
    try:
        import skimage
        from PIL import Image
    except ImportError:
        yield Missing(name, "needs photographs: python -m pip install scikit-image pillow")
        return
    folder = Path(skimage.__file__).parent / "data"
    rng = np.random.default_rng(0)
    crops: list[Sample] = []
    for file in _PHOTOGRAPHS:
        with Image.open(folder / file) as photograph:
            image = photograph.convert("RGB")
            for _ in range(24):
                scale = rng.uniform(0.35, 1.0) * min(image.width / 320, image.height / 240)
                width, height = round(320 * scale), round(240 * scale)
                left = int(rng.integers(image.width - width + 1))
                top = int(rng.integers(image.height - height + 1))
                box = (left, top, left + width, top + height)
                pixels = np.asarray(image.crop(box).resize((320, 240)), np.float32)
                if rng.uniform() < 0.5:
                    pixels = pixels[:, ::-1]
                crops.append(
                    (np.ascontiguousarray(((pixels - 127) / 128).transpose(2, 0, 1))[None],)
                )
    yield TrainedNetwork(name, model, crops[::2], crops[1::2])
