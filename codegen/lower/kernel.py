"""What a kernel file provides, and what it decides about a node.

A kernel is asked what it offers for a node. It answers with a `KernelCall` (the template of the C
function, what that prints, its operands in the order of the C parameters, its scratch), or with a
`Refusal` that says why it does not serve the node.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, is_dataclass
from types import UnionType
from typing import ClassVar, Generic, Protocol, cast

import numpy as np

from smelt.codegen.text.parameters import Parameters
from smelt.ir import Array, DType, Node, Op
from smelt.ir.channels import OpT_contra
from smelt.targets import Optimize, Target

MOST_ENTRIES = 1 << 22
"""Entries that the tables of a network may have which kernels make of shapes and attributes."""

ROOM = 4096
"""Bytes of scratch that any call may take for speed, whatever else lives in the arena."""


class Tiling(Protocol):
    """How much of a layer is computed at a time, where that may be chosen."""

    @property
    def text(self) -> str:
        """In words."""
        ...


@dataclass(frozen=True)
class Request:
    """What the schedule asks of a kernel besides the node.

    With `expand_weights`, constants may be much larger than the weights they are made of.
    `scratch_limit` is how many bytes of scratch a call may take without making the arena larger
    than it has to be, or by a few kilobytes at most. `tilings` were measured to be the best on the
    accelerator, by `layer_key` of a layer.
    """

    target: Target
    optimize: Optimize = "speed"
    expand_weights: bool = False
    scratch_limit: int = ROOM
    tilings: Mapping[str, Tiling] = field(default_factory=dict[str, Tiling])


@dataclass(frozen=True)
class Input:
    """A parameter `const T *name` that points to the node's input at `index`."""

    index: int
    name: str


@dataclass(frozen=True)
class Output:
    """A parameter `T *name` that points to the node's output at `index`."""

    index: int
    name: str


@dataclass(frozen=True)
class Packed:
    """A parameter `const T *name` that points to constants the kernel made itself.

    The array's element type gives `T`. Arrays of equal contents are stored once.
    """

    name: str
    array: Array


@dataclass(frozen=True)
class Scratch:
    """A parameter `T *name` that points to `count` elements of working memory in the arena."""

    name: str
    dtype: DType
    count: int


@dataclass(frozen=True)
class LayerStruct:
    """A parameter `const PREFIX_KIND_layer_t *name` that points to the numbers of one layer.

    A body that several layers share reads them there; a body of one layer has them in its text. The
    struct is stored beside the weights. All its fields are int32, so that field `i` has offset
    `4 * i`, which the emitted header checks.

    Attributes:
        name: of the parameter.
        kind: of the C type's name; structs of one kind have the same fields in one order.
        numbers: the fields by name.
    """

    name: str
    kind: str
    numbers: Mapping[str, int]

    @property
    def array(self) -> Array:
        """int32 `[fields]`: the struct as memory holds it."""
        return np.array(list(self.numbers.values()), np.int32)


Operand = Input | Output | Packed | Scratch | LayerStruct


def _key(value: object) -> Hashable:
    """What is equal for equal values of one type, and for no others."""
    if is_dataclass(value):
        return type(value), tuple(_key(getattr(value, item.name)) for item in fields(value))
    if isinstance(value, tuple | list):
        items = cast("Sequence[object]", value)
        return type(items), tuple(map(_key, items))
    if isinstance(value, float):
        return value.hex()  # 0 and -0 are equal, and written differently
    return type(value), cast("Hashable", value)


@dataclass(frozen=True)
class InnerFunction:
    """A static function that functions of kernels call; it is written once for a network.

    Attributes:
        template: path of its template below `templates/`; it also gets `function`, its name.
        stem: of its name.
        parameters: the template's variables.
        uses: what its text uses beside itself; see `KernelCall`.
        inner: the static functions that it calls; the template gets their names as `inner`.
    """

    template: str
    stem: str
    parameters: Parameters
    uses: AbstractSet[str] = frozenset()
    inner: tuple[InnerFunction, ...] = ()

    @property
    def key(self) -> Hashable:
        """What is equal for functions of equal text, and for no others."""
        return self.template, _key(self.parameters), tuple(inner.key for inner in self.inner)


