"""What the source promises of its structure: one class a name, templates that only lay out."""

from __future__ import annotations

import ast
from collections import defaultdict

import pytest
from jinja2 import nodes

from smelt.codegen.text.render import environment
from tests.repository.sources import ROOT, modules

ARITHMETIC = (nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow)
TEMPLATES = sorted(
    path.relative_to(ROOT / "templates").as_posix() for path in (ROOT / "templates").rglob("*.j2")
)


def test_no_two_classes_have_one_name() -> None:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path.relative_to(ROOT).as_posix())
    assert found["KernelCall"] == ["codegen/lower/offer.py"]
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


def test_methods_that_override_do_not_say_see() -> None:
    """`@override` says where the docstring is; no checker asks to delete a parameter."""
    found: list[str] = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            parameters = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
            deleted = {
                name.id
                for statement in node.body[:2]
                if isinstance(statement, ast.Delete)
                for name in statement.targets
                if isinstance(name, ast.Name)
            }
            if (ast.get_docstring(node) or "").startswith("See ") or deleted & parameters:
                found.append(f"{path.relative_to(ROOT).as_posix()}:{node.lineno} {node.name}")
    assert found == []


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_only_lay_out(template: str) -> None:
    """No arithmetic; in those of kernels no method of Python objects, which no checker sees."""
    text = (ROOT / "templates" / template).read_text(encoding="utf-8")
    tree = environment().parse(text)
    sums = [node for node in tree.find_all(ARITHMETIC) if not _is_format(node)]
    assert [f"line {node.lineno}" for node in sums] == []
    if not template.startswith(("backends/", "lower/")):
        return
    called = [call.node for call in tree.find_all(nodes.Call)]
    assert [node.attr for node in called if isinstance(node, nodes.Getattr)] == []


def _is_format(node: nodes.Node) -> bool:
    """Whether `%` fills in a text."""
    return isinstance(node, nodes.Mod) and isinstance(node.left, nodes.Const)
