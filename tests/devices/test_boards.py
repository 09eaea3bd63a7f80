"""Board files: Smelt's own agree with QEMU, and mistakes in a user's file are explained."""

import re
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import get_args

import pytest

from smelt import boards, targets
from smelt.api.options import Options
from smelt.boards.addresses import UART_BYTES
from smelt.boards.board import LEAST_CODE, LEAST_DATA
from smelt.boards.schema import QemuTable, UartDriver
from smelt.boards.simulate import EMULATORS
from smelt.codegen.emit.firmware import Firmware
from smelt.errors import ConfigError
from smelt.ir import DType, Graph, Node, Origin, TensorType, Value
from smelt.ops.core.unary import Unary
from tests.support.board_tools import compilable, simulable
from tests.support.graphs import compile_graph

GOOD = """
name = "mine"
description = "a board on my desk"
target = "cortex-m4"
clock_hz = 80_000_000
stack_bytes = "4K"

[[memory]]
name = "flash"
origin = 0x0800_0000
size = "1M"
holds = ["code", "weights"]

[[memory]]
name = "ram"
origin = 0x2000_0000
size = 131072
holds = ["data", "stack", "arena"]

[uart]
driver = "cmsdk"
base = 0x4000_4000
irq = 3
"""


@pytest.mark.parametrize("name", boards.available())
def test_every_board_gives_a_platform(name: str) -> None:
    board = boards.load(name)
    platform = board.platform()
    assert board.name == name
    assert platform.target.name == board.target
    assert platform.memory_of("arena") in platform.memories
    assert platform.timer is not None
    assert platform.timer.hz == (16_000_000 if board.timer.driver == "nrf5" else board.clock_hz)


def test_a_compatible_target_may_be_chosen() -> None:
    board = boards.load("mps2-an385")
    assert board.platform("cortex-m0").target == targets.get("cortex-m0")
    with pytest.raises(ConfigError, match="'mps2-an385' cannot run code for 'cortex-m4'"):
        board.platform("cortex-m4")


def test_unknown_boards_are_refused_with_the_nearest_name() -> None:
    for wrong, right in (("mps2-an368", "mps2-an386"), ("rasberrypi5", "raspberrypi5")):
        with pytest.raises(ConfigError, match=rf"'{wrong}'; did you mean '{right}'\?"):
            boards.load(wrong)


def test_a_board_may_be_a_file_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    platform = boards.load(path).platform()
    assert platform == boards.load(str(path)).platform()
    memory = platform.memory_of("weights")
    assert memory is not None
    assert (memory.origin, memory.size) == (0x0800_0000, 1024**2)
    assert platform.uart is not None
    assert platform.uart.clock_hz == 80_000_000
    assert Firmware(platform).linker_script == "firmware/mine.ld"


