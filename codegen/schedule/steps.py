"""The actions of an inference in order: calls, copies, branches and loops."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from smelt.codegen.lower.kernel import KernelCall, Scratch
from smelt.codegen.partition.candidates import Choice
from smelt.ir import DType, Node, Value
from smelt.ops.control.run_time_length import LengthOf


@dataclass(frozen=True)
class IterationOffset:
    """An offset of an argument that depends on the iteration of a loop, in elements.

    It is `counter * elements` or, if `last` is given, `(last - counter) * elements`. In a segment,
    it is `counter / every * elements`, rounded down, and `elements` may be negative.
    """

    counter: str
    elements: int
    last: int | None = None
    every: int = 1


@dataclass(frozen=True)
class InBuffer:
    """An argument that points into a planned buffer, `start` elements from its first one.

    If `row` is not 0, it is the number of elements of a row, and `start` and `offsets` are whole
    rows. `start` may be negative if there are offsets.
    """

    buffer: str
    dtype: DType
    constant: bool
    offsets: tuple[IterationOffset, ...] = ()
    start: int = 0
    row: int = 0


@dataclass(frozen=True)
class InFlash:
    """An argument that points to a constant array, or to a struct if `is_struct`."""

    constant: str
    offsets: tuple[IterationOffset, ...] = ()
    is_struct: bool = False


Argument = InBuffer | InFlash


@dataclass(frozen=True)
class StructType:
    """The C type of the structs that a shared body reads: see `LayerStruct`.

    Attributes:
        name: The name of the type.
        fields: The names of the fields, which are all int32.
        meanings: What each field is; empty if the kernel does not say it.
    """

    name: str
    fields: tuple[str, ...]
    meanings: tuple[str, ...]

    @property
    def members(self) -> list[str]:
        """The C declarations of the fields, with aligned comments."""
        declared = [f"int32_t {field};" for field in self.fields]
        width = max(map(len, declared))
        return [
            f"{text:{width}} /* {meaning} */" if meaning else text
            for text, meaning in zip(declared, self.meanings, strict=True)
        ]

    @property
    def bytes(self) -> int:
        """The size in bytes; the struct has no padding."""
        return 4 * len(self.fields)


@dataclass(frozen=True)
class Function:
    """A C function: a specialization of a kernel, shared by all steps with equal parameters.

    Attributes:
        name: The name of the function.
        definition: Its C text, including helper functions that only it uses.
        signature: Its parameters.
        uses: The helpers and headers that the text uses (see `KernelCall`), and `FLOAT` if an
            operand is floating-point.
        users: The layers that it computes.
    """

    name: str
    definition: str
    signature: str
    uses: AbstractSet[str]
    users: tuple[str, ...]


@dataclass(frozen=True)
class RowLoop:
    """A loop that calls a function for `at_once` rows at a time.

    Attributes:
        counter: The C variable that counts the rows.
        length: The name of the run-time length.
        at_once: Rows per call.
        most: The maximum of the length.
    """

    counter: str
    length: str
    at_once: int
    most: int


@dataclass(frozen=True)
class FallbackCall:
    """The CPU's call for an accelerator's step, used on machines without the accelerator.

    Attributes:
        call: The CPU's kernel call.
        function: The name of its C function.
        arguments: The arguments of the function.
    """

    call: KernelCall
    function: str
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class BandedWork:
    """How a layer of a segment is computed.

    Attributes:
        rows: The rows that it makes in a turn.
        turns: The turns in which it makes rows.
        reverse: Whether the last rows are made first.
        choices: The kernel for each number of rows and kind of padding, with the number of calls.
    """

    rows: int
    turns: int
    reverse: bool
    choices: tuple[tuple[Choice, int], ...]

    @property
    def cycles(self) -> int | None:
        """The estimated cycles of an inference; None if a kernel has no estimate."""
        known = [(choice.taken.cycles, count) for choice, count in self.choices]
        return None if any(c is None for c, _ in known) else sum((c or 0) * n for c, n in known)


@dataclass(frozen=True)
class Move:
    """A copy of `bytes` bytes; a no-op if the plan assigns source and target the same address.

    Unless `apart`, source and target may overlap.
    """

    source: Argument
    target: InBuffer
    bytes: int
    comment: str
    apart: bool = True


@dataclass(frozen=True)
class _StepBase:
    """Fields of all steps.

    Attributes:
        index: The position among all steps; steps inside a branch or a loop come after it.
        node: The node that is computed.
        results: The locations of the node's outputs afterwards.
        inside: The index of the enclosing branch or loop, or None.
    """

    index: int
    node: Node
    results: tuple[Argument, ...]
    inside: int | None


@dataclass(frozen=True)
class Call(_StepBase):
    """A call of a C function.

    Attributes:
        slot: The slot of time in which it runs; see `Lifetimes`.
        choice: The chosen kernel and the other candidates.
        function: The name of the C function.
        arguments: The arguments of the function.
        rows: The loop around the call, if the function computes a few rows of a run-time length.
        fallback: The CPU's call for a step of an accelerator, if requested.
        bands: How the layer is computed in bands, if it is in a segment. Then `choice`, `function`
            and `arguments` are those of most calls, and `slot` is the first slot.
    """

    slot: int
    choice: Choice
    function: str
    arguments: tuple[Argument, ...]
    rows: RowLoop | None = None
    fallback: FallbackCall | None = None
    bands: BandedWork | None = None

    @property
    def cycles(self) -> int | None:
        """The estimated cycles of an inference; None if a kernel has no estimate."""
        return self.choice.taken.cycles if self.bands is None else self.bands.cycles

    @property
    def scratch_bytes(self) -> int:
        """The bytes of scratch of its largest call."""
        choices = (self.choice,) if self.bands is None else (c for c, _ in self.bands.choices)
        return max(choice.taken.call.scratch_bytes for choice in choices)

    @property
    def scratch_buffers(self) -> frozenset[str]:
        """The names of the buffers that are its scratch, or its fallback's."""
        calls = [(self.call, self.arguments)]
        if self.fallback is not None:
            calls.append((self.fallback.call, self.fallback.arguments))
        return frozenset(
            argument.buffer
            for kernel, arguments in calls
            for operand, argument in zip(kernel.operands, arguments, strict=True)
            if isinstance(operand, Scratch) and isinstance(argument, InBuffer)
        )

    @property
    def call(self) -> KernelCall:
        """The kernel call."""
        return self.choice.taken.call

    @property
    def backend(self) -> str:
        """The name of the backend."""
        return self.choice.taken.backend

    @property
    def reason(self) -> str:
        """Why preferred backends do not serve the node, or why faster candidates lost."""
        return self.choice.reason


