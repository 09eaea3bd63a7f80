"""What an inference does, in order: calls, copies, branches and loops over arguments in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from smelt.codegen.kernels.base import KernelCall
from smelt.codegen.partition import Candidate, Choice
from smelt.ir import DType, Node


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
    """An argument that points to a constant array."""

    constant: str
    turns: tuple[Turn, ...] = ()


Argument = InBuffer | InFlash


@dataclass(frozen=True)
class Function:
    """One C function: a specialization of a kernel, shared by every step that needs it."""

    name: str
    definition: str
    signature: str
    helpers: frozenset[str]
    users: tuple[str, ...]


@dataclass(frozen=True)
class Move:
    """Copies `bytes`; nothing to do where the plan puts source and target in one place."""

    source: Argument
    target: InBuffer
    bytes: int
    comment: str


@dataclass(frozen=True)
class Branch:
    """Runs one of two blocks by the bool that `condition` points to."""

    condition: Argument
    then: Block
    otherwise: Block


@dataclass(frozen=True)
class Repeat:
    """Runs `before` once and then `body` again and again; C's variable `counter` counts its turns.

    Attributes:
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

    counter: str
    before: Block
    turns: int | None
    limit: Argument | None
    start: Argument | None
    number: InBuffer | None
    test: Block | None
    body: Block
    again: Argument | None


@dataclass(frozen=True)
class RowLoop:
    """Calls a function for `block` rows at a time; `counter` counts those of a length.

    `most` is how many rows there can be.
    """

    counter: str
    length: str
    block: int
    most: int


@dataclass(frozen=True)
class Spare:
    """What computes a GPU's step where there is no GPU: a kernel of the CPU, its C function."""

    call: KernelCall
    function: str
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Step:
    """What computes one node: a call of a C function, or the `control` of other steps.

    Attributes:
        index: position among all steps; those that it controls come after it.
        node: what is computed.
        choice: the kernel, and those that were not taken; only the call's summary is meaningful
            where there is control.
        function: name of the C function; `if`, `while` or `for` where there is control.
        arguments: of the function.
        results: where the node's outputs are afterwards.
        inside: index of the step that controls it, or None.
        control: the branch or loop.
        rows: where the function computes a few of the rows that there are at run time.
        spare: for a step of a GPU, if that is asked for.
    """

    index: int
    node: Node
    choice: Choice
    function: str
    arguments: tuple[Argument, ...]
    results: tuple[Argument, ...]
    inside: int | None = None
    control: Branch | Repeat | None = None
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
        """Why no backend of higher preference serves the node."""
        return self.choice.reason


Block = tuple[Step | Move, ...]


def own_choice(summary: str) -> Choice:
    """The choice of a step that is written out where it stands, without a kernel."""
    return Choice(Candidate("c", KernelCall("", "", {}, (), summary=summary), None))


def flatten(block: Block) -> Iterator[Step]:
    """Every step of a block, one that controls others before them: in the order of `index`."""
    for action in block:
        if isinstance(action, Move):
            continue
        yield action
        match action.control:
            case Branch(_, then, otherwise):
                yield from flatten(then)
                yield from flatten(otherwise)
            case Repeat(test=test, body=body):
                yield from flatten(test or ())
                yield from flatten(body)
            case None:
                pass