def test_setup_steps_keep_their_order_and_pins_follow(tmp_path: Path) -> None:
    rows = """
setup = [
  { address = 0x4002_3830, set = 0x1, does = "clock" },
  { address = 0x4002_3838, wait = 0x2, does = "ready" },
  { address = 0x4002_383c, clear = 0x3, set = 0x1, does = "divisor" },
  { address = 0x4002_3840, write = 0x0, does = "off" },
]
"""
    pins = """
[stm32]
gpio = 0x4002_0000
tx = "PA2"
rx = "PB11"
alternate = 7
"""
    path = tmp_path / "mine.toml"
    path.write_text(rows + GOOD.replace("[uart]", f"{pins}[uart]"))
    steps = [(s.action, s.address, s.clear, s.set) for s in boards.load(path).platform().setup]
    assert steps == [
        ("change", 0x4002_3830, 0, 1),
        ("wait", 0x4002_3838, 0, 2),
        ("change", 0x4002_383C, 3, 1),
        ("write", 0x4002_3840, 0, 0),
        # AFRL, PUPDR, MODER of port A; AFRH, PUPDR, MODER of port B
        ("change", 0x4002_0020, 0xF00, 0x700),
        ("change", 0x4002_000C, 0x30, 0x00),
        ("change", 0x4002_0000, 0x30, 0x20),
        ("change", 0x4002_0424, 0xF000, 0x7000),
        ("change", 0x4002_040C, 0xC0_0000, 0x40_0000),
        ("change", 0x4002_0400, 0xC0_0000, 0x80_0000),
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('target = "cortex-m4"', 'target = "cortex-m5"', r"target: unknown target 'cortex-m5'"),
        ("clock_hz", "clock_khz", r"clock_hz: Field required; clock_khz: Extra inputs"),
        ('"1M"', '"1 MB"', r"memory\.'flash'\.size: .*K or M, such as \"512K\" \(it is '1 MB'\)"),
        ("131072", "-1", r"memory\.'ram'\.size: .*greater than 0 \(it is -1\)"),
        ('"data", "stack", "arena"', '"data", "stack"', "0 memories hold 'arena'"),
        ('"code", "weights"', '"code", "weights", "data"', "2 memories hold 'data'"),
        ('name = "ram"', 'name = "flash"', "two memories are called 'flash'"),
        ("0x2000_0000", "0x0808_0000", "memories 'flash' and 'ram' overlap"),
        ("0x2000_0000", "0xffff_fff8", r"memory\.'ram': origin \+ size exceeds 32 bits"),
        ('driver = "cmsdk"', 'driver = "nrf5"', "'nrf5' needs tx_pin and rx_pin"),
        ('driver = "cmsdk"', 'driver = "pl110"', r"uart\.driver: .*\(it is 'pl110'\)"),
        ("[uart]", "[uart", "is not TOML"),
        ("[uart]", f"more = {'[' * 3000}\n[uart]", "is not TOML: .* nested too deeply"),
        ("[uart]", f"more = {'9' * 5000}\n[uart]", "is not TOML: .*digits"),
        ('"cortex-m4"', '"rv32imac"', "startup 'cortexm' is not for target 'rv32imac'"),
        (
            '"cortex-m4"',
            '"rv32imac"\nstartup = "riscv"',
            "riscv: table required for startup 'riscv'",
        ),
        ("[uart]", "[stm32]\ngpio = 0\ntx = 'A2'\n[uart]", r"stm32\.tx: .*\(it is 'A2'\)"),
        (
            "[uart]",
            "[[flash]]\nrunner = 'uf2'\n[uart]",
            r"flash\.0: family: required for runner 'uf2'",
        ),
        (
            "[uart]",
            "[[flash]]\nrunner = 'openocd'\n[uart]",
            r"flash\.0: config: required for runner 'openocd'",
        ),
        (
            "[uart]",
            "[[flash]]\nrunner = 'pyocd'\n[uart]",
            r"flash\.0: target: required for runners .*pyocd",
        ),
        ("[uart]", "[[flash]]\nrunner = 'usb'\n[uart]", r"flash\.0\.runner: .*\(it is 'usb'\)"),
        ("stack_bytes", "usb = ['483:374B']\nstack_bytes", r"usb\.0: .*\(it is '483:374B'\)"),
        (
            "stack_bytes",
            "setup = [{ address = 0x4002_3830, does = 'nothing' }]\nstack_bytes",
            r"setup\.0: needs exactly one of: write; clear and set",
        ),
        (
            "stack_bytes",
            "setup = [{ address = 0x4002_3831, does = 'it', write = 1 }]\nstack_bytes",
            r"setup\.0: 0x40023831 is not a word address",
        ),
        (
            "stack_bytes",
            "setup = [{ address = 4, does = 'it', wait = 1, set = 1 }]\nstack_bytes",
            r"setup\.0: needs exactly one of",
        ),
        ("a board", "a */ board", r"description: String should match pattern"),
        ("a board", "a \\u0000 board", r"description: String should match pattern"),
        (
            '"4K"',
            '"132K"',
            r"stack_bytes: memory 'ram' of 131072 bytes, which .* is too small for a st",
        ),
        ("131072", "7", r"memory\.'ram'\.size: Input should be a multiple of 8 \(it is 7\)"),
        ("131072", "4096", r"stack_bytes: memory 'ram' of 4096 bytes"),
        ('"4K"', "4090", r"stack_bytes: Input should be a multiple of 8 \(it is 4090\)"),
        ('"4K"', "8", r"stack_bytes: .*greater than or equal to 256"),
        ('"4K"', '"\u0664K"', r"stack_bytes: .*K or M.* \(it is '\u0664K'\)"),
        ("0x4000_4000", "0x4000_4002", r"uart\.base: .*multiple of 4"),
        ("0x2000_0000", "0x2000_0004", r"memory\.'ram'\.origin: .*multiple of 8"),
        (
            "0x0800_0000",
            "0x0800_0080",
            r"memory 'flash': origin 0x8000080 must be a multiple of 0x100",
        ),
        ("80_000_000", "1", r"clock_hz: .*greater than or equal to 32768 \(it is 1\)"),
        ("80_000_000", "40_000", r"uart: 115200 baud need a clock of 1843200 to \d+ Hz, not 40000"),
        (
            '"cmsdk"',
            "'stm32v1'\nbaud = 1200",
            r"uart: 1200 baud need a clock of 19200 to 78642000 Hz",
        ),
        ('"cortex-m4"', '"host"', r"target: this target is not a microcontroller"),
        (
            '"1M"',
            "64",
            r"'flash': size 64 bytes: even the smallest firmware .* 6144 bytes of code, including "
            r"80",
        ),
        ('"1M"', "6136", r"memory 'flash': size 6136 bytes: .* give the chip's size"),
        (
            "0x4000_4000",
            "0x2000_0000",
            r"uart\.base: the registers of the UART at 0x20000000 to 0x20000013 overlap memory "
            r"'ram' "
            r"\(0x20000000 to 0x2001ffff\); see the memory map in the chip's reference manual",
        ),
        ("0x4000_4000", "0x1fff_fff0", r"uart\.base: .* overlap memory 'ram'"),
        ("0x4000_4000", "0x080f_fffc", r"uart\.base: .* overlap memory 'flash'"),
        (
            "0x4000_4000",
            "0xffff_fff8",
            r"uart\.base: .* 0x14 bytes from 0xfffffff8, exceed 32-bit",
        ),
        (
            "0x4000_4000",
            "0xe000_ed00",
            r"uart\.base: .* the UART at .* overlap those of the core",
        ),
        ("base = 0x4000_4000", "base = 0", r"uart\.base: .*greater than 0 \(it is 0\)"),
        (
            '"cmsdk"',
            '"nrf5"\ntx_pin = 6\nrx_pin = 6',
            r"uart: tx_pin and rx_pin are both 6, but a UART sends and receives on two pins",
        ),
        (
            "[uart]",
            "[stm32]\ngpio = 0x4002_0000\ntx = 'PA2'\nrx = 'PA2'\nalternate = 7\n[uart]",
            r"stm32: tx and rx are both PA2, but a UART sends and receives on two pins",
        ),
        ("0x2000_0000", "0xe000_0000", r"startup: .* the core at .* overlap memory 'ram'"),
        (
            "[uart]",
            "[stm32]\ngpio = 0x4000_3c00\ntx = 'PB2'\nrx = 'PB3'\nalternate = 7\n[uart]",
            r"uart\.base: .* overlap those of port B \(stm32\.gpio\)",
        ),
        (
            "[uart]",
            "[stm32]\ngpio = 0x2001_f800\ntx = 'PA2'\nrx = 'PB3'\nalternate = 7\n[uart]",
            r"stm32\.gpio: .* port A at 0x2001f800 to 0x2001fbff overlap memory 'ram'",
        ),
        (
            '"cmsdk"\nbase = 0x4000_4000',
            '"nrf5"\ntx_pin = 1\nrx_pin = 2\nbase = 0x5000_0000',
            r"uart\.base: .* overlap those of the pins \(uart\.driver\)",
        ),
        ("[uart]", "[timer]\ndriver = 'nrf5'\nirq = 3\n[uart]", r"uart\.irq: 3 equals timer\.irq"),
        ("irq = 3", "irq = 240", r"uart\.irq: 240: .* has interrupts 0 to 239"),
        (
            "stack_bytes",
            "setup = [{ address = 0x2000_0000, does = 'it', write = 1 }]\nstack_bytes",
            r"setup\.0\.address: 0x20000000 \('it'\) is within memory 'ram'",
        ),
    ],
)
def test_mistakes_in_a_board_file_are_explained(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in GOOD
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ConfigError, match=message) as caught:
        boards.load(path)
    assert "mine.toml" in str(caught.value)


