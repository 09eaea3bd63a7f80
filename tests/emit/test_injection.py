"""Names from a file or the command line cannot inject code into C, a shell or a web page."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from markdown_it import MarkdownIt
from onnx import TensorProto, helper, numpy_helper

from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.codegen.emit.export import formats
from smelt.codegen.text.literals import c_comment, code_span
from smelt.frontend import InputOptions
from smelt.ir import evaluate
from smelt.proof.run import run
from smelt.samples import random_samples
from tests.support.cli_runner import Smelt, runner
from tests.support.export_tools import cmake, export, need
from tests.support.graphs import assert_same
from tests.support.projects import must, network_sources
from tests.support.vulkan_tools import requires_vulkan

MARK = "INJECTED"
NAMES = [
    f'q" {MARK} \\"',
    f"a*/ int {MARK}; /*",
    f"/*/ {MARK} /*/*",
    "??/",
    "???/",
    "ends in \\",
    f"a\n#error {MARK}\n",
    f"c\r#error {MARK}",
    f"$(touch {MARK})",
    f"`touch {MARK}`",
    "${HOME}$$@%.o%n%s",
    "\x1b[31mred\x1b]0;title\x07\x9b2J",
    "<script>alert(1)</script>",
    "x` <script>alert(1)</script> y",
    "x` ![picture](https://example.com/x.png) [link](https://example.com) y",
    "[link](javascript:alert(1))",
    "| a | b |\n|---|---|",
    f"a\n{MARK} in QEMU: bit-exact\r\n{MARK}\ttoo",
    "]]> --> <!-- &amp; <![CDATA[",
    "\u202eltr\u202c\u200b\u2028\x85",
    "[red]markup[/red] [/]",
    "{{ 7 * 7 }} {% raw %}",
    f'//% endif\n#include "{MARK}.h"',
    f'"); system("touch {MARK}"); ("',
    "name: [yaml, *anchor] # !!python",
    "é" * 40,
    "x" * 3000,
]
DIMENSION = f'D*/ `$(touch {MARK})` <b> "\\'


@cache
def hostile(kind: str = "own") -> bytes:
    """Return a network whose tensors, nodes, constants, dimension and graph have hostile names."""
    nodes: list[onnx.NodeProto] = []
    weights = {f"w {name}": np.full((4, 4), 0.1 * i, np.float32) for i, name in enumerate(NAMES)}
    ends = [*NAMES[1:], f"last {NAMES[0]}"]
    for i, (before, after) in enumerate(zip(NAMES, ends, strict=True)):
        label = f"n {before}"
        if i % 2:
            nodes.append(helper.make_node("MatMul", [before, f"w {before}"], [after], name=label))
        else:
            nodes.append(helper.make_node(("Relu", "Neg", "Abs")[i % 3], [before], [after], label))
    rows: str | int = DIMENSION if kind == "open" else 3
    results = (ends[-1], NAMES[9], NAMES[13], NAMES[14])
    (first, *others) = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 4])
        for name in (NAMES[0], *results)
    )
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, NAMES[1], [first], others, constants)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def refused() -> bytes:
    """Return a network that cannot be compiled; the error names a tensor of two lines."""
    name = f"a\n{MARK} in QEMU: bit-exact"
    nodes = [helper.make_node("Relu", ["x"], [name]), helper.make_node("NonZero", [name], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [2, None])
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y])).SerializeToString()


def compiled(kind: str = "own", options: Options | None = None) -> Artifact:
    lengths = InputOptions(dims={DIMENSION: (1, 3)} if kind == "open" else {})
    return compile_model(hostile(kind), replace(options or Options(), inputs=lengths))


def assert_nothing_was_executed(folder: Path) -> None:
    """Fail if a command in a name was executed."""
    assert not [path for path in folder.rglob("*") if path.name == MARK]


@pytest.mark.parametrize("name", [*NAMES, "?" * 7, "*" * 3 + "/", "/" + "*" * 3, "??" * 3 + "/"])
def test_names_cannot_end_a_comment(name: str) -> None:
    for text in (c_comment(name), code_span(name)):
        assert text.isascii()
        assert text.isprintable()
        assert not any(bad in text for bad in ("*/", "/*", "??"))
    assert "`" not in code_span(name)


def test_projects_build_without_executing_names(tmp_path: Path) -> None:
    need("make", "cmake", "clang")
    artifact = compiled("open")
    artifact.with_firmware().write(tmp_path / "project")
    must("make", "EXTRA_CFLAGS=-Wcomment -Wtrigraphs", cwd=tmp_path / "project")
    cmake(tmp_path / "project", tmp_path / "build")
    for source in network_sources(tmp_path / "project"):
        must("clang", "-std=c99", "-Wcomment", "-Wtrigraphs",
             "-Werror", "-fsyntax-only", f"-I{tmp_path / 'project'}", str(source))  # fmt: skip
    assert_nothing_was_executed(tmp_path)
    assert_clean_page((tmp_path / "project/README.md").read_text())


@pytest.mark.parametrize("format_", sorted(formats()))
def test_exports_build_without_executing_names(format_: str, tmp_path: Path) -> None:
    """Build by Make or CMake if it is the format's tool, and compile sources and examples."""
    need("make", "cmake")
    folder = tmp_path / "lib"
    export(compiled("open"), format_, folder)
    if format_ == "make":
        must("make", "CFLAGS=-Wall -Wextra -Werror", cwd=folder)
    elif format_ == "cmake":
        cmake(folder, tmp_path / "build", "-DCMAKE_C_FLAGS=-Wall -Wextra -Werror")
    include = {f"-I{path.parent}" for path in folder.rglob("*.h")}
    flags = ["-Wall", "-Wextra", "-Werror", "-Wcomment", "-Wtrigraphs", "-fsyntax-only", *include]
    for source in folder.rglob("*.c"):
        if "samples" not in source.parts:
            must("gcc", "-std=c99", *flags, str(source))
    for source in folder.rglob("*.cpp"):
        must("g++", *flags, str(source))
    for header in folder.rglob("*_net.h"):
        must("gcc", "-std=c99", *flags, "-xc", str(header))
        must("g++", *flags, "-xc++", str(header))
    for description in folder.glob("*.pdsc"):
        ElementTree.parse(description)
    assert_nothing_was_executed(tmp_path)
    assert_clean_page((folder / "README.md").read_text())


