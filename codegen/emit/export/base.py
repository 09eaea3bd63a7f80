"""What an exported library is made from, and what a format says of itself."""

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
    """Who says to have made the library, and the version of it that package managers compare.

    Raises:
        ConfigError: the version is not three numbers, or the vendor not one word.
    """

    version: str = "1.0.0"
    vendor: str = "Smelt"

    def __post_init__(self) -> None:
        if not _VERSION.fullmatch(self.version):
            raise ConfigError(f"--version {self.version}: give three numbers, as 1.2.0")
        if not _VENDOR.fullmatch(self.vendor):
            raise ConfigError(
                f"--vendor {self.vendor}: give one word of letters, digits, underscores and hyphens"
            )


@dataclass(frozen=True)
class Library:
    """The network of a project by itself, for a user's own build.

    Attributes:
        project: what the pipeline wrote; only the files of its network are taken.
        platform: where it will run.
        package: what it is called by package managers beside its name.
    """

    project: Project
    platform: Platform
    package: Package

    @property
    def net(self) -> EmittedNetwork:
        """The network as templates see it."""
        return self.project.network

    @cached_property
    def headers(self) -> tuple[str, str]:
        """Names of its header and of its internal one."""
        return (f"{self.net.name}.h", f"{self.net.name}_kernels.h")

    @cached_property
    def texts(self) -> dict[str, str]:
        """The network's text files: name to contents."""
        device = self.net.device
        internal = () if device is None else device.internal(self.net.name)
        names = (*self.headers, *self.net.device_headers, *internal, *self.net.sources)
        return {name: self.project.files[name] for name in names}

    @property
    def kernels(self) -> str:
        """Name of the file with its arithmetic."""
        return f"{self.net.name}_kernels.c"

    @property
    def computes_floats(self) -> bool:
        """Whether anything is computed in floating point."""
        return self.net.preamble.floats

    @property
    def calls_libm(self) -> bool:
        """Whether functions of the C library's mathematics are called."""
        return "math.h" in self.net.preamble.headers or self.net.infinite_weights

    @property
    def machine_flags(self) -> tuple[str, ...]:
        """Flags of the compiler that name the machine, in Smelt's own builds."""
        return tuple(f for f in self.platform.target.arch_flags if not f.startswith("-f"))

    @property
    def optimizer_flags(self) -> tuple[str, ...]:
        """Flags of the compiler that its results depend on, beside those that name the machine."""
        of_target = (flag for flag in self.platform.target.arch_flags if flag.startswith("-f"))
        return ("-ffp-contract=off", *of_target)


@dataclass(frozen=True)
class ExportParameters(Parameters):
    """Variables of the templates of all formats.

    Attributes:
        net: the network.
        target: that it was generated for.
        package: vendor and version.
        flags: of the compiler: how far it optimizes, then what results depend on.
        machine_flags: those that name the machine.
        computes_floats: whether anything is computed in floating point.
        calls_libm: whether functions of the C library's mathematics are called.
    """

    net: EmittedNetwork
    target: Target
    package: Package
    flags: tuple[str, ...]
    machine_flags: tuple[str, ...]
    computes_floats: bool
    calls_libm: bool


class Format:
    """One way to export a library: the templates in `templates/emit/export/NAME`, and this.

    In the paths of the templates `NAME` stands for the network's name in C, `TITLE` for what people
    call it, `VENDOR` for the vendor's name.

    Attributes:
        name: as in `--format`.
        summary: one line for the table of formats.
        folder: of the network's own files.
        sets_flags: whether the build gets `Library.optimizer_flags`; where it does not, pragmas do.
        links_external: whether it can say that a library of the user's is to be linked.
        links_system: whether it can say that libraries of the system are to be linked.
        takes_binary: whether weights in a binary file, included by an assembler file, are found.
    """

    name: str
    summary: str
    folder: str = ""
    sets_flags: bool = True
    links_external: bool = False
    links_system: bool = False
    takes_binary: bool = True

    def refuses(self, library: Library) -> str | None:
        """Why the library cannot be exported so, one clause; None if it can."""
        if library.net.external and not self.links_external:
            titles = " and ".join(external.title for external in library.net.external)
            return f"it calls {titles}, which users of this format could not link"
        if library.net.device is not None and not self.links_system:
            return library.net.device.refusal
        if library.net.weights_binary and not self.takes_binary:
            return f"its weights are so large that they are a file of their own, {_BINARY}"
        return None

    def parameters(self, library: Library) -> Parameters:
        """Variables of its templates beside `ExportParameters`: none."""
        return Parameters()

    def arrange(self, library: Library) -> dict[str, str]:
        """The network's own text files: path in the export to contents."""
        texts = dict(library.texts)
        if not self.sets_flags:
            with_pragmas = NetworkParameters(library.net, pragmas=pragmas(library))
            texts[library.kernels] = render_kernels(with_pragmas)
        return {self.folder + name: text for name, text in texts.items()}

    def binaries(self, library: Library, texts: Mapping[str, str]) -> dict[str, Sequence[Array]]:
        """Files that are not text: path to contents; `texts` are all those that are."""
        return {self.folder + name: parts for name, parts in library.project.binaries.items()}


_BINARY = "which an assembler file includes"


@dataclass(frozen=True)
class PragmaParameters(Parameters):
    """Variables of `emit/export/pragmas.j2`.

    Attributes:
        floats: whether anything is computed in floating point.
        repairs: whether gcc is kept from what goes wrong.
        options: what gcc is told, each as a string of C.
    """

    floats: bool
    repairs: bool
    options: tuple[str, ...]


def pragmas(library: Library) -> str:
    """Lines of C that stand for `Library.optimizer_flags`; none where nothing depends on them."""
    exact, *repairs = library.optimizer_flags
    flags = [exact, *repairs] if library.computes_floats else repairs
    if not flags:
        return ""
    options = tuple(f'"{flag.removeprefix("-f")}"' for flag in flags)
    parameters = PragmaParameters(library.computes_floats, bool(repairs), options)
    return render("emit/export/pragmas.j2", parameters)
