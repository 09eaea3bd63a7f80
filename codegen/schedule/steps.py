"""What an inference does, in order: calls, copies, branches and loops over arguments in memory."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from smelt.codegen.lower.kernel import KernelCall
from smelt.codegen.partition.candidates import Choice
from smelt.ir import DType, Node
from smelt.ops.control.run_time_length import LengthOf


@dataclass(frozen=True)
class Turn:
    """An offset that grows with a loop's turns, by so many `elements` of the argument's type.

    With `last` it shrinks: the first turn has the slice of index `last`.
    """

    counter: str
    elements: int
    last: int | None = None


@dataclass(frozen=True)
class InBuffer:
    """An argument that points into a planned buffer."""

    buffer: str
    dtype: DType
    constant: bool
    turns: tuple[Turn, ...] = ()


@dataclass(frozen=True)
class InFlash:
    """An argument that points to a constant array, or to a struct if `is_struct`."""

    constant: str
    turns: tuple[Turn, ...] = ()
    is_struct: bool = False


Argument = InBuffer | InFlash


@dataclass(frozen=True)
class StructType:
    """The C type of the structs that a shared body reads: see `LayerStruct`.

    Attributes:
        name: of the type.
        fields: all of them int32.
    """

    name: str
    fields: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Its size without gaps."""
        return 4 * len(self.fields)


@dataclass(frozen=True)
class Function:
    """One C function: a specialization of a kernel, shared by every step that needs it.

    Attributes:
        name: of the function.
        definition: its C text, and that of the functions that only serve it.
        signature: its parameters.
        uses: the helpers and headers that the text uses (see `KernelCall`), and `FLOAT` where
            there are floating-point numbers among its operands.
        users: the layers that it computes.
    """

    name: str
    definition: str
    signature: str
    uses: AbstractSet[str]
    users: tuple[str, ...]


@dataclass(frozen=True)
class RowLoop:
    """Calls a function for `at_once` rows at a time; `counter` counts those of a length.

    `most` is how many rows there can be.
    """

    counter: str
    length: str
    at_once: int
    most: int


@dataclass(frozen=True)
class Spare:
    """What computes an accelerator's step where there is none: a kernel of the CPU."""

    call: KernelCall
    function: str
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Move:
    """Copies `bytes`; nothing to do where the plan puts source and target in one place."""

    source: Argument
    target: InBuffer
    bytes: int
    comment: str


@dataclass(frozen=True)
class _StepBase:
    """What all steps have.

    Attributes:
        index: position among all steps; those inside a branch or a loop come after it.
        node: what is computed.
        results: where the node's outputs are afterwards.
        inside: index of the branch or loop that it stands in, or None.
    """

    index: int
    node: Node
    results: tuple[Argument, ...]
    inside: int | None


@dataclass(frozen=True)
class Call(_StepBase):
    """Calls a C function.

    Attributes:
        choice: the kernel, and those that were not taken.
        function: name of the C function.
        arguments: of the function.
        rows: where the function computes a few of the rows that there are at run time.
        spare: for a step of an accelerator, if that is asked for.
    """

    choice: Choice
    function: str
    arguments: tuple[Argument, ...]
    rows: RowLoop | None = None
    spare: Spare | None = None

    @property
    def call(self) -> KernelCall:
        """The kernel's answer."""
        return self.choice.taken.call

    @property
    def backend(self) -> str:
        """Whose kernel it is."""
        return self.choice.taken.backend

    @property
    def reason(self) -> str:
        """Why no backend of higher preference serves the node, or a faster candidate lost."""
        return self.choice.reason


@dataclass(frozen=True)
class TellLength(_StepBase):
    """Writes a length that the caller has set, `op.length`, to `target`."""

    op: LengthOf
    target: InBuffer


@dataclass(frozen=True)
class Branch(_StepBase):
    """Runs one of two sequences by the bool that `condition` points to."""

    condition: Argument
    then: Actions
    otherwise: Actions


@dataclass(frozen=True)
class Repeat(_StepBase):
    """Runs `before` once and then `body` again and again; C's variable `counter` counts its turns.

    Attributes:
        word: the statement of C: `for` or `while`.
        counter: name of the variable.
        before: copies that initialize what is carried.
        turns: how many turns there are at most; None if only `limit` or the conditions tell.
        limit: points to the largest number of turns, an int64.
        start: points to a bool that must be true for the first turn.
        number: where the body wants the turn's number.
        test: runs before every turn to compute `again`; None if the body computes it.
        body: what a turn does, with the copies at its end.
        again: points to the bool that says whether there is another turn.
    """

    word: str
    counter: str
    before: Actions
    turns: int | None
    limit: Argument | None
    start: Argument | None
    number: InBuffer | None
    test: Actions | None
    body: Actions
    again: Argument | None


Step = Call | TellLength | Branch | Repeat
"""What computes one node."""

Actions = tuple[Step | Move, ...]
"""What an inference, or a part of it, does in order."""


def flatten(actions: Actions) -> Iterator[Step]:
    """Every step of a sequence, a branch or loop before what stands in it: by rising `index`."""
    for action in actions:
        if isinstance(action, Move):
            continue
        yield action
        match action:
            case Branch():
                yield from flatten(action.then)
                yield from flatten(action.otherwise)
            case Repeat():
                yield from flatten(action.test or ())
                yield from flatten(action.body)
            case Call() | TellLength():
                pass
