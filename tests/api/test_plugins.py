"""Tests of plugins: a new operator works from import to C, and errors name a faulty plugin."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from jinja2 import FileSystemLoader

from smelt.api import plugins
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.api.plugins import load_plugins
from smelt.codegen.text.render import environment
from smelt.errors import ConfigError, UnsupportedError
from smelt.frontend import load
from smelt.frontend.tflite import CONVERTERS
from smelt.ir import Op, evaluate
from smelt.ir.text import parse_graph, print_graph
from tests.support.tflite_networks import O, T, network

CUBE = '''
"""Cube: x * x * x, element by element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from smelt.codegen.lower.kernel import Input, Kernel, KernelCall, Output, Parameters, Request
from smelt.frontend.tflite import Converter, TfliteOperation
from smelt.ir import Array, Node, Op, TensorType


@dataclass(frozen=True)
class Cube(Op):
    scale: float = 1.0

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        (x,) = inputs
        return (TensorType(x.shape, x.dtype),)

    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = inputs
        return (x * x * x,)


@dataclass(frozen=True)
class CubeParameters(Parameters):
    count: int


class CubeKernel(Kernel[Cube]):
    op = Cube

    def offer(self, node: Node[Cube], request: Request) -> KernelCall:
        return KernelCall(
            template="cube.j2",
            stem="cube",
            parameters=CubeParameters(node.output.type.size),
            operands=(Input(0, "x"), Output(0, "y")),
            in_place=((0, 0),),
        )


def convert(operation: TfliteOperation) -> None:
    operation.emit(Cube(2.0), operation.input(0))


