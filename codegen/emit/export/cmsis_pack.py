"""CMSIS-Pack: a description, the files, and an archive of both for pack installers."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.emit.export.base import Format, Library
from smelt.codegen.text.parameters import Parameters
from smelt.ir import Array
from smelt.targets import available

_LONGEST = 32
"""Largest number of characters that the schema allows in the name of a component."""


@dataclass(frozen=True)
class PackParameters(Parameters):
    """The cores that run the code."""

    cores: tuple[str, ...]


class CmsisPack(Format):
    """A folder with `VENDOR.TITLE.pdsc` and `VENDOR.TITLE.VERSION.pack`."""

    name = "cmsis-pack"
    summary = "a CMSIS-Pack for pack installers, and the files it is made of"
    folder = "src/"
    sets_flags = False  # A component cannot add flags to its project's.
    links_external = True
    takes_binary = False

    def refuses(self, library: Library) -> str | None:
        """Also refuse targets that are not Arm's, and long names."""
        if library.platform.target.is_riscv:
            return f"packs support only Arm's processors, and the target is {_target(library)}"
        if len(library.net.title) > _LONGEST:
            return f"its name has more than {_LONGEST} characters (choose another with --name)"
        return super().refuses(library)

    @override
    def parameters(self, library: Library) -> PackParameters:
        runs = (t for t in available() if t.runs(library.platform.target))
        return PackParameters(tuple(core for target in runs for core in target.cmsis_cores))

    def arrange(self, library: Library) -> dict[str, str]:
        """Put the public header into its own folder, the only one on the user's include path."""
        header, _ = library.headers
        texts = super().arrange(library)
        texts[f"include/{header}"] = texts.pop(f"src/{header}")
        return texts

    def binaries(self, library: Library, texts: Mapping[str, str]) -> dict[str, Sequence[Array]]:
        """Return the archive, which is reproducible: it has no times and is not compressed."""
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", zipfile.ZIP_STORED) as archive:
            for name, text in sorted(texts.items()):
                entry = zipfile.ZipInfo(name)
                entry.create_system = 3  # Unix, whose permissions follow.
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, text)
        package = library.package
        name = f"{package.vendor}.{library.net.title}.{package.version}.pack"
        return {name: (np.frombuffer(data.getvalue(), np.uint8),)}


def _target(library: Library) -> str:
    return library.platform.target.name


FORMAT = CmsisPack()
