"""What computes layers beside the CPU, and what the rest of Smelt asks of it.

A backend whose folder has a module with `ACCELERATOR` drives such a device: its kernels answer with
a `DeviceCall` of its own, and what they make is emitted by its `DeviceProgram`. Nothing else knows
which devices there are: another one is another folder, and a target in the catalogue that has it.

In the order of the pipeline an `Accelerator` says which profile describes the device (`profile`),
what layers cost there (`costs`), which of them stay on the CPU (`stays`), how the graph is
rewritten for it (`passes`), what collects its code (`functions`), and what it is told to do once
memory is planned (`program`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from smelt.codegen.lower.backend import backend
from smelt.codegen.lower.offer import KernelCall
from smelt.errors import ConfigError
from smelt.ir import Array, DType, Graph, Node, Value
from smelt.targets import DeviceProfile, Target, available

if TYPE_CHECKING:
    from smelt.codegen import arena
    from smelt.codegen.emit.network import EmittedNetwork
    from smelt.codegen.partition.partitioner import Partitioner
    from smelt.codegen.schedule.schedule import Schedule


class Tiling(Protocol):
    """How much of a layer is computed at a time, where that may be chosen."""

    @property
    def text(self) -> str:
        """In words."""
        ...


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
        gpu_ns: on the accelerator beside a submission, with the block below.
        cpu_ns: on the CPU; None where that computes something else in its place.
        block: the one that was faster than the profile's own choice; None where none was.
    """

    gpu_ns: float
    cpu_ns: float | None
    block: Tiling | None = None


class Measurements(Protocol):
    """What `smelt tune` measured on a device, which builds take and projects keep."""

    @property
    def gpu(self) -> str:
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


@dataclass(frozen=True)
class Wishes:
    """What a build is told of an accelerator.

    Attributes:
        target: with the profile of its device.
        tuning: what was measured on the device.
        float16: whether what it computes is stored as float16.
        everything: whether all goes there that it serves, whatever that costs.
    """

    target: Target
    tuning: Measurements | None = None
    float16: bool = False
    everything: bool = False


CallT_contra = TypeVar("CallT_contra", bound=DeviceCall, contravariant=True)
"""The calls of an accelerator."""


class DeviceFunctions(ABC, Generic[CallT_contra]):
    """Collects what an accelerator executes; what is equal becomes one."""

    @abstractmethod
    def add(self, origin: str, call: CallT_contra) -> str:
        """The name of what computes a call of a layer from `origin`."""


class DeviceProgram(ABC):
    """What an accelerator does in an inference, and how that is written in C.

    Attributes:
        templates: folder of the templates that the network's, the firmware's and the README's
            include where they speak of the device; see `templates/emit/network`.
        absent: C expression that is true where the program has found no device.
        refusal: why an export format that cannot say what to link does not hold the network.
    """

    templates: ClassVar[str]
    absent: ClassVar[str]
    refusal: ClassVar[str]

    @abstractmethod
    def statement(self, step: int) -> str:
        """The statement of C in place of a call of the step's function."""

    @abstractmethod
    def end(self, step: int) -> str:
        """The statement behind the step if it is the last before one of the CPU; else empty."""

    @abstractmethod
    def headers(self, name: str) -> tuple[str, ...]:
        """Files that the header of the network of that name includes."""

    @abstractmethod
    def sources(self, name: str) -> tuple[str, ...]:
        """Its C files."""

    @abstractmethod
    def internal(self, name: str) -> tuple[str, ...]:
        """Its other files."""

    @abstractmethod
    def render(
        self, network: EmittedNetwork, schedule: Schedule, common: Mapping[str, object]
    ) -> Callable[[], dict[str, str]]:
        """Begin to write all these files; what it returns waits for the rest: name to contents.

        Args:
            network: what the files belong to.
            schedule: its steps.
            common: variables of the network's templates.
        """

    @abstractmethod
    def arrays(self, name: str) -> Mapping[str, Array]:
        """What memory holds of it beside the constants, by the names of the arrays in C."""

    @property
    @abstractmethod
    def compiler(self) -> str:
        """What compiled the code in it, for the report."""


