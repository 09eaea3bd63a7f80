"""Export of a network as a library for the user's build: one module per format.

May import `codegen.emit`, `codegen.text`, `targets` and `ir`; `cli` may import it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.resources import files
from importlib.resources.abc import Traversable
from pkgutil import iter_modules

from smelt.codegen.emit.export.base import ExportParameters, Format, Library, Package
from smelt.codegen.emit.project import Project
from smelt.codegen.text.render import render_file
from smelt.errors import ConfigError
from smelt.targets import Optimize, Platform

__all__ = ["Format", "Package", "export_project", "find_format", "formats"]


@cache
def formats() -> dict[str, Format]:
    """Return every format, by name."""
    modules = (import_module(f"{__name__}.{info.name}") for info in iter_modules(__path__))
    found: list[Format] = [module.FORMAT for module in modules if hasattr(module, "FORMAT")]
    return {format_.name: format_ for format_ in sorted(found, key=lambda f: f.name)}


def find_format(name: str) -> Format:
    """Return the format of that name.

    Raises:
        ConfigError: There is no such format; the message lists all.
    """
    known = formats()
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else "."
        raise ConfigError(f"unknown format '{name}'{hint} Known formats: {', '.join(known)}")
    return known[name]


def export_project(
    project: Project, platform: Platform, optimize: Optimize, format_: Format, package: Package
) -> Project:
    """Convert a project to a library in one format.

    Args:
        project: The compiled project; its firmware is left out.
        platform: The platform that it was compiled for.
        optimize: What compiler flags favor.
        format_: See `find_format`.
        package: Vendor and version.

    Raises:
        ConfigError: The format does not support this network or its name.
    """
    library = Library(project, platform, package)
    why = format_.refuses(library)
    if why is not None:
        others = [f.name for f in formats().values() if f.refuses(library) is None]
        remedy = f"; --format {', '.join(others)} supports it" if others else ""
        raise ConfigError(
            f"'{library.net.title}' cannot be exported as {format_.name}: {why}{remedy}"
        )
    common = ExportParameters(
        net=library.net,
        target=platform.target,
        package=package,
        flags=(_level(platform, optimize), *library.optimizer_flags),
        processor_flags=library.processor_flags,
        computes_floats=library.computes_floats,
        calls_libm=library.calls_libm,
    )
    own = format_.parameters(library)
    texts = format_.arrange(library)
    for template, path in _templates(format_, library):
        texts[path] = render_file(template, path, common, own)
    binaries = format_.binaries(library, texts)
    report = {**project.report, "export": {"format": format_.name, **vars(package)}}
    return Project(project.group, texts, report, binaries)


def _level(platform: Platform, optimize: Optimize) -> str:
    """Return the compiler's optimization flag."""
    flags = platform.target.compile_flags(optimize)
    return next(flag for flag in flags if flag.startswith("-O"))


def _templates(format_: Format, library: Library) -> Iterator[tuple[str, str]]:
    """Yield `(template, path in the export)` of every file that a format adds."""
    net = library.net
    names = {"VENDOR": library.package.vendor, "NAME": net.name, "TITLE": net.title}
    root = files("smelt.templates").joinpath("emit", "export", format_.name)
    for path in sorted(_below(root)):
        filled = re.sub("|".join(names), lambda match: names[match[0]], path)
        yield f"emit/export/{format_.name}/{path}", filled.removesuffix(".j2")


def _below(folder: Traversable, prefix: str = "") -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _below(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name