@dataclass(frozen=True)
class SetLength(_StepBase):
    """Writes the run-time length `op.length`, which the caller has set, to `target`."""

    op: LengthOf
    target: InBuffer


@dataclass(frozen=True)
class Branch(_StepBase):
    """Executes `then` if the bool that `condition` points to is true, otherwise `otherwise`."""

    condition: Argument
    then: Actions
    otherwise: Actions


@dataclass(frozen=True)
class Repeat(_StepBase):
    """Executes `before` once and then `body` in a loop with the C variable `counter`.

    Attributes:
        word: The C statement: `for` or `while`.
        counter: The name of the variable.
        before: Copies that initialize the carried values.
        trip_count: The maximum number of iterations; None if only `limit` or the conditions end
            the loop.
        limit: Points to the maximum number of iterations, an int64.
        start: Points to a bool that must be true for the first iteration.
        number: Where the body reads the iteration number.
        test: Actions that compute `continues` before every iteration; None if the body computes it.
        body: The actions of an iteration, with the copies at its end.
        continues: Points to the bool that is true if there is another iteration.
    """

    word: str
    counter: str
    before: Actions
    trip_count: int | None
    limit: Argument | None
    start: Argument | None
    number: InBuffer | None
    test: Actions | None
    body: Actions
    continues: Argument | None


Step = Call | SetLength | Branch | Repeat
"""The action that computes one node."""


@dataclass(frozen=True)
class BandCall:
    """A call that computes a few rows of a layer's result.

    Attributes:
        step: The index of the layer's step.
        node: The node that computes these rows.
        choice: The kernel for these rows.
        function: The name of the C function.
        arguments: The arguments of the function.
        result: What the call makes: rows of the result, or sums of rows of the operand.
        bytes: The size of the rows; 0 for sums.
        turns: The turns in which the call is made.
        slots: The slot of time in each of these turns.
    """

    step: int
    node: Node
    choice: Choice
    function: str
    arguments: tuple[Argument, ...]
    result: InBuffer
    bytes: int
    turns: range
    slots: tuple[int, ...]


@dataclass(frozen=True)
class RowsMove:
    """Moves rows of a band; source and target may overlap.

    Attributes:
        source: The buffer that holds them.
        start: Their offset in it, in bytes.
        target: The buffer that gets them: the same one, or where they wait for the next turn.
        to: Their offset there, in bytes.
        bytes: Their size.
        row_bytes: The size of one row.
        turns: The turns in which they are moved.
    """

    source: str
    start: int
    target: str
    to: int
    bytes: int
    row_bytes: int
    turns: range


@dataclass(frozen=True)
class StreamedRows:
    """The rows of an input that the caller delivers before each turn, until all are there.

    Attributes:
        value: The input.
        buffer: The band that holds some of its rows.
        kept: The rows at the start of the band that are there before a turn's own.
        rows: The rows of a turn; the last ones of the input may be fewer.
        height: The rows of the input.
        row_bytes: The size of a row.
    """

    value: Value
    buffer: str
    kept: int
    rows: int
    height: int
    row_bytes: int


@dataclass(frozen=True)
class BandedSegment:
    """Computes several layers together, a few rows at a time.

    Each turn executes those of the actions whose `turns` contain it, in order.

    Attributes:
        layers: The steps of the layers.
        actions: The calls and moves.
        turns: The number of turns.
        axis: The axis of the rows.
        reverse: Whether the last rows are made first.
        streamed: The rows that the caller delivers; None if all tensors are there beforehand.
    """

    layers: tuple[Call, ...]
    actions: tuple[BandCall | RowsMove, ...]
    turns: int
    axis: int
    reverse: bool
    streamed: StreamedRows | None = None

    @property
    def calls(self) -> Iterator[BandCall]:
        """The actions that are calls."""
        return (action for action in self.actions if isinstance(action, BandCall))

    @property
    def slots(self) -> range:
        """The slots of time of its calls."""
        slots = [slot for call in self.calls for slot in call.slots]
        return range(min(slots), max(slots) + 1)


Actions = tuple[Step | Move | BandedSegment, ...]
"""The actions of an inference, or of a part of it, in order."""


def flatten(actions: Actions) -> Iterator[Step]:
    """Yield every step of a sequence by rising `index`: a branch or loop before its inner steps."""
    for action in actions:
        if isinstance(action, Move):
            continue
        if isinstance(action, BandedSegment):
            yield from action.layers
            continue
        yield action
        match action:
            case Branch():
                yield from flatten(action.then)
                yield from flatten(action.otherwise)
            case Repeat():
                yield from flatten(action.test or ())
                yield from flatten(action.body)
            case Call() | SetLength():
                pass
