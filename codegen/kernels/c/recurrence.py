"""Recurrence: time step by time step, with the state in the output buffers.

In a step, the hidden state is multiplied by the recurrent weights of several gates at a time,
whose sums stay in registers; constant weights stand in the order in which they are read, filled
up with zeros to whole blocks. A pass over the units then applies the activations.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from typing_extensions import override

from smelt.codegen.kernels.base import (
    Input,
    Kernel,
    KernelCall,
    Operand,
    Output,
    Packed,
    Request,
    Scratch,
)
from smelt.codegen.kernels.c.store import helpers_in
from smelt.codegen.kernels.c.vectors import LANES, vectors_of, without_branch
from smelt.codegen.render import c_float
from smelt.ir import Array, DType, Node, Value
from smelt.ops.recurrence import GATES, OPERANDS, Gate, Recurrence

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
"""C expressions of `x`, one an activation."""

_MOST_ROWS = 4
"""Sequences that are multiplied by the weights together, at most."""

_VECTOR_SUMS = 96
_SCALAR_SUMS = 16
"""Sums of a block: where floats are computed several at a time, and where not."""


@dataclass(frozen=True)
class Product:
    """A product of recurrent weights and a state: `gates` of them, `block` at a time.

    Attributes:
        first: the first of the gates' rows of weights.
        gates: how many there are.
        block: how many of them are computed together.
        start: where its sums start, in elements of the scratch memory.
    """

    first: int
    gates: int
    block: int
    start: int

    @property
    def padded(self) -> int:
        """Sums that whole blocks make."""
        return -(-self.gates // self.block) * self.block


@dataclass(frozen=True)
class Function:
    """An activation as a C function: the letter that ONNX has for it, and its body."""

    letter: str
    lines: tuple[str, ...]
    title: str


class RecurrenceKernel(Kernel[Recurrence]):
    """LSTM, GRU and simple RNN, forward or backward, with or without lengths."""

    op = Recurrence

    @override
    def offer(self, node: Node[Recurrence], request: Request) -> KernelCall:
        op = node.op
        steps, batch, _ = node.input(0).type.shape
        weights = node.input(1)
        units = weights.type.shape[1]
        given = {n for n, v in zip(OPERANDS, node.inputs, strict=False) if v is not None}
        rows = 1 if "lengths" in given else _divisor(batch, _MOST_ROWS)
        products = _products(op, weights, rows, request)
        names = (["every"] if op.sequence else []) + ["hidden"] + ["cell"] * (op.kind == "lstm")
        size = products[-1].start + products[-1].padded
        gated = len(products) > 1
        vectors = _in_vectors(weights, request)
        unit_lanes = LANES if units % LANES == 0 else LANES // 2
        whole_units = units - units % unit_lanes if vectors else 0
        letters, functions = _functions(op, branches=not whole_units)
        parameters: dict[str, object] = {
            "title": f"{op.name} of {node.input(0).type}, {units} units",
            "op": op,
            "given": given,
            "steps": steps,
            "batch": batch,
            "units": units,
            "wide": GATES[op.kind] * units,
            "rows": rows,
            "products": products,
            "block": products[0].block,
            "lanes": vectors_of(products[0].block),
            "sums_each": size,
            "candidate_weights": (products[0].padded if weights.is_constant else 2 * units) * units,
            "letters": letters,
            "functions": functions,
            "packed": weights.is_constant,
            "vectors": vectors,
            "whole_units": whole_units,
            "unit_lanes": unit_lanes,
            "fused": "fma" in request.target.features,
            "cell_clip": c_float(op.cell_clip) if op.cell_clip else "",
        }
        operands: list[Operand] = [Input(0, "input")]
        if weights.is_constant:
            operands.append(Packed("weights", _packed(weights.array, products)))
        else:
            operands.append(Input(1, "weights"))
        operands += [
            Input(i, f"initial_{name}" if name in ("hidden", "cell") else name)
            for i, name in enumerate(OPERANDS)
            if i > 1 and name in given
        ]
        operands += [Output(i, name) for i, name in enumerate(names)]
        operands.append(Scratch("sums", DType.FLOAT32, rows * size))
        if gated:
            operands.append(Scratch("gated", DType.FLOAT32, rows * units))
        return KernelCall(
            template="c/recurrence.j2",
            stem=op.kind,
            parameters=parameters,
            operands=tuple(operands),
            in_place=tuple(
                (names.index(n), OPERANDS.index(n)) for n in ("hidden", "cell") if n in given
            ),
            helpers=helpers_in(line for f in functions for line in f.lines)
            | ({"clamp_float"} if op.cell_clip else frozenset[str]()),
            summary=f"{rows} x {products[0].block} sums of sequences x gates at a time",
        )


def _in_vectors(weights: Value, request: Request) -> bool:
    """Whether sums of several gates share vector registers."""
    return weights.is_constant and "simd_float" in request.target.features


def _divisor(number: int, most: int) -> int:
    """The largest divisor that is at most `most`."""
    return max(d for d in range(1, most + 1) if number % d == 0)


def _products(op: Recurrence, weights: Value, rows: int, request: Request) -> tuple[Product, ...]:
    """All gates in one product, or those of a GRU's candidate in a second one."""
    units = weights.type.shape[1]
    gates = [GATES[op.kind] * units]
    if op.kind == "gru" and not op.reset_after:
        gates = [2 * units, units]
    vectors = _in_vectors(weights, request)
    most = (_VECTOR_SUMS if vectors else _SCALAR_SUMS) // rows
    if "fpu" not in request.target.features or request.optimize == "size":
        most = 4
    sizes = [s for s in range(1, most + 1) if not vectors or s % 8 == 0 or s == most] or [most]

    def cost(block: int) -> tuple[int, int]:
        blocks = sum(-(-count // block) for count in gates)
        return blocks * (rows + 3 + block * (1 + rows)), block

    block = min(sizes, key=cost)
    products: list[Product] = []
    for count in gates:
        first = sum(p.gates for p in products)
        start = sum(p.padded for p in products)
        products.append(Product(first, count, block, start))
    return tuple(products)


def _packed(weights: Array, products: tuple[Product, ...]) -> Array:
    """Weights `[gates, units]` in blocks of gates, with those of a block side by side."""
    parts: list[Array] = []
    for product in products:
        own = weights[product.first : product.first + product.gates]
        padded = np.pad(own, ((0, product.padded - product.gates), (0, 0)))
        blocks = padded.reshape(-1, product.block, weights.shape[1])
        parts.append(blocks.transpose(0, 2, 1).ravel())
    return np.concatenate(parts)


def _functions(op: Recurrence, *, branches: bool) -> tuple[dict[str, str], tuple[Function, ...]]:
    """The letter under which each activation is found, and the functions, each once."""
    letters: dict[str, str] = {}
    found: dict[tuple[Gate, float], Function] = {}
    for index, gate in enumerate(op.gates):
        letter, bound = "fgh"[index], op.bound(index)
        if (gate, bound) not in found:
            constants = {"alpha": c_float(gate.alpha), "beta": c_float(gate.beta)}
            expression = EXPRESSIONS[gate.kind].format(**constants)
            lines = [f"return {expression if branches else without_branch(expression)};"]
            if bound < inf:
                bounds = f"{c_float(-bound)}, {c_float(bound)}"
                lines.insert(0, f"x = clamp_float(x, {bounds});")
            found[gate, bound] = Function(letter, tuple(lines), gate.kind)
        letters[letter] = found[gate, bound].letter
    return letters, tuple(found.values())


KERNELS = (RecurrenceKernel(),)
