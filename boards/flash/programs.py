"""The programs that flash boards, and what each is told.

Words in braces are filled in: `{image}`, the file of the kind that the program takes; `{address}`,
where its first byte is stored; `{script}`, a file with the lines of `script`; of the board the
chip's name (`{target}`), OpenOCD's files (`{config}`) and the place in flash (`{offset}`);
`{port}` (its name without folders: `{port_name}`) and `{server}`, serial port and GDB server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ImageFormat = Literal["elf", "bin", "hex"]


@dataclass(frozen=True)
class Program:
    """A program that flashes.

    Attributes:
        names: what it may be called; the first that is installed is taken.
        install: how it is installed.
        image: the kind of file that it takes.
        commands: the arguments of each of its runs, one after the other.
        script: lines of the file that it reads commands from.
        refusals: what it says when it failed, though its exit status may be 0.
        hint: what the user may have to do first.
        asks: how the line begins that it writes before it waits for a GDB server.
    """

    names: tuple[str, ...]
    install: str
    image: ImageFormat
    commands: tuple[tuple[str, ...], ...]
    script: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    hint: str = ""
    asks: str = ""

    def asks_for(self, word: str) -> bool:
        """Whether `{word}` is in what it is told."""
        return any(f"{{{word}" in text for text in (*sum(self.commands, ()), *self.script))


_GDB_ARM = ("gdb-multiarch", "arm-none-eabi-gdb")
_GDB_RISCV = ("gdb-multiarch", "riscv64-unknown-elf-gdb")
_GDB_ASKS = "asking the GDB server"
# GDB has patience with a server, because flash may take its time to be erased, and so may a busy
# computer to simulate a board; one that says nothing at all is given up by us (`asks`).
_GDB_START = (
    *("set confirm off", "set pagination off", "set tcp auto-retry off"),
    *("set tcp connect-timeout 5", "set remotetimeout 30"),
    *(f"echo {_GDB_ASKS} at {{server}}\\n", "target extended-remote {server}"),
)
# OpenOCD and pyOCD know the one, QEMU the other. What a server does not know may be an error, which
# ends a script, but not a row of arguments; where nothing resets the chip, firmware's startup does.
_GDB_RESETS = ("monitor reset halt", "monitor system_reset")
_GDB_HINT = "no GDB server listens at {server}, or another program holds it"
_GDB_LOAD = ("load", "compare-sections")
_GDB_COMMAND = ("-nx", "-batch", "-x", "{script}", "{image}")
_GDB_RESET_COMMAND = (
    *("-nx", "-batch"),
    *(word for line in (*_GDB_START, *_GDB_RESETS) for word in ("-ex", line)),
    *("-x", "{script}", "{image}"),
)

PROGRAMS: dict[str, Program] = {
    "openocd": Program(
        ("openocd",),
        "apt-get install openocd",
        "elf",
        # Tcl takes what is in braces as it is.
        (("{config}", "-c", "program {{{image}}} verify reset exit"),),
    ),
    "pyocd": Program(
        ("pyocd",),
        "python -m pip install pyocd",
        "elf",
        (("flash", "--target", "{target}", "{image}"),),
        hint="`pyocd pack install {target}` fetches what it must know of the chip",
    ),
    "probe-rs": Program(
        ("probe-rs",),
        "see https://probe.rs",
        "elf",
        (
            ("download", "--chip", "{target}", "--verify", "{image}"),
            ("reset", "--chip", "{target}"),
        ),
    ),
    "st-flash": Program(
        ("st-flash",),
        "apt-get install stlink-tools",
        "bin",
        (("--reset", "write", "{image}", "{address:#010x}"),),
    ),
    "picotool": Program(
        ("picotool",),
        "see https://github.com/raspberrypi/picotool",
        "elf",
        (("load", "--verify", "--execute", "{image}", "-t", "elf"),),
        hint="connect the board's USB while you hold its button BOOTSEL",
    ),
    "bossac": Program(
        ("bossac",),
        "it comes with Arduino's package for the board, in its folder tools/bossac",
        "bin",
        # As Arduino calls it; it puts the image behind its boot loader, and wants no folder
        # before the port's name.
        (("--port={port_name}", "-U", "-i", "-e", "-w", "{image}", "-R"),),
        hint="press the board's button twice: the boot loader then has its own serial port",
    ),
    "jlink": Program(
        ("JLinkExe", "JLink"),
        "see https://www.segger.com/downloads/jlink",
        "hex",
        (
            (
                *("-NoGui", "1", "-ExitOnError", "1", "-device", "{target}", "-if", "{interface}"),
                *("-jtagconf", "-1,-1", "-speed", "4000", "-autoconnect", "1"),
                *("-CommandFile", "{script}"),
            ),
        ),
        script=("reset", 'loadfile "{image}"', "reset", "go", "exit"),
        refusals=("Cannot connect to", "FAILED: ", "Could not connect", "Failed to open file"),
    ),
    "dfu": Program(
        ("dfu-util",),
        "apt-get install dfu-util",
        "bin",
        (("-a", "0", "-s", "{address:#010x}:leave", "-D", "{image}"),),
        hint="start the chip's own boot loader: hold BOOT0 while you press reset",
    ),
    # The image is made for the chip's boot loader, which has its place in flash.
    "esptool": Program(
        ("esptool", "esptool.py"),
        "python -m pip install esptool",
        "elf",
        (
            ("--chip", "{target}", "elf2image", "-o", "{image}.bin", "{image}"),
            ("--chip", "{target}", "-p", "{port}", "write_flash", "{offset:#x}", "{image}.bin"),
        ),
        hint="hold the board's button BOOT while you press reset",
    ),
    # A probe that has its server inside, the Black Magic Probe, must first be told to look for
    # chips; `kill` resets the chip, which then runs.
    "gdb-probe": Program(
        _GDB_ARM,
        "apt-get install gdb-multiarch",
        "elf",
        (_GDB_COMMAND,),
        script=(*_GDB_START, "monitor swdp_scan", "attach 1", *_GDB_LOAD, "kill"),
        refusals=("MIS-MATCHED",),
        hint=_GDB_HINT,
        asks=_GDB_ASKS,
    ),
    # `load` sets the program counter.
    "gdb-cortexm": Program(
        _GDB_ARM,
        "apt-get install gdb-multiarch",
        "elf",
        (_GDB_RESET_COMMAND,),
        script=(*_GDB_LOAD, "set $sp = &smelt_stack_top", "detach"),
        refusals=("MIS-MATCHED",),
        hint=_GDB_HINT,
        asks=_GDB_ASKS,
    ),
    "gdb-riscv": Program(
        _GDB_RISCV,
        "apt-get install gdb-multiarch",
        "elf",
        (_GDB_RESET_COMMAND,),
        script=(*_GDB_LOAD, "detach"),
        refusals=("MIS-MATCHED",),
        hint=_GDB_HINT,
        asks=_GDB_ASKS,
    ),
}
"""By runner; `gdb` is one of three."""
