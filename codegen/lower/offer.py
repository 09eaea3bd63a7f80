"""What a kernel file provides, and what it decides about a node.

A backend is a package below `smelt.codegen.backends`; each of its modules has a tuple `KERNELS`.
A kernel is asked what it offers for a node. It answers with a `KernelCall` (the template of the C
function, what that prints, its operands in the order of the C parameters, its scratch), or with a
`Refusal` that says why it does not serve the node.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType, UnionType
from typing import Any, ClassVar, Generic, Protocol, cast

from typing_extensions import TypeVar

from smelt.ir import Array, DType, Node, Op
from smelt.targets import ExternalLibrary, Optimize, Target

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
    `room` is how many bytes of scratch a call may take without making the arena larger than it has
    to be, or by a few kilobytes at most. `tilings` were measured to be the best on the accelerator,
    by `layer_key` of a layer.
    """

    target: Target
    optimize: Optimize = "speed"
    expand_weights: bool = False
    room: int = ROOM
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


Operand = Input | Output | Packed | Scratch


@dataclass(frozen=True)
class Parameters:
    """The variables of a template: a subclass for each template, with a field for each variable.

    A field holds what the template prints, computed: text, numbers, tuples of them, or dataclasses
    of such fields. Functions of equal parameters are equal, and those of different ones differ.
    """

    @property
    def variables(self) -> dict[str, object]:
        """The fields by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


def _key(value: object) -> Hashable:
    """What is equal for equal values of one type, and for no others."""
    if is_dataclass(value):
        return type(value), tuple(_key(getattr(value, item.name)) for item in fields(value))
    if isinstance(value, tuple | list):
        return type(value), tuple(map(_key, cast("Sequence[object]", value)))
    if isinstance(value, float):
        return value.hex()  # 0 and -0 are equal, and written differently
    return type(value), cast("Hashable", value)


@dataclass(frozen=True)
class KernelCall:
    """How one node is computed by one call of one C function.

    Attributes:
        template: path of the function's template below `templates/`.
        stem: readable stem of the function's name, as `conv2d_3x3_s2`. Calls of equal templates
            and parameters share one function.
        parameters: the template's variables: everything known at compile time. The template
            also gets `function` (its name), `signature` (parameter list).
        operands: the C parameters, in order.
        in_place: `(output, input)` indices of which the kernel may be given the same address.
        helpers: names of the blocks of `helpers.c.j2` whose functions the template calls.
        summary: one line for reports: which form of the kernel, and why.
        form: name of the way in which the call computes, under which targets keep its prices.
        work: how much of what the form's prices are for the call does, as `{"products": 4096}`.
    """

    template: str
    stem: str
    parameters: Parameters
    operands: tuple[Operand, ...]
    in_place: tuple[tuple[int, int], ...] = ()
    helpers: frozenset[str] = field(default_factory=lambda: frozenset[str]())
    summary: str = ""
    form: str = ""
    work: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def variables(self) -> Mapping[str, object]:
        """The template's variables by name."""
        return self.parameters.variables

    @property
    def key(self) -> Hashable:
        """What is equal for calls of one template with equal parameters, and for no others."""
        return self.template, _key(self.parameters)

    @property
    def scratch_bytes(self) -> int:
        """Working memory that the call needs beside its operands."""
        return sum(o.count * o.dtype.size for o in self.operands if isinstance(o, Scratch))

    @property
    def constant_bytes(self) -> int:
        """Flash that its constants take, if no other call shares them."""
        return sum(o.array.nbytes for o in self.operands if isinstance(o, Packed))


WIDE_FLOATS = (DType.FLOAT32, DType.FLOAT64)
NARROW_FLOATS = (DType.FLOAT32, DType.FLOAT16)
"""What kernels of accelerators serve: they load and store halves, and compute with float32."""
STORED_FLOATS = (DType.FLOAT16, *WIDE_FLOATS)
"""What kernels serve that move data and do not compute with it."""


@dataclass(frozen=True)
class Refusal:
    """That a kernel does not serve a node, and why: one sentence for the user."""

    reason: str


OpT_contra = TypeVar("OpT_contra", bound=Op, default=Op, contravariant=True)
"""The operators that a kernel serves."""


class Kernel(ABC, Generic[OpT_contra]):
    """Serves the nodes of one operator class, or of a few, on one backend."""

    op: ClassVar[type[Op] | UnionType]
    """The classes that the kernel is asked about, the same as its type parameter."""
    floats: ClassVar[tuple[DType, ...]] = (DType.FLOAT32,)
    """The floating-point types that data may have; `offer` is not asked about others."""
    uses_room: ClassVar[bool] = False
    """Whether the offer depends on `Request.room`; for others it is always `ROOM`."""

    @abstractmethod
    def offer(self, node: Node[OpT_contra], request: Request) -> KernelCall | Refusal:
        """The call that computes the node, or why the kernel does not serve it."""

    def entries(self, node: Node[OpT_contra]) -> int:
        """Elements of the tables that `offer` makes of shapes and attributes alone, at most.

        Tables as large as constants of the node are not counted, nor small ones.
        """
        return 0


