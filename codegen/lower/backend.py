"""Backends: the kernels of a package below `smelt.codegen.backends`, found and asked.

Each module of such a package has a tuple `KERNELS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from smelt.codegen.lower.kernel import MOST_ENTRIES, ROOM, Kernel, KernelCall, Refusal, Request
from smelt.ir import DType, Node
from smelt.targets import ExternalLibrary


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
