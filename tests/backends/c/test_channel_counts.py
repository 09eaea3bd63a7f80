"""Kernels with blocks of channels in registers, for all numbers of channels, at release flags.

The compiler chooses instructions by the size of such blocks, and the processor demands alignment
for some. A kernel that was right for 8 channels under sanitizers crashed for 12 at -O2.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from smelt.api.options import Options
from smelt.ir import DType, evaluate
from smelt.ops.case import Bias, Case, Data, Weights, build
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.convolution_nd import Conv3D, ConvTranspose
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.matmul import MatMul
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.softmax import Softmax
from smelt.samples import random_samples
from smelt.targets import available
from tests.support.graphs import TWINS, Member, assert_same, combine, compile_graph, run_together
from tests.support.shared import ROOT

MOST = 36
FEW = (12, 20)
"""Numbers of channels in the quick tests: those for which gcc 12 was wrong."""

V4 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
"""Feature flags of processors that run code of -march=x86-64-v4."""

COMPILERS = ("gcc", "gcc -march=x86-64-v4", "clang", "clang -march=x86-64-v4")
"""Compilers, with flags that a user's build may add to ours."""

SETUPS = {"host": Options()} | TWINS
NOTHING = ((0, 0), (0, 0))
SAME = ((1, 1), (1, 1))


def cases(n: int) -> list[Case]:
    """Return a case of each operator, with `n` output channels."""
    wide = Data((1, 4, 5, n))
    return [
        Case("plain", Conv2D((1, 1), SAME), (Data((1, 4, 5, 3)), _weights(n, 3, 3, 3), Bias(n))),
        Case("strided", Conv2D((2, 2), SAME), (Data((1, 5, 6, 4)), _weights(n, 3, 3, 4), Bias(n))),
        Case("1x1", Conv2D((1, 1), NOTHING), (Data((1, 3, 3, 9)), _weights(n, 1, 1, 9), Bias(n))),
        Case("back", Conv2D((1, 1), NOTHING), (wide, _weights(5, 2, 2, n), Bias(5))),
        Case("own", DepthwiseConv2D((1, 1), SAME), (wide, Weights((1, 3, 3, n), 3), Bias(n))),
        Case("halved", DepthwiseConv2D((2, 2), SAME), (wide, Weights((1, 3, 3, n), 3), Bias(n))),
        Case("dense", FullyConnected(), (Data((1, 10)), Weights((n, 10), 0), Bias(n))),
        Case("rows", FullyConnected(), (Data((3, n)), Weights((7, n), 0), Bias(7))),
        Case("max", Pool2D("max", (2, 2), (2, 2), NOTHING), (wide,)),
        Case("average", Pool2D("average", (3, 3), (1, 1), SAME), (wide,)),
        Case(
            "grown",
            ConvTranspose((2, 2), NOTHING, (1, 1)),
            (Data((1, 3, 4, 5)), Weights((2, 2, 5, n), 3), Bias(n)),
        ),
        Case(
            "overlapping",
            ConvTranspose((2, 2), SAME, (1, 1)),
            (Data((1, 3, 4, 3)), Weights((3, 3, 3, n), 3), Bias(n)),
        ),
        Case(
            "volume",
            Conv3D((1, 1, 1), (*NOTHING, (0, 0)), (1, 1, 1)),
            (Data((1, 2, 3, 3, 2)), Weights((2, 2, 2, 2, n)), Bias(n)),
            (DType.FLOAT32,),
        ),
        Case("product", MatMul(), (Data((5, 7)), Data((7, n)))),
        Case("scores", MatMul((0, 1), (1, 0)), (Data((6, 9)), Data((n, 9)))),
        Case("softmax", Softmax(), (Data((4, n), -4.0, 4.0),)),
    ]


def _weights(outputs: int, *taps: int) -> Weights:
    return Weights((outputs, *taps), 0)


def check(setup: str, counts: Sequence[int]) -> None:
    """Fail unless all cases with these numbers of channels compute what their references do."""
    chosen = [(n, case, dtype) for n in counts for case in cases(n) for dtype in case.dtypes]
    graphs = [build(case, dtype) for _, case, dtype in chosen]
    members = [Member(graph, random_samples(graph, 2, 0)) for graph in graphs]
    found = run_together(members, SETUPS[setup])
    wrong: list[str] = []
    for (n, case, dtype), member, outputs in zip(chosen, members, found, strict=True):
        expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
        try:
            assert_same(outputs, expected, f"{case}-{dtype.value} of {n} channels on {setup}")
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)


