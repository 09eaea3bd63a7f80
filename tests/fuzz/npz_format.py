"""Damaged `.npz` and `.npy` files: samples, calibration data and labels."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from smelt.api.quantize import Settings, quantize_network, read_labels, read_samples
from smelt.errors import ConfigError, QuantizationError
from smelt.frontend import Imported, load
from smelt.ir import Graph, evaluate
from smelt.quant.recipe import RECIPES
from smelt.samples import bind_expected, bind_samples, load_arrays
from tests.fuzz import archives
from tests.fuzz.case import Format, Step
from tests.support.onnx_networks import graph, model, node
from tests.support.tflite_networks import DIGITS


@cache
def _integer() -> Graph:
    return load(DIGITS / "digits_int8.tflite").graph


@cache
def _float() -> Graph:
    """Return a small float network with two inputs."""
    nodes = [node("MatMul", "x w", "a"), node("Add", "a z", "b"), node("Softmax", "b", "y")]
    weights = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    proto = model(graph(nodes, {"x": [1, 3], "z": [1, 4]}, "y", {"w": weights}))
    return load(proto.SerializeToString()).graph


@cache
def seeds() -> Mapping[str, bytes]:
    """Return samples for both networks, and labels."""
    rng = np.random.default_rng(1)
    sizes = {"x": 3, "z": 4, "y": 4}
    arrays: dict[str, Any] = {
        name: rng.uniform(-1, 1, (6, 1, size)).astype(np.float32) for name, size in sizes.items()
    }
    arrays["input_0"] = rng.integers(-128, 128, (3, 1, 8, 8, 1), np.int8)
    arrays["labels"] = np.arange(6)
    return {
        "stored": _npz(arrays),
        "compressed": _npz(arrays, np.savez_compressed),
        "array": _npy(arrays["input_0"]),
        "classes": _npy(arrays["labels"]),
    }


def _npz(arrays: Mapping[str, Any], save: Any = np.savez) -> bytes:
    buffer = io.BytesIO()
    save(buffer, **arrays)
    return buffer.getvalue()


def _npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def damage(data: bytes, steps: Sequence[Step]) -> bytes:
    """Apply the steps."""
    for step in steps:
        rng = Random(step)
        if data[:2] == b"PK":
            data = archives.damaged(data, rng, lambda _, array, r: archives.damaged_array(array, r))
        else:
            data = archives.damaged_array(data, rng)
    return data


def check(path: Path, variant: int) -> None:
    """Read the file as samples, expected outputs, labels or calibration data."""
    if variant == 0:
        bind_samples(_integer(), load_arrays(path))
    elif variant == 1:
        for sample in bind_samples(_float(), load_arrays(path))[0]:
            evaluate(_float(), sample)
    elif variant == 2:
        bind_expected(_float(), load_arrays(path))
    elif variant == 3:
        packed = path.read_bytes()[:2] == b"PK"
        read_labels(f"{path}:labels" if packed else str(path))
    elif variant == 4:
        read_samples(path, _float())
    else:
        settings = Settings(path, RECIPES["fast"], frozenset({"float"}))
        quantize_network(Imported(_float()), settings)


FORMAT = Format(
    *("npz", ".npz", seeds, damage, check),
    variants=6,
    refusals=(ConfigError, QuantizationError),
    weight=4,
)
