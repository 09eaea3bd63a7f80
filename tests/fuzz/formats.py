"""All formats that are fuzzed, by name."""

from __future__ import annotations

from tests.fuzz import (
    json_format,
    media_format,
    npz_format,
    onnx_format,
    output_format,
    smelt_format,
    tflite_format,
    toml_format,
    wire_format,
)

ALL = (
    tflite_format.FORMAT,
    onnx_format.FORMAT,
    smelt_format.FORMAT,
    npz_format.FORMAT,
    toml_format.FORMAT,
    json_format.FORMAT,
    media_format.IMAGE,
    media_format.WAV,
    wire_format.FORMAT,
    output_format.FORMAT,
)
BY_NAME = {format_.name: format_ for format_ in ALL}
