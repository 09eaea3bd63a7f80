"""A single header; its second half is compiled in one file of the user's choice."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from smelt.codegen.emit.export.base import Format, Library, pragmas
from smelt.codegen.emit.network import NetworkParameters, render_files
from smelt.codegen.text.parameters import Parameters


@dataclass(frozen=True)
class SingleFileParameters(Parameters):
    """The header's two halves, and pragmas before the second one.

    Attributes:
        interface: The network's header.
        implementation: All other code of the network.
        pragmas: Pragmas for `Library.optimizer_flags`, or empty.
    """

    interface: str
    implementation: str
    pragmas: str


class SingleFile(Format):
    """`NAME_net.h`, whose implementation is compiled if `NAME_NET_IMPLEMENTATION` is defined."""

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
        """Return no files: the template contains everything."""
        return {}


FORMAT = SingleFile()
