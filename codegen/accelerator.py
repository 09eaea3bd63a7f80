"""What computes layers beside the CPU, and what the rest of Smelt asks of it.

A backend whose folder has a module with `ACCELERATOR` drives such a device: its kernels answer with
a `DeviceCall` of its own, and what they make is emitted by its `DeviceProgram`. Nothing else knows
which devices there are: another one is another folder, and a target in the catalogue that has it.

In the order of the pipeline an `Accelerator` says which profile describes the device (`profile`),
what layers cost there (`costs`), which of them stay on the CPU (`share`), how the graph is
rewritten for it (`passes`), what collects its code (`functions`), and what it is told to do once
memory is planned (`program`).

It stands above `codegen.schedule`, whose steps become a program, and below `codegen.emit`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from smelt.codegen import arena
from smelt.codegen.lower.backend import declared
from smelt.codegen.lower.device import (
    DeviceFunctions,
    DeviceShare,
    LayerCosts,
    LayerTimes,
    Measurements,
)
from smelt.codegen.lower.kernel import Tiling
from smelt.codegen.partition.partitioner import Partitioner
from smelt.codegen.schedule.schedule import Schedule
from smelt.errors import ConfigError
from smelt.ir import Array, Graph
from smelt.targets import DeviceProfile, Target, available


@dataclass(frozen=True)
class DeviceOptions:
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


@dataclass(frozen=True)
class NetworkNames:
    """What a network is called.

    Attributes:
        title: by people.
        name: what each of its files and C identifiers begins with.
        macro: what its macros begin with.
    """

    title: str
    name: str
    macro: str


class DeviceProgram(ABC):
    """What an accelerator does in an inference, and how that is written in C.

    Attributes:
        templates: folder of the templates that the network's, the firmware's and the README's
            include where they speak of the device; see `templates/emit/network`.
        absent: C expression that is true where the program has found no device.
        refusal: why an export format that cannot say what to link does not hold the network.
        weights_bytes: what it reads and an inference does not change.
    """

    templates: ClassVar[str]
    absent: ClassVar[str]
    refusal: ClassVar[str]
    weights_bytes: int

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
    def render(self, net: NetworkNames, comments: Sequence[str]) -> Callable[[], dict[str, str]]:
        """Begin to write all these files; what it returns waits for the rest: name to contents.

        Args:
            net: what the network is called.
            comments: what each step of it computes.
        """

    @abstractmethod
    def arrays(self, name: str) -> Mapping[str, Array]:
        """What memory holds of it beside the constants, by the names of the arrays in C."""

    @property
    @abstractmethod
    def compiler(self) -> str:
        """What compiled the code in it, for the report."""


DevicePass = Callable[[Graph, Partitioner], Graph]
"""Rewrites a graph for what the accelerator computes, as the partitioner has it."""


class Accelerator(ABC):
    """A kind of device that computes layers beside the CPU."""

    @abstractmethod
    def profile(self, name: str) -> DeviceProfile:
        """The profile of that name.

        Raises:
            ConfigError: there is none.
        """

    @abstractmethod
    def costs(self, options: DeviceOptions) -> LayerCosts | None:
        """What layers are placed by; None where all that it serves goes there."""

    @abstractmethod
    def share(self, graph: Graph, partitioner: Partitioner, options: DeviceOptions) -> DeviceShare:
        """Which nodes must stay on the CPU, and why; of others, why they had better not.

        Args:
            graph: about to be scheduled.
            partitioner: tells which nodes the device serves, and which are placed by the user.
            options: what the build is told.
        """

    @abstractmethod
    def passes(self, options: DeviceOptions) -> Sequence[DevicePass]:
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
    found: list[Accelerator | None] = [declared(n, "ACCELERATOR") for n in target.backends]
    return next(filter(None, found), None)


def targets_beside() -> str:
    """The targets that have an accelerator, as `--target` takes them."""
    return " or ".join(f"--target {target.name}" for target in available() if target.device)


def devices_beside() -> str:
    """What the accelerators of all targets are called, as `GPU or NPU`."""
    nouns = (target.device.noun for target in available() if target.device)
    return " or ".join(dict.fromkeys(nouns))


def load_tuning(path: Path) -> Measurements:
    """What a file of measurements holds, of whichever accelerator they are.

    Raises:
        ConfigError: it cannot be read, or is none.
    """
    return _of_any(lambda accelerator: accelerator.load_tuning(path), f"tuning '{path}'")


def profile_called(name: str) -> DeviceProfile:
    """The profile of that name, of whichever accelerator it is.

    Raises:
        ConfigError: there is none.
    """
    return _of_any(lambda accelerator: accelerator.profile(name), f"profile '{name}'")


Wanted = TypeVar("Wanted")


def _of_any(find: Callable[[Accelerator], Wanted], what: str) -> Wanted:
    """What the first accelerator has that does not refuse."""
    error: ConfigError | None = None
    for accelerator in filter(None, map(accelerator_of, available())):
        try:
            return find(accelerator)
        except ConfigError as refusal:
            error = error or refusal
    raise error or ConfigError(f"{what}: no target has an accelerator")
