"""Structure of the source: unique names of types, short functions, templates without logic."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator

import pytest
from jinja2 import nodes

from smelt.boards.skeleton import SkeletonParameters
from smelt.cli.show.explore import DrawingParameters
from smelt.cli.show.profile import ProfileParameters
from smelt.cli.show.quantize import QuantizeParameters
from smelt.cli.show.verify import VerifyParameters
from smelt.codegen.backends.vulkan.dispatches import ProgramParameters
from smelt.codegen.backends.vulkan.emission import ShaderParameters
from smelt.codegen.emit.export.arduino import ArduinoParameters
from smelt.codegen.emit.export.base import ExportParameters, PragmaParameters
from smelt.codegen.emit.export.cmsis_pack import PackParameters
from smelt.codegen.emit.export.platformio import PlatformIOParameters
from smelt.codegen.emit.export.single_file import SingleFileParameters
from smelt.codegen.emit.network import NetworkParameters
from smelt.codegen.emit.project import ProjectParameters
from smelt.codegen.text.parameters import Parameters
from smelt.codegen.text.render import environment
from smelt.proof.mlperf_tiny import DevicesParameters
from tests.repository.sources import ROOT, modules
from tests.support.template_variables import given, looked_up

ARITHMETIC = (nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow)
FILTERS = frozenset(
    {"aligned_comments", "asm_statement", "c_assembly", "c_comment", "c_int", "capitalize"}
    | {"code_span", "first"}
    | {"format", "grouped", "indent", "join", "last", "lower", "reverse", "trim", "upper"}
    | {"wordwrap"}
    | {"advance", "in_parentheses", "minus", "offset", "times"}
)
"""Filters that format text or select from a sequence, and compute no number.

Those in the last line write a C operator and its operand, or nothing if it would have no effect.
Also allowed: `length` of a named sequence, and `map` to an attribute of each element.
"""

GIVEN: dict[str, tuple[type[Parameters], ...]] = {
    "backends/vulkan/gpu.": (ProgramParameters, ShaderParameters),
    "backends/vulkan/network/": (NetworkParameters,),
    "backends/vulkan/shaders.": (ProgramParameters, ShaderParameters),
    "board/": (SkeletonParameters,),
    "emit/export/": (ExportParameters,),
    "emit/export/arduino/": (ExportParameters, ArduinoParameters),
    "emit/export/cmsis-pack/": (ExportParameters, PackParameters),
    "emit/export/platformio/": (ExportParameters, PlatformIOParameters),
    "emit/export/pragmas.": (PragmaParameters,),
    "emit/export/single-file/": (ExportParameters, SingleFileParameters),
    "emit/network/": (NetworkParameters,),
    "emit/project/": (ProjectParameters,),
    "emit/project/devices.": (DevicesParameters,),
    "report/explore.": (DrawingParameters,),
    "report/memory.": (VerifyParameters,),
    "report/profile.": (ProfileParameters,),
    "report/quantize.": (QuantizeParameters,),
    "report/verify.": (VerifyParameters,),
    "text/eight_words.": (),
    "text/helpers.": (),
}
"""Parameters of templates by prefix of their path; the longest prefix counts."""

BLOCKS = {"codegen/backends/vulkan/glsl_functions.py", "codegen/text/helpers.py"}
"""Modules that use single blocks of a template; each block is a shared function."""

MOST_LINES = 60
MOST_POSITIONAL = 6
TABLES = {"Benchmark", "Gpu"}
"""Classes whose objects are the rows of a table."""

TEMPLATES = sorted(
    path.relative_to(ROOT / "templates").as_posix() for path in (ROOT / "templates").rglob("*.j2")
)


def is_of_kernel(template: str) -> bool:
    """Return whether the template renders kernel calls, or is included by one that does."""
    return template.startswith(("backends/", "lower/")) and not any(map(template.startswith, GIVEN))


def test_names_of_types_are_unique() -> None:
    """Classes, aliases, type variables and results of `Enum` and `NewType`, private or not."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in modules():
        for name in types_of(ast.parse(path.read_text(encoding="utf-8"))):
            found[name.lstrip("_")].append(path.relative_to(ROOT).as_posix())
    assert found["KernelCall"] == ["codegen/lower/kernel.py"]
    assert found["Operand"] == ["codegen/lower/kernel.py"]
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


