"""CMake: a target for `add_subdirectory`, `FetchContent` and, once installed, `find_package`."""

from __future__ import annotations

from smelt.codegen.emit.export.base import Format


class CMake(Format):
    """A folder with a `CMakeLists.txt`."""

    name = "cmake"
    summary = "a CMake target, installable"
    links_external = True
    links_system = True


FORMAT = CMake()