DevicePass = Callable[[Graph, "Partitioner"], Graph]
"""Rewrites a graph for what the accelerator computes, as the partitioner has it."""


class Accelerator(ABC):
    """A kind of device that computes layers beside the CPU.

    Attributes:
        shares_arena: whether it works in the arena itself, where states are then kept too.
    """

    shares_arena: ClassVar[bool]

    @abstractmethod
    def profile(self, name: str) -> DeviceProfile:
        """The profile of that name.

        Raises:
            ConfigError: there is none.
        """

    @abstractmethod
    def costs(self, wishes: Wishes) -> LayerCosts | None:
        """What layers are placed by; None where all that it serves goes there."""

    @abstractmethod
    def stays(
        self, graph: Graph, partitioner: Partitioner, wishes: Wishes
    ) -> Callable[[Node], str]:
        """Why a node must stay on the CPU; an empty text where it need not.

        Args:
            graph: about to be scheduled.
            partitioner: tells which nodes the device serves, and which are placed by the user.
            wishes: what the build is told.
        """

    @abstractmethod
    def passes(self, wishes: Wishes) -> Sequence[DevicePass]:
        """What rewrites the graph once nodes are placed."""

    @abstractmethod
    def functions(self) -> DeviceFunctions[Any]:
        """What collects the code of a network."""

    @abstractmethod
    def program(self, schedule: Schedule, plan: arena.Plan) -> DeviceProgram | None:
        """The program of a planned schedule; None where no step is the accelerator's.

        Raises:
            UnsupportedError: something exceeds what every such device can do.
        """

    @abstractmethod
    def environment(self, number: int) -> Mapping[str, str]:
        """Variables by which a program takes that one of this computer's devices."""

    @abstractmethod
    def load_tuning(self, path: Path) -> Measurements:
        """What a file of measurements holds.

        Raises:
            ConfigError: it cannot be read, or is none.
        """

    @abstractmethod
    def tuning(
        self, profile: str, device: str, submit_ns: float, layers: Mapping[str, LayerTimes]
    ) -> Measurements:
        """Measurements of layers, by `layer_key`."""

    @abstractmethod
    def worth_measuring(self, blocks: Sequence[Tiling]) -> tuple[Tiling, ...]:
        """Of a call's candidates, those that are measured first beside the best by the profile."""

    @abstractmethod
    def neighbours(self, block: Tiling, blocks: Sequence[Tiling]) -> tuple[Tiling, ...]:
        """Of a call's candidates, those that differ from one in one respect."""


def accelerator_of(target: Target) -> Accelerator | None:
    """What computes beside the target's CPU."""
    if target.device is None:
        return None
    return next(filter(None, (backend(name).accelerator for name in target.backends)), None)


def targets_beside() -> str:
    """The targets that have an accelerator, as `--target` takes them."""
    return " or ".join(f"--target {target.name}" for target in available() if target.device)


def load_tuning(path: Path) -> Measurements:
    """What a file of measurements holds, of whichever accelerator they are.

    Raises:
        ConfigError: it cannot be read, or is none.
    """
    error: ConfigError | None = None
    for accelerator in filter(None, map(accelerator_of, available())):
        try:
            return accelerator.load_tuning(path)
        except ConfigError as refusal:
            error = error or refusal
    raise error or ConfigError(f"tuning '{path}': no target has an accelerator")


def layer_key(node: Node) -> str:
    """What layers of equal cost have in common.

    One that is stored as float16 has the key that it has in float32, in which it is asked for.
    """
    types = ", ".join("-" if v is None else _type(v) for v in node.inputs)
    return f"{node.op} ({types}) -> {', '.join(map(_type, node.outputs))}"


def _type(value: Value) -> str:
    half = value.type.dtype is DType.FLOAT16
    return str(replace(value.type, dtype=DType.FLOAT32) if half else value.type)