@requires_vulkan
@pytest.mark.parametrize("format_", [None, "make", "cmake"])
def test_gpu_projects_build_without_executing_names(format_: str | None, tmp_path: Path) -> None:
    need("make", "cmake")
    artifact = compiled("own", Options(target="vulkan", backends=("vulkan", "c")))
    folder = tmp_path / "gpu"
    if format_ is None:
        artifact.with_firmware().write(folder)
    else:
        export(artifact, format_, folder)
    assert artifact.network.device is not None
    if format_ == "cmake":
        cmake(folder, tmp_path / "build")
    else:
        must("make", cwd=folder)
    assert_nothing_was_executed(tmp_path)
    assert_clean_page((folder / "README.md").read_text())


def test_a_network_with_hostile_names_is_correct() -> None:
    artifact = compiled()
    samples = random_samples(artifact.imported.graph, 2, 0)
    expected = [evaluate(artifact.imported.graph, sample).outputs for sample in samples]
    assert_same(list(run(artifact, samples).outputs), expected, "names alone")


def assert_clean_page(text: str) -> None:
    """Fail if a Markdown page has HTML, a link or an image, or a table row that a name began."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    found = [t for token in tokens for t in (token, *(token.children or ()))]
    kinds = {token.type for token in found}
    assert "html_block" not in kinds
    assert "html_inline" not in kinds
    assert "image" not in kinds
    links = [str(token.attrs.get("href")) for token in found if token.type == "link_open"]
    assert not [link for link in links if not link.startswith("https://github.com/ARM-software/")]
    assert all(c.isprintable() or c in "\n\t" for c in text)


@pytest.fixture
def smelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Smelt:
    return runner(tmp_path, monkeypatch, capfd)


def test_terminal_output_contains_no_control_characters(smelt: Smelt) -> None:
    """All commands that print names are tested, also with hostile file names."""
    file = Path(f"a b $(touch {MARK}) `touch {MARK}` \x1b[31m.onnx")
    file.write_bytes(hostile("open"))
    dim = ("--dim", f"{DIMENSION}=1..3")
    commands = (
        (0, "inspect", file, *dim),
        (0, "inspect", file, "--ir", *dim),
        (1, "inspect", file),
        (0, "partition", file, *dim),
        (0, "build", file, "-o", "out", *dim),
        (0, "verify", file, *dim, "--html", "v.html"),
        (1, "build", file, "-o", "other", "--dim", "\x1b[2J=3"),
        (1, "quantize", file, "-o", "q.onnx", "--calibration", "none.npz", *dim),
        (1, "verify", "refused.onnx"),
        (1, "build", "refused.onnx", "-o", "other"),
    )
    Path("refused.onnx").write_bytes(refused())
    for code, *command in commands:
        ran = smelt(*command)
        assert ran.code == code, ran.err
        text = ran.out + ran.err
        assert text
        assert all(c.isprintable() or c in "\n\t" for c in text), command
        assert not [line for line in text.splitlines() if line.startswith(MARK)], command
    assert not Path(MARK).exists()
    page = Path("v.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
