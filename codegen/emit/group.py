"""The networks of a project: one, or several that share an arena."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from smelt.codegen.emit.names import c_name
from smelt.codegen.emit.network import EmittedNetwork
from smelt.errors import ConfigError
from smelt.targets import ExternalLibrary

T = TypeVar("T")


@dataclass(frozen=True)
class NetworkGroup:
    """The networks of a project: one, or several that run one after the other in one arena.

    Attributes:
        members: The networks, in the user's order.

    Raises:
        ConfigError: Two networks would have the same names in C.
    """

    members: tuple[EmittedNetwork, ...]

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for net in self.members:
            if net.macro in seen:
                raise ConfigError(
                    f"two networks, '{seen[net.macro]}' and '{net.title}', would have the prefix "
                    f"{net.macro} in C: give each its own name with --name A,B (in Python name=)"
                )
            seen[net.macro] = net.title

    @property
    def shares_arena(self) -> bool:
        """Whether there are several networks."""
        return len(self.members) > 1

    @property
    def title(self) -> str:
        """The name of the firmware: the network's title, or all titles."""
        return "_".join(net.title for net in self.members)

    @property
    def name(self) -> str:
        """The name of the library: the network's name in C, or a name made of all titles."""
        return c_name(self.title)

    @property
    def arena_bytes(self) -> int:
        """The size of the arena: the largest that a network needs."""
        return max(net.arena_bytes for net in self.members)

    @property
    def alignment(self) -> int:
        """The alignment of the arena, in bytes."""
        return max(net.alignment for net in self.members)

    @property
    def state_bytes(self) -> int:
        """The size of all networks' states, which they do not share."""
        return sum(net.state_bytes for net in self.members)

    @property
    def weights_bytes(self) -> int:
        """The size of all networks' constants."""
        return sum(net.weights_bytes for net in self.members)

    @property
    def sources(self) -> tuple[str, ...]:
        """The C files of all networks."""
        return tuple(source for net in self.members for source in net.sources)

    @property
    def binary_sources(self) -> tuple[tuple[str, str], ...]:
        """Assembler files of binary weights, each with the binary file that it includes."""
        return tuple((n.sources[-1], n.weights_binary) for n in self.members if n.weights_binary)

    @property
    def has_text_weights(self) -> bool:
        """Whether the weights of some network are a C file."""
        return any(not net.weights_binary for net in self.members)

    @property
    def arena_homes(self) -> tuple[str, ...]:
        """The memories of the board with tensors or states, besides that of the arena."""
        return _distinct(home for net in self.members for home in net.arena_homes)

    @property
    def weights_homes(self) -> tuple[str, ...]:
        """The memories of the board with constants, besides the main one."""
        return _distinct(home for net in self.members for home in net.weights_homes)

    @property
    def weights_regions(self) -> tuple[tuple[int, str], ...]:
        """These memories, each with its number in `regions.c`, which has three other regions."""
        return tuple(enumerate(self.weights_homes, 3))

    @property
    def libraries(self) -> tuple[str, ...]:
        """The system libraries to link."""
        return _distinct(name for net in self.members for name in net.libraries)

    @property
    def external(self) -> tuple[ExternalLibrary, ...]:
        """The libraries that the user provides."""
        return _distinct(library for net in self.members for library in net.external)


def _distinct(items: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))