@pytest.mark.parametrize("driver", get_args(UartDriver))
def test_uart_bytes_cover_all_registers_of_the_driver(driver: str) -> None:
    text = files("smelt.templates").joinpath(f"emit/project/uart_{driver}.c").read_text("utf-8")
    used = re.findall(r"SMELT_UART_BASE \+ 0x([0-9a-f]+)u|\bREGISTER\((?:0x)?([0-9a-f]+)u\)", text)
    last = max(int(one or other, 16) for one, other in used)
    width = 1 if "volatile uint8_t" in text else 4
    assert last + width <= UART_BYTES[driver] <= last + width + 8


@pytest.mark.quick(name=("microbit",))
@pytest.mark.qemu
@pytest.mark.parametrize("name", ["microbit", "mps3-an547", "sifive_e"])
def test_the_smallest_firmware_is_larger_than_the_required_memory(
    name: str, tmp_path: Path
) -> None:
    board = boards.load(name)
    compilable(board)
    x, y = (Value(name, TensorType((1,), DType.FLOAT32)) for name in "xy")
    negation = Node(Unary("neg"), (x,), (y,), Origin("NEG", 0))
    graph = Graph("net", (x,), (y,), (negation,))
    artifact = compile_graph(graph, Options(board=name, optimize="size"))
    artifact.write(tmp_path / "out")
    sections = boards.compile_project(tmp_path / "out", artifact.platform).sections
    assert LEAST_CODE < sections[".text"] < 4 * LEAST_CODE
    assert LEAST_DATA < sections[".bss"] + sections.get(".data", 0) < 2 * LEAST_DATA


