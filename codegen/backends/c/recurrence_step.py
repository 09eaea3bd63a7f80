"""The C of a recurrence's step: new states from the gates' sums, and the loops around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from smelt.codegen.backends.c.recurrence_sums import GateProduct
from smelt.codegen.lower.nested_loops import NestedLoop, total
from smelt.codegen.text.literals import c_float
from smelt.ir import Node
from smelt.ops.sequence.recurrence import Recurrence


@dataclass(frozen=True)
class UnitStatement:
    """A C statement for one unit, which may call an activation.

    Attributes:
        start: text before the call; the whole statement if there is no call.
        activation: letter of the called function; empty if there is no call.
        end: the call's argument in parentheses, and the text after it.
    """

    start: str
    activation: str = ""
    end: str = ""


@dataclass(frozen=True)
class UnitStatements:
    """The statements for a unit.

    Attributes:
        lanes: statements for units that are computed in vectors; empty if there are none.
        alone: statements for units that are computed one by one; empty if there are none.
    """

    lanes: tuple[UnitStatement, ...]
    alone: tuple[UnitStatement, ...]

    @staticmethod
    def of(
        statements: Callable[[str, str, str], tuple[UnitStatement, ...]],
        whole: int,
        units: int,
        lanes: int,
    ) -> UnitStatements:
        """Return the statements for all units.

        Args:
            statements: function that returns the statements. Its arguments are the C expression of
                the unit's index, and the prefix of the names and the index of the elements to which
                results are written.
            whole: number of units that are computed in vectors.
            units: number of units.
            lanes: number of units of a vector.
        """
        lane = "u + lane" if whole > lanes else "lane"
        last = str(whole) if units - whole == 1 else "u"
        return UnitStatements(
            statements(lane, "next_", "lane") if whole else (),
            statements(last, "", last) if whole < units else (),
        )


@dataclass(frozen=True)
class RecurrentGates:
    """The C that computes the new states of a unit from the gates' sums.

    Attributes:
        op: the operator.
        given: names of the operands that are present.
        letters: the function's letter for each activation's letter.
        units: units of a state.
        products: the recurrent products.
    """

    op: Recurrence
    given: frozenset[str]
    letters: Mapping[str, str]
    units: int
    products: tuple[GateProduct, ...]

    @property
    def gated(self) -> bool:
        """Whether a reset gate multiplies the hidden state before a second product."""
        return len(self.products) > 1

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the states."""
        return ("hidden", "cell") if self.op.kind == "lstm" else ("hidden",)

    @property
    def parameters(self) -> str:
        """The parameters of the C function that computes a step."""
        return (
            "const float *input, const float *sums,"
            + " const float *bias," * ("bias" in self.given)
            + " float *hidden"
            + ", float *cell" * (self.op.kind == "lstm")
            + ", const float *peepholes" * ("peepholes" in self.given)
        )

    def reset(self, unit: str, prefix: str, at: str) -> tuple[UnitStatement, ...]:
        """Return the statement that multiplies the hidden state by the reset gate."""
        end = f"{self._sum(1, unit)} * hidden[{unit}];"
        return (UnitStatement(f"{prefix}gated[{at}] = ", self.letters["f"], end),)

    def step(self, unit: str, prefix: str, at: str) -> tuple[UnitStatement, ...]:
        """Return the statements that compute the new states of a unit."""
        if self.op.kind == "lstm":
            return self._lstm(unit, prefix, at)
        if self.op.kind == "gru":
            return self._gru(unit, prefix, at)
        return (self._called(f"{prefix}hidden[{at}]", "f", self._sum(0, unit)),)

    def _lstm(self, unit: str, prefix: str, at: str) -> tuple[UnitStatement, ...]:
        cell, op = f"cell[{unit}]", self.op
        forget = self._called("const float forget", "f", self._sum(2, unit, cell))
        state = f"forget * {cell} + i * c"
        if op.cell_clip:
            clip = c_float(op.cell_clip)
            state = f"clamp_float({state}, -{clip}, {clip})"
        return (
            self._called("const float i", "f", self._sum(0, unit, cell)),
            UnitStatement("const float forget = 1.0f - i;") if op.input_forget else forget,
            self._called("const float c", "g", self._sum(3, unit)),
            UnitStatement(f"const float state = {state};"),
            self._called("const float o", "f", self._sum(1, unit, "state")),
            UnitStatement(f"{prefix}cell[{at}] = state;"),
            UnitStatement(f"{prefix}hidden[{at}] = o * ", self.letters["h"], "(state);"),
        )

    def _gru(self, unit: str, prefix: str, at: str) -> tuple[UnitStatement, ...]:
        reset: tuple[UnitStatement, ...] = ()
        if self.op.reset_after:
            reset = (self._called("const float reset", "f", self._sum(1, unit)),)
            product = f"sums[{total((str(2 * self.units), unit))}]"
            if "bias" in self.given:
                product = f"({product} + bias[{unit}])"
            product = f"reset * {product}"
        else:
            product = f"sums[{total((str(self.products[1].start), unit))}]"
        candidate = f"(input[{total((str(2 * self.units), unit))}] + product)"
        state = f"(1.0f - update) * candidate + update * hidden[{unit}]"
        return (
            self._called("const float update", "f", self._sum(0, unit)),
            *reset,
            UnitStatement(f"const float product = {product};"),
            self._called("const float candidate", "g", candidate),
            UnitStatement(f"{prefix}hidden[{at}] = {state};"),
        )

    def _called(self, target: str, activation: str, argument: str) -> UnitStatement:
        return UnitStatement(f"{target} = ", self.letters[activation], f"{argument};")

    def _sum(self, gate: int, unit: str, state: str = "") -> str:
        """Return the C of a gate's sum, in parentheses.

        Args:
            gate: index of the gate.
            unit: C expression of the unit's index.
            state: element of the state that a peephole, if present, multiplies; empty for none.
        """
        at = total((str(gate * self.units), unit))
        text = f"input[{at}] + sums[{at}]"
        if state and "peepholes" in self.given:
            text += f" + peepholes[{at}] * {state}"
        return f"({text})"


