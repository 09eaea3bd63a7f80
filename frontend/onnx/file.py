"""Reads an ONNX file: checks it, sorts operators, reads external data, inlines functions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx.version_converter
from google.protobuf.message import DecodeError

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.onnx.checks import require_text
from smelt.frontend.onnx.external import load_external
from smelt.frontend.onnx.functions import inlined
from smelt.frontend.onnx.topological_order import sort_operators

OLDEST_OPSET, NEWEST_OPSET = 7, 28
"""Supported versions of operator set `ai.onnx`."""

STANDARD_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True)
class OnnxFile:
    """A file's graph, with its constants in memory and its local functions inlined.

    `opsets` has the version of each operator domain; ONNX's own domain is "".
    """

    graph: onnx.GraphProto
    opsets: dict[str, int]


def read(data: bytes, folder: Path | None) -> OnnxFile:
    """Parse a model.

    Args:
        data: the contents of the file.
        folder: folder of external data; None if the model was given as bytes.

    Raises:
        ModelError: the file is truncated or corrupted, or its external data is missing or outside
            of the folder.
        UnsupportedError: it is too large, or uses an unsupported operator set.
    """
    model = _parse(data)
    if not model.HasField("graph") or not model.graph.output:
        raise ModelError("the file has no network with outputs: it is damaged, or not ONNX")
    sort_operators(model)
    load_external(model, folder)
    _require_versions(model)
    if model.functions:  # before anything that would expand calls of functions
        model = inlined(model)
    model = _upgraded(model)
    return OnnxFile(model.graph, _opsets(model))


def _parse(data: bytes) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise ModelError(f"not a readable ONNX file: {error}") from error
    # Information about training is not read.
    model.ClearField("training_info")
    require_text(model)
    return model


def _upgraded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Convert a model of an operator set before 7 to operator set 7; return others unchanged."""
    if not 0 < _standard_opset(model) < OLDEST_OPSET:
        return model
    try:
        return onnx.version_converter.convert_version(model, OLDEST_OPSET)
    except Exception as error:
        raise UnsupportedError(
            f"the network uses operator set {_standard_opset(model)} of ai.onnx, and cannot be "
            f"converted to {OLDEST_OPSET}, the oldest that Smelt supports: {error}"
        ) from error


def _standard_opset(model: onnx.ModelProto) -> int:
    """Return the version of ONNX's own operators; 0 if the file does not declare it."""
    versions = [o.version for o in model.opset_import if o.domain in STANDARD_DOMAINS]
    return max(versions, default=1 if model.ir_version < 3 else 0)


def _require_versions(model: onnx.ModelProto) -> None:
    for entry in (e for m in (model, *model.functions) for e in m.opset_import):
        if not 0 <= entry.version < 1 << 31:
            raise ModelError(
                f"the network uses operator set {entry.version} of '{entry.domain or 'ai.onnx'}', "
                "which does not exist: the file is damaged"
            )


def _opsets(model: onnx.ModelProto) -> dict[str, int]:
    opsets = {
        "" if entry.domain in STANDARD_DOMAINS else entry.domain: entry.version
        for entry in model.opset_import
    }
    version = opsets.setdefault("", _standard_opset(model))
    uses_standard = any(node.domain in STANDARD_DOMAINS for node in model.graph.node)
    if uses_standard and not OLDEST_OPSET <= version <= NEWEST_OPSET:
        raise UnsupportedError(
            f"the network uses operator set {version} of ai.onnx; Smelt supports "
            f"{OLDEST_OPSET} to {NEWEST_OPSET}: export it with another opset"
        )
    return opsets
