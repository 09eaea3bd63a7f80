"""Builds of firmware for a hand-written network: compilers, CMake, errors, simulation."""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import serial

from smelt import boards
from smelt.boards import session
from smelt.boards.simulate import Simulator
from smelt.codegen.emit.firmware import Firmware
from smelt.errors import ConfigError, DeviceError, DoesNotFit, ToolError
from smelt.targets import HOST, FirmwarePlacement, get, library_platform
from tests.support.board_tools import compilable, simulable
from tests.support.fake_project import expected_output, inputs, write_project
from tests.support.shared import ROOT
from tests.support.wire_tools import MLPERF, QEMU, SAMPLE, Build, builder


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return builder(tmp_path_factory)


@pytest.mark.quick(every=6)
@pytest.mark.parametrize("name", QEMU)
def test_flash_of_the_network_excludes_the_firmware(build: Build, name: str) -> None:
    place = build(name, trace=False)
    full = place.elf
    larger = build(name, MLPERF, trace=False).elf
    assert larger.sections[".bss"] > full.sections[".bss"]
    # RISC-V's linker shortens calls of near functions, so the size depends on the distance.
    relaxed = 128 if place.platform.target.is_riscv else 0
    assert abs(larger.flash_network.total - full.flash_network.total) <= relaxed
    network = full.flash_network
    assert network.rodata >= 16  # the weights
    assert 200 < network.text < full.flash_elf / 2
    nm = f"{place.platform.target.cross}nm"
    text = subprocess.run(
        [nm, "-S", str(full.path)], capture_output=True, text=True, check=True
    ).stdout
    sizes = {
        line.split()[3]: int(line.split()[1], 16)
        for line in text.splitlines()
        if line.count(" ") == 3
    }
    assert not [name for name in sizes if "mlperf" in name]
    named = [name for name in sizes if name.startswith("fake_") or name in ("memset", "expf")]
    assert network.total >= sum(sizes[name] for name in named)


@pytest.mark.qemu
def test_a_network_that_does_not_fit_is_refused_with_sizes(build: Build) -> None:
    with pytest.raises(
        DoesNotFit, match=r"memory 'ram' of microbit: .* only 16,384 are available"
    ) as error:
        build("microbit", extra_cflags="-DFAKE_NET_ARENA_BYTES=20000")
    assert error.value.available == 16384
    assert error.value.needed > 22000


