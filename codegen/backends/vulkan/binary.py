"""Shaders of Binary, PRelu and Select."""

from __future__ import annotations

from collections.abc import Mapping
from math import isinf

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.vulkan.elementwise import (
    ElementBody,
    Read,
    elementwise,
    refuse_axes,
    refuse_types,
)
from smelt.codegen.backends.vulkan.rounding import quantized_real
from smelt.codegen.backends.vulkan.unary import float_bits
from smelt.codegen.lower.kernel import NARROW_FLOATS, Kernel, KernelCall, Refusal, Request
from smelt.ir import DType, Node, Rounding, TensorType
from smelt.ops.arithmetic.fixed_point import Activation, clamp_limits, rescale_multiplier
from smelt.ops.core.binary import BINARY, Binary
from smelt.ops.core.binary_integer import (
    CommonScale,
    Multiplier,
    add_scaling,
    div_scaling,
    mul_scaling,
    squared_difference_scaling,
    sub_scaling,
)
from smelt.ops.core.prelu import PRelu
from smelt.ops.tensor.select import Select

_COMPARISONS = {
    "equal": "==",
    "greater": ">",
    "greater_equal": ">=",
    "less": "<",
    "less_equal": "<=",
}
_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
_INEXACT = ("pow", "mod", "fmod")
"""Kinds for which Vulkan does not specify an exact float result."""

_SERVED = frozenset(
    {
        *_COMPARISONS,
        *_OPERATORS,
        *_INEXACT,
        *("div", "maximum", "minimum", "shift_left", "shift_right", "squared_difference"),
    }
)
"""Kinds that have a shader; the CPU computes the others."""


class BinaryShader(Kernel[Binary]):
    """Elementwise operators with two operands, which may be broadcast."""

    op = Binary
    floats = NARROW_FLOATS

    @override
    def offer(self, node: Node[Binary], request: Request) -> KernelCall | Refusal:
        op, x = node.op, node.input(0).type
        if op.kind not in _SERVED:
            return Refusal(f"{op.name} is not served on the GPU: there is no shader for it.")
        if x.dtype.is_float and op.kind in _INEXACT:
            return Refusal(
                f"{op.name} of floats is not served on the GPU: Vulkan does not specify an exact "
                "result."
            )
        if _scales_reals(node) and op.kind == "div":
            return Refusal(
                f"{op.name} with ONNX's rounding is not served on the GPU: its division may round "
                "differently."
            )
        if op.activation is not Activation.NONE and x.dtype is DType.UINT32:
            return Refusal(f"{op.name} of u32 data is not served with a fused activation.")
        refusal = refuse_types(node) or refuse_axes(node)
        if refusal is not None:
            return refusal
        reads = [Read.of(node, 0, "a"), Read.of(node, 1, "b")]
        stem = f"{op.kind}_{node.input(0).type.dtype.value}"
        return elementwise(node, stem, op.name, reads, _body(node))


def _scales_reals(node: Node[Binary]) -> bool:
    rescales = BINARY[node.op.kind].rescales and node.output.type.is_quantized
    return node.rounding is Rounding.ONNX and rescales


def _body(node: Node[Binary]) -> ElementBody:
    op, a, b, y = node.op, node.input(0).type, node.input(1).type, node.output.type
    if _scales_reals(node):
        return _onnx(node)
    if y.is_quantized and BINARY[op.kind].rescales:
        return _quantized(op, a, b, y)
    plain = _plain(op.kind, a.dtype)
    if op.activation is Activation.NONE:
        return plain
    low, high = clamp_limits(op.activation, y) if y.is_quantized else _limits(op.activation, y)
    names = ("intBitsToFloat(LOW)", "intBitsToFloat(HIGH)") if y.dtype.is_float else ("LOW", "HIGH")
    kind, within = ("float", "bounded") if y.dtype.is_float else ("int", "clamp")
    # Integers wrap before they are clamped.
    wrapped = f"bitfieldExtract({plain.result}, 0, {8 * y.dtype.size})"
    value = wrapped if kind == "int" and y.dtype is DType.INT8 else plain.result
    value = f"({value}) & 255" if y.dtype is DType.UINT8 else value
    return ElementBody(
        f"{within}(result, {', '.join(names)})",
        (*plain.lines, f"const {kind} result = {value};"),
        {"LOW": low, "HIGH": high},
    )


