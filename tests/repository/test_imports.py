"""No module imports itself through others; import-linter checks the layers."""

import ast
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "smelt": "smelt",
    "bench": "bench",
    **{name: f"smelt.{name}" for name in ("boards", "codegen", "frontend", "quant", "targets")},
}
"""Package name by folder."""


def modules() -> dict[str, Path]:
    """Return the files of all modules of product and benchmarks by name; links are not followed."""
    found: dict[str, Path] = {}
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            inside = path.relative_to(ROOT / folder)
            if not any((ROOT / folder / parent).is_symlink() for parent in inside.parents[:-1]):
                parts = inside.with_suffix("").parts
                found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield all imported names of a file, also in functions and for type checkers only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                yield inside if inside in MODULES else node.module


def of_types(tree: ast.Module) -> frozenset[str]:
    """Return the names that are imported for type checkers only."""
    blocks = (node for node in tree.body if isinstance(node, ast.If))
    hidden = (block for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING")
    return frozenset(name for block in hidden for name in imported(block))


MUTUAL = {
    "smelt.ir.graph": "smelt.ir.",
    "smelt.ops.core.convolution": "smelt.ops.core.weights_rules",
    "smelt.ops.core.convolution_nd": "smelt.ops.core.weights_rules",
}
"""Modules with a permitted cycle, and the prefix of the modules that may import them.

The importers are traits and rules, with methods that take nodes of these operators. They import
for type checkers only, so there is no cycle at run time.
"""


def test_there_are_no_import_cycles() -> None:
    order: TopologicalSorter[str] = TopologicalSorter()
    for module, path in MODULES.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        others = frozenset(imported(tree)) & MODULES.keys() - {module}
        types = of_types(tree)
        mutual = {o for o in others & types & MUTUAL.keys() if module.startswith(MUTUAL[o])}
        order.add(module, *(others - mutual))
    order.prepare()  # raises CycleError with the cycle


def test_every_top_level_module_is_in_a_layer() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layers = next(c["layers"] for c in contracts if c["name"] == "Layers")
    named = {name for layer in layers for name in layer.split(" | ")}
    assert {name for name in MODULES if name.count(".") == 1 and name.startswith("smelt.")} <= {
        *named,
        *(name.rpartition(".")[0] for name in named),
    }
