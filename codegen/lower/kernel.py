"""Kernels and their offers for nodes.

A kernel offers a `KernelCall` for a node (the template of the C function, its variables, the
operands in the order of the C parameters, the scratch), or answers with a `Refusal` that gives the
reason why it does not support the node.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from types import UnionType
from typing import ClassVar, Generic, Protocol, cast

import numpy as np

from smelt.codegen.text.layer_number import LayerNumber
from smelt.codegen.text.parameters import Parameters
from smelt.ir import Array, DType, Node, Op
from smelt.ir.channels import OpT_contra
from smelt.targets import Optimize, Target

MOST_ENTRIES = 1 << 22
"""Upper limit of a network's table entries that kernels compute from shapes and attributes."""

MORE_RAM = "--optimize speed, with a larger --max-ram if you gave one,"
"""What allows kernels that need more scratch."""

DEFAULT_SCRATCH = 4096
"""Bytes of scratch that any call may use for speed, even if that makes the arena larger."""


class Tiling(Protocol):
    """How much of a layer is computed at once, if an accelerator lets us choose."""

    @property
    def text(self) -> str:
        """The tiling in words."""
        ...


@dataclass(frozen=True)
class Request:
    """The target and the options with which a kernel is asked for an offer.

    Attributes:
        target: The processor.
        optimize: The `--optimize` preference.
        expand_weights: Whether constants may be much larger than the weights they are made from.
        scratch_limit: Bytes of scratch that a call may use for speed, which enlarge the arena by a
            few kilobytes at most.
        limited: Whether calls with more scratch than `scratch_limit` are to be avoided above all.
        little_ram: Whether some layers are computed a few rows at a time to save RAM, or an option
            asks for less RAM than the fastest build takes.
        tilings: The best measured tilings on the accelerator, by `layer_key`.
    """

    target: Target
    optimize: Optimize = "speed"
    expand_weights: bool = False
    scratch_limit: int = DEFAULT_SCRATCH
    limited: bool = False
    little_ram: bool = False
    tilings: Mapping[str, Tiling] = field(default_factory=dict[str, Tiling])

    def allows(self, scratch: int) -> bool:
        """Return whether a faster algorithm may use this many bytes of scratch."""
        return not self.limited or scratch <= self.scratch_limit


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
    """A parameter `const T *name` that points to constants that the kernel computed.

    The array's element type gives `T`. Equal arrays are stored once.
    """

    name: str
    array: Array


@dataclass(frozen=True)
class Scratch:
    """A parameter `T *name` that points to `count` elements of scratch in the arena."""

    name: str
    dtype: DType
    count: int


@dataclass(frozen=True)
class LayerStruct:
    """A parameter `const PREFIX_KIND_layer_t *name` that points to the numbers of one layer.

    A body that several layers share reads the numbers from this struct; the body of a single layer
    contains them as literals. The struct is stored beside the weights. All fields are int32, so
    field `i` has offset `4 * i`, which the generated header checks.

    Attributes:
        name: The name of the parameter.
        kind: KIND in the name of the C type; structs of one kind have the same fields in one order.
        numbers: The fields by name.
        meanings: What each field is, for a comment, by name.
    """

    name: str
    kind: str
    numbers: Mapping[str, int]
    meanings: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def array(self) -> Array:
        """int32 `[fields]`: the contents of the struct."""
        return np.array(list(self.numbers.values()), np.int32)


Operand = Input | Output | Packed | Scratch | LayerStruct


def _key(value: object) -> Hashable:
    """Return a key that is equal only for equal values of the same type."""
    if is_dataclass(value):
        return type(value), tuple(_key(getattr(value, item.name)) for item in fields(value))
    if isinstance(value, tuple | list):
        items = cast("Sequence[object]", value)
        return type(items), tuple(map(_key, items))
    if isinstance(value, float):
        return value.hex()  # 0.0 == -0.0, but their C texts differ
    if isinstance(value, LayerNumber):
        return type(value), str(value)
    return type(value), cast("Hashable", value)


