"""The interface of accelerators, which compute layers beside the CPU.

A backend drives an accelerator if one of its modules has `ACCELERATOR`. Its kernels answer with a
subclass of `DeviceCall`, and its `DeviceProgram` emits their code. No other code depends on a
certain device: a new one is a new backend folder and a target in the catalog.

In the order of the pipeline, an `Accelerator` provides:

- `profile`: the description of the device;
- `costs`: the cost of layers on the device;
- `share`: which nodes stay on the CPU;
- `passes`: how the graph is rewritten for the device;
- `functions`: what collects its code;
- `program`: its program, once memory is planned.

This module imports `codegen.schedule`, because steps become a program. `codegen.emit` imports it.
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
    """Build options of an accelerator.

    Attributes:
        target: The target with the profile of the device.
        tuning: Measurements on the device.
        float16: Whether the device stores its results as float16.
        everything: Whether the device computes all layers that it serves, whatever they cost.
    """

    target: Target
    tuning: Measurements | None = None
    float16: bool = False
    everything: bool = False


@dataclass(frozen=True)
class NetworkNames:
    """The names of a network.

    Attributes:
        title: The name for people.
        name: The prefix of its files and C identifiers.
        macro: The prefix of its macros.
    """

    title: str
    name: str
    macro: str


class DeviceProgram(ABC):
    """The accelerator's part of an inference, and its C code.

    Attributes:
        templates: The folder of the templates that the network, the firmware and the README include
            for the device; see `templates/emit/network`.
        absent: A C expression that is true if the program has found no device.
        refusal: Why an export format that cannot name libraries to link does not support the
            network.
        weights_bytes: The bytes that the device reads and an inference does not change.
    """

    templates: ClassVar[str]
    absent: ClassVar[str]
    refusal: ClassVar[str]
    weights_bytes: int

    @abstractmethod
    def statement(self, step: int) -> str:
        """Return the C statement that replaces a call of the step's function."""

    @abstractmethod
    def end(self, step: int) -> str:
        """Return the statement between the device's last step and a CPU step, or nothing."""

    @abstractmethod
    def headers(self, name: str) -> tuple[str, ...]:
        """Return the files that the header of the network of that name includes."""

    @abstractmethod
    def sources(self, name: str) -> tuple[str, ...]:
        """Return the names of the C files."""

    @abstractmethod
    def internal(self, name: str) -> tuple[str, ...]:
        """Return the names of all other files."""

    @abstractmethod
    def render(self, net: NetworkNames, comments: Sequence[str]) -> Callable[[], dict[str, str]]:
        """Start to write all these files; the returned function waits and gives contents by name.

        Args:
            net: The names of the network.
            comments: What each step of the network computes.
        """

    @abstractmethod
    def arrays(self, name: str) -> Mapping[str, Array]:
        """Return the device's arrays in memory, besides the constants, by their names in C."""

    @property
    @abstractmethod
    def compiler(self) -> str:
        """The compiler of its code, for the report."""


DevicePass = Callable[[Graph, Partitioner], Graph]
"""Rewrites a graph for the nodes that the partitioner assigns to the accelerator."""


class Accelerator(ABC):
    """A kind of device that computes layers beside the CPU."""

    @abstractmethod
    def profile(self, name: str) -> DeviceProfile:
        """Return the profile of that name.

        Raises:
            ConfigError: There is none.
        """

    @abstractmethod
    def costs(self, options: DeviceOptions) -> LayerCosts | None:
        """Return the costs that decide the placement; None to place all supported layers there."""

    @abstractmethod
    def share(self, graph: Graph, partitioner: Partitioner, options: DeviceOptions) -> DeviceShare:
        """Return the nodes that must or should stay on the CPU, with reasons.

        Args:
            graph: The graph that is about to be scheduled.
            partitioner: Has which nodes the device serves and which the user has placed.
            options: The build options.
        """

    @abstractmethod
    def passes(self, options: DeviceOptions) -> Sequence[DevicePass]:
        """Return the passes to run once nodes are placed."""

    @abstractmethod
    def functions(self) -> DeviceFunctions[Any]:
        """Return a new collector of a network's code."""

    @abstractmethod
    def program(self, schedule: Schedule, plan: arena.Plan) -> DeviceProgram | None:
        """Return the program of a planned schedule; None if no step is the accelerator's.

        Raises:
            UnsupportedError: The program exceeds a limit that every such device guarantees.
        """

    @abstractmethod
    def environment(self, number: int) -> Mapping[str, str]:
        """Return environment variables that select one of this computer's devices."""

    @abstractmethod
    def load_tuning(self, path: Path) -> Measurements:
        """Read a file of measurements.

        Raises:
            ConfigError: The file cannot be read or is not a file of measurements.
        """

    @abstractmethod
    def tuning(
        self, profile: str, device: str, submit_ns: float, layers: Mapping[str, LayerTimes]
    ) -> Measurements:
        """Return measurements of layers, by `layer_key`."""

    @abstractmethod
    def worth_measuring(self, blocks: Sequence[Tiling]) -> tuple[Tiling, ...]:
        """Return the candidates of a call to measure first, besides the best one by the profile."""

    @abstractmethod
    def neighbors(self, block: Tiling, blocks: Sequence[Tiling]) -> tuple[Tiling, ...]:
        """Return the candidates of a call that differ from `block` in one parameter."""


def accelerator_of(target: Target) -> Accelerator | None:
    """Return the accelerator of a target, or None."""
    if target.device is None:
        return None
    found: list[Accelerator | None] = [declared(n, "ACCELERATOR") for n in target.backends]
    return next(filter(None, found), None)


def accelerator_targets() -> str:
    """Return the `--target` options with an accelerator, joined by "or"."""
    return " or ".join(f"--target {target.name}" for target in available() if target.device)


def accelerator_nouns() -> str:
    """Return the nouns for the accelerators of all targets, such as `GPU or NPU`."""
    nouns = (target.device.noun for target in available() if target.device)
    return " or ".join(dict.fromkeys(nouns))


def load_tuning(path: Path) -> Measurements:
    """Read a file of measurements of any accelerator.

    Raises:
        ConfigError: The file cannot be read or is not a file of measurements.
    """
    return _of_any(lambda accelerator: accelerator.load_tuning(path), f"tuning '{path}'")


def find_profile(name: str) -> DeviceProfile:
    """Return the profile of that name, from any accelerator.

    Raises:
        ConfigError: There is none.
    """
    return _of_any(lambda accelerator: accelerator.profile(name), f"profile '{name}'")


Wanted = TypeVar("Wanted")


def _of_any(find: Callable[[Accelerator], Wanted], what: str) -> Wanted:
    """Return the result of the first accelerator that raises no ConfigError."""
    error: ConfigError | None = None
    for accelerator in filter(None, map(accelerator_of, available())):
        try:
            return find(accelerator)
        except ConfigError as refusal:
            error = error or refusal
    raise error or ConfigError(f"{what}: no target has an accelerator")
