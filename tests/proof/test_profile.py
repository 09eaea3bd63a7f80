"""Tests of profiles: counts by layer under QEMU equal known counts and the device's timer."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.boards import compile_project
from smelt.boards.disassembly import disassemble
from smelt.boards.instruction_counts import CountedRegion, Counter
from smelt.codegen.schedule.steps import Call
from smelt.ir import Graph, verify
from smelt.ir.text import parse_graph
from smelt.proof.profile import Profile, executed, profile_model, profiled
from smelt.samples import random_samples
from smelt.targets import get
from smelt.targets.cycles import Counts
from tests.support.cli_runner import smelt as smelt
from tests.support.graphs import SETUPS, SIMULATED, compile_graph
from tests.support.shared import ROOT, Network, networks, shared
from tests.support.tflite_networks import DIGITS

pytestmark = pytest.mark.qemu

TIMER_INSTRUCTIONS = 100
"""Allowed difference: a tick is up to 40 instructions, and reading the timer takes some too."""


def profile(artifact: Artifact, seed: int = 0) -> Profile:
    return profile_model(artifact, random_samples(artifact.graph, 1, seed)[0])


def consistent_report(artifact: Artifact, found: Profile) -> dict[str, Any]:
    """Assert that a profile is consistent with its sums and the timer, and return its report."""
    report = profiled(artifact.report, found, cycles=True)
    parts = [*report["layers"], report["profile"]["outside"]]
    for key in ("instructions", "cycles"):
        assert sum(part[key] or 0 for part in parts) == report["profile"][key]
    assert sum(part["share"] or 0 for part in parts) == pytest.approx(1)
    assert found.measured.instructions is not None
    assert abs(found.measured.instructions - found.instructions) <= TIMER_INSTRUCTIONS
    assert found.unknown == ()
    return report


# --- the plugin, on a program with known counts ----------------------------------------------

PROGRAM = """
    .syntax unified
    .cpu cortex-m3
    .thumb
    .section .text
    .word 0x20001000, reset + 1
    .thumb_func
reset:
    ldr r2, =0x20000100
    bl network          @ the region is from network to here
stop:
    movs r0, #0x18      @ semihosting: exit
    ldr r1, =0x20026
    bkpt 0xab
    b .
    .thumb_func
network:
    push {r4, lr}       @ 1
    movs r4, #3         @ 1
again:
    bl first            @ part 1, 3 times
    subs r4, #1         @ 3
    bne again           @ 3, taken twice
    bl second           @ part 2, once
    bl first            @ part 3, once
    pop {r4, pc}        @ 1, taken
    .thumb_func