@dataclass(frozen=True)
class InnerFunction:
    """A static function that kernels' functions call; a network contains it once.

    Attributes:
        template: Path of its template below `templates/`; it also gets `function`, its name.
        stem: Start of its name.
        parameters: The template's variables.
        uses: Helpers and headers that its text uses; see `KernelCall`.
        inner: The static functions that it calls; the template gets their names as `inner`.
        details: How it may differ from others of its name; see `KernelCall`.
        layer: The kind of the `LayerStruct` that it reads; empty if it reads none. The template
            gets the C type as `layer_type`.
        condition: The preprocessor condition on which it is compiled; empty if it always is.
    """

    template: str
    stem: str
    parameters: Parameters
    uses: AbstractSet[str] = frozenset()
    inner: tuple[InnerFunction, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict[str, str])
    layer: str = ""
    condition: str = ""

    @cached_property
    def key(self) -> Hashable:
        """A key that is equal only for functions with equal text."""
        called = tuple(inner.key for inner in self.inner)
        return self.template, _key(self.parameters), called, self.layer, self.condition


@dataclass(frozen=True)
class KernelCall:
    """One call of one C function, which computes a node.

    Attributes:
        template: Path of the function's template below `templates/`.
        stem: Start of the function's name, for example `conv_3x3`; `function_names` adds stride
            and channels. Calls with equal templates and parameters share one function.
        details: Words for the end of the name if another function has the name already, by what
            they describe, such as `{"form": "signed", "right": "right12"}`.
        parameters: The template's variables: everything known at compile time. The template
            also gets `function` (its name), `signature` (parameter list), and `layers`, which it
            prints at the start of the function's comment.
        operands: The C parameters, in order.
        in_place: Pairs (output, input) of indices that may have the same address. The output of an
            image may also begin before the input: whole pixels before, if both have equally many
            channels.
        uses: Exactly the blocks of `helpers.c.j2` and the libraries' headers that the function's
            text uses.
        summary: One line for reports: the form of the kernel, and why it was chosen.
        form: Name of the algorithm; the targets' prices are stored under this name.
        work: Amount of each kind of work that the form has a price for, as `{"products": 4096}`.
        missed: Why a faster algorithm that the node permits is not used, and which option allows
            it; empty if there is none. See `Refusal.optional`. Both may have the same form, if
            the price does not distinguish them.
        inner: Static functions that the function calls; the template gets their names as `inner`.
        shared: The same computation by a body that is smaller or that layers of other sizes can
            share, or None; `codegen.partition.sharing` decides which of the two is called.
    """

    template: str
    stem: str
    parameters: Parameters
    operands: tuple[Operand, ...]
    details: Mapping[str, str] = field(default_factory=dict[str, str])
    in_place: tuple[tuple[int, int], ...] = ()
    uses: AbstractSet[str] = frozenset()
    summary: str = ""
    form: str = ""
    work: Mapping[str, int] = field(default_factory=dict[str, int])
    missed: str = ""
    inner: tuple[InnerFunction, ...] = ()
    shared: SharedBody | None = None

    @cached_property
    def key(self) -> Hashable:
        """A key that is equal only for equal templates, parameters and inner functions."""
        return self.template, _key(self.parameters), tuple(inner.key for inner in self.inner)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that the call needs."""
        return sum(o.count * o.dtype.size for o in self.operands if isinstance(o, Scratch))

    @property
    def constant_bytes(self) -> int:
        """Bytes of flash for its constants, if no other call shares them."""
        return sum(o.array.nbytes for o in self.operands if isinstance(o, Packed))


@dataclass(frozen=True)
class BodyCost:
    """The cost of a function's body, as its kernel estimates it.

    Attributes:
        instructions: Instructions that one call executes.
        bytes: Bytes of code.
        inner: Which of these bytes are static functions that other layers may call too: their bytes
            by `InnerFunction.key`.
    """

    instructions: int
    bytes: int
    inner: Mapping[Hashable, int] = field(default_factory=dict[Hashable, int])


@dataclass(frozen=True)
class JointBody:
    """A body that several layers share.

    Attributes:
        calls: The call of each layer.
        bytes: Bytes of code.
        inner: See `BodyCost`.
    """

    calls: tuple[KernelCall, ...]
    bytes: int
    inner: Mapping[Hashable, int] = field(default_factory=dict[Hashable, int])


@dataclass(frozen=True)
class SharedBody:
    """A body that several layers can share, and its cost compared with a specialized body.

    It may also be a smaller and slower specialized body of one layer.

    Attributes:
        call: The call of the shared body. It computes the same as the `KernelCall` that this
            belongs to, in the same order and with equal scratch, and has a `LayerStruct` among its
            operands if other layers can share it. `in_place`, form, work and `missed` are taken
            from that `KernelCall`.
        cost: Cost of the shared body.
        specialized: Cost of the body that only layers with equal numbers can use.
        family: Key of bodies that `joined` can make one of; None if bodies must have equal
            parameters.
        specialized_key: Key that is equal for equal specialized bodies; None for the key of the
            own call.
    """

    call: KernelCall
    cost: BodyCost
    specialized: BodyCost
    family: Hashable = None
    specialized_key: Hashable = None

    @property
    def key(self) -> Hashable:
        """A key that is equal for bodies if one of them can compute the layers of all."""
        return self.call.key if self.family is None else (self.call.template, self.family)

    def joined(self, bodies: Sequence[SharedBody]) -> JointBody:
        """Return one body for all layers of bodies with this key: by default, the largest one."""
        largest = max(bodies, key=lambda body: body.cost.bytes)
        own = largest.call
        calls = tuple(
            replace(body.call, parameters=own.parameters, uses=own.uses, inner=own.inner)
            for body in bodies
        )
        return JointBody(calls, largest.cost.bytes, largest.cost.inner)

    @property
    def slowdown(self) -> float:
        """Additional instructions, as a fraction of the specialized body's instructions."""
        own = self.specialized.instructions
        return (self.cost.instructions - own) / max(own, 1)


