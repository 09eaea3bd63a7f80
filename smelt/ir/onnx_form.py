"""An operator as ONNX has it: what `smelt quantize --qdq` writes between its quantized tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from smelt.ir.types import Array


@dataclass(frozen=True)
class OnnxForm:
    """An operator of ONNX that computes the same of the same real operands, in the same order.

    Attributes:
        operator: its name, of the standard's own domain.
        attributes: by name.
        constants: operands that follow the node's own, by what they are.
    """

    operator: str
    attributes: Mapping[str, object] = field(default_factory=dict[str, object])
    constants: Mapping[str, Array] = field(default_factory=dict[str, Array])
