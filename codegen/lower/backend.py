"""Backends: the kernels of a package below `smelt.codegen.backends`.

Each module of such a package has a tuple `KERNELS`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from smelt.codegen.lower.kernel import (
    DEFAULT_SCRATCH,
    MOST_ENTRIES,
    Kernel,
    KernelCall,
    Refusal,
    Request,
)
from smelt.ir import DType, Node
from smelt.targets import ExternalLibrary


@dataclass(frozen=True)
class Offers:
    """The calls that the kernels of a backend offer for a node.

    Attributes:
        made: Each call with its kernel, in the backend's order.
        entries: The number of elements of their largest tables; see `Kernel.entries`.
    """

    made: tuple[tuple[Kernel[Any], KernelCall], ...]
    entries: int = 0

    @property
    def calls(self) -> tuple[KernelCall, ...]:
        """The calls without their kernels."""
        return tuple(call for _, call in self.made)


Ask = Callable[[Kernel[Any], Node, Request], KernelCall | Refusal]
"""Asks a kernel for its offer."""


def ask(kernel: Kernel[Any], node: Node, request: Request) -> KernelCall | Refusal:
    """Return the kernel's offer."""
    return kernel.offer(node, request)


class OfferCache:
    """A cache of kernels' answers to requests that differ only in what they say about RAM.

    Kernels whose offer depends on the limit are asked once per limit. But if scratch is limited, an
    answer for one limit is also the answer for all lower ones that its scratch fits into.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, list[tuple[int, int, KernelCall | Refusal]]] = {}

    def ask(self, kernel: Kernel[Any], node: Node, request: Request) -> KernelCall | Refusal:
        """Return the kernel's offer, from the cache if possible."""
        if not kernel.uses_scratch_limit:
            request = replace(request, scratch_limit=DEFAULT_SCRATCH, limited=False)
        if not kernel.uses_little_ram:
            request = replace(request, little_ram=False)
        key, limit = (id(kernel), node, request.limited, request.little_ram), request.scratch_limit
        known = self._known.setdefault(key, [])
        for least, most, answer in known:
            if least <= limit <= most:
                return answer
        answer = ask(kernel, node, request)
        least = 0 if isinstance(answer, Refusal) else answer.scratch_bytes
        known.append((min(least, limit) if request.limited else limit, limit, answer))
        return answer


@dataclass(frozen=True)
class Backend:
    """A named set of kernels.

    Attributes:
        name: The name of the backend.
        kernels: Its kernels, in the order in which they are asked.
        plugins: Kernels of plugins, which are preferred.
        on_device: Whether the kernels run on an accelerator.
        library: The external library that the kernels call, or None.
    """

    name: str
    kernels: tuple[Kernel[Any], ...]
    plugins: tuple[Kernel[Any], ...] = ()
    on_device: bool = False
    library: ExternalLibrary | None = None

    def offers(
        self, node: Node, request: Request, left: int = MOST_ENTRIES, ask: Ask = ask
    ) -> Offers | Refusal:
        """Return everything that the backend's kernels offer for the node, or why there is nothing.

        Args:
            node: The node to serve.
            request: The question that every kernel is asked.
            left: Table entries that the node may still use; see `Kernel.entries`.
            ask: Asks a kernel.
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
        """Return the call of the first kernel that serves the node, or why none does."""
        found = self.offers(node, request)
        return found if isinstance(found, Refusal) else found.calls[0]


def _refuse_tables(node: Node, kernel: Kernel[Any], left: int) -> Refusal | None:
    entries = kernel.entries(node)
    if entries <= left:
        return None
    others = f", {MOST_ENTRIES - left:,} of which other layers use" if left < MOST_ENTRIES else ""
    return Refusal(
        f"{node.op.name} to {node.output.type} needs tables of {entries:,} entries, but a "
        f"network may have {MOST_ENTRIES:,}{others}: make its output smaller."
    )


def _refuse_float(node: Node, kernel: Kernel[Any]) -> Refusal | None:
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.type.dtype.is_float:
            dtype = value.type.dtype
            if dtype not in kernel.floats:
                halves = "leave --float16 out, or " if dtype is DType.FLOAT16 else ""
                return Refusal(
                    f"{node.op.name} does not support {dtype.value} data: "
                    f"{halves}export the network in float32."
                )
    return None


def backend(name: str, plugins: tuple[Kernel[Any], ...] = ()) -> Backend:
    """Return the backend in package `smelt.codegen.backends.NAME`, with kernels of plugins.

    Each module has `KERNELS`. One module has `ACCELERATOR` if the kernels do not run on the CPU, or
    `LIBRARY` if they call an external library.
    """
    modules = modules_of(name)
    kernels = tuple(kernel for module in modules for kernel in getattr(module, "KERNELS", ()))
    on_device = declared(name, "ACCELERATOR") is not None
    return Backend(name, kernels, plugins, on_device, declared(name, "LIBRARY"))


def declared(name: str, what: str) -> Any:
    """Return the attribute that one of the backend's modules has under a name, or None."""
    found = (getattr(module, what, None) for module in modules_of(name))
    return next(filter(None, found), None)


@cache
def modules_of(name: str) -> tuple[ModuleType, ...]:
    """Return the modules of a backend's package."""
    package = import_module(f"smelt.codegen.backends.{name}")
    return tuple(
        import_module(f"{package.__name__}.{module.name}")
        for module in iter_modules(package.__path__)
    )
