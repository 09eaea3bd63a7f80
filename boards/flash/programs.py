"""Programs that flash boards, and their command lines.

Placeholders in braces are replaced:

- `{image}`: the file in the format that the program takes; `{address}`: address of its first byte;
- `{script}`: a file with the lines of `script`;
- `{target}`, `{config}`, `{offset}`: the chip's name, OpenOCD's configuration files, and the
  image's offset in flash, from the board file;
- `{port}` and `{port_name}`: the serial port with and without its folder;
- `{server}`: the GDB server; `{resets}`: GDB's arguments that reset its chip.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ImageFormat = Literal["elf", "bin", "hex"]


@dataclass(frozen=True)
class Program:
    """A program that flashes.

    Attributes:
        names: possible names of the executable; the first installed one is used.
        install: how to install it.
        image: file format that it takes.
        commands: arguments of each invocation, in order.
        script: lines of the command file that it reads.
        failure_texts: texts in its output that mean failure, even if its exit status is 0.
        hint: what the user may have to do first.
        waiting_line: start of the line that it writes before it waits for a GDB server.
    """

    names: tuple[str, ...]
    install: str
    image: ImageFormat
    commands: tuple[tuple[str, ...], ...]
    script: tuple[str, ...] = ()
    failure_texts: tuple[str, ...] = ()
    hint: str = ""
    waiting_line: str = ""

    def has_placeholder(self, word: str) -> bool:
        """Return whether `{word}` is in its arguments or script."""
        return any(f"{{{word}" in text for text in (*sum(self.commands, ()), *self.script))


_GDB_ARM = ("gdb-multiarch", "arm-none-eabi-gdb")
_GDB_RISCV = ("gdb-multiarch", "riscv64-unknown-elf-gdb")
_GDB_WAITS = "asking the GDB server"
# GDB's own timeout is long, because erasing flash or simulating on a busy computer takes time. We
# stop much earlier if the server does not respond at all (`waiting_line`).
_GDB_START = (
    *("set confirm off", "set pagination off", "set tcp auto-retry off"),
    *("set tcp connect-timeout 5", "set remotetimeout 30"),
    *(f"echo {_GDB_WAITS} at {{server}}\\n", "target extended-remote {server}"),
)
QEMU_RESET = "monitor system_reset"
GDB_RESETS = ("monitor reset halt", QEMU_RESET)
"""Commands that reset the chip of an unknown GDB server: OpenOCD and pyOCD understand the first.

An unknown monitor command ends a script but not a sequence of -ex arguments. If neither resets the
chip, the firmware's startup code does.
"""
_GDB_HINT = "no GDB server listens at {server}, or another program is connected to it"
_GDB_LOAD = ("load", "compare-sections")
_GDB_COMMAND = ("-nx", "-batch", "-x", "{script}", "{image}")
_GDB_RESET_COMMAND = (
    *("-nx", "-batch"),
    *(word for line in _GDB_START for word in ("-ex", line)),
    *("{resets}", "-x", "{script}", "{image}"),
)

PROGRAMS: dict[str, Program] = {
    "openocd": Program(
        ("openocd",),
        "apt-get install openocd",
        "elf",
        # Tcl does not interpret text in braces.
        (("{config}", "-c", "program {{{image}}} verify reset exit"),),
    ),
    "pyocd": Program(
        ("pyocd",),
        "python -m pip install pyocd",
        "elf",
        (("flash", "--target", "{target}", "{image}"),),
        hint="run `pyocd pack install {target}` to install support for the chip",
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
        "it is part of Arduino's package for the board, in folder tools/bossac",
        "bin",
        # The same arguments as Arduino uses. bossac writes the image after its boot loader, and
        # takes the port's name without a folder.
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
        failure_texts=("Cannot connect to", "FAILED: ", "Could not connect", "Failed to open file"),
    ),
    "dfu": Program(
        ("dfu-util",),
        "apt-get install dfu-util",
        "bin",
        (("-a", "0", "-s", "{address:#010x}:leave", "-D", "{image}"),),
        hint="start the chip's own boot loader: hold BOOT0 while you press reset",
    ),
    # elf2image converts the ELF to the format of the chip's boot loader.
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
    # A probe with a built-in GDB server (Black Magic Probe) must scan for chips first. `kill`
    # resets the chip, which then runs the firmware.
    "gdb-probe": Program(
        _GDB_ARM,
        "apt-get install gdb-multiarch",
        "elf",
        (_GDB_COMMAND,),
        script=(*_GDB_START, "monitor swdp_scan", "attach 1", *_GDB_LOAD, "kill"),
        failure_texts=("MIS-MATCHED",),
        hint=_GDB_HINT,
        waiting_line=_GDB_WAITS,
    ),
    # `load` also sets the program counter, so the script sets only the stack pointer.
    "gdb-cortexm": Program(
        _GDB_ARM,
        "apt-get install gdb-multiarch",
        "elf",
        (_GDB_RESET_COMMAND,),
        script=(*_GDB_LOAD, "set $sp = &smelt_stack_top", "detach"),
        failure_texts=("MIS-MATCHED",),
        hint=_GDB_HINT,
        waiting_line=_GDB_WAITS,
    ),
    "gdb-riscv": Program(
        _GDB_RISCV,
        "apt-get install gdb-multiarch",
        "elf",
        (_GDB_RESET_COMMAND,),
        script=(*_GDB_LOAD, "detach"),
        failure_texts=("MIS-MATCHED",),
        hint=_GDB_HINT,
        waiting_line=_GDB_WAITS,
    ),
}
"""Programs by runner. Runner `gdb` selects `gdb-probe`, `gdb-cortexm` or `gdb-riscv`."""
