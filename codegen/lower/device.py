"""What backends and the schedule know of a device beside the CPU: calls, costs, measurements.

Its kernels answer with a `DeviceCall` of their own. What drives it is in `codegen/accelerator.py`.
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
    """A call that an accelerator executes; each has a class of its own.

    Attributes:
        block: how the layer is divided.
        candidates: all ways in which it could be, the best by the device's profile first.
    """

    block: Tiling | None = None
    candidates: tuple[Tiling, ...] = ()

    def on(self, target: Target) -> DeviceCall:
        """The call with what it leaves open set for the target's device."""
        return self


def _nothing(_: Node) -> str:
    return ""


@dataclass(frozen=True)
class DeviceShare:
    """Which nodes go to an accelerator; both answers are empty where there is nothing to say.

    Attributes:
        stays: why a node must stay on the CPU.
        goes: why one goes to the accelerator although the CPU would be faster.
    """

    stays: Callable[[Node], str]
    goes: Callable[[Node], str] = _nothing


class LayerCosts(Protocol):
    """What layers take, in nanoseconds."""

    def of(self, node: Node) -> tuple[float, float]:
        """On the accelerator and on the CPU; infinite where it cannot be there."""
        ...

    def knows(self, node: Node) -> bool:
        """Whether that was measured; else it is estimated."""
        ...


@dataclass(frozen=True)
class LayerTimes:
    """What equal layers take, as measured, in nanoseconds.

    Attributes:
        device_ns: on the accelerator beside a submission, with the block below.
        cpu_ns: on the CPU; None where that computes something else in its place.
        block: the one that was faster than the profile's own choice; None where none was.
    """

    device_ns: float
    cpu_ns: float | None
    block: Tiling | None = None


class Measurements(Protocol):
    """What `smelt tune` measured on a device, which builds take and projects keep."""

    @property
    def profile(self) -> str:
        """The profile that everything else is taken from."""
        ...

    @property
    def device(self) -> str:
        """What the device is called by its driver."""
        ...

    @property
    def submit_ns(self) -> float:
        """What it takes to submit a run of layers, and to wait for it."""
        ...

    @property
    def blocks(self) -> Mapping[str, Tiling]:
        """The blocks that differ from the profile's own choice, by `layer_key`."""
        ...

    @property
    def text(self) -> str:
        """The file's text."""
        ...

    def require_layers(self, layers: Iterable[tuple[Node, KernelCall]]) -> None:
        """Check that it was measured for these layers, or for some of them.

        Raises:
            ConfigError: it was not.
        """
        ...


MOST_TRIED = 7
"""Most tilings of a layer that are compared with the profile's own at a time."""

TUNING = "tuning.json"
"""The file of measurements in a project."""


CallT_contra = TypeVar("CallT_contra", bound=DeviceCall, contravariant=True)
"""The calls of an accelerator."""


class DeviceFunctions(ABC, Generic[CallT_contra]):
    """Collects what an accelerator executes; what is equal becomes one.

    Attributes:
        shares_arena: whether it works in the arena itself, where states are then kept too.
    """

    shares_arena: ClassVar[bool]

    @abstractmethod
    def add(self, origin: str, call: CallT_contra) -> str:
        """The name of what computes a call of a layer from `origin`."""


def layer_key(node: Node) -> str:
    """What layers of equal cost have in common.

    One that is stored as float16 has the key that it has in float32, in which it is asked for.
    """
    types = ", ".join("-" if v is None else _type(v) for v in node.inputs)
    return f"{node.op} ({types}) -> {', '.join(map(_type, node.outputs))}"


def _type(value: Value) -> str:
    half = value.type.dtype is DType.FLOAT16
    return str(replace(value.type, dtype=DType.FLOAT32) if half else value.type)
