"""Board files: their contents, and the `Platform` that they describe.

A board file is TOML. Each memory lists the parts of the firmware that it holds. Exactly one memory
must hold code, data, and stack each. Several may hold weights and arena: Smelt then decides which
one stores each array. Sizes are numbers of bytes, or text such as "256K" or "4M".
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast, get_args

from pydantic import Field, ValidationError, field_validator, model_validator

from smelt.boards.addresses import check_apart, check_interrupts, registers
from smelt.boards.schema import (
    BoardTable,
    Comment,
    FlashTable,
    Hertz,
    Identifier,
    MemoryTable,
    QemuTable,
    RiscvTable,
    SetupTable,
    Size,
    Stm32Table,
    TimerTable,
    UartTable,
    UsbId,
)
from smelt.errors import ConfigError
from smelt.targets import (
    FirmwarePlacement,
    Part,
    Platform,
    PlatformMemory,
    RiscvCore,
    Target,
    Timer,
    Uart,
    get,
)

_PARTS: tuple[Part, ...] = get_args(Part)
_SPREAD: tuple[Part, ...] = ("weights", "arena")
"""Parts that several memories may hold."""

LEAST_CODE, LEAST_DATA = 6144, 128
"""Bytes of code and variables that every firmware exceeds (`tests/devices/test_boards.py`)."""
_SYSTEM_VECTORS = 16


class Board(BoardTable):
    """Contents of a board file.

    Attributes:
        target: name of the target of the board's core.
        startup: kind of core.
        boot: block that the chip's boot ROM needs in flash beside the program, or None.
        verified: `hardware` or `simulation`, where the project's tests ran; `never` otherwise.
        setup: register actions that run before anything else: clocks, power, pins.
        flash: programs that can flash the board; empty if it is only simulated so far.
        usb: USB vendor and product ids of its serial port, in hexadecimal.
        qemu: how to simulate the board in QEMU, or None.
    """

    name: Identifier
    description: Comment
    target: str
    clock_hz: Hertz
    stack_bytes: Annotated[Size, Field(ge=256, multiple_of=8)]
    verified: Literal["hardware", "simulation", "never"] = "never"
    startup: Literal["cortexm", "riscv"] = "cortexm"
    boot: Literal["rp2040", "rp2350"] | None = None
    usb: list[UsbId] = Field(default_factory=list[UsbId])
    setup: list[SetupTable] = Field(default_factory=list[SetupTable])
    memory: Annotated[list[MemoryTable], Field(min_length=1)]
    stm32: Stm32Table | None = None
    riscv: RiscvTable | None = None
    uart: UartTable
    timer: TimerTable = TimerTable()
    flash: list[FlashTable] = Field(default_factory=list[FlashTable])
    qemu: QemuTable | None = None

    @field_validator("target")
    @classmethod
    def _check_target(cls, value: str) -> str:
        try:
            target = get(value)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if not target.cross:
            raise ValueError("this target is not a microcontroller; see `smelt targets`")
        return value

    @model_validator(mode="after")
    def _check_startup(self) -> Self:
        if get(self.target).is_riscv != (self.startup == "riscv"):
            raise ValueError(f"startup '{self.startup}' is not for target '{self.target}'")
        if (self.startup == "riscv") != (self.riscv is not None):
            raise ValueError("riscv: table required for startup 'riscv', forbidden for others")
        if (self.startup == "riscv") != (self.timer.driver == "mcycle"):
            raise ValueError(f"timer: driver '{self.timer.driver}' is not for this core")
        return self

    @model_validator(mode="after")
    def _check_each_part(self) -> Self:
        places = Counter(part for memory in self.memory for part in memory.holds)
        for part in _PARTS:
            if places[part] == 0 or (part not in _SPREAD and places[part] > 1):
                least = "at least" if part in _SPREAD else "exactly"
                raise ValueError(f"{places[part]} memories hold '{part}'; {least} one must")
        names = Counter(memory.name for memory in self.memory)
        if names.most_common(1)[0][1] > 1:
            raise ValueError(f"two memories are called '{names.most_common(1)[0][0]}'")
        for first, second in _overlaps(self.memory):
            raise ValueError(f"memories '{first.name}' and '{second.name}' overlap")
        return self

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        place = {part: memory for memory in self.memory for part in memory.holds}
        stack, code, data = place["stack"], place["code"], place["data"]
        if code.size < LEAST_CODE:
            raise ValueError(
                f"memory '{code.name}': size {code.size} bytes: even the smallest firmware needs "
                f"more than {LEAST_CODE} bytes of code, including {4 * self._vectors} bytes of "
                "vectors; give the chip's size"
            )
        if data.size < LEAST_DATA:
            raise ValueError(
                f"memory '{data.name}': size {data.size} bytes: even the smallest firmware needs "
                f"more than {LEAST_DATA} bytes of variables; give the chip's size"
            )
        if self.stack_bytes + (LEAST_DATA if data is stack else 0) > stack.size:
            raise ValueError(
                f"stack_bytes: memory '{stack.name}' of {stack.size} bytes, which holds "
                f"{', '.join(stack.holds)}, is too small for a stack of {self.stack_bytes} bytes"
            )
        if self.startup == "cortexm" and code.origin % self._vectors_alignment:
            raise ValueError(
                f"memory '{code.name}': origin {code.origin:#x} must be a multiple of "
                f"{self._vectors_alignment:#x}, the alignment of the vector table"
            )
        self.uart.check_divisor(self.clock_hz)
        return self

    @model_validator(mode="after")
    def _check_devices_apart(self) -> Self:
        check_interrupts(self.own_target, self.uart, self.timer)
        devices = registers(self.uart, self.timer, self.stm32, self.riscv)
        check_apart(self.memory, devices, self.setup)
        return self

    @property
    def _vectors(self) -> int:
        """Return the number of words of the vector table."""
        return _SYSTEM_VECTORS + max(self.uart.irq, self.timer.irq or 0) + 1

    @property
    def _vectors_alignment(self) -> int:
        """Return the vector table's alignment: its size, rounded up to a power of 2.

        A Cortex-M0+ requires at least 256.
        """
        return max(256, 1 << (4 * self._vectors - 1).bit_length())

    @cached_property
    def own_target(self) -> Target:
        """Return the target of the board's core."""
        return get(self.target)

    def platform(self, target: Target | str | None = None) -> Platform:
        """Return the platform for the board's target, or for another one whose code it can run.

        Raises:
            ConfigError: the target is unknown, or the board cannot run its code.
        """
        chosen = get(target) if isinstance(target, str) else target or self.own_target
        if not self.own_target.runs(chosen):
            runs = ", ".join((self.target, *self.own_target.runs_code_of))
            raise ConfigError(
                f"board '{self.name}' cannot run code for '{chosen.name}'; it runs {runs}"
            )
        memories = tuple(
            PlatformMemory(m.name, m.origin, m.size, m.wait_states, m.reserve, tuple(m.holds))
            for m in self.memory
        )
        place = {
            part: max((m for m in memories if part in m.holds), key=lambda m: m.size).name
            for part in _PARTS
        }
        return Platform(
            name=self.name,
            description=self.description,
            target=chosen,
            firmware=self.startup,
            boot=self.boot,
            memories=memories,
            placement=FirmwarePlacement(**place),
            stack_bytes=self.stack_bytes,
            clock_hz=self.clock_hz,
            uart=Uart(
                driver=self.uart.driver,
                base=self.uart.base,
                irq=self.uart.irq,
                clock_hz=self.uart.clock_hz or self.clock_hz,
                baud=self.uart.baud,
                tx_pin=self.uart.tx_pin,
                rx_pin=self.uart.rx_pin,
                low_power=self.uart.low_power,
            ),
            timer=Timer(
                driver=self.timer.driver, hz=self.timer.hz or self.clock_hz, irq=self.timer.irq
            ),
            setup=(
                *(row.step for row in self.setup),
                *(() if self.stm32 is None else self.stm32.steps),
            ),
            riscv=None if self.riscv is None else RiscvCore(**self.riscv.model_dump()),
        )


