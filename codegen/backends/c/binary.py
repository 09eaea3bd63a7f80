"""Binary elementwise operators with broadcasting (Binary)."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from smelt.codegen.backends.c.binary_onnx import onnx_formula
from smelt.codegen.backends.c.binary_plain import BinaryFormula, plain_formula
from smelt.codegen.backends.c.vector_loops import fills_vectors, in_vectors, last_element, one_lane
from smelt.codegen.lower.c_expressions import Store, quantizations, stored
from smelt.codegen.lower.kernel import (
    WIDE_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.lower.nested_loops import (
    ArrayLoop,
    broadcast_strides,
    dense_strides,
    depth,
    index,
    nest,
    nested,
    unbroadcast,
)
from smelt.codegen.text.expressions import offset
from smelt.codegen.text.helpers import uses_in, when
from smelt.ir import DType, Node, TensorType
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.binary import Binary
from smelt.ops.core.binary_integer import (
    CommonScale,
    Multiplier,
    add_scaling,
    div_scaling,
    mul_scaling,
    squared_difference_scaling,
    sub_scaling,
)

_TOO_WIDE_TO_CLAMP = (DType.FLOAT64, DType.UINT32, DType.INT64, DType.UINT64)


@dataclass(frozen=True)
class BinaryParameters(Parameters):
    """Variables of `binary.j2`.

    Attributes:
        comment: lines of the function's comment.
        body: C lines of the function.
        vectors: whether the function is compiled for several vector widths (`SMELT_VECTORS`).
    """

    comment: tuple[str, ...]
    body: tuple[str, ...]
    vectors: bool


class BinaryKernel(Kernel[Binary]):
    """As few nested loops as broadcasting allows.

    An operand is loaded and scaled outside of the loops in which it does not change.
    """

    op = Binary
    floats = WIDE_FLOATS

    @override
    def offer(self, node: Node[Binary], request: Request) -> KernelCall | Refusal:
        op, a, b, y = node.op, node.input(0).type, node.input(1).type, node.output.type
        if op.activation is not Activation.NONE and a.dtype in _TOO_WIDE_TO_CLAMP:
            return Refusal(
                f"{op.name} of {a.dtype.value} data does not support a fused activation."
            )
        onnx = onnx_formula(node)
        formula = onnx or _formula(op, a, b, y)
        loops = nest(
            y.shape,
            broadcast_strides(a.shape, y.shape),
            broadcast_strides(b.shape, y.shape),
            dense_strides(y.shape),
        )
        clamped = op.activation if onnx is None else Activation.NONE
        store = stored(clamped, y, saturate=formula.exceeds)
        statements = _statements(formula, loops, store, a, y)
        around = loops
        vectors = {a.dtype, y.dtype} == {DType.FLOAT32} and fills_vectors(loops, request.target)
        if vectors:
            several, last = (
                _statements(formula, found, store, a, y)[-1]
                for found in (one_lane(loops), last_element(loops))
            )
            around, statements = loops[:-1], in_vectors(loops, statements, several, last)
        body = nested([loop.head for loop in around], statements)
        uses = uses_in(body) | when(vectors, "SMELT_VECTORS")
        fused = "" if op.activation is Activation.NONE else f", {op.activation.value}"
        return KernelCall(
            template="backends/c/binary.j2",
            stem=op.kind,
            details={
                "operand": f"by_{'x'.join(map(str, b.shape)) or 'scalar'}",
                "scale": f"{a.quant} {b.quant} {y.quant}",
            },
            parameters=BinaryParameters(
                (
                    f"{op.kind.capitalize()}: {a} and {b} -> {y}{fused}.",
                    *(quantizations(a=a, b=b, output=y) if formula.exceeds else ()),
                ),
                body,
                vectors,
            ),
            operands=(Input(0, "a"), Input(1, "b"), Output(0, "output")),
            in_place=unbroadcast((a, b), y),
            uses=uses,
            summary=f"{op.kind} over {len(loops)} nested loops",
            form="c_quotient" if "quantized_quotient" in uses else "",
        )


def _statements(
    formula: BinaryFormula, loops: tuple[ArrayLoop, ...], store: Store, a: TensorType, y: TensorType
) -> list[list[str]]:
    """Return lists of C lines; those at index d are inside the first d loops."""
    statements: list[list[str]] = [[] for _ in range(len(loops) + 1)]
    kind = formula.operand_type or (a.dtype.c_name if y.quant is None else "int32_t")
    for operand, (name, load) in enumerate(zip(("left", "right"), formula.loads, strict=True)):
        element = f"{'ab'[operand]}[{index(loops, operand)}]"
        level = depth(loops, operand)
        statements[level].append(f"const {kind} {name} = {load % element};")
    statements[-1] += formula.lines
    result = formula.result
    if formula.exceeds or (y.quant is None and y.dtype.is_integer):
        statements[-1].append(f"const {kind} result = {result};")
        result = "result"
    text = store(result)
    if text == f"({y.dtype.c_name})result" and kind == y.dtype.c_name:
        text = "result"
    statements[-1].append(f"output[{index(loops, 2)}] = {text};")
    return statements


def _formula(op: Binary, a: TensorType, b: TensorType, y: TensorType) -> BinaryFormula:
    if y.quant is None:
        return plain_formula(op.kind, a.dtype)
    if op.kind in ("maximum", "minimum"):
        return plain_formula(op.kind, a.dtype)
    centered = offset("%s", -a.zero_point), offset("%s", -b.zero_point)
    match op.kind:
        case "add":
            return _sum("+", add_scaling(a, b, y), centered, y)
        case "sub":
            return _sum("-", sub_scaling(a, b, y), centered, y)
        case "squared_difference":
            return _squared_difference(squared_difference_scaling(a, b, y), centered, y)
        case "mul":
            result = offset(_scaled("left * right", mul_scaling(a, b, y)), y.zero_point)
            return BinaryFormula(centered, result, exceeds=True)
        case _:
            return _quotient(div_scaling(a, b, y), centered, y)


def _sum(
    operator: str, scaling: CommonScale, centered: tuple[str, str], y: TensorType
) -> BinaryFormula:
    loads = (
        _aligned(centered[0], scaling.left_shift, scaling.a),
        _aligned(centered[1], scaling.left_shift, scaling.b),
    )
    result = offset(_scaled(f"left {operator} right", scaling.output), y.zero_point)
    return BinaryFormula(loads, result, exceeds=True)


def _squared_difference(
    scaling: CommonScale, centered: tuple[str, str], y: TensorType
) -> BinaryFormula:
    loads = (
        _aligned(centered[0], scaling.left_shift, scaling.a),
        _aligned(centered[1], scaling.left_shift, scaling.b),
    )
    lines = (
        "const uint32_t difference = (uint32_t)(left - right);",
        "const int32_t square = (int32_t)(difference * difference);",
    )
    result = offset(_scaled("square", scaling.output), y.zero_point)
    return BinaryFormula(loads, result, lines, exceeds=True)


def _quotient(scaling: Multiplier, centered: tuple[str, str], y: TensorType) -> BinaryFormula:
    multiplier, shift = scaling
    result = offset(f"quantized_quotient(left, right, {multiplier}, {shift})", y.zero_point)
    return BinaryFormula(centered, result, exceeds=True)


def _aligned(value: str, left_shift: int, scaling: Multiplier) -> str:
    """Return the C expression of an input on the common scale of both inputs.

    A multiplier of 2^30 is a factor of 1/2. With the left shift, the input is then multiplied by a
    power of two, without rounding. For other multipliers, `align` needs 32-bit products only.
    """
    multiplier, shift = scaling
    if multiplier == 1 << 30 and 0 <= -shift < left_shift:
        return f"({value}) * {1 << (left_shift - 1 + shift)}"
    bits = 31 - left_shift
    if shift > 0 or bits > 16:
        return _scaled(f"({value}) * {1 << left_shift}" if left_shift else value, scaling)
    high, low = multiplier >> bits, multiplier & ((1 << bits) - 1)
    return f"align({value}, {high}, {low}, {bits}, {-shift})"


def _scaled(value: str, scaling: Multiplier) -> str:
    return f"requantize({value}, {scaling[0]}, {scaling[1]})"


KERNELS = (BinaryKernel(),)
