"""Recurrence: computed step by step, with the states in the output buffers.

A step first multiplies the hidden state by the recurrent weights. It computes a block of several
gates' sums at a time, so that the sums stay in registers. Constant weights are stored in the order
in which they are read, and zeros fill the last block. Then a pass over the units applies the
activations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from math import inf

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.c.recurrence_step import (
    RecurrentGates,
    SequenceLoops,
    UnitStatements,
    sequence_loops,
)
from smelt.codegen.backends.c.recurrence_sums import GateProduct, scalar_sums, vector_sums
from smelt.codegen.backends.c.vector_loops import LANES, without_branch
from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Operand,
    Output,
    Packed,
    Parameters,
    Request,
    Scratch,
)
from smelt.codegen.text.helpers import uses_in, when
from smelt.codegen.text.literals import c_float
from smelt.ir import Array, DType, Node, Value
from smelt.ops.sequence.recurrence import GATES, OPERANDS, Gate, Recurrence

EXPRESSIONS: dict[str, str] = {
    "relu": "x < 0.0f ? 0.0f : x",
    "tanh": "tanh_float(x)",
    "sigmoid": "logistic_float(x)",
    "affine": "{alpha} * x + {beta}",
    "leakyrelu": "x >= 0.0f ? x : {alpha} * x",
    "thresholdedrelu": "x > {alpha} ? x : 0.0f",
    "scaledtanh": "{alpha} * tanh_float({beta} * x)",
    "hardsigmoid": "clamp_float({alpha} * x + {beta}, 0.0f, 1.0f)",
    "elu": "x < 0.0f ? {alpha} * expm1_float(x) : x",
    "softsign": "x / (1.0f + fabsf(x))",
    "softplus": "softplus_float(x)",
}
"""C expression of `x` for each activation."""

_MOST_ROWS = 4
"""Maximum number of sequences whose states are multiplied by the weights together."""

_VECTOR_SUMS = 96
_SCALAR_SUMS = 16
"""Upper limits of a block's sums, with and without SIMD floats."""


@dataclass(frozen=True)
class ActivationFunction:
    """An activation as a C function.

    Attributes:
        letter: ONNX's letter for the activation, which is part of the function's name.
        lines: body of the function.
        title: text of the function's comment.
    """

    letter: str
    lines: tuple[str, ...]
    title: str


@dataclass(frozen=True)
class RecurrenceParameters(Parameters):
    """Variables of `recurrence.j2`.

    Attributes:
        title: text of the function's comment.
        functions: the activations.
        text: the gates whose recurrent sums are computed together, for a comment.
        vectors: whether the recurrent sums of several gates share vector registers.
        at_once: recurrent sums that are computed together, for each sequence.
        sums: C lines that compute these sums.
        units: units of a state.
        whole_units: first units, which are computed in vectors; the others are computed one by one.
        unit_lanes: units in a vector.
        reset: statements that apply the reset gate before the second product; None without one.
        states: names of the states.
        step: statements that compute the new states of a unit.
        step_parameters: parameters of the C function that computes a step.
        sequences: the loops over steps and sequences.
    """

    title: str
    functions: tuple[ActivationFunction, ...]
    text: str
    vectors: bool
    at_once: int
    sums: tuple[str, ...]
    units: int
    whole_units: int
    unit_lanes: int
    reset: UnitStatements | None
    states: tuple[str, ...]
    step: UnitStatements
    step_parameters: str
    sequences: SequenceLoops


class RecurrenceKernel(Kernel[Recurrence]):
    """LSTM, GRU and simple RNN, forward or backward, with or without lengths."""

    op = Recurrence

    @override
    def offer(self, node: Node[Recurrence], request: Request) -> KernelCall:
        op = node.op
        batch, weights = node.input(0).type.shape[1], node.input(1)
        units = weights.type.shape[1]
        given = {n for n, v in zip(OPERANDS, node.inputs, strict=False) if v is not None}
        rows = 1 if "lengths" in given else _divisor(batch, _MOST_ROWS)
        products = _products(op, weights, rows, request)
        names = (["every"] if op.sequence else []) + ["hidden"] + ["cell"] * (op.kind == "lstm")
        size = products[-1].start + products[-1].padded
        vectors = _in_vectors(weights, request)
        unit_lanes = LANES if units % LANES == 0 else LANES // 2
        whole_units = units - units % unit_lanes if vectors else 0
        unit_counts = whole_units, units, unit_lanes
        letters, functions = _functions(op, branches=not whole_units)
        gates = RecurrentGates(op, frozenset(given), letters, units, products)
        fused = "fma" in request.target.features
        sums = (
            vector_sums(products[0].at_once, rows, units, size)
            if vectors
            else scalar_sums(products[0].at_once, rows, units, size, weights, fused=fused)
        )
        several = f" of {rows} sequences" if rows > 1 else ""
        parameters = RecurrenceParameters(
            title=f"{op.name} of {node.input(0).type}, {units} units"
            + ", the last step first" * op.reverse,
            functions=functions,
            text=f"gates{several}, {products[0].at_once} at a time",
            vectors=vectors,
            at_once=products[0].at_once,
            sums=tuple(sums),
            units=units,
            whole_units=whole_units,
            unit_lanes=unit_lanes if whole_units else 0,
            reset=UnitStatements.of(gates.reset, *unit_counts) if gates.gated else None,
            states=gates.states,
            step=UnitStatements.of(gates.step, *unit_counts),
            step_parameters=gates.parameters,
            sequences=sequence_loops(node, gates, rows, size),
        )
        scratch = [Scratch("sums", DType.FLOAT32, rows * size)]
        if gates.gated:
            scratch.append(Scratch("gated", DType.FLOAT32, rows * units))
        outputs = (Output(i, name) for i, name in enumerate(names))
        return KernelCall(
            template="backends/c/recurrence.j2",
            stem=op.kind,
            parameters=parameters,
            operands=(*_inputs(weights, products, gates.given), *outputs, *scratch),
            in_place=tuple(
                (names.index(n), OPERANDS.index(n)) for n in ("hidden", "cell") if n in given
            ),
            uses=uses_in(chain(sums, *(f.lines for f in functions))).union(
                ("math.h", "string.h"),  # math.h is included even if it is not needed
                when(op.cell_clip, "clamp_float"),
                when(vectors, "SMELT_VECTORS"),
                when(whole_units, "SMELT_ARRAY"),
            ),
            summary=f"{rows} x {products[0].at_once} sums of sequences x gates at a time",
        )


