"""A backend is a folder that can be added or deleted: everything else works without it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import smelt.codegen.backends
from smelt.codegen.lower.backend import backend
from smelt.codegen.lower.kernel import Refusal, Request
from smelt.ir import DType, Node, Op, Origin, Quant, Rounding, TensorType, Value
from smelt.ops.core.binary import BINARY, Binary
from smelt.ops.core.reduce import REDUCE, Reduce
from smelt.ops.core.unary import UNARY, Unary
from smelt.targets import catalog

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(
    folder.name
    for folder in Path(smelt.codegen.backends.__path__[0]).iterdir()
    if (folder / "__init__.py").exists() and folder.name != "c"
)
PROGRAM = """
import sys
from dataclasses import replace
from importlib import import_module
from importlib.abc import MetaPathFinder
from pkgutil import walk_packages

name, network = sys.argv[1:]
package = f"smelt.codegen.backends.{name}"

class Refuse(MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname == package or fullname.startswith(package + "."):
            raise ModuleNotFoundError(f"No module named '{fullname}'", name=fullname)

sys.meta_path.insert(0, Refuse())

import smelt
from smelt.targets import catalog

# The targets without it; that of an accelerator is its backend's.
changed = [
    replace(
        target,
        backends=tuple(other for other in target.backends if other != name),
        libraries=tuple(other for other in target.libraries if other != name),
    )
    for target in catalog.available()
    if name not in target.backends or target.device is None
]
vars(catalog)["_TARGETS"] = tuple(changed)
vars(catalog)["_BY_NAME"] = {target.name: target for target in changed}
for module in walk_packages(smelt.__path__, "smelt."):
    if not module.name.startswith(package):
        import_module(module.name)

from smelt.api.compile import compile_model
from smelt.api.options import Options

for target in changed:
    assert compile_model(network, Options(target=target.name)).project.files, target.name
"""


_ABOVE = r"\b(?:accelerator|partition|schedule)\b"
BESIDE = re.compile(rf"^ *(?:from|import) smelt\.codegen(?:\.| import .*){_ABOVE}", re.M)
"""Imports that import-linter allows to all backends, but that only accelerators need."""


def test_backends_of_the_cpu_import_no_accelerator_modules() -> None:
    folder = Path(smelt.codegen.backends.__path__[0])
    knowing = {
        path.relative_to(folder).parts[0]
        for path in folder.rglob("*.py")
        if BESIDE.search(path.read_text(encoding="utf-8"))
    }
    assert {name for name in knowing if not backend(name).on_device} == set()


@pytest.mark.quick(name=("cmsis_nn", "vulkan"))
@pytest.mark.parametrize("name", NAMES)
def test_everything_else_works_without_a_backend(name: str) -> None:
    """Nothing imports the backend, and other kernels of its targets serve a network."""
    network = str(ROOT / "examples/digits/digits_int8.tflite")
    command = [sys.executable, "-c", PROGRAM, name, network]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


TYPES = (
    *(TensorType((2, 8, 8, 16), dtype) for dtype in (DType.FLOAT32, DType.INT32, DType.UINT32)),
    TensorType((2, 8, 8, 16), DType.INT8, Quant.per_tensor(0.1, 3)),
)
NEW: dict[Op, int] = {Binary("new"): 2, Unary("new"): 1, Reduce("new", (1, 2)): 1}
"""New members of families that no backend supports, with their numbers of operands."""


@pytest.mark.parametrize("op", NEW, ids=lambda op: op.name)
@pytest.mark.parametrize("name", NAMES)
def test_a_new_member_of_a_family_is_served_by_backend_c(
    name: str, op: Op, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new member needs code in `c` only, and none if it becomes a table."""
    monkeypatch.setitem(BINARY, "new", BINARY["add"])
    monkeypatch.setitem(UNARY, "new", UNARY["bitwise_not"])
    monkeypatch.setitem(REDUCE, "new", REDUCE["sum"])
    target = next(t for t in catalog.available() if name in (*t.backends, *t.libraries))
    for x in TYPES:
        if isinstance(op, Unary) and x.dtype not in (DType.INT32, DType.UINT32):
            continue
        (y,) = op.infer([x] * NEW[op])
        result = Value("y", TensorType(y.shape, y.dtype, x.quant))
        inputs = tuple(Value(f"x{i}", x) for i in range(NEW[op]))
        rounding = None if x.quant is None else Rounding.TFLM
        node = Node(op, inputs, (result,), Origin("NEW", 0), rounding)
        assert isinstance(backend(name).find(node, Request(target)), Refusal), x