def _limits(activation: Activation, y: TensorType) -> tuple[int, int]:
    low, high = activation.limits
    if y.dtype.is_float:
        most = float(np.finfo(np.float32).max)
        return float_bits(low), float_bits(np.inf if isinf(high) else min(high, most))
    least, greatest = y.dtype.limits
    return int(max(low, least)), int(min(high, greatest))


def _plain(kind: str, dtype: DType) -> ElementBody:
    """Return GLSL that computes with the stored values.

    Integer results may have more bits than the output's type; storing them drops the upper bits.
    """
    if kind in ("maximum", "minimum"):
        better = f"a {'<>'[kind == 'maximum']} b"
        better += " || isnan(a)" if dtype.is_float else ""
        return ElementBody(f"{better} ? a : b")
    if kind in _COMPARISONS:
        return ElementBody(f"int(a {_COMPARISONS[kind]} b)")
    if kind in _OPERATORS:
        return ElementBody(f"a {_OPERATORS[kind]} b")
    if kind == "squared_difference":
        return ElementBody("(a - b) * (a - b)")
    if dtype.is_float:
        return ElementBody("a / b")
    return _power(dtype) if kind == "pow" else _integer(kind, dtype)


def _integer(kind: str, dtype: DType) -> ElementBody:
    """Return GLSL of integer quotients, remainders and shifts.

    Where GLSL's result is undefined (division by 0, shifts by the width or more), the result is
    that of `ops.core.binary_plain`.
    """
    bits, signed = 8 * dtype.size, dtype.limits[0] < 0
    type_ = "uint" if dtype is DType.UINT32 else "int"
    if kind in ("shift_left", "shift_right"):
        inside = f"b >= 0 && b < {bits}" if signed else f"b < {bits}"
        if kind == "shift_left":
            return ElementBody(f"{inside} ? a << b : {type_}(0)")
        return ElementBody(f"{inside} ? a >> b : {'a < 0 ? -1 : 0' if signed else f'{type_}(0)'}")
    guard = "b == 0 || b == -1" if signed else "b == 0"
    lines = [f"const {type_} divisor = {guard} ? {type_}(1) : b;"]
    if kind == "div":
        negated = "b == -1 ? -a : " if signed else ""
        return ElementBody(f"b == 0 ? {type_}(0) : {negated}a / divisor", tuple(lines))
    lines.append(f"const {type_} rest = {guard} ? {type_}(0) : a - a / divisor * divisor;")
    if kind == "fmod" or not signed:
        return ElementBody("rest", tuple(lines))
    return ElementBody("rest != 0 && rest < 0 != b < 0 ? rest + b : rest", tuple(lines))


def _power(dtype: DType) -> ElementBody:
    power = "integer_power(uint(a), uint(b))"
    if dtype is DType.UINT32:
        return ElementBody(power)
    if dtype.limits[0] == 0:
        return ElementBody(f"int({power})")
    lines = (
        "const int inverse = int(a == 1 || a == -1 && (b & 1) == 0);",
        f"const int whole = b < 0 ? 0 : int({power.replace('uint(b)', 'uint(max(b, 0))')});",
    )
    return ElementBody("b >= 0 ? whole : a == -1 && (b & 1) != 0 ? -1 : inverse", lines)


def _quantized(op: Binary, a: TensorType, b: TensorType, y: TensorType) -> ElementBody:
    """Return GLSL that requantizes with gemmlowp's rounding, as in `ops.core.binary_integer`."""
    low, high = clamp_limits(op.activation, y)
    constants = {
        "ZERO_A": a.zero_point,
        "ZERO_B": b.zero_point,
        "ZERO": y.zero_point,
        "LOW": low,
        "HIGH": high,
    }
    lines = ["const int left = a - ZERO_A, right = b - ZERO_B;"]
    scaled = "requantize(%s, MULTIPLIER, SHIFT)"
    match op.kind:
        case "add" | "sub":
            scaling = (add_scaling if op.kind == "add" else sub_scaling)(a, b, y)
            constants |= _common(scaling)
            lines += _ALIGNED
            value = scaled % f"aligned_a {_OPERATORS[op.kind]} aligned_b"
        case "squared_difference":
            constants |= _common(squared_difference_scaling(a, b, y))
            lines += [*_ALIGNED, "const int difference = aligned_a - aligned_b;"]
            value = scaled % "difference * difference"
        case "mul":
            constants |= _named("", mul_scaling(a, b, y))
            value = scaled % "left * right"
        case _:
            constants |= _named("", div_scaling(a, b, y))
            value = "quantized_quotient(left, right, MULTIPLIER, SHIFT)"
    return ElementBody(f"clamp({value} + ZERO, LOW, HIGH)", tuple(lines), constants)