def _inputs(
    weights: Value, products: tuple[GateProduct, ...], given: frozenset[str]
) -> Iterator[Operand]:
    """Yield the operands that are read."""
    yield Input(0, "input")
    if weights.is_constant:
        yield Packed("weights", _packed(weights.array, products))
    else:
        yield Input(1, "weights")
    for i, name in enumerate(OPERANDS):
        if i > 1 and name in given:
            yield Input(i, f"initial_{name}" if name in ("hidden", "cell") else name)


def _in_vectors(weights: Value, request: Request) -> bool:
    """Return whether the sums of several gates share vector registers."""
    return weights.is_constant and "simd_float" in request.target.features


def _divisor(number: int, most: int) -> int:
    """Return the largest divisor that is at most `most`."""
    return max(d for d in range(1, most + 1) if number % d == 0)


def _products(
    op: Recurrence, weights: Value, rows: int, request: Request
) -> tuple[GateProduct, ...]:
    """Return the recurrent products: one for all gates, or two.

    A GRU that applies its reset gate before the recurrent weights needs a second product, for the
    candidate state.
    """
    units = weights.type.shape[1]
    gates = [GATES[op.kind] * units]
    if op.kind == "gru" and not op.reset_after:
        gates = [2 * units, units]
    vectors = _in_vectors(weights, request)
    most = (_VECTOR_SUMS if vectors else _SCALAR_SUMS) // rows
    if "fpu" not in request.target.features or request.optimize == "size":
        most = 4
    sizes = [s for s in range(1, most + 1) if not vectors or s % 8 == 0 or s == most] or [most]

    def cost(at_once: int) -> tuple[int, int]:
        blocks = sum(-(-count // at_once) for count in gates)
        return blocks * (rows + 3 + at_once * (1 + rows)), at_once

    at_once = min(sizes, key=cost)
    products: list[GateProduct] = []
    for count in gates:
        first = sum(p.gates for p in products)
        start = sum(p.padded for p in products)
        products.append(GateProduct(first, count, at_once, start))
    return tuple(products)


def _packed(weights: Array, products: tuple[GateProduct, ...]) -> Array:
    """Return weights `[gates, units]` in blocks of gates; in a block, the gates are innermost."""
    parts: list[Array] = []
    for product in products:
        own = weights[product.first : product.first + product.gates]
        padded = np.pad(own, ((0, product.padded - product.gates), (0, 0)))
        blocks = padded.reshape(-1, product.at_once, weights.shape[1])
        parts.append(blocks.transpose(0, 2, 1).ravel())
    return np.concatenate(parts)


def _functions(
    op: Recurrence, *, branches: bool
) -> tuple[dict[str, str], tuple[ActivationFunction, ...]]:
    """Return the function's letter for each activation's letter, and the distinct functions.

    `branches`: whether activations may have branches; vectors need expressions without them.
    """
    letters: dict[str, str] = {}
    found: dict[tuple[Gate, float], ActivationFunction] = {}
    for index, gate in enumerate(op.gates):
        letter, bound = "fgh"[index], op.bound(index)
        if (gate, bound) not in found:
            constants = {"alpha": c_float(gate.alpha), "beta": c_float(gate.beta)}
            expression = EXPRESSIONS[gate.kind].format(**constants)
            lines = [f"return {expression if branches else without_branch(expression)};"]
            if bound < inf:
                bounds = f"{c_float(-bound)}, {c_float(bound)}"
                lines.insert(0, f"x = clamp_float(x, {bounds});")
            found[gate, bound] = ActivationFunction(letter, tuple(lines), gate.kind)
        letters[letter] = found[gate, bound].letter
    return letters, tuple(found.values())


KERNELS = (RecurrenceKernel(),)