@dataclass(frozen=True)
class Offers:
    """What the kernels of a backend offer for a node.

    Attributes:
        made: each offer with the kernel that makes it, in the backend's order.
        entries: elements of the largest tables among them; see `Kernel.entries`.
    """

    made: tuple[tuple[Kernel[Any], KernelCall], ...]
    entries: int = 0

    @property
    def calls(self) -> tuple[KernelCall, ...]:
        """The calls alone."""
        return tuple(call for _, call in self.made)


Ask = Callable[[Kernel[Any], Node, Request], KernelCall | Refusal]
"""Asks a kernel what it offers."""


def ask(kernel: Kernel[Any], node: Node, request: Request) -> KernelCall | Refusal:
    """What the kernel offers."""
    return kernel.offer(node, request)


class Answers:
    """What kernels have answered to requests that differ in `room` only: none is asked twice.

    Kernels whose offer depends on the room are asked once for each.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, Node, int], KernelCall | Refusal] = {}

    def ask(self, kernel: Kernel[Any], node: Node, request: Request) -> KernelCall | Refusal:
        """What the kernel offers, or has offered."""
        room = request.room if kernel.uses_room else ROOM
        key = id(kernel), node, room
        if key not in self._known:
            self._known[key] = ask(kernel, node, replace(request, room=room))
        return self._known[key]


@dataclass(frozen=True)
class Backend:
    """A named set of kernels; those of plugins are preferred to any other.

    `on_device`: whether they run beside the CPU.
    `library`: what they call of others' code; None where that is nothing.
    """

    name: str
    kernels: tuple[Kernel[Any], ...]
    plugins: tuple[Kernel[Any], ...] = ()
    on_device: bool = False
    library: ExternalLibrary | None = None

    def offers(
        self, node: Node, request: Request, left: int = MOST_ENTRIES, ask: Ask = ask
    ) -> Offers | Refusal:
        """Everything that the backend's kernels offer for the node, or why that is nothing.

        Args:
            node: to be served.
            request: what is asked of every kernel.
            left: entries that tables of the node may have; see `Kernel.entries`.
            ask: asks a kernel.
        """
        offers: list[tuple[Kernel[Any], KernelCall]] = []
        reasons: dict[str, None] = {}
        entries = 0
        for kernel in (*self.plugins, *self.kernels):
            if not isinstance(node.op, kernel.op):
                continue
            answer = (
                _refuse_float(node, kernel)
                or _refuse_tables(node, kernel, left)
                or ask(kernel, node, request)
            )
            if isinstance(answer, Refusal):
                reasons[answer.reason] = None
            else:
                offers.append((kernel, answer))
                entries = max(entries, kernel.entries(node))
        if offers:
            return Offers(tuple(offers), entries)
        nothing = (
            f"backend '{self.name}' has no kernel for {node.op.name} on {request.target.name}."
        )
        return Refusal(" ".join(reasons) or nothing)

    def find(self, node: Node, request: Request) -> KernelCall | Refusal:
        """The call that the first kernel offers which serves the node, or why none does."""
        found = self.offers(node, request)
        return found if isinstance(found, Refusal) else found.calls[0]


def _refuse_tables(node: Node, kernel: Kernel[Any], left: int) -> Refusal | None:
    entries = kernel.entries(node)
    if entries <= left:
        return None
    others = f", {MOST_ENTRIES - left:,} of them other layers'" if left < MOST_ENTRIES else ""
    return Refusal(
        f"{node.op.name} to {node.output.type} takes tables of {entries:,} entries; "
        f"{MOST_ENTRIES:,} are the most of a network{others}: let it make a smaller tensor."
    )


def _refuse_float(node: Node, kernel: Kernel[Any]) -> Refusal | None:
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.type.dtype.is_float:
            dtype = value.type.dtype
            if dtype not in kernel.floats:
                halves = "leave --float16 out, or " if dtype is DType.FLOAT16 else ""
                return Refusal(
                    f"{node.op.name} is not served for {dtype.value} data: "
                    f"{halves}export the network in float32."
                )
    return None


def backend(name: str, plugins: tuple[Kernel[Any], ...] = ()) -> Backend:
    """The backend in package `smelt.codegen.backends.NAME`, with kernels of plugins.

    Its modules say `KERNELS`, and one of them `ACCELERATOR` if they do not run on the CPU, or
    `LIBRARY` if they call another's code.
    """
    modules = modules_of(name)
    kernels = tuple(kernel for module in modules for kernel in getattr(module, "KERNELS", ()))
    on_device = declared(name, "ACCELERATOR") is not None
    return Backend(name, kernels, plugins, on_device, declared(name, "LIBRARY"))


def declared(name: str, what: str) -> Any:
    """What one of the backend's modules has under a name; None where none has."""
    found = (getattr(module, what, None) for module in modules_of(name))
    return next(filter(None, found), None)


@cache
def modules_of(name: str) -> tuple[ModuleType, ...]:
    """The modules of a backend's package."""
    package = import_module(f"smelt.codegen.backends.{name}")
    return tuple(
        import_module(f"{package.__name__}.{module.name}")
        for module in iter_modules(package.__path__)
    )


__all__ = [
    "NARROW_FLOATS",
    "STORED_FLOATS",
    "WIDE_FLOATS",
    "Answers",
    "Backend",
    "Input",
    "Kernel",
    "KernelCall",
    "Offers",
    "Operand",
    "Optimize",
    "Output",
    "Packed",
    "Parameters",
    "Refusal",
    "Request",
    "Scratch",
    "Tiling",
    "backend",
]