def available() -> tuple[str, ...]:
    """Return the names of the boards that are part of Smelt, sorted."""
    return _names(files("smelt.boards"))


def computers() -> tuple[str, ...]:
    """Return the names of the computers that are part of Smelt, sorted."""
    return _names(files("smelt.boards") / "computers")


def _names(folder: Traversable) -> tuple[str, ...]:
    names = (Path(entry.name) for entry in folder.iterdir())
    return tuple(sorted(name.stem for name in names if name.suffix == ".toml"))


def load(name: str | Path) -> Board:
    """Load a board by its name or from a board file.

    Args:
        name: one of `available()`, or the path of a file that ends in `.toml`.

    Raises:
        ConfigError: there is no such board, or its file is wrong.
    """
    name = str(name)
    if name.endswith(".toml"):
        return _read(name, Path(name))
    if name in computers():
        raise ConfigError(
            f"'{name}' is a computer, which needs no firmware: `smelt build --board {name}` writes "
            "a program that you compile on it"
        )
    if name not in available():
        if "," in name:
            raise ConfigError(
                f"'{name}' lists several boards: give one, or use `smelt verify --boards {name}` "
                "to verify on several boards"
            )
        known = (*available(), *computers())
        close = get_close_matches(name, known, n=1) or [n for n in known if n.startswith(name)]
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else "."
        raise ConfigError(
            f"unknown board '{name}'{hint} Known boards: {', '.join(available())}; computers: "
            f"{', '.join(computers())}; or give the path of your own .toml file"
        )
    return _read(f"{name}.toml", Path(str(files("smelt.boards") / f"{name}.toml")))