WIDE_FLOATS = (DType.FLOAT32, DType.FLOAT64)
NARROW_FLOATS = (DType.FLOAT32, DType.FLOAT16)
"""Types for kernels of accelerators, which load and store float16 but compute in float32."""
STORED_FLOATS = (DType.FLOAT16, *WIDE_FLOATS)
"""Types for kernels that only move data."""


@dataclass(frozen=True)
class Refusal:
    """The answer of a kernel, or of one of its forms, that does not support a node.

    Attributes:
        reason: One sentence for the user.
        optional: Whether an option or the scratch limit is the reason, not the node itself.
    """

    reason: str
    optional: bool = False


def missed_for_ram(form: str) -> str:
    """Return the message that a faster form enlarges the arena; `form` is the subject."""
    return f"{form} would be faster, but enlarges the arena: {MORE_RAM} allows it."


class Kernel(ABC, Generic[OpT_contra]):
    """Computes the nodes of one or a few operator classes on one backend."""

    op: ClassVar[type[Op] | UnionType]
    """The supported operator classes, the same as the type parameter."""
    floats: ClassVar[tuple[DType, ...]] = (DType.FLOAT32,)
    """The supported floating-point types; `offer` is not called for nodes with others."""
    uses_scratch_limit: ClassVar[bool] = False
    """Whether the offer depends on `Request.scratch_limit`; if not, that is `DEFAULT_SCRATCH`."""
    uses_little_ram: ClassVar[bool] = False
    """Whether the offer depends on `Request.little_ram`; if not, that is false."""

    @abstractmethod
    def offer(self, node: Node[OpT_contra], request: Request) -> KernelCall | Refusal:
        """Return the call that computes the node, or why the kernel does not support it."""

    def entries(self, node: Node[OpT_contra]) -> int:
        """Return an upper limit of the elements in tables that `offer` computes.

        Only tables computed from shapes and attributes count. Small tables, and those no larger
        than constants of the node, do not.
        """
        return 0


__all__ = [
    "NARROW_FLOATS",
    "STORED_FLOATS",
    "WIDE_FLOATS",
    "BodyCost",
    "InnerFunction",
    "Input",
    "JointBody",
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