@pytest.fixture
def compiler(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compile projects by one of `COMPILERS`; skip if it or the processor is absent."""
    name, *flags = str(request.param).split()
    if shutil.which(name) is None:
        pytest.skip(f"no {name}")
    info = Path("/proc/cpuinfo")
    if flags and not (info.exists() and set(info.read_text().split()) >= V4):
        pytest.skip("no processor with AVX-512 as x86-64-v4 has it, or none that says so")
    script = tmp_path / "cc"
    script.write_text(f'#!/bin/sh\nexec {request.param} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))


@pytest.mark.thorough
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("compiler", COMPILERS[:2], indirect=True)
def test_quick_channel_counts_equal_the_reference(compiler: None) -> None:
    check("host", FEW)


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("compiler", COMPILERS, indirect=True)
@pytest.mark.parametrize("first", range(1, MOST + 1, 9))
@pytest.mark.parametrize("setup", SETUPS)
def test_all_channel_counts_equal_the_reference(setup: str, first: int) -> None:
    check(setup, range(first, first + 9))


def test_arrays_of_kernels_are_declared_in_one_way() -> None:
    """Every array on the stack is declared with `SMELT_ARRAY`, in templates and in Python lines."""
    wrong: list[str] = []
    for path in (*_below("templates", "*.j2"), *_below("codegen/backends", "*.py")):
        text = re.sub(r"\{%.*?%\}|\{#.*?#\}", "", path.read_text(encoding="utf-8"))
        text = re.sub(
            r"^ *(?:typedef |static const )?struct[^;()]*?\{$.*?^ *\}(?: \w+\[.*?\] =)?",
            "",
            text,
            flags=re.MULTILINE | re.DOTALL,
        )
        for line in text.splitlines():
            found = _ARRAY.search(line)
            if found and not _EXEMPT.search(line[: found.end()]):
                wrong.append(f"{path.relative_to(ROOT)}: {line.strip()}")
    assert not wrong, "\n".join(wrong)


def _below(folder: str, pattern: str) -> list[Path]:
    return [p for p in (ROOT / folder).rglob(pattern) if set(p.parts) & _WITH_KERNELS]


_WITH_KERNELS = {
    name for target in available() if target.cross for name in (*target.backends, *target.libraries)
}
_HOLE = r"\{+[^{}]*\}+"
_ARRAY = re.compile(
    rf"(?:\b(?:u?int\d+_t|float|double|char|size_t)|\}}) \**(?:const \**)?(?:\w|{_HOLE})+\["
)
"""Regular expression for the start of an array declaration, with fields of Jinja or Python."""
_EXEMPT = re.compile(
    r"SMELT_ARRAY |static const |^ \* |\(.*, float weights\[$|typedef char .*_has_no_gaps\["
)
"""Allowed text before it: the macro, constants in flash, comments, parameters, checks of sizes."""


@pytest.mark.thorough
def test_compilers_see_every_array_aligned(tmp_path: Path) -> None:
    """In clang's AST for x86, every array on a kernel's stack has an alignment."""
    if shutil.which("clang") is None:
        pytest.skip("no clang")
    graphs = [build(case, dtype) for case in cases(12) for dtype in case.dtypes]
    for setup in ("host", "host as m0", "host as m4"):
        files = compile_graph(combine("all", graphs), SETUPS[setup]).project.files
        assert "SMELT_ARRAY" in files["all_net_kernels.c"], setup
        assert not unaligned(files, tmp_path), setup


def unaligned(files: Mapping[str, str], folder: Path) -> list[str]:
    """Return declarations of arrays on the stack, in kernels, without an alignment."""
    for name, text in files.items():
        if name.startswith("all_net"):
            (folder / name).write_text(text)
    command = ["clang", "--target=x86_64-linux-gnu", "-fsyntax-only", "-w", "-Xclang", "-ast-dump"]
    source = str(folder / "all_net_kernels.c")
    alone = os.environ | {
        "CCACHE_DISABLE": "1"
    }  # ccache could return clang's output for the text before the change
    done = subprocess.run([*command, source], capture_output=True, text=True, check=True, env=alone)
    lines = done.stdout.splitlines()
    depths = [len(line) - len(line.lstrip(" |`-")) for line in lines]
    found: list[str] = []
    seen = 0
    for i, line in enumerate(lines):
        if depths[i] == _FILE or not re.search(r"VarDecl .* '[^']*\[\d+\]'(?! static)", line):
            continue
        seen += 1
        end = next(j for j in range(i + 1, len(lines)) if depths[j] <= depths[i])
        if not any("AlignedAttr" in text for text in lines[i:end]):
            found.append(line)
    assert seen > 10
    return found


_FILE = 2
"""Indentation in the listing of declarations at file scope."""
