"""Zephyr: a module, switched on by Kconfig, and a sample application."""

from __future__ import annotations

from smelt.codegen.emit.export.base import Format


class Zephyr(Format):
    """A folder for `EXTRA_ZEPHYR_MODULES`, or for a west manifest."""

    name = "zephyr"
    summary = "a Zephyr module with a sample application"
    folder = "src/"


FORMAT = Zephyr()
