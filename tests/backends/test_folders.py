"""A backend is a folder to add and to delete: without it, everything else works."""

import subprocess
import sys
from pathlib import Path

import pytest

import smelt.codegen.backends

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
from smelt.targets import catalogue

# The targets without it; that of an accelerator is its backend's.
changed = [
    replace(
        target,
        backends=tuple(other for other in target.backends if other != name),
        libraries=tuple(other for other in target.libraries if other != name),
    )
    for target in catalogue.available()
    if name not in target.backends or target.device is None
]
vars(catalogue)["_TARGETS"] = tuple(changed)
vars(catalogue)["_BY_NAME"] = {target.name: target for target in changed}
for module in walk_packages(smelt.__path__, "smelt."):
    if not module.name.startswith(package):
        import_module(module.name)

from smelt.api.compile import compile_model
from smelt.api.options import Options

for target in changed:
    assert compile_model(network, Options(target=target.name)).project.files, target.name
"""


@pytest.mark.quick(name=("cmsis_nn", "vulkan"))
@pytest.mark.parametrize("name", NAMES)
def test_everything_else_works_without_it(name: str) -> None:
    """It is imported nowhere, and its targets' other kernels serve a network."""
    network = str(ROOT / "examples/digits/digits_int8.tflite")
    command = [sys.executable, "-c", PROGRAM, name, network]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
