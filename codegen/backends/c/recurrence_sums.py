"""The recurrent sums of gates: their blocks, and the C that computes a block."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.c.vector_loops import lane_loops, vectors_of
from smelt.codegen.lower.nested_loops import braced
from smelt.codegen.text.expressions import offset
from smelt.ir import Value


@dataclass(frozen=True)
class GateProduct:
    """A product of recurrent weights and a state.

    Attributes:
        first: first row of the weights.
        gates: number of rows of the weights: one per gate and unit.
        at_once: rows whose sums are computed together.
        start: offset of the sums in scratch, in elements.
    """

    first: int
    gates: int
    at_once: int
    start: int

    @property
    def padded(self) -> int:
        """The number of sums, including those that fill the last block."""
        return -(-self.gates // self.at_once) * self.at_once


def vector_sums(at_once: int, rows: int, units: int, size: int) -> list[str]:
    """Return C lines that compute a block of sums in vectors.

    Args:
        at_once: sums of a block.
        rows: sequences that are computed together.
        units: units of a state.
        size: sums of a sequence in scratch.
    """
    lanes = vectors_of(at_once)
    lines: list[str] = []
    body: list[str] = []
    ends: list[str] = []
    for r in range(rows):
        state, sums = (f"{r * each} + " if r else "" for each in (units, size))
        lines += [f"SMELT_ARRAY float sum{r}_{first}[{count}];" for first, count in lanes]
        lines += lane_loops(
            lanes, lambda n, j, at, r=r: f"sum{r}_{n}[{j}] = state[{r * units}] * weights[{at}];"
        )
        body.append(f"const float x{r} = state[{state}k];")
        body += lane_loops(lanes, lambda n, j, at, r=r: f"sum{r}_{n}[{j}] += x{r} * weights[{at}];")
        ends += lane_loops(
            lanes,
            lambda n, j, at, r=r, sums=sums: (
                f"sums[{sums}{offset('gate', at)}] = sum{r}_{n}[{j}] + 0.0f;"
            ),
        )
    head = f"for (int32_t k = 1; k < {units}; ++k, weights += {at_once}) {{"
    return [*lines, f"weights += {at_once};", *braced(head, body), *ends]


def scalar_sums(
    at_once: int, rows: int, units: int, size: int, weights: Value, *, fused: bool
) -> list[str]:
    """Return C lines that compute a block of sums with one variable per sum.

    Args:
        at_once: sums of a block.
        rows: sequences that are computed together.
        units: units of a state.
        size: sums of a sequence in scratch.
        weights: the recurrent weights, packed if they are constant.
        fused: whether the target has fused multiply-add.
    """
    pairs = [(r, j) for r in range(rows) for j in range(at_once)]
    lines = [f"float sum{r}_{j} = 0.0f;" for r, j in pairs]
    move, found = f", weights += {at_once}", "weights[{j}]"
    if not weights.is_constant:
        others = (f"(gate + {j} < gates ? gate + {j} : gates - 1)" for j in range(1, at_once))
        lines += [
            f"const float *const row{j} = weights + {gate} * {units};"
            for j, gate in enumerate(["gate", *others])
        ]
        move, found = "", "row{j}[k]"
    states = [f"{r * units} + " if r else "" for r in range(rows)]
    body = [f"const float x{r} = state[{state}k];" for r, state in enumerate(states)]
    for j in range(at_once):
        body.append(f"const float w{j} = {found.format(j=j)};")
        for r in range(rows):
            added = f"sum{r}_{j} += x{r} * w{j};"
            body.append(f"sum{r}_{j} = fmaf(x{r}, w{j}, sum{r}_{j});" if fused else added)
    lines += braced(f"for (int32_t k = 0; k < {units}; ++k{move}) {{", body)
    for r, j in pairs:
        first, lane = f"{r * size} + " if r else "", f" + {j}" if j else ""
        lines.append(f"sums[{first}gate{lane}] = sum{r}_{j};")
    return lines