@dataclass(frozen=True)
class SequenceLoops:
    """The loops over steps and sequences; texts are C.

    Attributes:
        steps: steps of a sequence.
        given: whether each state has an initial value.
        state_bytes: bytes of a state, for all sequences.
        cleared: bytes of a step's hidden states, if those of all steps are first set to 0 because
            sequences may be shorter; else 0.
        batches: loop over sequences, `rows` at a time; empty if it has one iteration.
        rows: sequences that are computed together.
        length: length of the sequence; empty if all have `steps` steps.
        input: pointer to the inputs of the step.
        state: text that is appended to the pointers to the states.
        product: arguments of the first product.
        reset: arguments of the function that applies the reset gate; empty without that function.
        candidate: arguments of the second product.
        step: arguments of the function that computes the step.
        every: pointer to which the hidden states of the step are copied; empty if they are no
            output.
        every_bytes: bytes of these hidden states.
    """

    steps: int
    given: tuple[bool, ...]
    state_bytes: int
    cleared: int
    batches: tuple[NestedLoop, ...]
    rows: int
    length: str
    input: str
    state: str
    product: str
    reset: str
    candidate: str
    step: str
    every: str
    every_bytes: int


def sequence_loops(
    node: Node[Recurrence], gates: RecurrentGates, rows: int, size: int
) -> SequenceLoops:
    """Return the loops over steps and sequences.

    Args:
        node: the recurrence.
        gates: its gates.
        rows: sequences that are computed together.
        size: sums of a sequence in scratch.
    """
    op, given, units, products = node.op, gates.given, gates.units, gates.products
    steps, batch, wide = node.input(0).type.shape
    several, lengths = batch > rows, "lengths" in given
    state_bytes = batch * units * 4
    head = f"for (int32_t b = 0; b < {batch}; b += {rows}) {{"
    time = f"({'length' if lengths else 'steps'} - 1 - step)" if op.reverse else "step"
    row = f"({time} * {batch}{' + b' if several else ''})" if batch > 1 else time

    def at(name: str, elements: int) -> str:
        return f"{name} + r * {elements}" if rows > 1 else name

    own = [at("x", wide), at("sums", size)]
    arguments = [*own, *["bias"] * ("bias" in given), at("h", units)]
    arguments += [at("c", units)] * (op.kind == "lstm") + ["peepholes"] * ("peepholes" in given)
    reset = candidate = ""
    if gates.gated:
        reset = ", ".join([*own, at("h", units), at("gated", units)])
        weights = (products[0].padded if node.input(1).is_constant else 2 * units) * units
        start = products[1].start
        candidate = f"gated, weights + {weights}, sums + {start}, {products[1].gates}"
    return SequenceLoops(
        steps=steps,
        given=tuple(name in given for name in gates.states),
        state_bytes=state_bytes,
        cleared=state_bytes if lengths and op.sequence else 0,
        batches=(NestedLoop(head),) if several else (),
        rows=rows,
        length=f"lengths[{'b' if several else '0'}]" if lengths else "",
        input=f"input + {row} * {wide}",
        state=f" + b * {units}" if several else "",
        product=f"h, weights, sums, {products[0].gates}",
        reset=reset,
        candidate=candidate,
        step=", ".join(arguments),
        every=f"every + {row} * {units}" if op.sequence else "",
        every_bytes=rows * units * 4 if op.sequence else 0,
    )