@pytest.mark.parametrize("name", ["microbit", "virt-riscv32"])
@pytest.mark.parametrize(("one", "other"), [("len", "origin"), ("l", "org"), ("length", "o")])
def test_a_memory_may_be_named_like_a_linker_keyword(
    tmp_path: Path, name: str, one: str, other: str
) -> None:
    board = boards.load(name)
    compilable(board)
    platform = board.platform()
    assert platform.placement is not None
    first, second = platform.memories
    called = {first.name: one, second.name: other}
    places = {part: called[memory] for part, memory in asdict(platform.placement).items()}
    memories = (replace(first, name=one), replace(second, name=other))
    renamed = replace(platform, memories=memories, placement=FirmwarePlacement(**places))
    write_project(tmp_path, renamed)
    assert Firmware(renamed).linker_script is not None
    compiler = f"{platform.target.cross}gcc"
    script = ["-nostdlib", "-T", Firmware(renamed).linker_script]
    linked = subprocess.run(
        [compiler, *script, "-x", "c", os.devnull, "-o", "linked.elf"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert linked.returncode == 0, linked.stderr


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "make").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    platform = boards.load("mps2-an386").platform()
    with pytest.raises(ToolError, match=r"'arm-none-eabi-gcc' is not installed.*apt-get install"):
        boards.compile_project(tmp_path, platform)


def test_errors_of_the_compiler_are_shown(build: Build) -> None:
    with pytest.raises(ToolError, match=r"(?s)make in .* failed:.*nonsense"):
        build("host", extra_cflags="-include nonsense.h")


@pytest.mark.quick(every=6)
@pytest.mark.parametrize("name", ["host", *QEMU])
def test_cmake_builds_a_working_program(tmp_path: Path, name: str) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("not on PATH: cmake")
    board_name, _, target = name.partition(":")
    board = None if name == "host" else boards.load(board_name)
    if board is not None:
        simulable(board)
    write_project(tmp_path, HOST if board is None else board.platform(target or None))
    for arguments in (["-B", "build"], ["--build", "build"]):
        result = subprocess.run(
            ["cmake", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
    on = "host" if board is None else "qemu"
    with boards.open_device(tmp_path / "build/fake.elf", on, board) as device:
        assert device.run(inputs(SAMPLE))[0][0] == expected_output(SAMPLE)


@pytest.mark.qemu
@pytest.mark.parametrize("target", ["cortex-m33", "cortex-m7"])
def test_a_target_alone_gives_a_library(tmp_path: Path, target: str) -> None:
    write_project(tmp_path, library_platform(get(target)))
    result = subprocess.run(["make"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "build/libfake_net.a").stat().st_size > 0


@pytest.mark.qemu
@pytest.mark.parametrize("optimize", ["size", "ram"])
def test_firmware_optimized_for_size_and_ram_works(tmp_path: Path, optimize: str) -> None:
    board = boards.load("microbit")
    assert optimize in ("size", "ram")
    write_project(tmp_path, board.platform(), "size" if optimize == "size" else "ram")
    elf = boards.compile_project(tmp_path, board.platform())
    with boards.open_device(elf.path, "qemu", board) as device:
        assert device.run(inputs(SAMPLE))[0][0] == expected_output(SAMPLE)


def test_clang_compiles_without_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("clang") is None:
        pytest.skip("not on PATH: clang")
    monkeypatch.setenv("CC", "clang")
    write_project(tmp_path, HOST)
    boards.compile_project(tmp_path, HOST, trace=True)


def test_invalid_devices_are_refused(build: Build, tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="--on qemu needs a --board"),
        boards.open_device(tmp_path / "x.elf", "qemu"),
    ):
        pass
    with (
        pytest.raises(ConfigError, match="not of the form socket://HOST:PORT"),
        boards.open_device(None, "socket://here"),
    ):
        pass
    with (
        pytest.raises(DeviceError, match="cannot open port /dev/none"),
        boards.open_device(None, "/dev/none"),
    ):
        pass


@pytest.mark.qemu
def test_errors_of_qemu_are_shown(tmp_path: Path) -> None:
    elf = tmp_path / "broken.elf"
    elf.write_bytes(b"no ELF")
    board = boards.load("mps2-an386")
    assert board.qemu is not None
    broken = board.model_copy(update={"qemu": board.qemu.model_copy(update={"machine": "nil"})})
    with (
        pytest.raises(DeviceError, match=r"QEMU ended \(mps2-an386\)\n.*unsupported machine"),
        boards.open_device(elf, "qemu", broken),
    ):
        pass


@pytest.mark.qemu
def test_the_uart_is_a_socket_that_pyserial_opens(build: Build) -> None:
    place = build("mps2-an386", MLPERF, trace=True)
    assert place.board is not None
    with (
        Simulator(place.board, place.elf.path) as simulator,
        serial.serial_for_url(simulator.port, timeout=600) as port,
    ):
        port.write(b"name%")
        text = port.read_until(b"m-name-dut-[smelt]\r\nm-ready\r\n")
    assert text.startswith(b"m-timestamp-mode-performance\r\n")


@pytest.mark.qemu
def test_a_second_client_of_a_socket_is_told_that_it_is_in_use(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = build("mps2-an386", MLPERF, trace=True)
    assert place.board is not None
    with (
        Simulator(place.board, place.elf.path) as simulator,
        boards.open_device(None, simulator.port, place.board) as device,
    ):
        monkeypatch.setattr(session, "_SOCKET_S", 2)
        with (
            pytest.raises(DeviceError, match=r"no response .* another program connected"),
            boards.open_device(None, simulator.port, place.board),
        ):
            pass
        assert device.command("name") == ["m-name-dut-[smelt]"]


@pytest.mark.qemu
def test_qemu_ends_with_the_process_that_started_it(build: Build, tmp_path: Path) -> None:
    place = build("mps2-an386", trace=True)
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from smelt import boards\n"
        "with boards.open_device(Path(sys.argv[1]), 'qemu', boards.load('mps2-an386')):\n"
        "    print('open', flush=True)\n"
        "    time.sleep(60)\n"
    )
    elf = shutil.copy(place.elf.path, tmp_path / "mortal.elf")
    root = str(ROOT)
    with subprocess.Popen(
        [sys.executable, "-c", script, str(elf)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": root},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        assert running(str(elf))
        process.kill()
    deadline = time.monotonic() + 300
    while running(str(elf)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(str(elf))


def running(argument: str) -> bool:
    """Return whether a QEMU process has this argument."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if arguments[0].endswith(b"qemu-system-arm") and argument.encode() in arguments:
            return True
    return False
