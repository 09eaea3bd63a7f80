"""The generated files of a GPU program: GLSL, SPIR-V as C arrays, tables, and the runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from smelt.codegen.backends.vulkan.shaders import Module
from smelt.codegen.backends.vulkan.spirv import begin, compile_all, compiler
from smelt.codegen.text.literals import c_lines
from smelt.codegen.text.parameters import Parameters
from smelt.codegen.text.render import render_c, text_of
from smelt.ir import Array

HOST_SOURCES = ("smelt_vulkan.c", "smelt_vulkan_device.c")
"""The C runtime that calls the driver; it is the same for all networks."""

HOST_HEADER = "smelt_vulkan.h"
HOST_INTERNAL = "smelt_vulkan_device.h"


@dataclass(frozen=True)
class ShaderArray:
    """SPIR-V of a module or variant as a C array.

    Attributes:
        name: Name of the module or variant.
        count: Number of 32-bit words.
        lines: Lines of the initializer.
    """

    name: str
    count: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class ShaderParameters(Parameters):
    """Template variables: compiled shaders, and the version of the compiler."""

    shaders: tuple[ShaderArray, ...]
    compiler: str


def sources_of(modules: tuple[Module, ...]) -> Mapping[str, str]:
    """Return the GLSL of all modules and their variants, by name."""
    return {
        f"{module.name}_{variant}" if variant else module.name: text
        for module in modules
        for variant, text in module.sources.items()
    }


def arrays_of(modules: tuple[Module, ...], name: str) -> Mapping[str, Array]:
    """Return the SPIR-V of a network's modules, by the names of their C arrays."""
    compiled = compile_all(sources_of(modules))
    return {f"{name}_spirv_{module}": words for module, words in compiled.items()}


def render_program(
    name: str, modules: tuple[Module, ...], own: Parameters
) -> Callable[[], dict[str, str]]:
    """Start to compile the modules; return a function that waits and returns all files' texts.

    Args:
        name: Name of the network.
        modules: Its shader modules.
        own: Other variables of the templates.
    """
    sources = sources_of(modules)
    compiled = begin(sources)

    def finish() -> dict[str, str]:
        shaders = tuple(
            ShaderArray(
                shader, words.size, tuple(c_lines(f"0x{word:08x}" for word in words.tolist()))
            )
            for shader, words in compiled().items()
        )
        made = ShaderParameters(shaders, compiler().version)
        return {
            f"{name}_gpu.h": render_c("backends/vulkan/gpu.h.j2", own, made),
            f"{name}_gpu.c": render_c("backends/vulkan/gpu.c.j2", own, made),
            f"{name}_shaders.h": render_c("backends/vulkan/shaders.h.j2", own, made),
            f"{name}_shaders.c": render_c("backends/vulkan/shaders.c.j2", own, made),
            **{
                file: text_of(f"backends/vulkan/{file}")
                for file in (HOST_HEADER, HOST_INTERNAL, *HOST_SOURCES)
            },
            **{f"shaders/{shader}.comp": text for shader, text in sources.items()},
        }

    return finish
