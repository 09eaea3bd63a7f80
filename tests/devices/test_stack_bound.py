"""Bounds of the stack, compared with gcc's `-fstack-usage` and with what inferences use in QEMU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from smelt import targets
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.boards import load
from smelt.boards.stack_bound import StackBound, stack_bound
from smelt.proof.run import run
from smelt.samples import random_samples
from smelt.targets import Optimize
from tests.support.board_tools import simulable
from tests.support.projects import must
from tests.support.shared import Network

CORES = ("cortex-m0", "cortex-m3", "cortex-m4", "cortex-m33", "cortex-m55", "rv32imac")
BOARDS = {
    "cortex-m0": "mps2-an385",
    "cortex-m3": "mps2-an385",
    "cortex-m4": "mps2-an386",
    "cortex-m33": "mps2-an505",
    "cortex-m55": "mps3-an547",
    "rv32imac": "virt-riscv32",
}
"""A simulated board for each core."""

SLACK = 16
"""Bytes that a bound may exceed a measurement by: words that a frame has but no code writes."""


def bounded(text: str, core: str, folder: Path, flags: str = "-O1") -> StackBound:
    """Return the bound of `start` in a program with some C functions."""
    linked(text, core, folder, flags)
    return bound_in(folder, core)


def bound_in(folder: Path, core: str) -> StackBound:
    """Return the bound of `start` in the program that was linked in a folder."""
    elf, objects = folder / "linked.elf", [folder / "source.o"]
    return stack_bound(elf, objects, targets.get(core), "start")


def linked(text: str, core: str, folder: Path, flags: str) -> Mapping[str, int]:
    """Link C functions; return the bytes of stack of each, as gcc reports them."""
    target = targets.get(core)
    source = folder / "source.c"
    source.write_text(text, encoding="utf-8")
    compiler = (f"{target.cross}gcc", *target.arch_flags)
    options = ("-fstack-usage", "-ffunction-sections", "-ffreestanding", *flags.split())
    must(*compiler, *options, "-c", str(source), cwd=folder)
    linker = ("-nostdlib", "-Wl,--entry=start", "source.o", "-lgcc", "-o", "linked.elf")
    must(*compiler, *linker, cwd=folder)
    (report,) = folder.glob("*.su")
    rows = (line.split("\t") for line in report.read_text(encoding="utf-8").splitlines())
    return {row[0].rpartition(":")[2]: int(row[1]) for row in rows}


CALLS = """
#define APART __attribute__((noinline, noclone))
volatile int sink;
APART int leaf(volatile int *p) { volatile int a[%d]; a[1] = *p; return a[1] + (int)sink; }
APART int middle(int n) { volatile int b[%d]; b[0] = n; int r = leaf(b); return r + b[0]; }
APART int shallow(int n) { volatile int c[4]; c[0] = n; return middle(n + 1) + c[0]; }
int start(int n) { volatile int d[7]; d[n & 3] = 1; return shallow(n) + leaf(d) + d[0]; }
"""


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("words", [3, 200, 3000])
@pytest.mark.parametrize("flags", ["-Os", "-O2"])
@pytest.mark.quick(words=(3, 3000), flags=("-Os",))
def test_c_functions_are_bounded_as_gcc_says(
    core: str, words: int, flags: str, tmp_path: Path
) -> None:
    """Large frames move the stack pointer by constants that gcc loads or computes."""
    usage = linked(CALLS % (words, words), core, tmp_path, flags)
    found = bound_in(tmp_path, core)
    names = ["start", "shallow", "middle", "leaf"]
    assert found.bytes == sum(usage[name] for name in names)
    assert [name for name, _ in found.path] == names
    assert found.reason == ""


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("int f(int n) { return n ? f(n / 3) + n * n : 1; } int start(int n) { return f(n) + 1; }",
         r"f calls itself"),
        ("void use(char *p); int start(int n) { char a[n]; use(a); return a[0]; }"
         "__attribute__((noinline)) void use(char *p) { *p = 1; }",
         r"start moves the stack pointer by a number"),
        ("int start(int (*call)(void)) { return call() + 1; }",
         r"start calls an address"),
        ("int start(int (*call)(void)) { return call(); }",
         r"start (jumps to|calls) an address"),
    ],
    ids=["recursion", "array", "call", "jump"],
)  # fmt: skip
@pytest.mark.quick(core=("cortex-m0", "rv32imac"))
def test_what_has_no_bound_is_named(core: str, text: str, reason: str, tmp_path: Path) -> None:
    flags = "-O1 -fno-optimize-sibling-calls" if "f(n /" in text else "-O2"
    found = bounded(text, core, tmp_path, flags)
    assert found.bytes is None
    assert re.match(reason, found.reason), found.reason


TABLE = """
#define APART __attribute__((noinline, noclone))
APART static int small(int n) { volatile int a[2]; a[0] = n; return a[0]; }
APART static int large(int n) { volatile int a[50]; a[n & 7] = n; return a[0]; }
static int (*const table[])(int) = {small, large};
int start(int n) { return table[n & 1](n) + 1; }
"""


@pytest.mark.parametrize("core", CORES)
@pytest.mark.quick(core=("cortex-m4", "rv32imac"))
def test_calls_through_tables_reach_all_their_functions(core: str, tmp_path: Path) -> None:
    usage = linked(TABLE, core, tmp_path, "-Os")
    found = bound_in(tmp_path, core)
    assert found.bytes == usage["start"] + usage["large"]
    assert [name for name, _ in found.path] == ["start", "large"]


ASSEMBLY = """
__attribute__((naked, noinline)) void inner(void) {
    __asm__("push {r4-r7, lr}\\n sub sp, #20\\n %s add sp, #20\\n pop {r4-r7, pc}\\n %s");
}
int start(int n) { inner(); return n + 1; }
"""


@pytest.mark.parametrize("core", ["cortex-m0", "cortex-m3"])
@pytest.mark.parametrize(
    ("more", "behind", "own"),
    [
        ("push {r0}\n pop {r3}\n", "", 44),
        ("bl 2f\n 1: ", "2: push {r0, r1}\n pop {r0, r1}\n bl 1b\n", 48),
        ("add pc, r2\n nop\n nop\n push {r0-r2}\n pop {r0-r2}\n", "", 52),
    ],
    ids=["push", "far", "computed"],
)
def test_assembly_is_bounded(core: str, more: str, behind: str, own: int, tmp_path: Path) -> None:
    """`bl` within a function is a far jump; a computed jump may reach the rest of the function."""
    text = ASSEMBLY % (more.replace("\n", "\\n"), behind.replace("\n", "\\n"))
    found = bounded(text, core, tmp_path, "-Os")
    assert dict(found.path)["inner"] == own
    assert found.bytes == own + dict(found.path)["start"]


@pytest.mark.qemu
@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("network", ["kws", "ad", "ic", "sww", "vww"])
@pytest.mark.parametrize("optimize", ["speed", "size"])
@pytest.mark.quick(network=("kws",), optimize=("size",))
def test_inferences_use_as_much_stack_as_the_bound(
    core: str, network: str, optimize: Optimize
) -> None:
    """The firmware's interrupts may come on top of the bound while the stack is deepest."""
    board = BOARDS[core]
    simulable(load(board))
    model = Network("mlperf_tiny", f"{network}_int8").model
    artifact = compile_model(model, Options(core, board, optimize, network))
    measured = run(artifact, random_samples(artifact.graph, 1, 0)).measured
    bound, used = measured.stack_bound, measured.stack
    assert bound is not None
    assert bound.bytes is not None, bound.reason
    assert used is not None
    assert bound.interrupts is not None
    assert bound.bytes - SLACK <= used <= bound.bytes + bound.interrupts
