"""Make: a file to include, with the rules and variables of a static library."""

from __future__ import annotations

from smelt.codegen.emit.export.base import Format


class Make(Format):
    """A folder with `NAME_net.mk`, and a Makefile that includes it."""

    name = "make"
    summary = "a file for Makefiles to include"
    links_external = True
    links_system = True


FORMAT = Make()
