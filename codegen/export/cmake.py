"""CMake: a target for `add_subdirectory`, `FetchContent` and, once installed, `find_package`."""

from __future__ import annotations

from smelt.codegen.export.base import Format, Library

_RESERVED = frozenset(
    {"all", "clean", "depend", "edit_cache", "help", "install", "package", "package_source"}
    | {"rebuild_cache", "test"}
)
"""Names that CMake keeps for targets of its own (policy CMP0037)."""


class CMake(Format):
    """A folder with a `CMakeLists.txt`."""

    name = "cmake"
    summary = "a CMake target, installable"
    links_cmsis_nn = True
    links_vulkan = True

    def refuses(self, library: Library) -> str | None:
        """A name that CMake reserves, besides the common reasons."""
        if library.net.name.lower() in _RESERVED:
            return "CMake keeps that name for itself (choose another with --name)"
        return super().refuses(library)


FORMAT = CMake()
