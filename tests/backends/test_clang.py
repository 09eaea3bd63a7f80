"""Clang compiles the kernels of every Arm core, including assembly, without warnings."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from bench.cores import CORES
from smelt.codegen.lower.backend import backend
from smelt.codegen.lower.kernel import KernelCall, Refusal, Request
from smelt.codegen.schedule.shared_symbols import Functions
from smelt.codegen.text.helpers import preamble
from smelt.ir import Node
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.targets import get
from tests.backends.armv6m import test_kernels as armv6m
from tests.backends.armv7m import test_kernels as armv7m
from tests.backends.dsp import test_kernels as dsp
from tests.backends.helium import test_kernels as helium
from tests.support.cortexm_cases import (
    AFTER,
    FREE,
    NONE,
    RELU,
    SAME,
    Case,
    binary,
    convolution,
    dense,
    depthwise,
)
from tests.support.graphs import OWN_KERNELS
from tests.support.kernels_host import PREFIX, Entry, compile_c, struct_definitions

pytestmark = pytest.mark.skipif(shutil.which("clang") is None, reason="no clang")

STRING = """
#include <stddef.h>
#include <stdint.h>
void *memcpy(void *to, const void *from, size_t count);
void *memmove(void *to, const void *from, size_t count);
void *memset(void *to, int value, size_t count);
"""
"""Declarations of the C library that kernels need and clang lacks."""


def window(side: int, depth: int, outputs: int, stride: int, activation: Activation) -> Case:
    """Return a 3x3 convolution of an image, with weights as small as trained ones."""
    shape, padding = (1, side, side, depth), SAME if stride == 1 else AFTER
    return convolution(shape, outputs, (3, 3), (stride, stride), padding, activation, largest=40)


@cache
def layers() -> dict[str, Case]:
    """Return layers of common networks, and some of odd sizes."""
    sound = ((4, 5), (1, 1))
    return {
        "first layer of an image": window(32, 3, 16, 1, RELU),
        "first layer of a sound": convolution((1, 49, 10, 1), 64, (10, 4), (2, 2), sound),
        "3x3, 16": window(32, 16, 16, 1, RELU),
        "3x3, 16 to 32": window(32, 16, 32, 2, RELU),
        "3x3, 32": window(16, 32, 32, 1, FREE),
        "3x3, 32 to 64": window(16, 32, 64, 2, RELU),
        "3x3, 64": window(8, 64, 64, 1, FREE),
        "1x1": convolution((1, 25, 5, 64), 64),
        "1x1 of stride 2": convolution((1, 32, 32, 16), 32, (1, 1), (2, 2), activation=FREE),
        "odd 1x1": convolution((1, 3, 3, 57), 31, activation=FREE, points=(3, -7)),
        "depthwise": depthwise((1, 25, 5, 64)),
        "depthwise of stride 2": depthwise((1, 48, 48, 16), (3, 3), (2, 2), AFTER),
        "depthwise of a column": depthwise((1, 24, 1, 128), (10, 1), (1, 1), NONE, FREE),
        "dense": dense(1, 640, 128),
        "odd dense": dense(3, 37, 11, FREE, points=(3, -7)),
        "addition": binary("add", 101, (0.0513, 0.0117, 0.0231), (3, -100, 17)),
    }


def clang_takes(target: str, calls: Iterable[tuple[Node, KernelCall]], folder: Path) -> None:
    """Compile functions for a target; fail the test with clang's messages."""
    functions = Functions(PREFIX)
    entries = [Entry(node, call) for node, call in calls]
    for entry in entries:
        functions.add(entry.node, entry.call)
    definitions = functions.all()
    before = preamble(*(f.uses for f in definitions))
    text = "\n".join((*before.helpers, *(f.definition for f in definitions)))
    headers = "stdint.h", *before.headers
    declared = [f"void {f.name}({f.signature});" for f in definitions]
    declared = [*struct_definitions(entries), *declared]
    source = folder / "k.c"
    source.write_text("\n".join((*(f"#include <{h}>" for h in headers), *declared, text)))
    (folder / "string.h").write_text(STRING)
    cpu = [flag for flag in get(target).arch_flags if flag.startswith(("-mcpu", "-mthumb"))]
    compile_c(
        source,
        ("clang", "--target=arm-none-eabi", *cpu, "-std=c99", "-O1", "-nostdlibinc", "-I",
         str(folder), "-c", "-o", "/dev/null"),
    )  # fmt: skip


@pytest.mark.quick(every=9)
@pytest.mark.parametrize("core", OWN_KERNELS)
@pytest.mark.parametrize("layer", layers())
def test_layers_of_networks(layer: str, core: str, tmp_path: Path) -> None:
    node, target = layers()[layer].node, get(CORES[core][1])
    answers = [backend(b).offers(node, Request(target)) for b in target.backends if b != "c"]
    calls = [call for a in answers if not isinstance(a, Refusal) for call in a.calls]
    assert calls, answers
    clang_takes(target.name, ((node, call) for call in calls), tmp_path)


@pytest.mark.quick(target=("cortex-m4",))
@pytest.mark.parametrize("target", ["cortex-m0", "cortex-m3", "cortex-m4", "cortex-m55"])
def test_cases_of_all_kernels(target: str, tmp_path: Path) -> None:
    entries = {
        "cortex-m0": lambda: [entry for _, entry in armv6m.entries("cortex-m0")],
        "cortex-m3": lambda: [entry for _, entry in armv7m.entries()],
        "cortex-m4": lambda: [Entry(c.node, c.call()) for c in dsp.cases()],
        "cortex-m55": lambda: [Entry(c.node, c.call()) for c in helium.cases()],
    }[target]()
    clang_takes(target, ((entry.node, entry.call) for entry in entries), tmp_path)