@dataclass(frozen=True)
class KernelCall:
    """How one node is computed by one call of one C function.

    Attributes:
        template: path of the function's template below `templates/`.
        stem: start of the function's name, as `conv_3x3`; `function_names` adds stride and
            channels. Calls of equal templates and parameters share one function.
        parameters: the template's variables: everything known at compile time. The template
            also gets `function` (its name), `signature` (parameter list), and `layers`, which it
            prints at the head of the function's comment.
        operands: the C parameters, in order.
        in_place: `(output, input)` indices of which the kernel may be given the same address.
        uses: what the function's text uses beside itself, all of it and nothing else: names of
            blocks of `helpers.c.j2`, and of libraries' headers.
        summary: one line for reports: which form of the kernel, and why.
        form: name of the way in which the call computes, under which targets keep its prices.
        work: how much of what the form's prices are for the call does, as `{"products": 4096}`.
        missed: why it does not compute in a faster way that the node allows, and which option does;
            empty where there is none. See `Refusal.optional`. Both ways may have one form, whose
            price does not tell them apart.
        inner: static functions that the function calls; the template gets their names as `inner`.
        shared: the same computation by a body that layers of other sizes can use too, if there is
            one; `codegen.partition.sharing` decides which of them is called.
    """

    template: str
    stem: str
    parameters: Parameters
    operands: tuple[Operand, ...]
    in_place: tuple[tuple[int, int], ...] = ()
    uses: AbstractSet[str] = frozenset()
    summary: str = ""
    form: str = ""
    work: Mapping[str, int] = field(default_factory=dict[str, int])
    missed: str = ""
    inner: tuple[InnerFunction, ...] = ()
    shared: SharedBody | None = None

    @property
    def key(self) -> Hashable:
        """What is equal for calls of one template with equal parameters, and for no others.

        The functions that they call are equal too.
        """
        return self.template, _key(self.parameters), tuple(inner.key for inner in self.inner)

    @property
    def scratch_bytes(self) -> int:
        """Working memory that the call needs beside its operands."""
        return sum(o.count * o.dtype.size for o in self.operands if isinstance(o, Scratch))

    @property
    def constant_bytes(self) -> int:
        """Flash that its constants take, if no other call shares them."""
        return sum(o.array.nbytes for o in self.operands if isinstance(o, Packed))


@dataclass(frozen=True)
class BodyCost:
    """What the body of a kernel costs, as its kernel counts it.

    Attributes:
        instructions: that one call executes.
        bytes: of code.
    """

    instructions: int
    bytes: int


@dataclass(frozen=True)
class SharedBody:
    """A body that several layers can share, and what it costs beside that of one layer.

    Attributes:
        call: computes the same as the call that this belongs to, with equal scratch. It has a
            `LayerStruct` among its operands. Form, work and `missed` are taken from that call.
        cost: of the shared body.
        specialized: of the body that only layers of equal numbers can use.
        family: equal for bodies of which the largest serves the layers of all; None where only
            those of equal parameters do.
    """

    call: KernelCall
    cost: BodyCost
    specialized: BodyCost
    family: Hashable = None

    @property
    def key(self) -> Hashable:
        """Equal for bodies of which one can serve the layers of all."""
        return self.call.key if self.family is None else (self.call.template, self.family)

    @property
    def slowdown(self) -> float:
        """How many more instructions it takes, as a fraction of those of the specialized body."""
        own = self.specialized.instructions
        return (self.cost.instructions - own) / max(own, 1)

    @property
    def struct_bytes(self) -> int:
        """Flash that the numbers of the layer take."""
        return sum(o.array.nbytes for o in self.call.operands if isinstance(o, LayerStruct))


WIDE_FLOATS = (DType.FLOAT32, DType.FLOAT64)
NARROW_FLOATS = (DType.FLOAT32, DType.FLOAT16)
"""What kernels of accelerators serve: they load and store halves, and compute with float32."""
STORED_FLOATS = (DType.FLOAT16, *WIDE_FLOATS)
"""What kernels serve that move data and do not compute with it."""


@dataclass(frozen=True)
class Refusal:
    """That a kernel, or one of its forms, does not serve a node, and why.

    Attributes:
        reason: one sentence for the user.
        optional: whether that is because of an option or of room, and not of the node itself.
    """

    reason: str
    optional: bool = False


def missed_for_ram(form: str) -> str:
    """That a form is missing which takes scratch for speed; `form` begins the sentence."""
    return f"{form} would be faster, but takes scratch: --optimize speed allows it."


class Kernel(ABC, Generic[OpT_contra]):
    """Serves the nodes of one operator class, or of a few, on one backend."""

    op: ClassVar[type[Op] | UnionType]
    """The classes that the kernel is asked about, the same as its type parameter."""
    floats: ClassVar[tuple[DType, ...]] = (DType.FLOAT32,)
    """The floating-point types that data may have; `offer` is not asked about others."""
    uses_room: ClassVar[bool] = False
    """Whether the offer depends on `Request.scratch_limit`; for others it is always `ROOM`."""

    @abstractmethod
    def offer(self, node: Node[OpT_contra], request: Request) -> KernelCall | Refusal:
        """The call that computes the node, or why the kernel does not serve it."""

    def entries(self, node: Node[OpT_contra]) -> int:
        """Elements of the tables that `offer` makes of shapes and attributes alone, at most.

        Tables as large as constants of the node are not counted, nor small ones.
        """
        return 0


__all__ = [
    "NARROW_FLOATS",
    "STORED_FLOATS",
    "WIDE_FLOATS",
    "BodyCost",
    "InnerFunction",
    "Input",
    "Kernel",
    "KernelCall",
    "LayerStruct",
    "Operand",
    "Optimize",
    "Output",
    "Packed",
    "Parameters",
    "Refusal",
    "Request",
    "Scratch",
    "SharedBody",
    "Tiling",
    "missed_for_ram",
]