first:
    ldr r0, =words      @ a load from flash
    ldr r1, [r0, #1]    @ another 16 bytes, misaligned
    str r1, [r2, #-4]   @ no load
    bx lr               @ taken
    .thumb_func
second:
    ldr r2, =0x20000102
    ldr r3, [r2]        @ misaligned, not in flash
    cbz r4, out         @ taken: r4 is 0
    nop
out:
    bx lr
    .ltorg
    .balign 16
    .space 16
words:
    .word 1, 2, 3, 4
"""
SCRIPT = "SECTIONS { . = 0; .text : { *(.text) } }"


def simulate_program(folder: Path) -> tuple[dict[str, int], tuple[dict[int, Counts], ...]]:
    """Return the addresses of the program's labels, and the counts outside and in each part."""
    (folder / "program.s").write_text(PROGRAM)
    (folder / "program.ld").write_text(SCRIPT)
    elf = folder / "program.elf"
    flags = ["-mcpu=cortex-m3", "-mthumb", "-nostdlib", "-T", str(folder / "program.ld")]
    command = ["arm-none-eabi-gcc", *flags, str(folder / "program.s"), "-o", str(elf)]
    subprocess.run(command, check=True)
    with elf.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".symtab")
        assert isinstance(symbols, SymbolTableSection)
        labels = {s.name: s["st_value"] & ~1 for s in symbols.iter_symbols()}
    code = disassemble(elf, get("cortex-m3"))
    calls = [i for i in code.instructions.values() if i.mnemonic == "bl"][1:]
    region = CountedRegion(
        (code.low, code.high),
        (0, 0x0040_0000),
        labels["network"],
        labels["stop"],
        [(call.address, call.after) for call in calls],
    )
    counter = Counter(region, folder)
    machine = ["-machine", "mps2-an385", "-display", "none", "-monitor", "none", "-serial", "null"]
    machine += ["-semihosting-config", "enable=on,target=native", "-kernel", str(elf)]
    subprocess.run(["qemu-system-arm", *machine, *counter.arguments], check=True, timeout=600)
    return labels, counter.read()


def test_counts_of_a_known_program(tmp_path: Path) -> None:
    folder = tmp_path / "a folder, with a comma"
    folder.mkdir()
    labels, (outside, *parts) = simulate_program(folder)
    network, first, second = labels["network"], labels["first"], labels["second"]
    again, out = labels["again"], labels["out"]
    assert outside == {
        network: Counts(1),
        network + 2: Counts(1),
        again + 4: Counts(3),
        again + 6: Counts(3, taken=2),
        again + 16: Counts(1, taken=1),
    }
    # Each call of `first` loads from two lines of flash: a literal and the words.
    assert parts[0] == {
        again: Counts(3, taken=3),
        first: Counts(3, flash_lines=3),
        first + 2: Counts(3, misaligned=3, flash_lines=3),
        first + 6: Counts(3),
        first + 10: Counts(3, taken=3),
    }
    assert parts[1] == {
        again + 8: Counts(1, taken=1),
        second: Counts(1, flash_lines=1),
        second + 2: Counts(1, misaligned=1),
        second + 4: Counts(1, taken=1),
        out: Counts(1, taken=1),
    }
    assert [parts[2][a].executions for a in (again + 12, first, first + 10)] == [1, 1, 1]
    assert sum(map(executed, parts)) + executed(outside) == 9 + 3 * 5 + 5 + 5


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_plugin_compiles_without_warnings(compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    source = ROOT / "templates/simulator/instruction_counts.c"
    flags = "-std=c11 -O2 -fPIC -shared -Wall -Wextra -Wpedantic -Wconversion -Werror"
    command = [compiler, *flags.split(), str(source), "-o", str(tmp_path / "plugin.so")]
    subprocess.run(command, check=True)


# --- networks --------------------------------------------------------------------------------


@pytest.mark.quick(setup=("m0", "m55"))
@pytest.mark.parametrize("setup", SIMULATED)
def test_counts_agree_with_the_timer(setup: str) -> None:
    artifact = compile_model(DIGITS / "digits_int8.tflite", SETUPS[setup])
    found = profile(artifact)
    report = consistent_report(artifact, found)
    assert found.core.name == artifact.platform.target.name
    assert all(layer["instructions"] > 100 for layer in report["layers"])
    assert report["profile"]["outside"]["share"] < 0.01
    # A layer executes only its kernel and functions that the kernel calls.
    for step, counts in zip(artifact.schedule.calls, found.steps, strict=True):
        assert counts is not None
        entered = {found.code.function_at(address) for address in counts}
        assert step.function in entered
        others = {s.function for s in artifact.schedule.calls} - {step.function}
        assert not entered & others


@pytest.mark.thorough
def test_profiles_repeat_exactly() -> None:
    artifact = compile_model(DIGITS / "digits_int8.tflite", SETUPS["m4"])
    assert profile(artifact).steps == profile(artifact).steps


def test_debug_information_does_not_change_the_code(tmp_path: Path) -> None:
    artifact = compile_model(DIGITS / "digits_int8.tflite", SETUPS["m4"])
    contents: list[dict[str, bytes]] = []
    for flags in ("", "-g1"):
        artifact.with_firmware().write(tmp_path / "project", force=True)
        elf = compile_project(tmp_path / "project", artifact.platform, extra_cflags=flags)
        with elf.path.open("rb") as file:
            loaded = (s for s in ELFFile(file).iter_sections() if s["sh_flags"] & 2)
            contents.append({s.name: s.data() for s in loaded if s["sh_type"] != "SHT_NOBITS"})
    assert contents[0] == contents[1]


def parse(text: str) -> Graph:
    return verify(parse_graph(f'smelt-ir 1\ngraph "g" {{\n{dedent(text)}\n}}\n', {}), "parsing")


LOOP = """
    input %c: bool[]
    input %xs: f32[5,40]
    const %zero: f32[40] = [0.0, {zeros}]
    %h: f32[40], %ys: f32[5,40] = Loop(_, _, %zero, %xs) {{body=graph "body" {{
      input %t: i64[]
      input %h: f32[40]
      input %x: f32[40]
      %sum: f32[40] = Binary(%h, %x) {{kind="add"}} from ADD #0 "sum"
      %y: f32[40] = Unary(%x) {{kind="neg"}} from NEG #1 "y"
      output %sum
      output %y
    }}, carried=1, trip_count=5, scans=(forward), stacks=(forward)}} from SCAN #3 "h"
    %z: f32[40] = If(%c, %h) {{then_graph=graph "then" {{
      input %p: f32[40]
      %a: f32[40] = Unary(%p) {{kind="abs"}} from ABS #0 "a"
      output %a
    }}, else_graph=graph "else" {{
      input %p: f32[40]
      %a: f32[40] = Unary(%p) {{kind="neg"}} from NEG #0 "b"
      output %a
    }}}} from IF #4 "z"
    output %z
    output %ys
""".format(zeros=", ".join(["0.0"] * 39))  # fmt: skip


@pytest.mark.quick(condition=(True,))
@pytest.mark.parametrize("condition", [False, True])
def test_layers_inside_loops_and_branches_are_counted(condition: bool) -> None:
    artifact = compile_graph(parse(LOOP), SETUPS["m4"])
    sample = (np.array(condition), np.ones((5, 40), np.float32))
    found = profile_model(artifact, sample)
    report = consistent_report(artifact, found)
    calls: dict[str, int] = {}
    for step, counts in zip(artifact.schedule.steps, found.steps, strict=True):
        assert counts is not None
        if isinstance(step, Call):
            entry = counts.get(found.code.function(step.function), Counts())
            calls[step.node.origin.kind + step.node.name] = entry.executions
    names = [(layer["name"], layer["op"]) for layer in report["layers"]]
    assert calls == {"ADDsum": 5, "NEGy": 5, "ABSa": condition, "NEGa": not condition}, names


@pytest.mark.quick(size=(3,))
@pytest.mark.parametrize("size", [3, 12])
def test_rows_of_a_run_time_length_are_counted(size: int) -> None:
    graph = parse(
        """
        input %x: f32[1,12,4]
        length %x 1 "T" 2
        %r: f32[12,4] = Reshape(%x) {shape=(12, 4)} from RESHAPE #0 "r"
        %p: f32[12,4] = Softmax(%r) from SOFTMAX #1 "p"
        output %p
        """
    )
    artifact = compile_graph(graph, SETUPS["m4"])
    found = profile_model(artifact, (np.ones((1, size, 4), np.float32),))
    consistent_report(artifact, found)
    (step,), (counts,) = artifact.schedule.calls, found.steps
    assert counts is not None
    assert counts[found.code.function(step.function)].executions == size


# --- MLPerf Tiny -----------------------------------------------------------------------------


def assert_all_known(network: Network, setup: str) -> None:
    artifact = compile_model(network.model, SETUPS[setup])
    found = profile(artifact)
    report = consistent_report(artifact, found)
    # All cores take between half a cycle and four cycles per instruction.
    assert 0.5 <= report["profile"]["cycles"] / found.instructions <= 4


@pytest.mark.quick(network=("mlperf_tiny/ad_int8",), setup=("m4",))
@pytest.mark.parametrize("setup", ["m0", "m4", "m55"])
@networks("mlperf_tiny/ad_int8", "mlperf_tiny/kws_int8")
def test_every_instruction_is_known(network: Network, setup: str) -> None:
    assert_all_known(network, setup)


@pytest.mark.slow
@pytest.mark.parametrize("setup", SIMULATED)
@networks("mlperf_tiny/*_int8")
def test_every_instruction_of_every_network_is_known(network: Network, setup: str) -> None:
    assert_all_known(network, setup)


@pytest.mark.thorough
def test_cycles_are_near_published_results() -> None:
    """Cycles per instruction on a Cortex-M4 are near those of published MLPerf Tiny results.

    A NUCLEO-L4R5ZI at 120 MHz takes 99.8 ms (microTVM with CMSIS-NN) and 82.0 ms (the best stack
    that calls CMSIS-NN) for `kws`; TFLite Micro with CMSIS-NN executes 7,697,749 instructions. So a
    stack built on CMSIS-NN takes about 1.28 to 1.56 cycles per instruction.
    """
    peer = json.loads(shared("bench/tflm_cmsis_nn.json").read_text())
    instructions = peer["models"]["kws"]["m4"]["instructions"]
    published = [120_000 * ms / instructions for ms in (82.0, 99.8)]
    artifact = compile_model(shared("models/mlperf_tiny/kws_int8.tflite"), SETUPS["m4"])
    found = profile(artifact)
    ours = found.total_cycles() / found.instructions
    assert 0.8 * published[0] <= ours <= 1.2 * published[1]


COREMARK = {"m4": 3.42, "m7": 5.01, "m33": 4.02, "m55": 4.40}
"""CoreMark results per MHz that Arm publishes."""


@pytest.mark.thorough
def test_estimated_speeds_of_cores_have_the_ratios_of_coremark() -> None:
    model = shared("models/mlperf_tiny/kws_int8.tflite")
    cycles: dict[str, int] = {}
    for setup in COREMARK:
        options = replace(SETUPS[setup], backends=("c",))
        cycles[setup] = profile(compile_model(model, options)).total_cycles()
    for setup, result in COREMARK.items():
        assert cycles["m4"] / cycles[setup] == pytest.approx(result / COREMARK["m4"], rel=0.2)
