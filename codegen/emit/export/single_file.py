"""A single header, whose second half is compiled in one file that asks for it."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from smelt.codegen.emit.export.base import Format, Library, pragmas
from smelt.codegen.emit.network import NetworkParameters, render_files
from smelt.codegen.text.parameters import Parameters


@dataclass(frozen=True)
class SingleFileParameters(Parameters):
    """The header's two halves, and what stands before the second.

    Attributes:
        interface: the network's header.
        implementation: everything else of it.
        pragmas: for compilers that take `Library.optimizer_flags` from nowhere else; or empty.
    """

    interface: str
    implementation: str
    pragmas: str


class SingleFile(Format):
    """`NAME_net.h`, with the implementation behind `NAME_NET_IMPLEMENTATION`."""

    name = "single-file"
    summary = "one header, implemented where NAME_NET_IMPLEMENTATION is defined"
    sets_flags = False
    links_external = True
    takes_binary = False

    @override
    def parameters(self, library: Library) -> SingleFileParameters:
        header, internal = library.headers
        network, kernels, weights = library.net.sources
        parts = render_files(NetworkParameters(library.net, standalone=False))
        return SingleFileParameters(
            interface=parts[header],
            implementation="\n".join(parts[x] for x in (internal, weights, kernels, network)),
            pragmas=pragmas(library),
        )

    def arrange(self, library: Library) -> dict[str, str]:
        """Nothing: the template holds all."""
        return {}


FORMAT = SingleFile()
