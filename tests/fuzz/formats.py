"""All formats that are fuzzed, by name."""

from __future__ import annotations

from tests.fuzz import onnx_format, tflite_format

ALL = (tflite_format.FORMAT, onnx_format.FORMAT)
BY_NAME = {format_.name: format_ for format_ in ALL}
