"""The input of an export, and the base class of formats."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from smelt.codegen.emit.network import EmittedNetwork, NetworkParameters, render_kernels
from smelt.codegen.emit.project import Project
from smelt.codegen.text.parameters import Parameters
from smelt.codegen.text.render import render
from smelt.errors import ConfigError
from smelt.ir import Array
from smelt.targets import Platform, Target

_VERSION = re.compile(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}")
_VENDOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Package:
    """The vendor and version of a library, for package managers.

    Raises:
        ConfigError: The version is not three numbers, or the vendor is not one word.
    """

    version: str = "1.0.0"
    vendor: str = "Smelt"

    def __post_init__(self) -> None:
        if not _VERSION.fullmatch(self.version):
            raise ConfigError(f"--version {self.version}: give three numbers, for example 1.2.0")
        if not _VENDOR.fullmatch(self.vendor):
            raise ConfigError(
                f"--vendor {self.vendor}: give one word of letters, digits, underscores and hyphens"
            )


@dataclass(frozen=True)
class Library:
    """A network and its project without firmware, for a user's own build.

    Attributes:
        project: The compiled project; only its network's files are used.
        platform: The platform that it will run on.
        package: Vendor and version.
    """

    project: Project
    platform: Platform
    package: Package

    @property
    def net(self) -> EmittedNetwork:
        """The network, as templates print it."""
        (network,) = self.project.group.members
        return network

    @property
    def headers(self) -> tuple[str, str]:
        """The names of its public and its internal header."""
        return self.net.headers

    @cached_property
    def texts(self) -> dict[str, str]:
        """The network's text files: contents by name."""
        device = self.net.device
        internal = () if device is None else device.internal(self.net.name)
        names = (*self.headers, *self.net.device_headers, *internal, *self.net.sources)
        return {name: self.project.files[name] for name in names}

    @property
    def kernels(self) -> str:
        """The name of the C file with the kernels."""
        return f"{self.net.name}_kernels.c"

    @property
    def computes_floats(self) -> bool:
        """Whether anything is computed in floating point."""
        return self.net.preamble.floats

    @property
    def calls_libm(self) -> bool:
        """Whether the code uses functions or macros of math.h."""
        return "math.h" in self.net.preamble.headers or self.net.infinite_weights

    @property
    def processor_flags(self) -> tuple[str, ...]:
        """The compiler flags that select the processor, as in Smelt's own builds."""
        return tuple(f for f in self.platform.target.arch_flags if not f.startswith("-f"))

    @property
    def optimizer_flags(self) -> tuple[str, ...]:
        """The compiler flags that results depend on, except those that select the processor."""
        return ("-ffp-contract=off", "-fno-strict-aliasing", *self.bug_flags)

    @property
    def bug_flags(self) -> tuple[str, ...]:
        """The compiler flags that avoid bugs of gcc for the processor."""
        return tuple(f for f in self.platform.target.arch_flags if f.startswith("-f"))


@dataclass(frozen=True)
class ExportParameters(Parameters):
    """Variables of the templates of all formats.

    Attributes:
        net: The network.
        target: The target that it was generated for.
        package: Vendor and version.
        flags: Compiler flags: the optimization level, then flags that results depend on.
        processor_flags: Compiler flags that select the processor.
        computes_floats: Whether anything is computed in floating point.
        calls_libm: Whether the code uses functions or macros of math.h.
    """

    net: EmittedNetwork
    target: Target
    package: Package
    flags: tuple[str, ...]
    processor_flags: tuple[str, ...]
    computes_floats: bool
    calls_libm: bool


class Format:
    """An export format: this class and the templates in `templates/emit/export/NAME`.

    In template paths, `NAME` is replaced by the network's C name, `TITLE` by its title and `VENDOR`
    by the vendor.

    Attributes:
        name: The name for `--format`.
        summary: One line for the table of formats.
        folder: The folder of the network's own files.
        sets_flags: Whether the build sets `Library.optimizer_flags`; if not, pragmas set most.
        links_external: Whether the format can declare libraries that the user provides.
        links_system: Whether the format can declare system libraries.
        takes_binary: Whether the format supports weights in a binary file, which an assembler file
            includes.
    """

    name: str
    summary: str
    folder: str = ""
    sets_flags: bool = True
    links_external: bool = False
    links_system: bool = False
    takes_binary: bool = True

    def refuses(self, library: Library) -> str | None:
        """Return a clause that says why the library cannot be exported, or None."""
        if library.net.external and not self.links_external:
            titles = " and ".join(external.title for external in library.net.external)
            return f"it calls {titles}, which users of this format could not link"
        if library.net.device is not None and not self.links_system:
            return library.net.device.refusal
        if library.net.weights_binary and not self.takes_binary:
            return (
                "its weights are so large that they are in a binary file, which an assembler file "
                "includes"
            )
        return None

    def parameters(self, library: Library) -> Parameters:
        """Return the variables of its templates besides `ExportParameters`; by default none."""
        return Parameters()

    def arrange(self, library: Library) -> dict[str, str]:
        """Return the network's own text files: contents by path in the export."""
        texts = dict(library.texts)
        if not self.sets_flags:
            with_pragmas = NetworkParameters(library.net, pragmas=pragmas(library))
            texts[library.kernels] = render_kernels(with_pragmas)
        return {self.folder + name: text for name, text in texts.items()}

    def binaries(self, library: Library, texts: Mapping[str, str]) -> dict[str, Sequence[Array]]:
        """Return the binary files: contents by path; `texts` has all text files."""
        return {self.folder + name: parts for name, parts in library.project.binaries.items()}


@dataclass(frozen=True)
class PragmaParameters(Parameters):
    """Variables of `emit/export/pragmas.j2`.

    Attributes:
        floats: Whether anything is computed in floating point.
        avoids_bugs: Whether some options disable optimizations in which gcc has bugs.
        options: The options for gcc, each as a C string.
    """

    floats: bool
    avoids_bugs: bool
    options: tuple[str, ...]


def pragmas(library: Library) -> str:
    """Return C pragmas that replace most of `Library.optimizer_flags`; empty if none are needed.

    There is none for `-fno-strict-aliasing`: `docs/generated-code.md` says what this means.
    """
    bug_flags = library.bug_flags
    exact = ("-ffp-contract=off",) if library.computes_floats else ()
    if not (exact or bug_flags):
        return ""
    options = tuple(f'"{flag.removeprefix("-f")}"' for flag in (*exact, *bug_flags))
    parameters = PragmaParameters(library.computes_floats, bool(bug_flags), options)
    return render("emit/export/pragmas.j2", parameters)