def types_of(module: ast.Module) -> Iterator[str]:
    """Yield the names of a module's types: classes, and variables in CapWords."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for node in module.body:
        targets = node.targets if isinstance(node, ast.Assign) else ()
        targets = (node.target,) if isinstance(node, ast.AnnAssign) else targets
        for target in targets:
            if isinstance(target, ast.Name) and re.match(r"_?[A-Z]\w*[a-z]", target.id):
                yield target.id


def test_types_of_all_kinds_are_found() -> None:
    """Type variables of one letter, such as `T`, are excepted."""
    text = """
_Pair = tuple[int, int]
Kind: TypeAlias = Literal["a", "b"]
Form = Enum("Form", ["PRODUCT"])
OpT_co = TypeVar("OpT_co", bound=Op)
T = TypeVar("T")
MOST_TAPS = _LARGEST = 1 << 24
class _Block:
    class Inner: ...
"""
    assert {*types_of(ast.parse(text))} == {"_Pair", "Kind", "Form", "OpT_co", "_Block", "Inner"}


def test_overriding_methods_do_not_refer_to_the_base_class() -> None:
    """`@override` makes a docstring "See …" unnecessary, and `del` of unused parameters too."""
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


def test_objects_with_many_fields_are_created_by_keywords() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in modules()}
    nodes_of = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    made = {node.name for _, node in nodes_of if isinstance(node, ast.ClassDef)} - TABLES
    found = [
        f"{path.relative_to(ROOT).as_posix()}:{node.lineno} {ast.unparse(node.func)}"
        for path, node in nodes_of
        if isinstance(node, ast.Call) and len(node.args) > MOST_POSITIONAL
        if ast.unparse(node.func).split(".")[-1] in made
        and not any(isinstance(argument, ast.Starred) for argument in node.args)
    ]
    assert found == []


def test_functions_are_short_enough_to_review() -> None:
    """Docstrings do not count."""
    found = [
        f"{path.relative_to(ROOT).as_posix()}:{node.lineno} {node.name}: {lines_of(node)} lines"
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if lines_of(node) > MOST_LINES
    ]
    assert found == []


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a function from `def`, without its docstring."""
    last = function.end_lineno or function.lineno
    match function.body[0]:
        case ast.Expr(value=ast.Constant(value=str())) as docstring:
            said = (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
        case _:
            said = 0
    return last - function.lineno + 1 - said


def test_lines_of_functions_are_counted_without_docstrings() -> None:
    text = """
@cache
def f(
    a: int,
) -> int:
    '''One.

    Two.
    '''
    return a
"""
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    assert lines_of(function) == 4


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_contain_no_logic(template: str) -> None:
    """No template has arithmetic, or calls of Python methods, which type checkers do not see."""
    text = (ROOT / "templates" / template).read_text(encoding="utf-8")
    assert computed(environment().parse(text)) == []
    assert methods(environment().parse(text)) == []


@pytest.mark.parametrize("template", [name for name in TEMPLATES if not is_of_kernel(name)])
def test_templates_use_only_their_parameters(template: str) -> None:
    """`tests/backends/test_uses.py` and `vulkan/test_parameters.py` check templates of kernels.

    Missing parameters are type errors, because parameters are dataclasses.
    """
    folders = [folder for folder in GIVEN if template.startswith(folder)]
    assert folders, f"{template}: add its parameters to GIVEN"
    assert looked_up(template) <= given(*GIVEN[max(folders, key=len)])


def test_all_parameters_of_templates_are_used() -> None:
    printed: dict[type[Parameters], set[str]] = defaultdict(set)
    for template in TEMPLATES:
        folders = [folder for folder in GIVEN if template.startswith(folder)]
        for one in GIVEN[max(folders, key=len)] if folders else ():
            printed[one] |= looked_up(template)
    assert {
        one.__name__: sorted(given(one) - names)
        for one, names in printed.items()
        if given(one) - names
    } == {}


def test_one_function_renders_templates() -> None:
    """Its type permits only dataclasses of parameters. No other function loads a template.

    Documents of benchmarks have their own function and folder.
    """
    finding: set[str] = set()
    untyped: list[str] = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            place = path.relative_to(ROOT).as_posix()
            match node.func:
                case ast.Attribute(attr="get_template" | "select_template" | "from_string"):
                    finding.add(place)
                case ast.Name("render") if node.keywords or any(map(is_dictionary, node.args)):
                    untyped.append(f"{place}:{node.lineno}")
                case _:
                    pass
    assert finding == {"bench/pages.py", "codegen/text/render.py", *BLOCKS}
    assert untyped == []


def test_templates_of_a_backend_are_used_by_it_only() -> None:
    """Shared templates are in `templates/lower/` or `templates/text/`; the core uses only these."""
    foreign = [
        f"{path.relative_to(ROOT).as_posix()}: {name}"
        for path in (*modules(), *(ROOT / "templates").rglob("*.j2"))
        for name in re.findall(r"\bbackends/\w+(?=/)", path.read_text(encoding="utf-8"))
        if not path.relative_to(ROOT)
        .as_posix()
        .startswith((f"codegen/{name}/", f"templates/{name}/"))
    ]
    assert foreign == []


def is_dictionary(value: ast.expr) -> bool:
    """Return whether an argument is a dictionary display or a call of `dict`."""
    called = isinstance(value, ast.Call) and ast.unparse(value.func) in ("cast", "dict", "vars")
    return called or isinstance(value, ast.Dict | ast.DictComp)


@pytest.mark.parametrize(
    "text",
    [
        "{{ a + 1 }}",
        "{{ 7 % a }}",
        "{{ f % a }}",
        "{{ -a }}",
        "{{ [a, b] | sum }}",
        "{{ a | abs }}",
        "{{ a | round }}",
        "{{ (a ~ '0') | int }}",
        "{{ range(a) | length }}",
        "{{ (b[1:] ~ c) | length }}",
        "{{ a['f']() }}",
        "{{ a | attr('f') }}",
        "{{ a | map('f') }}",
        "{{ 1 if a is divisibleby 4 }}",
        "{% set y = a * 4 %}",
        "{% filter round %}{{ a }}{% endfilter %}",
    ],
)
def test_computing_templates_are_found(text: str) -> None:
    assert computed(environment().parse(text)) != []


@pytest.mark.parametrize(
    "text",
    [
        "{{ '%d' % a }}",
        "{{ -128 if a else 0 }}",
        "{% for i in range(a) %}{{ i }}{% endfor %}",
        "{{ f(a, b) | trim }}",
        "{{ a | map(attribute='f') | join }}",
        "{{ a.b | length }}",
    ],
)
def test_formatting_templates_are_accepted(text: str) -> None:
    assert computed(environment().parse(text)) == []


def test_method_calls_in_templates_are_found() -> None:
    assert methods(environment().parse("{% for k, v in a.items() %}{{ f(k) }}{% endfor %}")) == [
        "items"
    ]


def computed(tree: nodes.Template) -> list[str]:
    """Return the expressions of a template that compute a number or hide the called function."""
    looped = [loop.iter for loop in tree.find_all(nodes.For)]
    found = [
        node
        for node in tree.find_all((*ARITHMETIC, nodes.Neg, nodes.Filter, nodes.Test, nodes.Call))
        if not (_lays_out(node) or node in looped)
    ]
    return [f"line {node.lineno}: {type(node).__name__}" for node in found]


def methods(tree: nodes.Template) -> list[str]:
    """Return the methods of Python objects that a template calls."""
    called = [call.node for call in tree.find_all(nodes.Call)]
    return [node.attr for node in called if isinstance(node, nodes.Getattr)]


def _lays_out(node: nodes.Node) -> bool:
    """Return whether an operation only formats text."""
    if isinstance(node, nodes.Mod):
        return isinstance(node.left, nodes.Const) and isinstance(node.left.value, str)
    if isinstance(node, nodes.Neg):
        return isinstance(node.node, nodes.Const)
    if isinstance(node, nodes.Call):
        if isinstance(node.node, nodes.Name):
            return node.node.name != "range"
        return isinstance(node.node, nodes.Getattr)
    if isinstance(node, nodes.Test):
        return node.name in ("none", "string")
    if not isinstance(node, nodes.Filter):
        return False
    if node.name == "length":
        return isinstance(node.node, (nodes.Name, nodes.Getattr))
    if node.name == "map":
        return not node.args
    return node.name in FILTERS


def test_type_checkers_follow_links() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        checked = tomllib.load(file)["tool"]["basedpyright"]["include"]
    linked = {f"smelt/{p.name}" for p in (ROOT / "smelt").iterdir() if p.is_symlink()}
    assert "smelt/codegen" in linked
    assert linked - {"smelt/templates"} <= set(checked)
