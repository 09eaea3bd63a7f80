"""The ONNX operator that `smelt quantize --qdq` writes for one of Smelt's operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from smelt.ir.types import Array


@dataclass(frozen=True)
class OnnxForm:
    """An ONNX operator that computes the same from the same real operands, in the same order.

    Attributes:
        operator: its name, in ONNX's default domain.
        attributes: by name.
        constants: further operands, after those of the node, by name.
    """

    operator: str
    attributes: Mapping[str, object] = field(default_factory=dict[str, object])
    constants: Mapping[str, Array] = field(default_factory=dict[str, Array])
