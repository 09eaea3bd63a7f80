"""Device calls, costs and measurements, as backends and the schedule need them.

A device's kernels answer with a subclass of `DeviceCall`. `codegen/accelerator.py` has the
interface of the device itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, Protocol, TypeVar

from smelt.codegen.lower.kernel import KernelCall, Tiling
from smelt.ir import DType, Node, Value
from smelt.targets import Target


@dataclass(frozen=True)
class DeviceCall(KernelCall):
    """A call that an accelerator executes; each accelerator has its own subclass.

    Attributes:
        block: The tiling of the layer.
        candidates: All possible tilings, best first by the device's profile.
    """

    block: Tiling | None = None
    candidates: tuple[Tiling, ...] = ()

    def on(self, target: Target) -> DeviceCall:
        """Return the call with parameters that depend on the target's device filled in."""
        return self


def _nothing(_: Node) -> str:
    return ""


@dataclass(frozen=True)
class DeviceShare:
    """The assignment of nodes to an accelerator, with reasons.

    Both functions return an empty string if there is nothing to say.

    Attributes:
        stays: Returns why a node must stay on the CPU.
        goes: Returns why a node goes to the accelerator although the CPU would be faster.
    """

    stays: Callable[[Node], str]
    goes: Callable[[Node], str] = _nothing


class LayerCosts(Protocol):
    """Execution times of layers, in nanoseconds."""

    def of(self, node: Node) -> tuple[float, float]:
        """Return the times on the accelerator and on the CPU; infinite if it cannot run there."""
        ...

    def knows(self, node: Node) -> bool:
        """Return whether the times were measured instead of estimated."""
        ...


@dataclass(frozen=True)
class LayerTimes:
    """Measured execution times of equal layers, in nanoseconds.

    Attributes:
        device_ns: On the accelerator, without the submission, with `block`.
        cpu_ns: On the CPU; None if the CPU would compute something else instead.
        block: The tiling that was faster than the profile's own choice; None if none was.
    """

    device_ns: float
    cpu_ns: float | None
    block: Tiling | None = None


class Measurements(Protocol):
    """Results of `smelt tune` on a device; builds use them and projects store them."""

    @property
    def profile(self) -> str:
        """The profile for everything that was not measured."""
        ...

    @property
    def device(self) -> str:
        """The device's name, as its driver reports it."""
        ...

    @property
    def submit_ns(self) -> float:
        """The time to submit a run of layers and wait for it, in nanoseconds."""
        ...

    @property
    def blocks(self) -> Mapping[str, Tiling]:
        """The tilings that differ from the profile's own choice, by `layer_key`."""
        ...

    @property
    def text(self) -> str:
        """The text of the file."""
        ...

    def require_layers(self, layers: Iterable[tuple[Node, KernelCall]]) -> None:
        """Check that some of these layers were measured.

        Raises:
            ConfigError: None of them was.
        """
        ...


MOST_TRIED = 7
"""Largest number of tilings of a layer that are compared with the profile's own at a time."""

TUNING = "tuning.json"
"""The name of the file of measurements in a project."""


CallT_contra = TypeVar("CallT_contra", bound=DeviceCall, contravariant=True)
"""The call type of an accelerator."""


class DeviceFunctions(ABC, Generic[CallT_contra]):
    """Collects the code for an accelerator; equal code is stored once.

    Attributes:
        shares_arena: Whether the device works in the arena itself; states are then there too.
    """

    shares_arena: ClassVar[bool]

    @abstractmethod
    def add(self, origin: str, call: CallT_contra) -> str:
        """Return the name of the code that computes a call of a layer from `origin`."""


def layer_key(node: Node) -> str:
    """Return a key that is equal for layers of equal cost.

    A layer that is stored as float16 has the same key as in float32.
    """
    types = ", ".join("-" if v is None else _type(v) for v in node.inputs)
    return f"{node.op} ({types}) -> {', '.join(map(_type, node.outputs))}"


def _type(value: Value) -> str:
    half = value.type.dtype is DType.FLOAT16
    return str(replace(value.type, dtype=DType.FLOAT32) if half else value.type)