_ALIGNED = (
    "const int aligned_a = requantize(left << GUARD, A_MULTIPLIER, A_SHIFT);",
    "const int aligned_b = requantize(right << GUARD, B_MULTIPLIER, B_SHIFT);",
)


def _common(scaling: CommonScale) -> Mapping[str, int]:
    named = {**_named("A_", scaling.a), **_named("B_", scaling.b), **_named("", scaling.output)}
    return {"GUARD": scaling.left_shift, **named}


def _named(prefix: str, multiplier: Multiplier) -> Mapping[str, int]:
    return {f"{prefix}MULTIPLIER": multiplier[0], f"{prefix}SHIFT": multiplier[1]}


def _onnx(node: Node[Binary]) -> ElementBody:
    """Return GLSL that dequantizes the operands, computes in float32 and quantizes the result."""
    op, a, b, y = node.op, node.input(0).type, node.input(1).type, node.output.type
    real = _plain(op.kind, DType.FLOAT32).result.replace("a", "left").replace("b", "right")
    store = quantized_real(y, "real", *clamp_limits(op.activation, y, Rounding.ONNX))
    lines = (
        "precise const float left = intBitsToFloat(SCALE_A) * float(a - ZERO_A);",
        "precise const float right = intBitsToFloat(SCALE_B) * float(b - ZERO_B);",
        f"precise const float real = {real};",
        *store.lines,
    )
    constants = {
        "SCALE_A": float_bits(a.scale),
        "SCALE_B": float_bits(b.scale),
        "ZERO_A": a.zero_point,
        "ZERO_B": b.zero_point,
        **store.constants,
    }
    return ElementBody(store.result, lines, constants, store.tables)


class PReluShader(Kernel[PRelu]):
    """Multiplies each negative element by its slope, `alpha`."""

    op = PRelu
    floats = NARROW_FLOATS

    @override
    def offer(self, node: Node[PRelu], request: Request) -> KernelCall | Refusal:
        refusal = refuse_types(node) or refuse_axes(node)
        if refusal is not None:
            return refusal
        x, alpha, y = node.input(0).type, node.input(1).type, node.output.type
        reads = [Read.of(node, 0, "x"), Read.of(node, 1, "alpha")]
        if y.quant is None:
            body = ElementBody("x < 0.0 ? alpha * x : x")
        else:
            body = ElementBody(
                "clamp(scaled + ZERO, LOW, HIGH)",
                (
                    "const int centered = x - ZERO_X;",
                    "const int scaled = centered < 0",
                    "    ? requantize(centered * (alpha - ZERO_ALPHA), MULTIPLIER, SHIFT)",
                    "    : requantize(centered, X_MULTIPLIER, X_SHIFT);",
                ),
                {
                    "ZERO_X": x.zero_point,
                    "ZERO_ALPHA": alpha.zero_point,
                    "ZERO": y.zero_point,
                    "LOW": y.dtype.limits[0],
                    "HIGH": y.dtype.limits[1],
                    **_named("", rescale_multiplier(x.scale * alpha.scale / y.scale)),
                    **_named("X_", rescale_multiplier(x.scale / y.scale)),
                },
            )
        return elementwise(node, "prelu", "PRelu", reads, body)


class SelectShader(Kernel[Select]):
    """Selects each element from one of two operands, by a condition."""

    op = Select
    floats = NARROW_FLOATS

    @override
    def offer(self, node: Node[Select], request: Request) -> KernelCall | Refusal:
        refusal = refuse_types(node) or refuse_axes(node)
        if refusal is not None:
            return refusal
        names = ("condition", "a", "b")
        reads = [Read.of(node, i, name) for i, name in enumerate(names)]
        return elementwise(node, "select", "Select", reads, ElementBody("condition != 0 ? a : b"))


KERNELS = (BinaryShader(), PReluShader(), SelectShader())
