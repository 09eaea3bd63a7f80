"""Test of the variant of `vww` in which every channel is needed."""

from pathlib import Path
from typing import Any

from bench import random_weights
from smelt.api.compile import compile_model
from smelt.api.options import Options
from tests.support.shared import shared


def test_no_channel_of_the_variant_is_removed(tmp_path: Path) -> None:
    original = compile_model(shared("models/mlperf_tiny/vww_int8.tflite"), Options())
    random_weights.write(tmp_path / "first.tflite")
    random_weights.write(tmp_path / "second.tflite")
    variant = compile_model(tmp_path / "first.tflite", Options())
    removed = dict[str, Any](variant.report)["removed"]
    removed_before = dict[str, Any](original.report)["removed"]
    assert (tmp_path / "first.tflite").read_bytes() == (tmp_path / "second.tflite").read_bytes()
    assert removed["channels"] == []
    assert variant.graph.macs == original.graph.macs + removed_before["macs"]
    assert variant.graph.macs > 1.9 * original.graph.macs