def test_the_alignment_of_vectors_grows_with_their_number(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace("0x0800_0000", "0x0800_0100"))
    assert boards.load(path).memory[0].origin == 0x0800_0100
    path.write_text(path.read_text().replace("irq = 3", "irq = 100"))
    with pytest.raises(ConfigError, match="0x8000100 must be a multiple of 0x200"):
        boards.load(path)


def test_an_invalid_path_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"board file '\\x00\.toml' cannot be read"):
        boards.load("\0.toml")


def test_a_missing_board_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file"):
        boards.load(tmp_path / "none.toml")


SIMULATED = [name for name in boards.available() if boards.load(name).qemu is not None]
# QEMU joins all SRAM of the STM32F405, and fills the whole address space of a flash with memory.
LARGER_IN_QEMU = {
    "netduinoplus2": {"sram"},
    "sifive_e": {"flash"},
    "virt-riscv32": {"code", "ram"},
}


@pytest.mark.qemu
@pytest.mark.parametrize("name", SIMULATED)
def test_memories_agree_with_qemu(name: str) -> None:
    board = boards.load(name)
    assert board.qemu is not None
    simulable(board)
    ranges = memory_of_qemu(EMULATORS[board.startup], board.qemu)
    for memory in board.memory:
        own = (memory.origin, memory.origin + memory.size)
        if memory.name in LARGER_IN_QEMU.get(name, ()):
            assert any(first <= own[0] and own[1] <= last for first, last in ranges)
        else:
            assert own in ranges


def memory_of_qemu(emulator: str, machine: QemuTable) -> set[tuple[int, int]]:
    """Return the memory ranges of a simulated board, each alone and joined with adjacent ones."""
    command = [emulator, "-M", machine.machine, *machine.arguments, "-S"]
    output = subprocess.run(
        [*command, "-display", "none", "-serial", "none", "-monitor", "stdio"],
        input="info mtree -f\nquit\n",
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    ranges: set[tuple[int, int]] = set()
    # QEMU lists memory behind a memory protection controller as the controller's "upstream" port.
    for found in re.findall(r"(\w{16})-(\w{16}) \(prio \d+, (?:ram|romd|rom|i/o)\)", output):
        first, last = (int(address, 16) for address in found)
        joined = [part for part in ranges if part[1] == first]
        for part in joined:
            ranges.add((part[0], last + 1))
        ranges.add((first, last + 1))
    return ranges