def _read(title: str, path: Path) -> Board:
    try:
        return parse(title, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"board file {title} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"board file {title} is not TOML: {error}") from error
    except ValueError as error:
        raise ConfigError(f"board file {title!r} cannot be read: {error}") from error


def parse(title: str, text: str) -> Board:
    """Parse the text of a board file.

    Args:
        title: name of the file in messages.
        text: TOML text.

    Raises:
        ConfigError: the text is not TOML, or a value is wrong.
    """
    try:
        table = read_table(text)
    except ValueError as error:
        raise ConfigError(f"board file {title} is not TOML: {error}") from error
    try:
        return Board.model_validate(table)
    except ValidationError as error:
        raise ConfigError(f"board file {title}: {'; '.join(complaints(error, table))}") from error


def read_table(text: str) -> dict[str, Any]:
    """Parse the text of a board file into a dictionary.

    Raises:
        ValueError: the text is not TOML, has a number of thousands of digits, or is nested too
            deeply.
    """
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("its tables or arrays are nested too deeply") from error


def _where(keys: Sequence[str | int], table: object) -> str:
    """Return the location of a mistake in a file; rows of tables are identified by their name."""
    parts: list[str] = []
    for key in keys:
        try:
            table = cast("Any", table)[key]
        except (LookupError, TypeError):
            table = None
        row = cast("dict[str, object]", table) if isinstance(table, dict) else {}
        name = row.get("name") if isinstance(key, int) else None
        parts.append(f"'{name}'" if isinstance(name, str) else str(key))
    return ".".join(parts)


def complaints(error: ValidationError, table: object) -> list[str]:
    """Return one sentence for each mistake in a file's table, with its location and value."""
    sentences: list[str] = []
    for mistake in error.errors():
        where = _where(mistake["loc"], table)
        message = mistake["msg"].removeprefix("Value error, ")
        given = "" if isinstance(mistake["input"], dict) else f" (it is {mistake['input']!r})"
        sentences.append(f"{where}: {message}{given}" if where else message)
    return sentences


def _overlaps(memories: list[MemoryTable]) -> list[tuple[MemoryTable, MemoryTable]]:
    ordered = sorted(memories, key=lambda memory: memory.origin)
    return [(a, b) for a, b in pairwise(ordered) if a.origin + a.size > b.origin]
