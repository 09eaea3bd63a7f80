"""The options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Optimize(StrEnum):
    """What kernels and compiler flags favour."""

    speed = "speed"
    size = "size"
    ram = "ram"


Model = Annotated[Path, typer.Argument(help="A .tflite or .smelt file.", show_default=False)]
BoardOption = Annotated[
    str | None,
    typer.Option("--board", help="Board to build for (`smelt boards`), or a .toml file."),
]
TargetOption = Annotated[
    str | None,
    typer.Option("--target", help="Target to generate code for (`smelt targets`)."),
]
OptimizeOption = Annotated[Optimize, typer.Option("--optimize", help="What to favour.")]
NameOption = Annotated[
    str | None, typer.Option("--name", help="C identifier of the network [default: file's stem].")
]
KeepInputsOption = Annotated[
    bool, typer.Option("--keep-inputs", help="An inference leaves its inputs unchanged.")
]
PluginOption = Annotated[
    list[Path] | None,
    typer.Option("--plugin", help="Python file with operators of your own; may be repeated."),
]
OnOption = Annotated[
    str | None,
    typer.Option("--on", help="host, qemu or a serial port [default: qemu with --board]."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
JsonFileOption = Annotated[
    Path | None, typer.Option("--json", help="Write the completed report here.")
]
MaxArena = Annotated[
    int | None, typer.Option("--max-arena", help="Fail if the arena takes more bytes.")
]
MaxFlash = Annotated[
    int | None, typer.Option("--max-flash", help="Fail if the network takes more flash.")
]
MaxStack = Annotated[
    int | None, typer.Option("--max-stack", help="Fail if an inference takes more stack.")
]
MaxInstructions = Annotated[
    int | None, typer.Option("--max-instructions", help="Fail if an inference takes more.")
]
DumpAfter = Annotated[
    str | None, typer.Option("--dump-after", help="Print the graph after this pass.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Say only what is asked for.")]
