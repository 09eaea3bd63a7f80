"""Board files: those that come with Smelt agree with QEMU, and mistakes are explained."""

import re
import subprocess
from pathlib import Path

import pytest

from smelt import boards, targets
from smelt.errors import ConfigError

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
def test_every_board_makes_a_platform(name: str) -> None:
    board = boards.load(name)
    platform = board.platform()
    assert board.name == name
    assert platform.target.name == board.target
    assert platform.memory_of("arena") in platform.memories
    assert platform.timer is not None
    assert platform.timer.hz == board.clock_hz


def test_a_lesser_target_may_be_chosen() -> None:
    board = boards.load("mps2-an385")
    assert board.platform("cortex-m0").target == targets.get("cortex-m0")
    with pytest.raises(ConfigError, match="'mps2-an385' cannot run code for 'cortex-m4'"):
        board.platform("cortex-m4")


def test_an_unknown_board_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"'mps2-an368'; did you mean 'mps2-an386'\?"):
        boards.load("mps2-an368")


def test_a_board_file_of_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    platform = boards.load(path).platform()
    assert platform == boards.load(str(path)).platform()
    memory = platform.memory_of("weights")
    assert memory is not None
    assert (memory.origin, memory.size) == (0x0800_0000, 1024**2)
    assert platform.uart is not None
    assert platform.uart.clock_hz == 80_000_000
    assert platform.linker_script == "firmware/mine.ld"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('target = "cortex-m4"', 'target = "cortex-m5"', r"target: unknown target 'cortex-m5'"),
        ("clock_hz", "clock_khz", r"clock_hz: Field required; clock_khz: Extra inputs"),
        ('"1M"', '"1 MB"', r"memory\.0\.size: .*integer \(it is '1 MB'\)"),
        ("131072", "-1", r"memory\.1\.size: .*greater than 0 \(it is -1\)"),
        ('"data", "stack", "arena"', '"data", "stack"', "0 memories hold 'arena'"),
        ('"code", "weights"', '"code", "weights", "data"', "2 memories hold 'data'"),
        ('name = "ram"', 'name = "flash"', "two memories are called 'flash'"),
        ("0x2000_0000", "0x0808_0000", "memories 'flash' and 'ram' overlap"),
        ("0x2000_0000", "0xffff_ffff", r"memory\.1: origin \+ size exceeds 32 bits"),
        ('driver = "cmsdk"', 'driver = "nrf51"', "'nrf51' needs tx_pin and rx_pin"),
        ('driver = "cmsdk"', 'driver = "pl011"', r"uart\.driver: .*\(it is 'pl011'\)"),
        ("[uart]", "[uart", "is not TOML"),
        ("a board", "a */ board", r"description: String should match pattern"),
    ],
)
def test_a_mistake_is_explained(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ConfigError, match=message) as caught:
        boards.load(path)
    assert "mine.toml" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file"):
        boards.load(tmp_path / "none.toml")


@pytest.mark.qemu
@pytest.mark.parametrize("name", boards.available())
def test_memories_are_those_of_qemu(name: str) -> None:
    board = boards.load(name)
    assert board.qemu is not None
    command = ["qemu-system-arm", "-M", board.qemu.machine, "-S", "-display", "none"]
    output = subprocess.run(
        [*command, "-serial", "none", "-monitor", "stdio"],
        input="info mtree -f\nquit\n",
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    ranges: set[tuple[int, int]] = set()
    # Memory behind a memory protection controller shows as its "upstream" port.
    for found in re.findall(r"(\w{16})-(\w{16}) \(prio \d+, (?:ram|romd|rom|i/o)\)", output):
        first, last = (int(address, 16) for address in found)
        joined = [part for part in ranges if part[1] == first]
        for part in joined:
            ranges.add((part[0], last + 1))
        ranges.add((first, last + 1))
    for memory in board.memory:
        assert (memory.origin, memory.origin + memory.size) in ranges