KERNELS = {"c": [CubeKernel()]}
TEMPLATES = Path(__file__).parent / "templates"
TFLITE_CONVERTERS = {"cube": Converter(convert)}
'''
TEMPLATE = """\
/* The cube of each element. */
/*
{{ layers }}
 */
void {{ function }}({{ signature }}) {
    for (int32_t i = 0; i < {{ count }}; ++i) {
        y[i] = x[i] * x[i] * x[i];
    }
}
"""
NETWORK = network(
    [T("x", (1, 4)), T("y", (1, 4))], [O("cube", ["x"], ["y"])], inputs=["x"], outputs=["y"]
)


def _none_installed(group: str) -> metadata.EntryPoints:
    del group
    return metadata.EntryPoints(())


@pytest.fixture(autouse=True)
def _no_traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Hide installed plugins, and remove those that a test loads."""
    monkeypatch.setattr(plugins, "entry_points", _none_installed)
    loader = environment().loader
    assert isinstance(loader, FileSystemLoader)
    operators, converters, folders = dict(Op.registry), dict(CONVERTERS), list(loader.searchpath)
    modules = set(sys.modules)
    yield
    for name in [name for name in sys.modules if name.startswith("smelt_plugin")]:
        if name not in modules:
            del sys.modules[name]
    for table, before in ((Op.registry, operators), (CONVERTERS, converters)):
        for name in table.keys() - before.keys():
            del table[name]
    loader.searchpath[:] = folders


@pytest.fixture
def cube(tmp_path: Path) -> Path:
    path = tmp_path / "cube.py"
    path.write_text(CUBE, encoding="utf-8")
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "cube.j2").write_text(TEMPLATE, encoding="utf-8")
    return path


def plugin(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "plugin.py"
    path.write_text(dedent(text), encoding="utf-8")
    return path


def test_a_custom_operator_works_from_import_to_c(cube: Path) -> None:
    with pytest.raises(UnsupportedError, match="custom operator 'cube'"):
        load(NETWORK)
    loaded = load_plugins([cube])
    imported = load(NETWORK)
    x = np.array([[1, -2, 3, 0.5]], np.float32)
    np.testing.assert_array_equal(evaluate(imported.graph, [x]).outputs[0], x**3)
    text = print_graph(imported.graph)
    assert "= Cube(%x) {scale=2.0} from cube #0" in text
    assert print_graph(parse_graph(text)) == text
    built = compile_model(NETWORK, Options(name="net", kernels=plugins.kernels(loaded)))
    sources = "".join(built.project.files.values())
    assert "y[i] = x[i] * x[i] * x[i];" in sources
    assert "net_cube(" in sources
    if shutil.which("make") and shutil.which("cc"):
        np.testing.assert_array_equal(built.run({"x": x})["output_0"], x**3)


def test_an_operator_without_its_kernel_is_refused(cube: Path) -> None:
    load_plugins([cube])
    with pytest.raises(UnsupportedError, match="Cube"):
        compile_model(NETWORK)


def test_a_plugin_is_executed_once(cube: Path) -> None:
    (first,) = load_plugins([cube])
    (again, other) = load_plugins([cube, cube.parent / "templates" / ".." / "cube.py"])
    assert first.converters["cube"] is again.converters["cube"] is other.converters["cube"]
    loader = environment().loader
    assert isinstance(loader, FileSystemLoader)
    assert loader.searchpath.count(str(cube.parent / "templates")) == 1


def test_kernels_of_later_plugins_come_first(tmp_path: Path, cube: Path) -> None:
    other = plugin(
        tmp_path,
        """\
        from smelt.codegen.lower.kernel import Kernel, KernelCall
        from smelt.ops.tensor.copy import Copy

        class Mine(Kernel):
            op = Copy
            def offer(self, node, request):
                raise NotImplementedError

        KERNELS = {"c": (Mine(),)}
        """,
    )
    found = plugins.kernels(load_plugins([cube, other]))
    assert [type(kernel).__name__ for kernel in found["c"]] == ["Mine", "CubeKernel"]


def test_installed_plugins_are_found(
    tmp_path: Path, cube: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cube.rename(tmp_path / "smelt_plugin_cube.py")
    monkeypatch.syspath_prepend(tmp_path)
    point = metadata.EntryPoint("cube", "smelt_plugin_cube", plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", metadata.EntryPoints((point,)).select)
    (found,) = load_plugins()
    assert found.source == "cube = smelt_plugin_cube"
    assert "cube" in CONVERTERS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nowhere_to_be_found\n", r"plugin.py, line 1: ModuleNotFoundError: No module"),
        ("\n\nx = (\n", r"plugin.py, line 3: SyntaxError"),
        ("def f():\n    return 1 / 0\n\nf()\n", r"plugin.py, line 2: ZeroDivisionError"),
        ("import sys\nsys.exit(3)\n", r"plugin.py, line 2: SystemExit: 3"),
        ("KERNELS = ()\n", r"plugin.py: TypeError: KERNELS is \(\), not a mapping"),
        ("KERNELS = {'gpu': ()}\n", r"ValueError: KERNELS: unknown backend 'gpu'; choose from .*c"),
        ("KERNELS = {'c': [1]}\n", r"TypeError: KERNELS\['c'\] must contain only Kernel objects"),
        ("KERNELS = {'c': 1}\n", r"TypeError: 'int' object is not iterable"),
        ("TFLITE_CONVERTERS = {'cube': len}\n", r"TypeError: TFLITE_CONVERTERS\['cube'\] is <b"),
        ("TEMPLATES = 'nowhere/at/all'\n", r"ValueError: TEMPLATES is 'nowhere/at/all', not a"),
        (
            "from smelt.frontend.tflite import Converter\n"
            "TFLITE_CONVERTERS = {'CONV_2D': Converter(print)}\n",
            r"ValueError: operator CONV_2D already has a converter",
        ),
        (
            "from smelt.ir import Op\nclass Conv2D(Op): pass\n",
            r"ValueError: operator Conv2D is already defined in smelt.ops.core.convolution",
        ),
    ],
)
def test_a_faulty_plugin_is_named_and_undone(tmp_path: Path, text: str, message: str) -> None:
    path = plugin(tmp_path, "from smelt.ir import Op\nclass Left(Op): pass\n")
    path.write_text(text + path.read_text() if "line" not in message else text)
    before = dict(Op.registry)
    for _ in range(2):  # the second call must behave the same
        with pytest.raises(ConfigError, match=message) as caught:
            load_plugins([path])
        assert str(caught.value).startswith(f"plugin {path}")
        assert Op.registry == before


def test_missing_files_and_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent.py: FileNotFoundError"):
        load_plugins([tmp_path / "absent.py"])
    (tmp_path / "plugin.txt").touch()
    with pytest.raises(ConfigError, match=r"plugin.txt: ImportError: not a Python file"):
        load_plugins([tmp_path / "plugin.txt"])
