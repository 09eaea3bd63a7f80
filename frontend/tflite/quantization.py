"""Converters of QUANTIZE and DEQUANTIZE."""

from __future__ import annotations

from smelt.errors import ModelError
from smelt.frontend.tflite.operation import Converter, TfliteOperation
from smelt.ir import DType
from smelt.ops.core.quantize import Dequantize, Quantize

_STORED = frozenset({DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16, DType.INT32})


def _quantize(operation: TfliteOperation) -> None:
    operation.emit(Quantize(operation.output_type.dtype), operation.input(0))


def _dequantize(operation: TfliteOperation) -> None:
    x, output = operation.input(0), operation.output_type
    if not x.is_constant:
        operation.emit(Dequantize(), x)
        return
    if (output.dtype, output.shape) != (DType.FLOAT32, x.type.shape):
        raise ModelError(
            f"{operation} computes float32 of {x.type}, but the file declares {output}"
        )
    operation.fold(x)


CONVERTERS = {
    "QUANTIZE": Converter(_quantize, _STORED),
    "DEQUANTIZE": Converter(_dequantize, _STORED | {DType.FLOAT16}),
}
