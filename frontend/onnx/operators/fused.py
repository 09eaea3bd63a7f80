"""Converters of fused operators that onnxruntime's optimizer writes.

They are converted to the standard operators that they consist of; the passes may fuse these again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import helper

from smelt.frontend.onnx.operation import Declared, OnnxConverter, Operation
from smelt.frontend.onnx.operators.elementwise import binary, unary
from smelt.ir import Value
from smelt.ops.core.unary import Unary

_ACTIVATIONS: Mapping[str, Sequence[str]] = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "Softplus": (),
    "Softsign": (),
    "LeakyRelu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "Elu": ("alpha",),
    "Celu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
    "Clip": ("min", "max"),
}
"""Activations fused to products, each with its attributes in the order of `activation_params`."""

_CLIP_BY_ATTRIBUTES = 6
"""An operator set in which the limits of Clip are attributes."""


def _gelu(operation: Operation) -> Value:
    return unary(operation, Unary("gelu"), operation.value(0))


def _bias_gelu(operation: Operation) -> Value:
    biased = binary(operation, "add", operation.value(0), operation.value(1))
    return unary(operation, Unary("gelu"), biased)


def _fast_gelu(operation: Operation) -> Value:
    """Convert FastGelu, which uses tanh; a bias may be added to its operand."""
    x = operation.value(0)
    if operation.optional(1) is not None:
        x = binary(operation, "add", x, operation.value(1))
    return unary(operation, Unary("gelu_tanh"), x)


def _quick_gelu(operation: Operation) -> Value:
    return unary(operation, Unary("swish", operation.real("alpha", 1.702)), operation.value(0))


def _fused_conv(operation: Operation) -> Value:
    """Convert FusedConv: Conv, plus the fourth operand, then an activation with parameters."""
    operands = [operation.value(0), operation.value(1), operation.optional(2)]
    y = _standard(operation, "Conv", operands)
    if operation.optional(3) is not None:
        y = binary(operation, "add", y, operation.value(3))
    kind, given = operation.text("activation", ""), operation.reals("activation_params", ())
    names = _ACTIVATIONS.get(kind, ())
    if len(given) not in (0, len(names)):
        raise operation.wrong(
            f"activation '{kind}' has {len(names)} parameters, but the file has {len(given)}"
        )
    return _activated(operation, y, dict(zip(names, given, strict=False)))


def _fused_gemm(operation: Operation) -> Value:
    """Convert FusedGemm: Gemm, then an activation with an attribute for each parameter."""
    operands = [operation.value(0), operation.value(1), operation.optional(2)]
    y = _standard(operation, "Gemm", operands)
    names = _ACTIVATIONS.get(operation.text("activation", ""), ())
    given = {name: operation.real(f"activation_{name}", None) for name in names}
    return _activated(operation, y, {n: value for n, value in given.items() if value is not None})


def _standard(operation: Operation, kind: str, operands: Sequence[Value | None]) -> Value:
    """Convert the operator that an activation is fused to, with its own attributes."""
    own = [a for a in operation.proto.attribute if not a.name.startswith("activation")]
    (y,) = operation.apply(kind, *operands, attributes=own)
    return y


def _activated(operation: Operation, y: Value, parameters: Mapping[str, float]) -> Value:
    kind = operation.text("activation", "")
    if not kind:
        return y
    if kind not in _ACTIVATIONS:
        raise operation.refuse(
            f"its activation '{kind}' is not supported; use one of {', '.join(_ACTIVATIONS)}"
        )
    attributes: list[onnx.AttributeProto] = [
        helper.make_attribute(name, value) for name, value in parameters.items()
    ]
    version = _CLIP_BY_ATTRIBUTES if kind == "Clip" else 21
    (result,) = operation.apply(kind, y, attributes=attributes, version=version)
    return result


_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")

CONVERTERS: dict[str, OnnxConverter] = {
    "com.microsoft::Gelu": Declared(_gelu, ()),
    "com.microsoft::BiasGelu": Declared(_bias_gelu, ()),
    "com.microsoft::FastGelu": Declared(_fast_gelu, ()),
    "com.microsoft::QuickGelu": Declared(_quick_gelu, ("alpha",)),
    "com.microsoft::FusedConv": Declared(_fused_conv, (*_CONV, "activation", "activation_params")),
    "com.microsoft::FusedGemm": Declared(
        _fused_gemm,
        (
            *("alpha", "beta", "transA", "transB", "activation"),
            *("activation_alpha", "activation_beta", "activation_gamma"),
        ),
    ),
}
